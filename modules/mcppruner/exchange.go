package mcppruner

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

// A door is one of the ways in.
type door uint8

const (
	rpcDoor door = iota // by POST of one JSON-RPC message
	mcpDoor             // over Streamable HTTP
)

// An exchange is a request to the pruner and the answer to it.
type exchange struct {
	handler *Handler
	door    door
	r       *http.Request
	message jsonrpc.Message
	era     mcp.Era
	logged  bool // what is called, by a handler in front of this one

	// For the access log, which may be written while the call still goes on.
	tool   atomic.Pointer[string]
	pruned atomic.Pointer[pruning]
}

// A reply is what goes back to the client.
type reply struct {
	status int
	allow  string // the header, if any
	body   []byte // JSON, or none
}

func (a reply) write(w http.ResponseWriter) {
	header := w.Header()
	if a.allow != "" {
		header.Set("Allow", a.allow)
	}
	if a.body != nil {
		header.Set("Content-Type", "application/json")
		header.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // who has left does not need it
}

// refuse answers what has not come as far as being a message.
func refuse(failure *jsonrpc.Failure) reply {
	return reply{status: failure.Status, body: failure.Append(nil, nil)}
}

// serve answers a request at one of the doors.
func (h *Handler) serve(at door, r *http.Request) reply {
	x := &exchange{handler: h, door: at, r: r}
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
		refused := refuse(jsonrpc.MethodNotAllowed())
		refused.allow = http.MethodPost
		return refused
	}
	body, failure := h.read(r)
	if failure != nil {
		return refuse(failure)
	}
	return x.post(body)
}

// behindGateway reports whether a gateway has let the request in already. Masks set
// the other placeholders of calls, too, but this one is a gateway's.
func behindGateway(repl *caddy.Replacer) bool {
	if repl == nil {
		return false
	}
	_, set := repl.GetString("http.mcp.request_id")
	return set
}

// read reads the body of a request.
func (h *Handler) read(r *http.Request) ([]byte, *jsonrpc.Failure) {
	if httpbody.Encoding(r.Header) != "" {
		return nil, jsonrpc.UnsupportedEncoding()
	}
	if r.ContentLength > h.requestLimit {
		return nil, jsonrpc.PayloadTooLarge()
	}
	body, err := httpbody.ReadWithin(r, h.requestLimit, httpbody.Pace)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge || int64(len(body)) > h.requestLimit {
		return nil, jsonrpc.PayloadTooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, jsonrpc.RequestTimeout()
	}
	if err != nil {
		return nil, jsonrpc.ParseError()
	}
	return body, nil
}

// post answers a message.
func (x *exchange) post(body []byte) reply {
	m := &x.message
	if failure := m.ReadRequest(body); failure != nil {
		return x.fail(failure)
	}
	if failure := m.Check(); failure != nil {
		return x.fail(failure)
	}
	x.era = mcp.EraOf(x.r.Header.Get(mcp.VersionHeader), m)
	switch {
	case m.IsNotification():
		return reply{status: http.StatusAccepted} // there is none that means anything here
	case !m.IsRequest() && x.door == mcpDoor:
		return reply{status: http.StatusAccepted} // an answer, to nothing we have asked
	case !m.IsRequest():
		return x.fail(jsonrpc.InvalidRequest("the message is not a request"))
	case x.era == mcp.Modern:
		return x.postModern()
	}
	switch method := m.Text(jsonrpc.Method); method {
	case "initialize":
		return x.answer(x.initialize())
	case "notifications/initialized", "ping": // the former with an id, of clients that know no better
		return x.answer([]byte("{}"))
	default:
		return x.either(method)
	}
}

// postModern answers a request of the modern era.
func (x *exchange) postModern() reply {
	m := &x.message
	if failure := mcp.CheckModern(x.r.Header, m); failure != nil {
		return x.fail(failure)
	}
	if !m.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return x.fail(jsonrpc.UnsupportedVersion(mcp.Shortened(m.Text(jsonrpc.ProtocolVersion)), mcp.Versions()))
	}
	switch method := m.Text(jsonrpc.Method); method {
	case "server/discover":
		return x.answer(x.discover())
	default:
		return x.either(method)
	}
}

// either answers what can be asked in both eras.
func (x *exchange) either(method string) reply {
	switch method {
	case "tools/list":
		return x.answer(x.list("tools", toolList))
	case "tools/call":
		return x.call()
	case "resources/list": // clients ask for these, whatever they are told that there is
		return x.answer(x.list("resources", nil))
	case "resources/templates/list":
		return x.answer(x.list("resourceTemplates", nil))
	case "prompts/list":
		return x.answer(x.list("prompts", nil))
	case "health":
		return x.answer(jsonrpc.Encode(x.handler.health()))
	}
	failure := jsonrpc.MethodNotFound(mcp.Shortened(method))
	if x.era == mcp.Legacy {
		failure = failure.AsAnswer()
	}
	return x.fail(failure)
}

// answer answers the request with a result.
func (x *exchange) answer(result []byte) reply {
	if x.era == mcp.Modern {
		var signed bytes.Buffer
		_ = jsonspan.Splice(&signed, result, []jsonspan.Edit{jsonspan.Insert(result, signature)}) // a buffer takes it
		result = signed.Bytes()
	}
	return reply{status: http.StatusOK, body: jsonrpc.Answer(x.message.Literal(jsonrpc.ID), result)}
}

// fail answers the request with an error. It has a status of its own over Streamable
// HTTP only, except for what is not even JSON. What has the headers of that has come
// over it, whichever door a gateway has taken.
func (x *exchange) fail(failure *jsonrpc.Failure) reply {
	streamable := x.door == mcpDoor || x.era == mcp.Modern && x.r.Header.Get(mcp.VersionHeader) != ""
	if !streamable && failure.Code != jsonrpc.CodeParseError {
		failure = failure.AsAnswer()
	}
	return reply{status: failure.Status, body: failure.Append(nil, x.message.Literal(jsonrpc.ID))}
}

// failWith answers the request with an error of the pruner's own, of which data says
// more.
func (x *exchange) failWith(code int, symbol string, data any) reply {
	failure := jsonrpc.Encode(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data"`
	}{code, symbol, data})
	body := slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), x.message.Literal(jsonrpc.ID), []byte(`,"error":`), failure, []byte("}"))
	return reply{status: http.StatusOK, body: body}
}

// MarshalLogObject puts what was called, and what came of it, into the access log.
func (x *exchange) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if tool := x.tool.Load(); tool != nil && !x.logged {
		enc.AddString("mcp_tool", *tool)
	}
	if pruned := x.pruned.Load(); pruned != nil {
		return pruned.MarshalLogObject(enc)
	}
	return nil
}

// Interface guard
var _ zapcore.ObjectMarshaler = (*exchange)(nil)
