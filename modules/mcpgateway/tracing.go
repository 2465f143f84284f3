package mcpgateway

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

// Traces are Caddy's: its tracing directive begins a span for each request. The gateway
// tells it what was called, by OpenTelemetry's conventions for MCP, and has the server
// know which trace the call belongs to. Over HTTP a header says so; child processes
// have only the message.

// traceparent is the member of _meta, and the header, that says which trace a request
// belongs to.
const traceparent = "traceparent"

// traced tells the span of the request what was called, and how it ended.
func (x *exchange) traced() {
	if !x.span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{attribute.String("mcp.method.name", x.methodName())}
	add := func(key, value string) {
		if value != "" {
			attributes = append(attributes, attribute.String(key, value))
		}
	}
	if x.server != nil {
		add("mcp.server.name", x.server.Name)
	}
	switch x.methodName() {
	case "tools/call":
		add("gen_ai.operation.name", "execute_tool")
		add("gen_ai.tool.name", x.toolName())
	case "prompts/get":
		add("gen_ai.prompt.name", x.toolName())
	}
	add("jsonrpc.request.id", mcp.Shortened(string(x.message.Literal(jsonrpc.ID))))
	add("mcp.protocol.version", mcp.Shortened(x.version))
	add("enduser.id", x.client())
	if x.errorCode != 0 {
		attributes = append(attributes, attribute.Int("rpc.jsonrpc.error_code", x.errorCode))
	}
	if x.outcome != outcomeOK {
		add("error.type", x.outcome)
		x.span.SetStatus(codes.Error, x.outcome)
	}
	x.span.SetAttributes(attributes...)
}

// linkTrace notes which trace the client says that its request belongs to, if the span
// of the request was begun without knowing that.
func (x *exchange) linkTrace(r *http.Request) {
	if !x.span.IsRecording() || !x.message.Has(jsonrpc.Traceparent) {
		return
	}
	carrier := propagation.MapCarrier{traceparent: x.message.Text(jsonrpc.Traceparent)}
	client := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(r.Context(), carrier))
	if client.IsValid() && client.TraceID() != x.span.SpanContext().TraceID() {
		x.span.AddLink(trace.Link{SpanContext: client})
	}
}

// propagate has the message say which trace it belongs to, unless the client has said
// so.
func (x *exchange) propagate(r *http.Request) {
	span := trace.SpanContextFromContext(r.Context())
	m := &x.message
	if !span.IsValid() || !m.IsRequest() || m.Has(jsonrpc.Traceparent) {
		return
	}
	if has := m.Kind(jsonrpc.Params); m.Has(jsonrpc.Params) && has != jsonspan.BeginObject && has != jsonspan.Null {
		return // which is not for us to change
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.Context(), carrier)
	member := append([]byte(`"`+traceparent+`":`), jsonrpc.Quote(carrier[traceparent])...)
	x.repost(r, x.message.InsertMeta(member))
}
