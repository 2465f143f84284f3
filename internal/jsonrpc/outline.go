package jsonrpc

import (
	"bytes"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An Outline is what can be told of a message while it passes by, in pieces and
// without holding it: which of the members that tell its kind it has, its id, and
// the code of its error.
type Outline struct {
	*jsonspan.Watcher
	has    [fieldCount]bool
	id     []byte
	code   int
	looked int // bytes that Look has read
}

// maxLooked is how many bytes Look reads of an answer that has a result by then.
const maxLooked = 64 << 10

var (
	outlined      = [...]Field{ID, Method, Result, ResultType, Error, ErrorCode}
	outlinedPaths = jsonspan.CompilePaths("id", "method", "result", "result.resultType", "error", "error.code")
)

// NewOutline returns an Outline. It is given the message as a [jsonspan.Watcher] is.
func NewOutline() *Outline {
	o := new(Outline)
	o.Watcher = outlinedPaths.Watch(o.found)
	return o
}

// Reset makes o ready for another message.
func (o *Outline) Reset() {
	o.Watcher.Reset()
	*o = Outline{Watcher: o.Watcher, id: o.id[:0]}
}

// Look reads the next piece of a message like Write, but not to the end of a long answer:
// what follows the first 64 KiB of a result does not matter here.
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
	switch field := outlined[path]; {
	case k == jsonspan.Key:
		o.has[field] = true
	case field == ID:
		o.id = append(o.id[:0], literal...)
	case field == ErrorCode && k == jsonspan.Number:
		o.code, _ = strconv.Atoi(string(literal)) // no code is 0
	}
}

// Has reports whether the message has a member that tells its kind, as far as it has
// come.
func (o *Outline) Has(f Field) bool { return o.has[f] }

// IsAnswer reports whether the message answers a request, as far as it has come.
// Unlike [Message.IsAnswer] it forgives one that has both a result and an error,
// as servers write "error":null.
func (o *Outline) IsAnswer() bool {
	return (o.has[Result] || o.has[Error]) && !o.has[Method]
}

// Answers reports whether the message answers the request with this id, as far as
// it has come: no id yet, or one of more than 256 bytes, may be the one.
func (o *Outline) Answers(id []byte) bool {
	return o.IsAnswer() && (len(o.id) == 0 || SameID(o.id, id))
}

// ErrorCode returns the code of the error that the message is.
func (o *Outline) ErrorCode() (code int, ok bool) {
	return o.code, o.has[ErrorCode] && !o.has[Method]
}

// SameID reports whether two literals are the same id. Servers that read an id and
// write it again may spell it in another way, but whole numbers have only one.
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
