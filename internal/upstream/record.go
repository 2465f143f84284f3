package upstream

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A Record describes a request that has ended.
type Record struct {
	Server       string // "" if not for exactly one server
	Method       string // method for metrics: one of a fixed set
	ClientMethod string // method as the client sent it
	Tool         string
	Outcome      string
	ErrorCode    int // JSON-RPC error code; 0 for none
	Duration     time.Duration

	// Whether the server responded to a client's request, or why not. Both are zero if unknown.
	Answered bool
	Fault    *Fault
}

// Outcomes of requests that did not fail. The outcome of a failure is its symbol.
const (
	OutcomeOK       = "ok"
	OutcomeError    = "error"    // the server responded with a JSON-RPC error
	OutcomeCanceled = "canceled" // the client canceled
	OutcomePanic    = "panic"    // a handler panicked
)

// outcomeHTTP has the outcomes of HTTP statuses by their first digit.
var outcomeHTTP = [10]string{
	3: "http_3xx", 4: "http_4xx", 5: "http_5xx", 6: "http_xxx", 7: "http_xxx", 8: "http_xxx", 9: "http_xxx",
}

// An Ending is how a request, or an exchange, has ended.
type Ending struct {
	Outcome   string // "" until it has ended
	ErrorCode int    // JSON-RPC error code; 0 for none
}

// FailWith records a failure.
func (e *Ending) FailWith(failure *jsonrpc.Failure) {
	e.Outcome, e.ErrorCode = failure.Data.Symbol, failure.Code
}

// endAnswered records a response of the server. outline is nil if it was not parsed.
func (e *Ending) endAnswered(outline *jsonrpc.Outline) {
	e.Outcome = OutcomeOK
	if outline == nil {
		return
	}
	if code, ok := outline.ErrorCode(); ok {
		e.Outcome, e.ErrorCode = OutcomeError, code
	}
}

// Labels in metrics for requests that are not MCP methods.
const (
	methodStream = "stream" // GET
	methodDelete = "delete" // DELETE
	methodAnswer = "answer" // response to a server request
	methodOther  = "other"
)

// Placeholders of a request to a server.
const (
	ServerPlaceholder = "http.mcp.server"
	MethodPlaceholder = "http.mcp.method"
	ToolPlaceholder   = "http.mcp.tool"
	IDPlaceholder     = "http.mcp.request_id"
	ClientPlaceholder = "http.mcp.client"
)
