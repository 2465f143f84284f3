package upstream

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A Record describes a request that has ended.
type Record struct {
	Server    string // "" if it was not for just one
	Method    string // as metrics have it: one of a fixed set
	Called    string // the method as the client has written it
	Tool      string
	Outcome   string
	ErrorCode int // of JSON-RPC; 0 for none
	Duration  time.Duration

	// What a request of a client says of the server: that it has answered, or why not.
	Answered bool
	Fault    *Fault
}

// How a request can end besides with a failure, whose symbol is its outcome.
const (
	OutcomeOK       = "ok"
	OutcomeError    = "error"    // the server answered with a JSON-RPC error
	OutcomeCanceled = "canceled" // the client has left
	OutcomePanic    = "panic"    // of a handler
)

// outcomeHTTP has the outcomes of statuses by their first digit.
var outcomeHTTP = [10]string{3: "http_3xx", 4: "http_4xx", 5: "http_5xx", 6: "http_xxx", 7: "http_xxx", 8: "http_xxx", 9: "http_xxx"}

// An Ending is how a request, or an exchange with a server, has ended.
type Ending struct {
	Outcome   string // "" as long as it has not
	ErrorCode int    // of JSON-RPC, 0 for none
}

// FailWith notes a failure.
func (e *Ending) FailWith(failure *jsonrpc.Failure) {
	e.Outcome, e.ErrorCode = failure.Data.Symbol, failure.Code
}

// endAnswered notes an answer of the server; nil for one that is not read.
func (e *Ending) endAnswered(outline *jsonrpc.Outline) {
	e.Outcome = OutcomeOK
	if outline == nil {
		return
	}
	if code, ok := outline.ErrorCode(); ok {
		e.Outcome, e.ErrorCode = OutcomeError, code
	}
}

// The methods of requests other than those of the protocol, as metrics have them.
const (
	methodStream = "stream" // GET
	methodDelete = "delete" // DELETE
	methodAnswer = "answer" // of the client to a server's request
	methodOther  = "other"
)

// The placeholders of a request to a server.
const (
	ServerPlaceholder = "http.mcp.server"
	MethodPlaceholder = "http.mcp.method"
	ToolPlaceholder   = "http.mcp.tool"
	IDPlaceholder     = "http.mcp.request_id"
	ClientPlaceholder = "http.mcp.client"
)
