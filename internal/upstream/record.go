package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
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

// Traffic counts what the exchanges of a call transferred. Handshakes and lists have none: the
// methods below do nothing with a nil receiver.
type Traffic struct {
	Received int64 // bytes of responses from the server
	Sent     int64 // bytes left of them after the filter and the mask
	Masked   mask.Report
	Answer   *Recording // nil if not recorded
}

// addReceived counts bytes from the server.
func (t *Traffic) addReceived(n int) {
	if t != nil {
		t.Received += int64(n)
	}
}

// addSent counts bytes for the client.
func (t *Traffic) addSent(n int) {
	if t != nil {
		t.Sent += int64(n)
	}
}

// report returns the report for the mask.
func (t *Traffic) report() *mask.Report {
	if t == nil {
		return nil
	}
	return &t.Masked
}

// recording returns the recording of the response; nil if there is none.
func (t *Traffic) recording() *Recording {
	if t == nil {
		return nil
	}
	return t.Answer
}

// Add adds the traffic of other exchanges.
func (t *Traffic) Add(other *Traffic) {
	t.Received += other.Received
	t.Sent += other.Sent
	t.Masked.Add(&other.Masked)
}

const (
	// MaxRecorded is how many bytes of the arguments, and of the result, of a call are recorded.
	MaxRecorded = 64 << 10

	// maxEnvelope is how many bytes may precede the result in a response.
	maxEnvelope = 1 << 10
)

// A Recording is the response to a call as the client gets it, or its beginning. A nil Recording
// records nothing.
type Recording struct {
	beginning []byte
	size      int // of the whole response
}

// Add appends the next bytes of the response.
func (r *Recording) Add(p []byte) {
	if r != nil {
		r.size += len(p)
		r.beginning = append(r.beginning, p[:min(len(p), maxEnvelope+MaxRecorded-len(r.beginning))]...)
	}
}

// Clear drops bytes that turned out not to be the response.
func (r *Recording) Clear() {
	if r != nil {
		r.beginning, r.size = r.beginning[:0], 0
	}
}

// Result returns the result or error in the response, in the form of [Recorded].
func (r *Recording) Result() []byte {
	value, whole := resultIn(r.beginning)
	switch {
	case value == nil:
		return nil
	case whole:
		return Recorded(value, len(value), MaxRecorded)
	}
	before, after := len(r.beginning)-len(value), len("}")
	return Recorded(value, r.size-before-after, MaxRecorded)
}

// resultIn returns the result or error of a response that may be incomplete, and whether it is
// complete.
func resultIn(answer []byte) (value []byte, whole bool) {
	read := 0
	for member := range jsonspan.Members(answer) {
		if member.Key == "result" || member.Key == "error" && member.Value.Kind != jsonspan.Null {
			return answer[member.Value.Start:member.Value.End], true
		}
		read = member.End
	}
	rest := bytes.TrimLeft(answer[read:], "{, \t\r\n")
	for _, key := range []string{`"result"`, `"error"`} {
		if value, ok := bytes.CutPrefix(rest, []byte(key)); ok {
			return bytes.TrimLeft(value, ": \t\r\n"), false
		}
	}
	return nil, false
}

// Recorded returns a copy of a JSON value of size bytes: unchanged if it has at most limit bytes,
// otherwise its beginning as a string. value may be only the beginning.
func Recorded(value []byte, size, limit int) []byte {
	if size <= limit && size == len(value) {
		if json.Valid(value) { // otherwise it could not be shown as JSON
			return bytes.Clone(value)
		}
		return jsonrpc.Quote(string(value))
	}
	return Beginning(value, size, limit)
}

// Beginning returns a JSON string with the first limit bytes of a text of size bytes.
func Beginning(text []byte, size, limit int) []byte {
	end := min(limit, len(text))
	for end < len(text) && !utf8.RuneStart(text[end]) { // messages are UTF-8
		end--
	}
	return jsonrpc.Quote(fmt.Sprintf("%s… (%d bytes)", text[:end], size))
}
