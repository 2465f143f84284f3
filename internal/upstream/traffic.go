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

// Traffic is what the exchanges of a call have brought. Handshakes and lists have none: the methods below do
// nothing with a nil receiver.
type Traffic struct {
	Received int64 // bytes of what the server has answered
	Sent     int64 // bytes that the filter and the mask have left of it
	Masked   mask.Report
	Answer   *Recording // nil if it is not recorded
}

// receive notes that so many bytes have come from the server.
func (t *Traffic) receive(n int) {
	if t != nil {
		t.Received += int64(n)
	}
}

// pass notes that so many bytes are left for the client.
func (t *Traffic) pass(n int) {
	if t != nil {
		t.Sent += int64(n)
	}
}

// report returns where the mask tells what it has done.
func (t *Traffic) report() *mask.Report {
	if t == nil {
		return nil
	}
	return &t.Masked
}

// recording returns where the answer for the client is recorded; nil if it is not.
func (t *Traffic) recording() *Recording {
	if t == nil {
		return nil
	}
	return t.Answer
}

// Add adds what other exchanges have brought.
func (t *Traffic) Add(other *Traffic) {
	t.Received += other.Received
	t.Sent += other.Sent
	t.Masked.Add(&other.Masked)
}

const (
	// MaxRecorded is how many bytes of the arguments, and of the result, of a call are recorded.
	MaxRecorded = 64 << 10

	// maxEnvelope is how many bytes may come before the result in an answer.
	maxEnvelope = 1 << 10
)

// A Recording is the answer to a call, as the client gets it, or how it begins. Nothing is recorded with a nil
// receiver.
type Recording struct {
	begin []byte
	size  int // of all of it
}

// Add takes the next bytes of the answer.
func (r *Recording) Add(p []byte) {
	if r != nil {
		r.size += len(p)
		r.begin = append(r.begin, p[:min(len(p), maxEnvelope+MaxRecorded-len(r.begin))]...)
	}
}

// Clear forgets what was no answer.
func (r *Recording) Clear() {
	if r != nil {
		r.begin, r.size = r.begin[:0], 0
	}
}

// Result returns the result in the answer, or its error, as it is kept.
func (r *Recording) Result() []byte {
	value, whole := resultIn(r.begin)
	switch {
	case value == nil:
		return nil
	case whole:
		return Recorded(value, len(value), MaxRecorded)
	}
	before, after := len(r.begin)-len(value), len("}")
	return Recorded(value, r.size-before-after, MaxRecorded)
}

// resultIn returns the result, or the error, of an answer that may be incomplete, and whether it is whole.
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

// Recorded returns a copy of a JSON value as it is kept: as it is if it has no more than limit bytes, and otherwise how
// it begins, as a string. Of a value of size bytes, the beginning may be all there is.
func Recorded(value []byte, size, limit int) []byte {
	if size <= limit && size == len(value) {
		if json.Valid(value) { // else it could not be shown as JSON
			return bytes.Clone(value)
		}
		return jsonrpc.Quote(string(value))
	}
	return Beginning(value, size, limit)
}

// Beginning returns a string that tells how a text of size bytes begins, in up to limit bytes.
func Beginning(text []byte, size, limit int) []byte {
	end := min(limit, len(text))
	for end < len(text) && !utf8.RuneStart(text[end]) { // messages are UTF-8
		end--
	}
	return jsonrpc.Quote(fmt.Sprintf("%s… (%d bytes)", text[:end], size))
}
