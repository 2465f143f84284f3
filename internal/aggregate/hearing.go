package aggregate

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A Hearing takes what a server says in answer to a request, and gives it out
// message by message. It is what the handlers of the server write to.
type Hearing struct {
	// each is given the messages. Their bytes are good until it returns.
	each func(*event) error

	// large is asked where the data of an event goes that is too large to be held,
	// once it is known to be an answer. If it is nil, there is no such place.
	large func(id string) io.WriteCloser

	// begun is told that the server has begun to answer, with which status. What it
	// returns says whether anybody wants to hear it.
	begun func(status int) bool

	header http.Header
	status int
	media  httpbody.MediaType
	deaf   bool // nobody wants to hear it
	err    error

	events  sse.Scanner
	frame   []byte // what is not data of the event that is being heard
	data    []byte
	broken  bool // a line of data has ended
	outline *jsonrpc.Outline
	rest    io.WriteCloser // where the rest of a large answer goes

	waiting   atomic.Bool // somebody has to answer a question first
	answered  bool
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
	// maxOwn is how much is held of an answer to ourselves, such as a list.
	maxOwn = 64 << 20
	// maxFrame is how much of an event may be something else than data.
	maxFrame = 4 << 10
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
}

// Write implements http.ResponseWriter.
func (h *Hearing) Write(p []byte) (int, error) {
	if h.status == 0 {
		h.WriteHeader(http.StatusOK)
	}
	if h.waiting.Load() {
		h.waiting.Store(false)
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

// FlushError is there because what is written is passed on at once.
func (h *Hearing) FlushError() error { return h.err }

// Waiting reports whether the server cannot go on before a question of it has been
// answered, perhaps by a person.
func (h *Hearing) Waiting() bool { return h.waiting.Load() }

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
		if len(h.frame)+len(part) <= maxFrame {
			h.frame = append(h.frame, part...)
		}
	case sse.Dispatch:
		h.dispatch()
	}
}

// take takes the next bytes of a message.
func (h *Hearing) take(p []byte) {
	switch {
	case h.err != nil:
	case h.rest != nil:
		_, _ = h.outline.Write(p)
		_, h.err = h.rest.Write(p)
	case h.large == nil:
		if h.data = append(h.data, p...); len(h.data) > maxOwn {
			h.err = errTooLarge
		}
	default:
		if h.data = append(h.data, p...); len(h.data) > maxHeld {
			h.letGo()
		}
	}
}

// letGo finds a place for a message that is too large to be held.
func (h *Hearing) letGo() {
	h.outline = jsonrpc.NewOutline()
	_, _ = h.outline.Write(h.data)
	if !h.outline.IsAnswer() {
		h.err = errTooLarge
		return
	}
	e := h.event()
	h.rest = h.large(e.id)
	_, h.err = h.rest.Write(h.data)
	h.data = nil
}

// event returns the event that has come, as far as it has.
func (h *Hearing) event() event {
	e := event{data: h.data}
	for line := range bytes.Lines(h.frame) {
		line = bytes.TrimRight(line, "\r\n")
		if value, ok := field(line, "id:"); ok && bytes.IndexByte(value, 0) < 0 {
			e.id = string(value)
		} else if value, ok := field(line, "retry:"); ok {
			e.retry = string(value)
		}
	}
	return e
}

// field returns the value of a field of an event.
func field(line []byte, name string) ([]byte, bool) {
	value, ok := bytes.CutPrefix(line, []byte(name))
	return bytes.TrimPrefix(value, []byte(" ")), ok
}

// dispatch gives out the message that is complete.
func (h *Hearing) dispatch() {
	defer func() { h.data, h.frame, h.broken = h.data[:0], h.frame[:0], false }()
	if h.rest != nil {
		h.answered = true
		h.errorCode, _ = h.outline.ErrorCode()
		whole := h.outline.End()
		if err := h.rest.Close(); h.err == nil {
			h.err = err
		}
		if !whole && h.err == nil {
			h.err = errNoMessage
		}
		h.rest, h.outline = nil, nil
		return
	}
	e := h.event()
	if len(e.data) == 0 && e.id == "" && e.retry == "" {
		return // a comment
	}
	if len(e.data) > 0 {
		if e.message.Read(e.data) != nil {
			if h.media != httpbody.EventStream {
				h.err = errNoMessage
			}
			return // in a stream there may be others
		}
	}
	if err := h.each(&e); h.err == nil {
		h.err = err
	}
}

// End says that the server has said all it has to say. It returns what is wrong with
// that.
func (h *Hearing) End() error {
	if h.err == nil && !h.deaf && (len(h.data) > 0 || h.rest != nil) {
		h.dispatch()
	}
	return h.err
}

// abort says that the server broke off. A message that has been passed on in part
// cannot be taken back.
func (h *Hearing) abort() (inMidAnswer bool) { return h.rest != nil }

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

// failure says what is wrong with an answer that could not be heard.
func (h *Hearing) failure(server string) *jsonrpc.Failure {
	switch h.err {
	case errTooLarge:
		return jsonrpc.ResponseTooLarge(server)
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

// Interface guard
var _ http.ResponseWriter = (*Hearing)(nil)
