package gateway

import (
	"net/http"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A Record describes a request that has ended.
type Record struct {
	Server    string // "" if it was not for just one
	Method    string // as metrics have it: one of a fixed set
	Called    string // the method as the client has written it
	Tool      string
	Outcome   string
	ErrorCode int // of JSON-RPC; 0 for none
	Duration  time.Duration
}

// How a request can end besides with a failure, whose symbol is its outcome.
const (
	OutcomeOK       = "ok"
	outcomeError    = "error"    // the server answered with a JSON-RPC error
	OutcomeCanceled = "canceled" // the client has left
	outcomePanic    = "panic"    // of a handler
)

// outcomeHTTP has the outcomes of statuses by their first digit.
var outcomeHTTP = [10]string{3: "http_3xx", 4: "http_4xx", 5: "http_5xx", 6: "http_xxx", 7: "http_xxx", 8: "http_xxx", 9: "http_xxx"}

// An ending is how a request, or an exchange with a server, has ended.
type ending struct {
	outcome   string // "" as long as it has not
	errorCode int    // of JSON-RPC, 0 for none
}

// endWith notes a failure.
func (e *ending) endWith(failure *jsonrpc.Failure) {
	e.outcome, e.errorCode = failure.Data.Symbol, failure.Code
}

// endAnswered notes an answer of the server; nil for one that is not read.
func (e *ending) endAnswered(outline *jsonrpc.Outline) {
	e.outcome = OutcomeOK
	if outline == nil {
		return
	}
	if code, ok := outline.ErrorCode(); ok {
		e.outcome, e.errorCode = outcomeError, code
	}
}

// The methods of requests other than those of the protocol, as metrics have them.
const (
	methodStream = "stream" // GET
	methodDelete = "delete" // DELETE
	methodAnswer = "answer" // of the client to a server's request
	methodOther  = "other"
)

// label returns the method of a request as metrics have it.
func (p *posted) label(httpMethod string, kind EndpointKind) string {
	switch {
	case httpMethod == http.MethodGet && kind != RPC:
		return methodStream
	case httpMethod == http.MethodDelete && kind != RPC:
		return methodDelete
	case p.message.IsAnswer():
		return methodAnswer
	}
	if method, ok := p.knownMethod(); ok {
		return method
	}
	return methodOther
}

// The placeholders of a request to a server.
const (
	ServerPlaceholder = "http.mcp.server"
	MethodPlaceholder = "http.mcp.method"
	ToolPlaceholder   = "http.mcp.tool"
	IDPlaceholder     = "http.mcp.request_id"
	ClientPlaceholder = "http.mcp.client"
)

// placeholder returns the value of a placeholder of the request to the server.
func (x *exchange) placeholder(name string) (any, bool) {
	switch name {
	case ServerPlaceholder:
		return x.server.Name, true
	case MethodPlaceholder:
		return x.methodName(), true
	case ToolPlaceholder:
		return x.toolName(), true
	case IDPlaceholder:
		return x.requestID(), true
	case ClientPlaceholder:
		return x.caller.name, true
	}
	return nil, false
}

// record reports the end of the exchange.
func (x *exchange) record(httpMethod string) {
	if x.outcome == "" {
		x.outcome = outcomePanic
	}
	x.g.config.Observer.RequestDone(&Record{
		Server: x.server.Name, Method: x.label(httpMethod, x.kind), Called: x.methodName(), Tool: x.toolName(),
		Outcome: x.outcome, ErrorCode: x.errorCode, Duration: time.Since(x.began),
	})
}

// record reports the end of the request, unless that of the exchange with one server says it
// all.
func (q *Request) record() {
	if q.outcome == "" {
		q.outcome = outcomePanic
	}
	q.trace()
	if q.passedOn {
		return
	}
	q.g.config.Observer.RequestDone(&Record{
		Server: q.serverName(), Method: q.label(q.httpMethod, q.to.Kind), Called: q.methodName(), Tool: q.toolName(),
		Outcome: q.outcome, ErrorCode: q.errorCode, Duration: time.Since(q.began),
	})
}

// serverName returns the name of the server that the request is for, "" if it is not for just
// one.
func (q *Request) serverName() string {
	if q.server == nil {
		return ""
	}
	return q.server.Name
}

// MarshalLogObject writes what was called, and how it failed, to the access log.
func (q *Request) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	for _, field := range [...][2]string{
		{"mcp_server", q.serverName()}, {"mcp_method", q.methodName()}, {"mcp_tool", q.toolName()}, {"mcp_client", q.caller.name},
	} {
		if field[1] != "" {
			enc.AddString(field[0], field[1])
		}
	}
	if q.errorCode != 0 {
		enc.AddInt("mcp_error_code", q.errorCode)
	}
	return nil
}

// Interface guard
var _ zapcore.ObjectMarshaler = (*Request)(nil)
