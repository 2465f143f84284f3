package jsonrpc

import (
	"bytes"
	"math"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An Outline is what can be told of a message while it passes by, in pieces and
// without holding it: which of the members that tell its kind it has, its id, and
// the code of its error. The zero value is ready for use.
type Outline struct {
	scanner jsonspan.Scanner
	read    int64  // where the piece being read begins
	token   []byte // what came before it of an unfinished token, as far as it is kept
	at      Field  // whose value comes next, of those below; fieldCount for any other

	object bool
	has    [fieldCount]bool
	id     []byte
	code   int
}

// maxOutlined is how many bytes an id may have to be known.
const maxOutlined = 256

// Reset makes o ready for another message.
func (o *Outline) Reset() {
	o.scanner.Reset()
	*o = Outline{scanner: o.scanner, token: o.token[:0], id: o.id[:0]}
}

// Write takes the next piece of the message. It never fails: of what is no JSON
// there is nothing more to tell.
func (o *Outline) Write(piece []byte) (int, error) {
	s := &o.scanner
	s.Feed(piece)
	for {
		k := s.Next()
		switch k {
		case jsonspan.More:
			o.keep(piece)
			o.read += int64(len(piece))
			return len(piece), nil
		case jsonspan.Done, jsonspan.Invalid:
			return len(piece), nil
		case jsonspan.Key:
			o.key(o.literal(piece))
		default:
			o.value(k, piece)
		}
		o.token = o.token[:0]
	}
}

// Gap tells o that n bytes follow which belong to no value, such as the framing of
// an event stream.
func (o *Outline) Gap(n int) {
	o.scanner.Gap(n)
	o.read += int64(n)
}

// End says that the message is complete, and reports whether it was JSON.
func (o *Outline) End() bool {
	o.scanner.Feed(nil)
	o.scanner.Finish()
	for {
		switch o.scanner.Next() {
		case jsonspan.Done:
			return true
		case jsonspan.Invalid, jsonspan.More:
			return false
		}
	}
}

// outlined are the members of messages, and of errors, that are looked for.
var outlined = [][]struct {
	name  string
	field Field
}{
	1: {{"id", ID}, {"method", Method}, {"result", Result}, {"error", Error}},
	2: {{"code", ErrorCode}},
}

func (o *Outline) key(literal []byte) {
	o.at = fieldCount
	if len(literal) < 2 {
		return
	}
	for _, member := range outlined[o.scanner.Depth()] {
		if jsonspan.TextIs(literal[1:len(literal)-1], member.name) {
			o.at = member.field
			o.has[member.field] = true
		}
	}
}

// value notes a value, or the beginning or end of one. What lies deeper than
// anything that is looked for is never seen here.
func (o *Outline) value(k jsonspan.Kind, piece []byte) {
	s := &o.scanner
	switch s.Depth() {
	case 0:
		o.object = k == jsonspan.BeginObject || k == jsonspan.EndObject
		depth := 0
		if o.object {
			depth = 1
		}
		s.Report(depth, math.MaxInt)
		return
	case 1:
		switch {
		case o.at == Error && k == jsonspan.BeginObject:
			s.Report(2, math.MaxInt)
			return
		case k == jsonspan.EndObject:
			s.Report(1, math.MaxInt)
		case o.at == ID:
			o.id = append(o.id[:0], o.literal(piece)...)
		}
	case 2:
		if o.at == ErrorCode && k == jsonspan.Number {
			o.code, _ = strconv.Atoi(string(o.literal(piece))) // no code is 0
		}
	}
	o.at = fieldCount
}

// literal returns the bytes of the latest token, which ends in this piece, or nil
// if they are too many.
func (o *Outline) literal(piece []byte) []byte {
	start, end := o.scanner.Span()
	switch {
	case end-start > maxOutlined:
		return nil
	case end <= o.read: // a number that a gap has ended
		return o.token
	case start >= o.read:
		return piece[start-o.read : end-o.read]
	}
	o.token = append(o.token, piece[:end-o.read]...)
	return o.token
}

// keep keeps what has come of an unfinished token.
func (o *Outline) keep(piece []byte) {
	if !o.scanner.InToken() {
		return
	}
	start, _ := o.scanner.Span()
	part := piece[max(start-o.read, 0):]
	o.token = append(o.token, part[:min(len(part), maxOutlined-len(o.token))]...)
}

// IsAnswer reports whether the message answers a request, as far as it has come.
// Unlike [Message.IsAnswer] it forgives one that has both a result and an error,
// as servers write "error":null.
func (o *Outline) IsAnswer() bool {
	return o.object && (o.has[Result] || o.has[Error]) && !o.has[Method]
}

// Answers reports whether the message answers the request with this id, as far as
// it has come: no id yet, or one of more than 256 bytes, may be the one.
func (o *Outline) Answers(id []byte) bool {
	return o.IsAnswer() && (len(o.id) == 0 || SameID(o.id, id))
}

// ErrorCode returns the code of the error that the message is.
func (o *Outline) ErrorCode() (code int, ok bool) {
	return o.code, o.object && o.has[ErrorCode] && !o.has[Method]
}

// SameID reports whether two literals are the same id. Servers that read an id and
// write it again may spell it in another way.
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
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	return errX == nil && errY == nil && x == y
}
