package inbound

import (
	"context"
	"maps"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Request is a request of a client, with its response.
type Request struct {
	HTTP     *http.Request
	Writer   http.ResponseWriter
	Endpoint Endpoint
	Peer     Peer
	Began    time.Time
	Version  string // protocol version, from the header

	upstream.PostedMessage
	Caller   access.Caller
	Server   *upstream.Server   // target server; nil if unknown, or not exactly one
	Override *toolview.Override // override of the called tool; nil for none

	AdmitAsked  bool // Admit was called, whatever it decided
	Decision    acl.Decision
	Elicitation Elicitation

	// ListTools lists the tools of a server in the session of the client; nil if there is no
	// session.
	ListTools func(*upstream.Server) *jsonrpc.Failure

	// Results.
	Traffic     upstream.Traffic // with servers, of a call
	IsForwarded bool             // forwarded to one server, whose exchange is recorded
	upstream.Ending

	gate       *Gate
	httpMethod string
	span       trace.Span
	operator   *Operator // operator who makes the request; nil for clients

	held         heldBody    // the body, in the meter of all bodies
	bodyRead     bool        // at least in part
	denial       *Denial     // reported denial; nil if not denied
	charged      bool        // charged to the rate limits of the client
	headerBefore http.Header // headers of the response before a server changed them; nil if unchanged
	parked       bool        // a stream goes on without the handler
	clientGone   bool        // the client cannot be written to
}

// NewRequest returns a request at an endpoint.
func (g *Gate) NewRequest(w http.ResponseWriter, r *http.Request, endpoint Endpoint, peer Peer) *Request {
	q := &Request{
		gate: g, Writer: w, HTTP: r, httpMethod: r.Method, Endpoint: endpoint, Peer: peer, Began: time.Now(),
		span: trace.SpanFromContext(r.Context()), Server: g.Servers[endpoint.Server],
		Version: httpbody.GetHeader(r.Header, mcp.VersionHeader),
	}
	q.Elicitation.q = q
	return q
}

// fail sends a failure instead of the response of a server.
func (q *Request) fail(failure *jsonrpc.Failure) {
	if !q.bodyRead {
		httpbody.Abandon(q.Writer, q.HTTP, httpbody.Pace)
	}
	q.FailWith(failure)
	if q.clientGone {
		q.Outcome = upstream.OutcomeCanceled
		return
	}
	header := q.Writer.Header()
	if q.headerBefore != nil {
		clear(header)
		maps.Copy(header, q.headerBefore)
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

// record reports the end of the request. If it was forwarded to one server, its exchange reports
// RequestDone.
func (q *Request) record() {
	if q.Outcome == "" {
		q.Outcome = upstream.OutcomePanic
	}
	q.describeSpan()
	reportCall(q)
	if q.IsForwarded {
		return
	}
	r := q.NewRecord(q.serverName(), q.httpMethod, q.Endpoint.Kind)
	r.Outcome, r.ErrorCode, r.Duration = q.Outcome, q.ErrorCode, time.Since(q.Began)
	q.gate.observer.RequestDone(r)
}

// serverName returns the name of the target server; "" if it is not exactly one.
func (q *Request) serverName() string {
	if q.Server == nil {
		return ""
	}
	return q.Server.Name
}

// MarshalLogObject adds the call and its error code to the access log.
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

// targetMatters reports whether a decision on the request, or a report of it, depends on its
// target.
func (q *Request) targetMatters() bool {
	c := &q.gate.config
	return q.Caller.Client != nil || c.PinTools || len(c.Limits) > 0 || c.Audit > AuditDenied ||
		q.Server != nil && q.Server.Overrides != nil
}

// An Operator makes a request with the identity of a client.
type Operator struct {
	Identity   string
	Inspection *upstream.Inspection

	// Serve serves the request instead of the Aggregate.
	Serve func(*Request) *jsonrpc.Failure
}

// ActAs makes the request one of an operator.
func (q *Request) ActAs(o *Operator) { q.operator = o }

// CanPark reports whether the handler may return while a stream goes on: no part of the request is
// counted or traced.
func (q *Request) CanPark() bool { return q.held.bytes == 0 && !q.span.IsRecording() }

// Park notes that a stream goes on without the handler. It returns the record to report when the
// stream ends.
func (q *Request) Park() upstream.Record {
	q.parked = true
	return q.NewRecord(q.serverName(), q.httpMethod, q.Endpoint.Kind)
}

// IsParked reports whether a stream goes on without the handler.
func (q *Request) IsParked() bool { return q.parked }

// Serve serves the request.
func (q *Request) Serve() {
	defer func() {
		if !q.parked {
			q.held.release()
			q.record() // also if reverse_proxy panics because a connection broke
		}
	}()
	if failure := q.serve(); failure != nil {
		q.fail(failure)
	}
}

// Refuse sends a failure.
func (q *Request) Refuse(failure *jsonrpc.Failure) {
	defer q.record()
	q.fail(failure)
}

// serve serves the request, or returns the failure to send.
func (q *Request) serve() *jsonrpc.Failure {
	if q.HTTP.TLS != nil && !q.HTTP.TLS.HandshakeComplete {
		return jsonrpc.TooEarly() // a replayed call must not run
	}
	if q.HTTP.Method != http.MethodPost { // only a POST has a message, but some servers read any body
		httpbody.Empty(q.HTTP)
	}
	bodyFailure, failure := identify(q)
	if failure != nil {
		return failure
	}
	upstream.DropHopByHop(q.HTTP.Header)
	switch {
	case bodyFailure != nil:
		return bodyFailure
	case q.HTTP.Method == http.MethodPost:
		if failure := q.checkAmbiguity(); failure != nil {
			return failure
		}
		if q.gate.config.Auth != nil {
			if failure := stripToken(&q.Message); failure != nil {
				return failure
			}
		}
		q.linkSpan()
		beginRecording(q)
	}
	if q.Endpoint.Kind != upstream.Aggregate {
		return single{q}.serve()
	}
	if q.gate.config.Auth != nil && !q.gate.forwardsAuth {
		// Some credentials differ in each request, and would make the client look like another one.
		upstream.DropHeaders(q.HTTP.Header, q.gate.credentials)
	}
	if q.operator != nil {
		return q.operator.Serve(q)
	}
	return q.gate.aggregate.Serve(q)
}

// checkAmbiguity refuses messages that the server may parse differently: in another charset and, if
// decisions depend on them, with keys in another case or contradicting headers.
func (q *Request) checkAmbiguity() *jsonrpc.Failure {
	for _, contentType := range q.HTTP.Header["Content-Type"] {
		if !httpbody.IsUTF8(contentType) {
			return jsonrpc.UnsupportedCharset()
		}
	}
	if q.Endpoint.Kind != upstream.Aggregate && !q.targetMatters() &&
		q.gate.config.Auth == nil && q.Caller.Identity == "" {
		return nil
	}
	_, known := mcp.KnownMethod(q.MethodName())
	failure := q.Message.CheckExact(known)
	if failure != nil || q.Endpoint.Kind == upstream.Aggregate { // the aggregate checks the headers itself
		return failure
	}
	return mcp.CheckHeaders(q.HTTP.Header, &q.Message)
}

// InheritedKey is the context key of the [Peer.Inherited] of a request.
type InheritedKey struct{}

// A Context is the context of everything done for a request to the aggregate. Some of that outlives
// the request, so the Context does not hold the request. It computes values on demand.
type Context struct {
	context.Context
	Caller    access.Caller
	Inherited any
}

// Value implements [context.Context].
func (c *Context) Value(key any) any {
	switch key.(type) {
	case stdio.OwnerKey:
		return c.Caller.Budget()
	case InheritedKey:
		return c.Inherited
	}
	return c.Context.Value(key)
}

// Caddy's tracing directive starts a span for each request. The gateway adds the call, by
// OpenTelemetry's conventions for MCP. It sends the trace to the server: over HTTP in a header, and
// in the message, which is all that a child process gets.

// describeSpan adds the call and its outcome to the span.
func (q *Request) describeSpan() {
	if !q.span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{attribute.String("mcp.method.name", q.MethodName())}
	add := func(key, value string) {
		if value != "" {
			attributes = append(attributes, attribute.String(key, value))
		}
	}
	add("mcp.server.name", q.serverName())
	switch q.MethodName() {
	case "tools/call":
		add("gen_ai.operation.name", "execute_tool")
		add("gen_ai.tool.name", q.ToolName())
	case "prompts/get":
		add("gen_ai.prompt.name", q.ToolName())
	}
	add("jsonrpc.request.id", mcp.Shortened(string(q.Message.Literal(jsonrpc.ID))))
	add("mcp.protocol.version", mcp.Shortened(q.Version))
	add("enduser.id", q.Caller.Name)
	if q.ErrorCode != 0 {
		attributes = append(attributes, attribute.Int("rpc.jsonrpc.error_code", q.ErrorCode))
	}
	if q.Outcome != upstream.OutcomeOK {
		add("error.type", q.Outcome)
		q.span.SetStatus(codes.Error, q.Outcome)
	}
	q.span.SetAttributes(attributes...)
}

// linkSpan links the span to the trace in the message, if they differ.
func (q *Request) linkSpan() {
	if !q.span.IsRecording() || !q.Message.Has(jsonrpc.Traceparent) {
		return
	}
	carrier := propagation.MapCarrier{upstream.Traceparent: q.Message.Text(jsonrpc.Traceparent)}
	client := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(q.HTTP.Context(), carrier))
	if client.IsValid() && client.TraceID() != q.span.SpanContext().TraceID() {
		q.span.AddLink(trace.Link{SpanContext: client})
	}
}
