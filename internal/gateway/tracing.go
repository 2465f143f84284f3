package gateway

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Caddy's tracing directive begins a span for each request. The gateway adds what was
// called, by OpenTelemetry's conventions for MCP, and tells the server which trace the call
// belongs to: over HTTP in a header, and in the message, which is all a child process gets.

// trace adds to the span of the request what was called, and how it ended.
func (q *Request) trace() {
	if !q.span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{attribute.String("mcp.method.name", q.methodName())}
	add := func(key, value string) {
		if value != "" {
			attributes = append(attributes, attribute.String(key, value))
		}
	}
	add("mcp.server.name", q.serverName())
	switch q.methodName() {
	case "tools/call":
		add("gen_ai.operation.name", "execute_tool")
		add("gen_ai.tool.name", q.toolName())
	case "prompts/get":
		add("gen_ai.prompt.name", q.toolName())
	}
	add("jsonrpc.request.id", mcp.Shortened(string(q.message.Literal(jsonrpc.ID))))
	add("mcp.protocol.version", mcp.Shortened(q.version))
	add("enduser.id", q.caller.name)
	if q.errorCode != 0 {
		attributes = append(attributes, attribute.Int("rpc.jsonrpc.error_code", q.errorCode))
	}
	if q.outcome != OutcomeOK {
		add("error.type", q.outcome)
		q.span.SetStatus(codes.Error, q.outcome)
	}
	q.span.SetAttributes(attributes...)
}

// linkTrace links the span of the request to the trace that the message names, if the span
// was begun without knowing that.
func (q *Request) linkTrace() {
	if !q.span.IsRecording() || !q.message.Has(jsonrpc.Traceparent) {
		return
	}
	carrier := propagation.MapCarrier{traceparent: q.message.Text(jsonrpc.Traceparent)}
	client := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(q.r.Context(), carrier))
	if client.IsValid() && client.TraceID() != q.span.SpanContext().TraceID() {
		q.span.AddLink(trace.Link{SpanContext: client})
	}
}

// propagate adds the trace of the request to the message, unless the client has.
func (x *exchange) propagate(r *http.Request) {
	span := trace.SpanContextFromContext(r.Context())
	m := &x.message
	if !span.IsValid() || !m.IsRequest() || m.Has(jsonrpc.Traceparent) {
		return
	}
	if has := m.Kind(jsonrpc.Params); m.Has(jsonrpc.Params) && has != jsonspan.BeginObject && has != jsonspan.Null {
		return // a list of params stays as it is
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.Context(), carrier)
	member := append([]byte(`"`+traceparent+`":`), jsonrpc.Quote(carrier[traceparent])...)
	x.edit(r, x.message.InsertMeta(member))
}

// traceparent is the member of _meta, and the header, that names the trace of a request.
const traceparent = "traceparent"
