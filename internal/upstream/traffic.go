package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
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
