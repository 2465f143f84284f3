package jsonrpc

import (
	"bytes"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An Outline parses a message in pieces, without holding it. It finds the members that tell the
// kind of the message, its id, and its error code.
type Outline struct {
	*jsonspan.Watcher
	has    [fieldCount]bool
	id     []byte
	code   int
	looked int // bytes read by Look
}

// maxLooked is how many bytes Look reads of a message that has a result by then.
const maxLooked = 64 << 10

var (
	outlineFields = [...]Field{ID, Method, Result, ResultType, Error, ErrorCode}
	outlinePaths  = jsonspan.CompilePaths("id", "method", "result", "result.resultType", "error", "error.code")
)

// NewOutline returns an Outline. The message is written to it as to a [jsonspan.Watcher].
func NewOutline() *Outline {
	o := new(Outline)
	o.Watcher = outlinePaths.Watch(o.found)
	return o
}

// Reset prepares o for another message.
func (o *Outline) Reset() {
	o.Watcher.Reset()
	*o = Outline{Watcher: o.Watcher, id: o.id[:0]}
}

// Look reads the next piece of a message like Write, until it has read 64 KiB and found a result.
// What follows then does not matter to its callers.
func (o *Outline) Look(p []byte) {
	for len(p) > 0 && (o.looked < maxLooked || !o.has[Result]) {
		n := min(len(p), maxLooked)
		_, _ = o.Write(p[:n])
		o.looked += n
		p = p[n:]
	}
}

// Looked returns how many bytes Look has read.
func (o *Outline) Looked() int { return o.looked }

func (o *Outline) found(path int, k jsonspan.Kind, literal []byte) {
	switch field := outlineFields[path]; {
	case k == jsonspan.Key:
		o.has[field] = true
	case field == ID:
		o.id = append(o.id[:0], literal...)
	case field == ErrorCode && k == jsonspan.Number:
		o.code, _ = strconv.Atoi(string(literal)) // 0 if invalid
	}
}

// Has reports whether the message has a field so far. It knows only the fields of an Outline.
func (o *Outline) Has(f Field) bool { return o.has[f] }

// IsResponse reports whether the message is a response, so far. Unlike [Message.IsResponse] it
// accepts both a result and an error, because some servers send "error":null.
func (o *Outline) IsResponse() bool {
	return (o.has[Result] || o.has[Error]) && !o.has[Method]
}

// IsResponseTo reports whether the message may be the response to the request with this id. An id
// that has not been read yet, or has more than 256 bytes, matches.
func (o *Outline) IsResponseTo(id []byte) bool {
	return o.IsResponse() && (len(o.id) == 0 || SameID(o.id, id))
}

// ErrorCode returns the code of an error response.
func (o *Outline) ErrorCode() (code int, ok bool) {
	return o.code, o.has[ErrorCode] && !o.has[Method]
}

// SameID reports whether two literals are the same id. Servers may spell an id in another way, such
// as 1.0 for 1, but an integer without point and exponent has only one spelling.
func SameID(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) == 0 || len(b) == 0 || (a[0] == '"') != (b[0] == '"') {
		return false
	}
	if a[0] == '"' {
		text := jsonspan.AppendText(nil, b[1:len(b)-1])
		return jsonspan.TextIs(a[1:len(a)-1], string(text))
	}
	if !bytes.ContainsAny(a, ".eE") && !bytes.ContainsAny(b, ".eE") {
		return false
	}
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	return errX == nil && errY == nil && x == y
}

// NumberOf returns the number in an id or token that the gateway has chosen; 0 for others. Some
// servers return 1 as 1.0 or "1".
func NumberOf(literal []byte) uint64 {
	if len(literal) > 1 && literal[0] == '"' {
		number, err := strconv.ParseUint(jsonspan.Text(literal[1:len(literal)-1]), 10, 64)
		if err != nil {
			return 0
		}
		return number
	}
	if number, err := strconv.ParseUint(string(literal), 10, 64); err == nil {
		return number
	}
	whole, err := strconv.ParseFloat(string(literal), 64)
	if err != nil || whole != float64(uint32(whole)) {
		return 0
	}
	return uint64(whole)
}
