package inbound

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Caddy's tracing directive starts a span for each request. The gateway adds the call, by
// OpenTelemetry's conventions for MCP. It sends the trace to the server: over HTTP in a header, and
// in the message, which is all that a child process gets.

// trace adds the call and its outcome to the span of the request.
func (q *Request) trace() {
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

// linkTrace links the span of the request to the trace in the message, if they differ.
func (q *Request) linkTrace() {
	if !q.span.IsRecording() || !q.Message.Has(jsonrpc.Traceparent) {
		return
	}
	carrier := propagation.MapCarrier{upstream.Traceparent: q.Message.Text(jsonrpc.Traceparent)}
	client := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(q.HTTP.Context(), carrier))
	if client.IsValid() && client.TraceID() != q.span.SpanContext().TraceID() {
		q.span.AddLink(trace.Link{SpanContext: client})
	}
}
