package gateway

import (
	"maps"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Request is a request of a client, and the response to it.
type Request struct {
	g          *Gateway
	w          http.ResponseWriter
	r          *http.Request
	httpMethod string
	to         Endpoint
	peer       Peer
	began      time.Time
	span       trace.Span
	version    string    // of the protocol, as the header has it
	operator   *Operator // who makes it; nil for clients

	posted
	held     heldBody // what the body takes of the room for all of them
	bodyRead bool     // or begun to be read
	caller   caller
	admitted bool    // admit was asked
	refusal  *Denial // that was reported; nil if it was not refused
	spent    bool    // what it needs was taken from the budgets of the client
	decision acl.Decision
	server   *Server   // that the request is for, as far as it is known and just one
	override *Override // of the tool that is called; nil for none

	confirmed bool // by the person at the client

	traffic traffic // with the server, if it is a call

	listTools func(*Server) *jsonrpc.Failure // in the session of the client; nil if it has none

	restore  http.Header // of the response, before a server has changed it; nil if none has
	passedOn bool        // to one server, whose exchange is recorded
	parked   bool        // a stream goes on without the handler
	left     bool        // the client cannot be written to
	ending
}

// NewRequest returns a request that came in at an endpoint, to be served.
func (g *Gateway) NewRequest(w http.ResponseWriter, r *http.Request, to Endpoint, from Peer) *Request {
	return &Request{
		g: g, w: w, r: r, httpMethod: r.Method, to: to, peer: from, began: time.Now(),
		span: trace.SpanFromContext(r.Context()), server: g.servers[to.Server],
		version: httpbody.GetHeader(r.Header, mcp.VersionHeader),
	}
}

// fail answers with a failure in place of what a server may have begun to answer.
func (q *Request) fail(failure *jsonrpc.Failure) {
	if !q.bodyRead {
		httpbody.Abandon(q.w, q.r, httpbody.Pace)
	}
	q.endWith(failure)
	if q.left {
		q.outcome = OutcomeCanceled
		return
	}
	header := q.w.Header()
	if q.restore != nil {
		clear(header)
		maps.Copy(header, q.restore)
	}
	body := failure.Append(nil, q.message.Literal(jsonrpc.ID))
	failure.SetHeader(header)
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	q.w.WriteHeader(failure.Status)
	_, _ = q.w.Write(body)
	q.traffic.answer.clear()
	q.traffic.answer.add(body)
}

// record reports the end of the request, unless that of the exchange with one server says it
// all.
func (q *Request) record() {
	if q.outcome == "" {
		q.outcome = outcomePanic
	}
	q.trace()
	q.audit()
	if q.passedOn {
		return
	}
	r := q.newRecord()
	r.Outcome, r.ErrorCode, r.Duration = q.outcome, q.errorCode, time.Since(q.began)
	q.g.config.Observer.RequestDone(r)
}

// newRecord returns what is known of the request before it ends.
func (q *Request) newRecord() Record {
	return Record{
		Server: q.serverName(), Method: q.label(q.httpMethod, q.to.Kind), Called: q.methodName(), Tool: q.toolName(),
	}
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

// guarded reports whether it matters what the request is about.
func (q *Request) guarded() bool {
	c := &q.g.config
	return q.caller.rules != nil || c.PinTools || len(c.Limits) > 0 || c.Audit > AuditDenied ||
		q.server != nil && q.server.Overrides != nil
}

// Interface guard
var _ zapcore.ObjectMarshaler = (*Request)(nil)
