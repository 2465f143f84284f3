package streamable

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A Reader is the http.ResponseWriter that a server answers a request into. It splits the
// answer into messages.
type Reader struct {
	// OnMessage is called with each message. Its bytes are valid until the call returns.
	OnMessage func(*Event) error

	// OnLarge returns where to write an answer that is too large to hold, or nil to drop
	// it. The writer reads it, too: if it is not JSON, Close returns a [jsonspan.Error].
	// Without OnLarge every message is held.
	OnLarge func(eventID string) io.WriteCloser

	// OnHeader is called with the status of the response. It reports whether the body is
	// wanted.
	OnHeader func(status int) bool

	// Parse reads a message. Default: its Read method
	Parse func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure

	// RequestID is the JSON-RPC id of the request. A large answer to another id is dropped.
	RequestID []byte

	// Limit is the maximum size of a message that is held. Default: 64 MiB
	Limit int

	// Position, if it is set, follows the events of the stream.
	Position *Position

	header   http.Header
	status   int
	media    httpbody.MediaType
	unwanted bool // the body
	resumed  bool // the response goes on with the stream of another one
	err      error

	events  sse.Scanner
	fields  sse.Fields // of the current event
	message jsonrpc.Message
	data    []byte
	newLine bool             // a line of data has ended
	outline *jsonrpc.Outline // of a large message
	rest    io.WriteCloser   // receives the rest of a large answer
	skip    bool             // the message answers another request
	cut     bool             // a large answer was passed on and turned out to be invalid

	questions atomic.Int32 // of the server, still open
	turned    atomic.Int64 // monotonic time of the last question or answer to one; 0 for never
	answered  bool
	owned     bool // an answer with the id of the request has come, so the server has read it
	errorCode int
}

const (
	// MaxHeld is how much of a message is held. Larger answers are passed on as they
	// arrive.
	MaxHeld = 1 << 20
	// pieceSize is how much of a large answer is passed on at once: each piece takes a
	// chunk of the response, and a system call or two.
	pieceSize = 256 << 10
	// maxRoom is how much room there is for an answer before it is known to be large.
	maxRoom = MaxHeld + pieceSize
	// maxMessage is the default of Reader.Limit.
	maxMessage = 64 << 20
)

// Header implements http.ResponseWriter.
func (r *Reader) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

// WriteHeader implements http.ResponseWriter.
func (r *Reader) WriteHeader(status int) {
	if r.status != 0 || status < 200 {
		return
	}
	r.status = status
	if httpbody.Encoding(r.Header()) == "" {
		r.media = httpbody.TypeOf(httpbody.GetHeader(r.Header(), "Content-Type"))
	}
	r.unwanted = r.OnHeader != nil && !r.OnHeader(status) || r.resumed && !r.goesOn()
	if length := httpbody.GetHeader(r.Header(), "Content-Length"); length != "" {
		if n, err := strconv.Atoi(length); err == nil && n > 0 {
			r.data = slices.Grow(r.data, min(n, maxRoom))
		}
	}
}

// Write implements http.ResponseWriter.
func (r *Reader) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.unwanted || r.err != nil {
		return len(p), r.err
	}
	switch r.media {
	case httpbody.EventStream:
		r.events.Each(p, r.part)
	default: // some servers label JSON as text/plain, or not at all
		r.take(p)
	}
	return len(p), r.err
}

// FlushError implements the Flush of http.ResponseController. Messages are passed on
// as soon as they are complete.
func (r *Reader) FlushError() error { return r.err }

// buffers are reused between answers.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Borrow gives r a pooled buffer. The function it returns gives the buffer back, after
// which no bytes of a message are valid.
func (r *Reader) Borrow() (giveBack func()) {
	b := buffers.Get().(*[]byte)
	r.data = (*b)[:0]
	return func() {
		if *b = r.data; cap(*b) <= 2*MaxHeld {
			buffers.Put(b)
		}
		r.data = nil
	}
}

// QuestionTime is how long a client, and the person in front of it, may take to answer a
// question of a server.
const QuestionTime = 10 * time.Minute

// Idle returns how long the server has been silent since its last question was answered. It
// is 0 while a question is open, and the largest duration if none was asked.
func (r *Reader) Idle() time.Duration {
	turned := r.turned.Load()
	if turned == 0 {
		return math.MaxInt64
	}
	since := Clock() - time.Duration(turned)
	if r.questions.Load() > 0 && since < QuestionTime {
		return 0
	}
	return since
}

// Clock is a monotonic clock: it does not jump when the time of day is set.
func Clock() time.Duration { return time.Since(started) }

var started = time.Now()

// QuestionAsked notes that the server has asked the client something.
func (r *Reader) QuestionAsked() {
	r.turned.Store(int64(Clock()))
	r.questions.Add(1)
}

// QuestionAnswered notes that a question was answered, or needs no answer anymore.
func (r *Reader) QuestionAnswered() {
	r.turned.Store(int64(Clock()))
	r.questions.Add(-1)
}

// HasQuestions reports whether a question of the server is open.
func (r *Reader) HasQuestions() bool { return r.questions.Load() > 0 }

// Outcome returns the code of the JSON-RPC error that was the answer, 0 for a result, and
// whether an answer has come.
func (r *Reader) Outcome() (code int, answered bool) { return r.errorCode, r.answered }

// Status returns the status of the response, 0 before there is one.
func (r *Reader) Status() int { return r.status }

// goesOn reports whether the response can be the rest of a stream.
func (r *Reader) goesOn() bool { return r.status == http.StatusOK && r.IsStream() }

// IsStream reports whether the response is a stream of events.
func (r *Reader) IsStream() bool { return r.media == httpbody.EventStream }

// part takes the next part of an event stream.
func (r *Reader) part(kind sse.Kind, part []byte) {
	if r.err != nil {
		return
	}
	switch kind {
	case sse.Data:
		if r.newLine {
			r.newLine = false
			r.take([]byte{'\n'})
		}
		r.take(part)
	case sse.Frame:
		r.newLine = len(r.data) > 0 || r.rest != nil
		r.fields.Read(part)
	case sse.Dispatch:
		if r.Position != nil {
			r.Position.advance(&r.fields, len(r.data) > 0 || r.rest != nil || r.skip)
		}
		r.dispatch()
	}
}

// take takes the next bytes of a message.
func (r *Reader) take(p []byte) {
	for ; len(p) > pieceSize; p = p[pieceSize:] { // as from a filter, which holds messages
		r.takePiece(p[:pieceSize])
	}
	r.takePiece(p)
}

func (r *Reader) takePiece(p []byte) {
	switch {
	case r.err != nil || r.skip:
	case r.rest != nil && len(r.data) == 0 && len(p) >= pieceSize:
		r.passPiece(p)
	case r.rest != nil:
		if r.data = append(r.data, p...); len(r.data) >= pieceSize {
			r.passPiece(r.data)
		}
	default:
		if n := len(r.data) + len(p); n > cap(r.data) {
			r.data = slices.Grow(r.data, max(n, min(2*n, maxRoom))-len(r.data))
		}
		r.data = append(r.data, p...)
		if r.OnLarge != nil && len(r.data) > MaxHeld {
			r.passOn()
		}
		if len(r.data) > cmp.Or(r.Limit, maxMessage) {
			r.err = errTooLarge
		}
	}
}

// passOn begins to pass on a message that is too large to hold, if it is the answer.
func (r *Reader) passOn() {
	if r.outline == nil {
		r.outline = jsonrpc.NewOutline()
	}
	r.outline.Look(r.data[r.outline.Looked():])
	switch {
	case !r.outline.IsAnswer():
	case r.RequestID != nil && !r.outline.Answers(r.RequestID):
		r.skip, r.data = true, r.data[:0]
	default:
		r.owned = r.outline.Has(jsonrpc.ID)
		if r.rest = r.OnLarge(r.fields.ID); r.rest == nil {
			r.skip, r.data = true, r.data[:0]
			return
		}
		_, r.err = r.rest.Write(r.data)
		r.data = r.data[:0]
	}
}

// passPiece passes on a piece of a large answer, which is all that has come.
func (r *Reader) passPiece(p []byte) {
	r.outline.Look(p)
	_, r.err = r.rest.Write(p)
	r.data = r.data[:0]
}

// LargeHas reports whether the large answer that is being passed on has a field, as far as
// it has come.
func (r *Reader) LargeHas(f jsonrpc.Field) bool { return r.outline.Has(f) }

// dispatch passes a complete message on.
func (r *Reader) dispatch() {
	e, skip := Event{ID: r.fields.ID, Retry: r.fields.Retry, Type: r.fields.Type, Data: r.data, Message: &r.message}, r.skip
	defer func() {
		r.data, r.newLine, r.outline, r.skip = r.data[:0], false, nil, false
		r.fields.Reset()
	}()
	switch {
	case skip, len(e.Data) == 0 && e.ID == "" && e.Retry == "" && r.rest == nil:
		return // a comment
	case r.rest != nil:
		r.dispatchLarge()
		return
	}
	if r.message = (jsonrpc.Message{}); len(e.Data) > 0 && r.parse() != nil {
		if r.media != httpbody.EventStream {
			r.err = errNoMessage
		}
		return // a stream may have others
	}
	if err := r.OnMessage(&e); r.err == nil {
		r.err = err
	}
}

func (r *Reader) parse() *jsonrpc.Failure {
	if r.Parse != nil {
		return r.Parse(&r.message, r.data)
	}
	return r.message.Read(r.data)
}

// dispatchLarge ends an answer that was passed on as it arrived.
func (r *Reader) dispatchLarge() {
	if r.passPiece(r.data); r.err != nil {
		return
	}
	r.answered = true
	r.errorCode, _ = r.outline.ErrorCode()
	err := r.rest.Close()
	if _, r.cut = errors.AsType[*jsonspan.Error](err); r.cut {
		r.err = errNoMessage
		return
	}
	r.rest, r.err = nil, err
}

// Close says that the response is complete. It returns the error that reading it has met.
func (r *Reader) Close() error {
	if r.err == nil && !r.unwanted && (len(r.data) > 0 || r.rest != nil) {
		// An event whose end is missing counts if its message is complete. Otherwise it comes
		// again when the stream is resumed.
		if r.Position != nil && r.IsStream() && r.rest == nil && r.parse() == nil {
			r.Position.advance(&r.fields, true)
		}
		r.dispatch()
	}
	return r.err
}

// Torn reports whether a part of an answer was passed on, and the rest will never come.
func (r *Reader) Torn() bool { return r.rest != nil || r.cut }

// Answers reports whether a message answers the request with this id. So does an error
// without an id: the server could not, or would not, read the request.
func (r *Reader) Answers(m *jsonrpc.Message, id []byte) bool {
	if !m.IsAnswer() {
		return false
	}
	if jsonrpc.SameID(m.Literal(jsonrpc.ID), id) {
		r.owned = !m.IsUnsupportedVersion() && !(r.status == http.StatusNotFound && m.IsUnknownSession())
		return true
	}
	return m.Has(jsonrpc.Error) && (!m.Has(jsonrpc.ID) || m.Kind(jsonrpc.ID) == jsonspan.Null)
}

// SessionLost reports whether the server does not know the session of the request, or has
// changed its protocol version, and therefore did not run the request: it answers 404, some
// 400, but not the request itself.
func (r *Reader) SessionLost() bool {
	return (r.status == http.StatusNotFound || r.status == http.StatusBadRequest) && !r.owned
}

// Settle notes that m is the answer.
func (r *Reader) Settle(m *jsonrpc.Message) {
	r.answered = true
	r.errorCode = m.ErrorNumber()
}

// A readError is what a Reader finds wrong with a response.
type readError string

func (e readError) Error() string { return string(e) }

const (
	errTooLarge  = readError("the message of the MCP server is too large")
	errNoMessage = readError("the MCP server sent something that is not a JSON-RPC message")
)

// Fault returns what is wrong with the response itself, if reading it ended for that.
func (r *Reader) Fault(server string) *jsonrpc.Failure {
	if _, own := r.err.(readError); !own {
		return nil
	}
	return r.Failure(server)
}

// Failure describes a response without a valid answer.
func (r *Reader) Failure(server string) *jsonrpc.Failure {
	switch r.err {
	case errTooLarge:
		return TooLarge(server, cmp.Or(r.Limit, maxMessage))
	case errNoMessage:
		if r.status != http.StatusOK {
			return jsonrpc.HTTPError(server, r.status)
		}
		return jsonrpc.InvalidJSON(server)
	}
	if r.status >= 300 {
		return jsonrpc.HTTPError(server, r.status)
	}
	return jsonrpc.InvalidResponse(server)
}

// TooLarge says that a message of a server exceeds a limit.
func TooLarge(server string, limit int) *jsonrpc.Failure {
	failure := jsonrpc.ResponseTooLarge(server)
	failure.Message += fmt.Sprintf(": more than %d MiB", limit>>20)
	return failure
}

// Interface guard
var _ http.ResponseWriter = (*Reader)(nil)
