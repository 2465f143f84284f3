package mcppruner

import (
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

// A request is one request to the pruner.
type request struct {
	handler *Handler
	isRPC   bool // …/rpc, else …/mcp
	r       *http.Request
	message jsonrpc.Message
	era     mcp.Era
	logged  bool // a handler in front of this one already logs the tool

	// For the access log, which may be written while the call is still running.
	tool   atomic.Pointer[string]
	pruned atomic.Pointer[pruning]
}

// A reply is the response to a request.
type reply struct {
	status int
	allow  string // value of the Allow header, or empty
	body   []byte // JSON, or nil
}

func (a reply) write(w http.ResponseWriter) {
	if a.allow != "" {
		w.Header().Set("Allow", a.allow)
	}
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	streamable.NewWriter(w, nil).Answer(a.status, &streamable.Event{Data: a.body})
}

// refuse rejects an HTTP request before its message is read.
func refuse(failure *jsonrpc.Failure) reply {
	return reply{status: failure.Status, allow: failure.Allow, body: failure.Append(nil, nil)}
}

// serve handles a request at one of the JSON-RPC endpoints.
func (h *Handler) serve(r *http.Request, isRPC bool) reply {
	x := &request{handler: h, isRPC: isRPC, r: r}
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl != nil {
		_, x.logged = repl.GetString("http.mcp.method")
	}
	telemetry.JoinAccessLog(r, x)
	if !behindGateway(repl) {
		if failure := h.origins.Admit(r); failure != nil {
			return refuse(failure)
		}
	}
	if r.Method != http.MethodPost {
		return refuse(jsonrpc.MethodNotAllowed(http.MethodPost))
	}
	body, failure := streamable.ReadBody(r, h.requestLimit)
	if failure != nil {
		return refuse(failure)
	}
	return x.post(body)
}

// behindGateway reports whether a gateway has admitted the request. Only a gateway sets the
// placeholder of the request id; masks set the other placeholders of a call, too.
func behindGateway(repl *caddy.Replacer) bool {
	if repl == nil {
		return false
	}
	_, set := repl.GetString("http.mcp.request_id")
	return set
}

// post handles a message.
func (x *request) post(body []byte) reply {
	m := &x.message
	if failure := m.ReadRequest(body); failure != nil {
		return x.fail(failure)
	}
	inspected, failure := streamable.Inspect(x.r, m)
	x.era = inspected.Era
	switch {
	case failure != nil:
		return x.fail(failure)
	case inspected.Kind == streamable.Answer && x.isRPC:
		return x.fail(jsonrpc.InvalidRequest("the message is not a request"))
	case !m.IsRequest():
		return reply{status: http.StatusAccepted} // the pruner ignores notifications, and awaits no responses
	case x.era == mcp.Modern:
		return x.postModern()
	}
	switch method := m.Text(jsonrpc.Method); method {
	case "initialize":
		return x.respond(x.initialize())
	case "notifications/initialized", "ping": // some clients send the former with an id
		return x.respond([]byte("{}"))
	default:
		return x.postAnyEra(method)
	}
}

// postModern handles a request of the modern era.
func (x *request) postModern() reply {
	if failure := streamable.CheckVersion(&x.message); failure != nil {
		return x.fail(failure)
	}
	method := x.message.Text(jsonrpc.Method)
	if method == "server/discover" {
		return x.respond(x.discover())
	}
	return x.postAnyEra(method)
}

// postAnyEra handles a request with a method of both eras.
func (x *request) postAnyEra(method string) reply {
	switch method {
	case "tools/list":
		return x.respond(x.list("tools", toolList))
	case "tools/call":
		return x.call()
	case "resources/list": // some clients call list methods that the server does not declare
		return x.respond(x.list("resources", nil))
	case "resources/templates/list":
		return x.respond(x.list("resourceTemplates", nil))
	case "prompts/list":
		return x.respond(x.list("prompts", nil))
	case "health":
		return x.respond(jsonrpc.Encode(x.handler.health()))
	}
	failure := jsonrpc.MethodNotFound(mcp.Shortened(method))
	if x.era == mcp.Legacy {
		failure = failure.WithStatusOK()
	}
	return x.fail(failure)
}

// respond responds with a result.
func (x *request) respond(result []byte) reply {
	if x.era == mcp.Modern {
		result = jsonspan.Spliced(result, jsonspan.Insert(result, modernMembers))
	}
	return reply{status: http.StatusOK, body: jsonrpc.ResultResponse(x.message.Literal(jsonrpc.ID), result)}
}

// fail responds with an error. At the rpc endpoint its HTTP status is 200, except for a body that
// is not JSON. If the request has the headers of Streamable HTTP, because a gateway sent it there,
// the error keeps its status.
func (x *request) fail(failure *jsonrpc.Failure) reply {
	hasStatus := !x.isRPC || x.era == mcp.Modern && x.r.Header.Get(mcp.VersionHeader) != ""
	if !hasStatus && failure.Code != jsonrpc.CodeParseError {
		failure = failure.WithStatusOK()
	}
	return reply{status: failure.Status, body: failure.Append(nil, x.message.Literal(jsonrpc.ID))}
}

// failWith responds with an error that only the pruner has.
func (x *request) failWith(code int, symbol string, data any) reply {
	failure := jsonrpc.Encode(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data"`
	}{code, symbol, data})
	body := slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), x.message.Literal(jsonrpc.ID),
		[]byte(`,"error":`), failure, []byte("}"))
	return reply{status: http.StatusOK, body: body}
}

// MarshalLogObject adds the tool and the effect of a pruning to the access log.
func (x *request) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if tool := x.tool.Load(); tool != nil && !x.logged {
		enc.AddString("mcp_tool", *tool)
	}
	if pruned := x.pruned.Load(); pruned != nil {
		return pruned.MarshalLogObject(enc)
	}
	return nil
}

const (
	serverName = "mcp-pruner"

	// serverVersion is the version of the tools' inputs and outputs, not of the binary.
	serverVersion = "0.1.0"
)

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type capabilities struct {
	Tools struct{} `json:"tools"`
}

// modernMembers holds the members that every result of the modern era has.
var modernMembers = slices.Concat([]byte(`"resultType":"complete","_meta":{"`+mcp.MetaServerInfo+`":`),
	jsonrpc.Encode(serverInfo{serverName, serverVersion}), []byte("}"))

const instructions = "Call prune_text before long code, logs or docs go into the conversation: " +
	"it leaves out the lines that are least relevant to the goal you name. " +
	"A marker such as ⟦PRUNÉ: prune_id=prn_… lignes 120-154 (35) raison=…⟧ replaces the lines that are left out; " +
	"call recover_text with that prune_id and those lines to read them."

// initialize returns the result of initialize, for clients of the legacy era. There are no
// sessions: any request may be the first.
func (x *request) initialize() []byte {
	return jsonrpc.Encode(struct {
		ProtocolVersion string       `json:"protocolVersion"`
		Capabilities    capabilities `json:"capabilities"`
		ServerInfo      serverInfo   `json:"serverInfo"`
		Instructions    string       `json:"instructions"`
	}{
		ProtocolVersion: mcp.Negotiate(x.message.Text(jsonrpc.Requested), mcp.Latest),
		ServerInfo:      serverInfo{serverName, serverVersion},
		Instructions:    instructions,
	})
}

// caching tells clients of the modern era how long they may cache a result.
type caching struct {
	TTL   int    `json:"ttlMs"`
	Scope string `json:"cacheScope"`
}

var publicCaching = caching{TTL: int(time.Hour / time.Millisecond), Scope: "public"}

// discover returns the result of server/discover, for clients of the modern era.
func (x *request) discover() []byte {
	versions := mcp.Versions()
	slices.Reverse(versions)
	return jsonrpc.Encode(struct {
		SupportedVersions []string     `json:"supportedVersions"`
		Capabilities      capabilities `json:"capabilities"`
		Instructions      string       `json:"instructions"`
		caching
	}{SupportedVersions: versions, Instructions: instructions, caching: publicCaching})
}

// list returns the result of a list method. items is JSON, and there is only one page.
func (x *request) list(kind string, items []byte) []byte {
	end := []byte("]}")
	if x.era == mcp.Modern {
		end = append([]byte("],"), jsonrpc.Encode(publicCaching)[1:]...)
	}
	return slices.Concat([]byte(`{"`+kind+`":[`), items, end)
}

// health is the result of the tool health.
type health struct {
	Status       string    `json:"status"`
	Server       string    `json:"server"`
	Version      string    `json:"version"`
	Capabilities []string  `json:"capabilities"`
	Timestamp    time.Time `json:"timestamp"`
	Backend      string    `json:"backend"`
}

func (h *Handler) health() health {
	return health{
		Status:       "healthy",
		Server:       serverName,
		Version:      serverVersion,
		Capabilities: []string{"prune_text", "recover_text", "annotations", "markers"},
		Timestamp:    time.Now().Truncate(time.Second),
		Backend:      h.backend.Name(),
	}
}

// Interface guard
var _ zapcore.ObjectMarshaler = (*request)(nil)
