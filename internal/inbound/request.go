package inbound

import (
	"maps"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Request is a request of a client, and the response to it.
type Request struct {
	HTTP     *http.Request
	Writer   http.ResponseWriter
	Endpoint Endpoint
	Peer     Peer
	Began    time.Time
	Version  string // of the protocol, as the header has it

	upstream.Posted
	Caller   access.Caller
	Server   *upstream.Server   // that the request is for, as far as it is known and just one
	Override *toolview.Override // of the tool that is called; nil for none

	AdmitAsked bool // whatever it has decided
	Decision   acl.Decision
	Confirmed  bool // by the person at the client

	// ListTools asks a server for its tools in the session of the client; nil if there is none.
	ListTools func(*upstream.Server) *jsonrpc.Failure

	// How it has gone.
	Traffic  upstream.Traffic // with the server, if it is a call
	PassedOn bool             // to one server, whose exchange is recorded
	upstream.Ending

	gate       *Gate
	httpMethod string
	span       trace.Span
	operator   *Operator // that makes it; nil for clients

	held     heldBody    // what the body takes of the room for all of them
	bodyRead bool        // or begun to be read
	refusal  *Denial     // that was reported; nil if it was not refused
	spent    bool        // what it needs was taken from the budgets of the client
	restore  http.Header // of the response, before a server has changed it; nil if none has
	parked   bool        // a stream goes on without the handler
	left     bool        // the client cannot be written to
}

// NewRequest returns a request that came in at an endpoint, to be served.
func (g *Gate) NewRequest(w http.ResponseWriter, r *http.Request, to Endpoint, from Peer) *Request {
	return &Request{
		gate: g, Writer: w, HTTP: r, httpMethod: r.Method, Endpoint: to, Peer: from, Began: time.Now(),
		span: trace.SpanFromContext(r.Context()), Server: g.Servers[to.Server],
		Version: httpbody.GetHeader(r.Header, mcp.VersionHeader),
	}
}

// fail answers with a failure in place of what a server may have begun to answer.
func (q *Request) fail(failure *jsonrpc.Failure) {
	if !q.bodyRead {
		httpbody.Abandon(q.Writer, q.HTTP, httpbody.Pace)
	}
	q.FailWith(failure)
	if q.left {
		q.Outcome = upstream.OutcomeCanceled
		return
	}
	header := q.Writer.Header()
	if q.restore != nil {
		clear(header)
		maps.Copy(header, q.restore)
	}
	body := failure.Append(nil, q.Message.Literal(jsonrpc.ID))
	failure.SetHeader(header)
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	q.Writer.WriteHeader(failure.Status)
	_, _ = q.Writer.Write(body)
	q.Traffic.Answer.Clear()
	q.Traffic.Answer.Add(body)
}

// record reports the end of the request. If it was passed on to one server, the exchange has reported that.
func (q *Request) record() {
	if q.Outcome == "" {
		q.Outcome = upstream.OutcomePanic
	}
	q.trace()
	audited{q}.report()
	if q.PassedOn {
		return
	}
	r := q.newRecord()
	r.Outcome, r.ErrorCode, r.Duration = q.Outcome, q.ErrorCode, time.Since(q.Began)
	q.gate.observer.RequestDone(r)
}

// newRecord returns what is known of the request before it ends.
func (q *Request) newRecord() upstream.Record {
	return upstream.Record{
		Server: q.serverName(), Method: q.Label(q.httpMethod, q.Endpoint.Kind), Called: q.MethodName(), Tool: q.ToolName(),
	}
}

// serverName returns the name of the server that the request is for, "" if it is not for just
// one.
func (q *Request) serverName() string {
	if q.Server == nil {
		return ""
	}
	return q.Server.Name
}

// MarshalLogObject writes what was called, and how it failed, to the access log.
func (q *Request) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	for _, field := range [...][2]string{
		{"mcp_server", q.serverName()}, {"mcp_method", q.MethodName()},
		{"mcp_tool", q.ToolName()}, {"mcp_client", q.Caller.Name},
	} {
		if field[1] != "" {
			enc.AddString(field[0], field[1])
		}
	}
	if q.ErrorCode != 0 {
		enc.AddInt("mcp_error_code", q.ErrorCode)
	}
	return nil
}

// guarded reports whether it matters what the request is about.
func (q *Request) guarded() bool {
	c := &q.gate.config
	return q.Caller.Client != nil || c.PinTools || len(c.Limits) > 0 || c.Audit > AuditDenied ||
		q.Server != nil && q.Server.Overrides != nil
}

// An Operator makes a request with the identity of a client.
type Operator struct {
	Identity   string
	Inspection *upstream.Inspection

	// Serve answers the request in place of the Aggregate.
	Serve func(*Request) *jsonrpc.Failure
}

// ActAs makes the request one of an operator.
func (q *Request) ActAs(o *Operator) { q.operator = o }

// DropCredentials removes what has identified the client from its header, unless a server gets it. Some of it
// differs in each request, and would make it another client each time.
func (q *Request) DropCredentials() {
	if q.gate.config.Auth != nil && !q.gate.forwardsAuth {
		upstream.DropHeaders(q.HTTP.Header, q.gate.credentials)
	}
}

// CanPark reports whether the handler may return while a stream goes on: nothing of the request is counted or traced.
func (q *Request) CanPark() bool { return q.held.bytes == 0 && !q.span.IsRecording() }

// Park notes that a stream goes on without the handler. It returns what is to be recorded when the stream ends.
func (q *Request) Park() upstream.Record {
	q.parked = true
	return q.newRecord()
}

// IsParked reports whether a stream goes on without the handler.
func (q *Request) IsParked() bool { return q.parked }

// Interface guard
var _ zapcore.ObjectMarshaler = (*Request)(nil)
