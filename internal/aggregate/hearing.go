package aggregate

import (
	"cmp"
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

// A Hearing takes what a server says in answer to a request, and gives it out
// message by message. It is what the handlers of the server write to.
type Hearing struct {
	// Resumed says that what is heard is the rest of the stream of a call.
	Resumed bool

	// each is given the messages. Their bytes are good until it returns.
	each func(*event) error

	// large is asked where the answer to the request with this id goes if it is too
	// large to be held: nowhere, if it returns nil. If it is nil, everything is held.
	large func(event string) io.WriteCloser
	id    []byte

	// limit is how many bytes a message may have that is held; maxOwn if it is 0.
	limit int

	// begun is told that the server has begun to answer, with which status. What it
	// returns says whether anybody wants to hear it.
	begun func(status int) bool

	header http.Header
	status int
	media  httpbody.MediaType
	deaf   bool // nobody wants to hear it
	err    error

	events  sse.Scanner
	fields  sse.Fields // of the event that is being heard
	data    []byte
	broken  bool             // a line of data has ended
	outline *jsonrpc.Outline // of a large message
	rest    io.WriteCloser   // where the rest of a large answer goes
	skip    bool             // it is the answer to another request
	cut     bool             // a large answer was passed on and turned out to be none

	open      atomic.Int32 // questions of the server that are not answered
	turned    atomic.Int64 // when it was last asked or answered, as now tells it; 0 for never
	answered  bool
	owned     bool // by an answer with the id of the request, about what it asks for
	errorCode int
}

// An event is a message of a server.
type event struct {
	id      string // by which the stream it came in can be resumed after it
	retry   string // after how many milliseconds
	data    []byte // none, if all it says is that
	message jsonrpc.Message
}

const (
	// maxHeld is how much of a message is held. Larger ones are passed on as they
	// arrive, if they are answers.
	maxHeld = 1 << 20
	// maxOwn is how much is held of others, such as questions.
	maxOwn = 64 << 20
)

// Header implements http.ResponseWriter.
func (h *Hearing) Header() http.Header {
	if h.header == nil {
		h.header = http.Header{}
	}
	return h.header
}

// WriteHeader implements http.ResponseWriter.
func (h *Hearing) WriteHeader(status int) {
	if h.status != 0 || status < 200 {
		return
	}
	h.status = status
	if httpbody.Encoding(h.Header()) == "" {
		h.media = httpbody.TypeOf(h.Header().Get("Content-Type"))
	}
	h.deaf = h.begun != nil && !h.begun(status)
	if n, err := strconv.Atoi(h.Header().Get("Content-Length")); err == nil && n > 0 && n <= maxHeld {
		h.data = slices.Grow(h.data, n)
	}
}

// Write implements http.ResponseWriter.
func (h *Hearing) Write(p []byte) (int, error) {
	if h.status == 0 {
		h.WriteHeader(http.StatusOK)
	}
	if h.deaf || h.err != nil {
		return len(p), h.err
	}
	switch h.media {
	case httpbody.EventStream:
		h.events.Each(p, h.part)
	default: // it says what it is itself; some servers say text/plain, some nothing
		h.take(p)
	}
	return len(p), h.err
}

// buffers are kept between answers that are passed on.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// lend has h use a buffer that is kept between answers. What it returns takes it back;
// nobody may have what was heard by then.
func (h *Hearing) lend() (giveBack func()) {
	b := buffers.Get().(*[]byte)
	h.data = (*b)[:0]
	return func() {
		if *b = h.data; cap(*b) <= 2*maxHeld {
			buffers.Put(b)
		}
		h.data = nil
	}
}

// FlushError is there because what is written is passed on at once.
func (h *Hearing) FlushError() error { return h.err }

// Idle returns for how long it has been up to the server to go on, if there was
// anything to wait for before: a question that the client, perhaps a person, had to
// answer. While there is one, it is not at all.
func (h *Hearing) Idle() time.Duration {
	turned := h.turned.Load()
	if turned == 0 {
		return math.MaxInt64
	}
	since := now() - time.Duration(turned)
	if h.open.Load() > 0 && since < questionTime {
		return 0
	}
	return since
}

// now returns how long ago the process was started. Unlike the time of day, it is not
// set back and forth.
func now() time.Duration { return time.Since(started) }

var started = time.Now()

// ask notes that the server has asked something.
func (h *Hearing) ask() {
	h.turned.Store(int64(now()))
	h.open.Add(1)
}

// told notes that it has been answered.
func (h *Hearing) told() {
	h.turned.Store(int64(now()))
	h.open.Add(-1)
}

// Outcome returns the code of the JSON-RPC error that the answer was, 0 for none,
// and whether there was one.
func (h *Hearing) Outcome() (code int, answered bool) { return h.errorCode, h.answered }

// Status returns the status of the response, 0 for none.
func (h *Hearing) Status() int { return h.status }

// part takes what comes next in an event stream.
func (h *Hearing) part(kind sse.Kind, part []byte) {
	if h.err != nil {
		return
	}
	switch kind {
	case sse.Data:
		if h.broken {
			h.broken = false
			h.take([]byte{'\n'})
		}
		h.take(part)
	case sse.Frame:
		h.broken = len(h.data) > 0 || h.rest != nil
		h.fields.Read(part)
	case sse.Dispatch:
		h.dispatch()
	}
}

// take takes the next bytes of a message.
func (h *Hearing) take(p []byte) {
	switch {
	case h.err != nil || h.skip:
	case h.rest != nil:
		_, _ = h.outline.Write(p)
		_, h.err = h.rest.Write(p)
	default:
		h.data = append(h.data, p...)
		if h.large != nil && len(h.data) > maxHeld {
			h.letGo(p)
		}
		if len(h.data) > cmp.Or(h.limit, maxOwn) {
			h.err = errTooLarge
		}
	}
}

// letGo passes on what should not be held any longer, if it is the answer. It has been
// held up to p.
func (h *Hearing) letGo(p []byte) {
	if h.outline == nil {
		h.outline, p = jsonrpc.NewOutline(), h.data
	}
	_, _ = h.outline.Write(p)
	switch {
	case !h.outline.IsAnswer():
	case h.id != nil && !h.outline.Answers(h.id):
		h.skip, h.data = true, h.data[:0]
	default:
		h.owned = h.outline.Has(jsonrpc.ID)
		if h.rest = h.large(h.fields.ID); h.rest == nil {
			h.skip, h.data = true, h.data[:0]
			return
		}
		_, h.err = h.rest.Write(h.data)
		h.data = nil
	}
}

// dispatch gives out the message that is complete.
func (h *Hearing) dispatch() {
	e, skip := event{id: h.fields.ID, retry: h.fields.Retry, data: h.data}, h.skip
	defer func() {
		h.data, h.broken, h.outline, h.skip = h.data[:0], false, nil, false
		h.fields.Reset()
	}()
	switch {
	case skip, len(e.data) == 0 && e.id == "" && e.retry == "" && h.rest == nil:
		return // a comment
	case h.rest != nil:
		h.dispatchLarge()
		return
	}
	if len(e.data) > 0 && e.message.Read(e.data) != nil {
		if h.media != httpbody.EventStream {
			h.err = errNoMessage
		}
		return // in a stream there may be others
	}
	if err := h.each(&e); h.err == nil {
		h.err = err
	}
}

// dispatchLarge ends an answer that was passed on as it came.
func (h *Hearing) dispatchLarge() {
	h.answered = true
	h.errorCode, _ = h.outline.ErrorCode()
	if h.cut = !h.outline.End(); h.cut {
		h.err = errNoMessage
		return
	}
	if err := h.rest.Close(); h.err == nil {
		h.err = err
	}
	h.rest = nil
}

// End says that the server has said all it has to say. It returns what is wrong with
// that.
func (h *Hearing) End() error {
	if h.err == nil && !h.deaf && (len(h.data) > 0 || h.rest != nil) {
		h.dispatch()
	}
	return h.err
}

// torn reports whether a part of an answer has been passed on, and the rest will never
// come.
func (h *Hearing) torn() bool { return h.rest != nil || h.cut }

// answers reports whether a message answers the request with this id. So does an error
// without an id: the server could not read the request, or did not want to.
func (h *Hearing) answers(m *jsonrpc.Message, id []byte) bool {
	if !m.IsAnswer() {
		return false
	}
	if jsonrpc.SameID(m.Literal(jsonrpc.ID), id) {
		h.owned = !m.IsUnsupportedVersion() && !(h.status == http.StatusNotFound && m.IsUnknownSession())
		return true
	}
	return m.Has(jsonrpc.Error) && (!m.Has(jsonrpc.ID) || m.Kind(jsonrpc.ID) == jsonspan.Null)
}

// forgotten reports whether the server does not know the session of the request, or
// speaks another revision by now, and so has not run it: 404 says so, and some say 400,
// unless they have read the request and answer it.
func (h *Hearing) forgotten() bool {
	return (h.status == http.StatusNotFound || h.status == http.StatusBadRequest) && !h.owned
}

// settled notes that the answer has come.
func (h *Hearing) settled(m *jsonrpc.Message) {
	h.answered = true
	h.errorCode = m.ErrorNumber()
}

type hearingError string

func (e hearingError) Error() string { return string(e) }

const (
	errTooLarge  = hearingError("the message of the MCP server is too large")
	errNoMessage = hearingError("what the MCP server sends is no JSON-RPC message")
)

// Fault returns why the rest of an answer was not taken, if it was for what it is.
func (h *Hearing) Fault(server string) *jsonrpc.Failure {
	if _, own := h.err.(hearingError); !own {
		return nil
	}
	return h.failure(server)
}

// failure says what is wrong with an answer that could not be heard.
func (h *Hearing) failure(server string) *jsonrpc.Failure {
	switch h.err {
	case errTooLarge:
		return tooLarge(server, cmp.Or(h.limit, maxOwn))
	case errNoMessage:
		if h.status != http.StatusOK {
			return jsonrpc.HTTPError(server, h.status)
		}
		return jsonrpc.InvalidJSON(server)
	}
	if h.status >= 300 {
		return jsonrpc.HTTPError(server, h.status)
	}
	return jsonrpc.InvalidResponse(server)
}

// tooLarge says that something of a server has more than so many bytes.
func tooLarge(server string, limit int) *jsonrpc.Failure {
	failure := jsonrpc.ResponseTooLarge(server)
	failure.Message += fmt.Sprintf(": more than %d MiB", limit>>20)
	return failure
}

// Interface guard
var _ http.ResponseWriter = (*Hearing)(nil)
