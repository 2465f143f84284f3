package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
)

// traffic is what the exchanges of a call have brought. Handshakes and lists have none: the methods below do
// nothing with a nil receiver.
type traffic struct {
	received int64 // bytes of what the server has answered
	sent     int64 // bytes that the filter and the mask have left of it
	masked   mask.Report
	answer   *recording // nil if it is not recorded
}

// receive notes that so many bytes have come from the server.
func (t *traffic) receive(n int) {
	if t != nil {
		t.received += int64(n)
	}
}

// pass notes that so many bytes are left for the client.
func (t *traffic) pass(n int) {
	if t != nil {
		t.sent += int64(n)
	}
}

// report returns where the mask tells what it has done.
func (t *traffic) report() *mask.Report {
	if t == nil {
		return nil
	}
	return &t.masked
}

// recording returns where the answer for the client is recorded; nil if it is not.
func (t *traffic) recording() *recording {
	if t == nil {
		return nil
	}
	return t.answer
}

// add adds what other exchanges have brought.
func (t *traffic) add(other *traffic) {
	t.received += other.received
	t.sent += other.sent
	t.masked.Add(&other.masked)
}

const (
	// maxRecorded is how many bytes of the arguments, and of the result, of a call are recorded.
	maxRecorded = 64 << 10

	// maxEnvelope is how many bytes may come before the result in an answer.
	maxEnvelope = 1 << 10
)

// Content is what a call has asked and was answered, without what is redacted for the client. Both are JSON values: of
// one of more than 64 KiB the beginning, as a string.
type Content struct {
	Arguments []byte // nil for none
	Result    []byte // or error, as the client has got it; nil if it has got none
}

// A recording is the answer to a call, as the client gets it, or how it begins. Nothing is recorded with a nil
// receiver.
type recording struct {
	begin []byte
	size  int // of all of it
}

// add takes the next bytes of the answer.
func (r *recording) add(p []byte) {
	if r != nil {
		r.size += len(p)
		r.begin = append(r.begin, p[:min(len(p), maxEnvelope+maxRecorded-len(r.begin))]...)
	}
}

// clear forgets what was no answer.
func (r *recording) clear() {
	if r != nil {
		r.begin, r.size = r.begin[:0], 0
	}
}

// result returns the result in the answer, or its error, as it is kept.
func (r *recording) result() []byte {
	value, whole := resultIn(r.begin)
	switch {
	case value == nil:
		return nil
	case whole:
		return recorded(value, len(value), maxRecorded)
	}
	before, after := len(r.begin)-len(value), len("}")
	return recorded(value, r.size-before-after, maxRecorded)
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

// recorded returns a copy of a JSON value as it is kept: as it is if it has no more than limit bytes, and otherwise how
// it begins, as a string. Of a value of size bytes, the beginning may be all there is.
func recorded(value []byte, size, limit int) []byte {
	if size <= limit && size == len(value) {
		if json.Valid(value) { // else it could not be shown as JSON
			return bytes.Clone(value)
		}
		return jsonrpc.Quote(string(value))
	}
	return beginning(value, size, limit)
}

// beginning returns a string that tells how a text of size bytes begins, in up to limit bytes.
func beginning(text []byte, size, limit int) []byte {
	end := min(limit, len(text))
	for end < len(text) && !utf8.RuneStart(text[end]) { // messages are UTF-8
		end--
	}
	return jsonrpc.Quote(fmt.Sprintf("%s… (%d bytes)", text[:end], size))
}
