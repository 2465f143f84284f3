package mcpgateway

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// What is told of an exchange: to the routes of the server, in metrics and logs.

// The placeholders that tell what is being called.
const (
	serverPlaceholder = "http.mcp.server"
	methodPlaceholder = "http.mcp.method"
	toolPlaceholder   = "http.mcp.tool"
	idPlaceholder     = "http.mcp.request_id"
	clientPlaceholder = "http.mcp.client"
)

func (x *exchange) placeholder(key string) (any, bool) {
	switch key {
	case serverPlaceholder:
		return x.server.Name, true
	case methodPlaceholder:
		return x.methodName(), true
	case toolPlaceholder:
		return x.toolName(), true
	case idPlaceholder:
		if id := x.message.Text(jsonrpc.ID); id != "" {
			return mcp.Shortened(id), true
		}
		return mcp.Shortened(string(x.message.Literal(jsonrpc.ID))), true
	case clientPlaceholder:
		return x.client(), true
	}
	return nil, false
}

// methodName is the method as the client has written it.
func (x *exchange) methodName() string {
	if x.method == "" && x.message.Has(jsonrpc.Method) {
		if known, ok := x.knownMethod(); ok {
			x.method = known
		} else {
			x.method = mcp.Shortened(x.message.Text(jsonrpc.Method))
		}
	}
	return x.method
}

// knownMethod is the method if the protocol knows it. None that it knows has
// escapes, and who escapes one is none we have to know.
func (x *exchange) knownMethod() (string, bool) {
	literal := x.message.Literal(jsonrpc.Method)
	if len(literal) < 2 {
		return "", false
	}
	return mcp.KnownMethod(string(literal[1 : len(literal)-1]))
}

func (x *exchange) toolName() string {
	if x.tool == "" {
		x.tool = mcp.Shortened(x.message.Text(jsonrpc.Name))
	}
	return x.tool
}

// client is the name of the client, "" if nobody knows it.
func (x *exchange) client() string { return x.caller.name }

// identity is who a client is, if Caddy's authentication knows. It may be anything that
// somebody has put into a token elsewhere.
func identity(repl *caddy.Replacer) string {
	if repl == nil {
		return ""
	}
	id, _ := repl.GetString("http.auth.user.id")
	if id != "" && auth.CheckIdentity(id) != nil {
		return "unspeakable " + digest(id)
	}
	return id
}

// record counts and logs the exchange.
func (x *exchange) record(httpMethod string) {
	if x.outcome == "" {
		x.outcome = outcomePanic
	}
	if x.span != nil {
		x.traced()
	}
	if x.passedOn {
		return
	}
	var server string
	if x.server != nil {
		server = x.server.Name
	}
	method := x.methodLabel(httpMethod)
	took := time.Since(x.began)
	requests.WithLabelValues(x.handler.Name, server, method, x.outcome).Inc()
	durations.WithLabelValues(x.handler.Name, server, method).Observe(took.Seconds())
	if c := x.handler.logger.Check(zapcore.DebugLevel, "request to MCP server"); c != nil {
		c.Write(zap.String("mcp_server", server), zap.String("mcp_method", x.methodName()), zap.String("mcp_tool", x.toolName()),
			zap.String("outcome", x.outcome), zap.Int("mcp_error_code", x.errorCode), zap.Duration("duration", took))
	}
}

// methodLabel is what was asked for, of a set that clients cannot make larger.
func (x *exchange) methodLabel(httpMethod string) string {
	switch {
	case httpMethod == http.MethodGet && x.door != rpcDoor:
		return methodStream
	case httpMethod == http.MethodDelete && x.door != rpcDoor:
		return methodDelete
	case x.message.IsAnswer():
		return methodAnswer
	}
	if method, ok := x.knownMethod(); ok {
		return method
	}
	return methodOther
}

// MarshalLogObject puts what was called, and how it failed, into the access log.
func (x *exchange) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	var server string
	if x.server != nil {
		server = x.server.Name
	}
	for _, field := range [...][2]string{
		{"mcp_server", server}, {"mcp_method", x.methodName()}, {"mcp_tool", x.toolName()}, {"mcp_client", x.client()},
	} {
		if field[1] != "" {
			enc.AddString(field[0], field[1])
		}
	}
	if x.errorCode != 0 {
		enc.AddInt("mcp_error_code", x.errorCode)
	}
	return nil
}

// Interface guard
var _ zapcore.ObjectMarshaler = (*exchange)(nil)
