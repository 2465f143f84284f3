package upstream

import (
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Traceparent is the member of _meta, and the header, with the trace of a request.
const Traceparent = "traceparent"

// propagate adds the trace of the request to the message, unless the client did.
func (x *Exchange) propagate(r *http.Request) {
	span := trace.SpanContextFromContext(r.Context())
	m := &x.Message
	if !span.IsValid() || !m.IsRequest() || m.Has(jsonrpc.Traceparent) {
		return
	}
	if kind := m.Kind(jsonrpc.Params); m.Has(jsonrpc.Params) && kind != jsonspan.BeginObject && kind != jsonspan.Null {
		return // params in an array cannot have _meta
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.Context(), carrier)
	member := append([]byte(`"`+Traceparent+`":`), jsonrpc.Quote(carrier[Traceparent])...)
	x.edit(r, x.Message.InsertMeta(member))
}
