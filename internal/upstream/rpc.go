package upstream

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// holdOutput is how much of an answer is held back. As long as nothing has been
// sent, one that turns out to be none can still become a proper error.
const holdOutput = 1 << 20

// An rpcReply makes one JSON-RPC answer of whatever a server says.
type rpcReply struct {
	x       *Exchange
	status  int               // 0 until WriteHeader
	stream  bool              // the answer is an event of a stream
	decoder *httpbody.Decoder // if the body is encoded, and no mask has decoded it
	in      io.Writer         // takes the body
	look    *look
	event   struct {
		data, broken bool // it has some; there was a line break since
		dropped      bool // it is too large and not the answer
	}
	sent     bool // the header has been sent
	answered bool // the answer is complete
}

// A look is what it takes to look at an answer, kept between answers.
type look struct {
	outline *jsonrpc.Outline
	events  sse.Scanner
	held    bytes.Buffer
}

var looks = sync.Pool{New: func() any { return &look{outline: jsonrpc.NewOutline()} }}

func borrowLook() *look {
	l := looks.Get().(*look)
	l.outline.Reset()
	l.events = sse.Scanner{}
	l.held.Reset()
	return l
}

func (l *look) giveBack() {
	if l != nil && l.held.Cap() <= 2*holdOutput {
		looks.Put(l)
	}
}

func (w *rpcReply) prepare(r *http.Request) {
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Del("Accept-Encoding") // the answer is read, and encode in front has seen this
}

func (w *rpcReply) Header() http.Header { return w.x.Writer.Header() }

// WriteHeader notes the status. Nothing is sent before there is an answer.
func (w *rpcReply) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status = status
	w.look = borrowLook()
	w.in = rpcBody{w}
	w.stream = status == http.StatusOK && httpbody.TypeOf(w.Header().Get("Content-Type")) == httpbody.EventStream
	if encoding := httpbody.Encoding(w.Header()); encoding != "" {
		if w.decoder = httpbody.NewDecoder(encoding, rpcBody{w}); w.decoder != nil {
			w.in = w.decoder
		} else {
			w.in = undecodable{}
		}
	}
}

// Write takes the next bytes of the body.
func (w *rpcReply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.x.Traffic.pass(len(p))
	n, err := w.in.Write(p)
	if err != nil && !w.x.Left && w.x.verdict == nil {
		w.x.verdict = jsonrpc.InvalidJSON(w.x.Server.Name) // the decoder makes nothing of it
	}
	return n, err
}

// FlushError sends on what has been sent. What is held back stays so.
func (w *rpcReply) FlushError() error {
	if !w.sent {
		return nil
	}
	return http.NewResponseController(w.x.Writer).Flush()
}

// rpcBody takes the body, decoded if it was encoded.
type rpcBody struct{ w *rpcReply }

func (b rpcBody) Write(p []byte) (int, error) {
	w := b.w
	if !w.stream {
		_, _ = w.look.outline.Write(p)
		return len(p), w.take(p)
	}
	var err error
	w.look.events.Each(p, func(kind sse.Kind, part []byte) {
		if err == nil && !w.answered {
			err = w.takeEvent(kind, part)
		}
	})
	return len(p), err
}

// undecodable takes a body of an unknown encoding.
type undecodable struct{}

func (undecodable) Write([]byte) (int, error) { return 0, errNoAnswer }

// errNoAnswer stops a server that says much and answers nothing.
var errNoAnswer = errors.New("what the MCP server sends is no answer")

// take takes the next bytes of the answer, which outline has read.
func (w *rpcReply) take(p []byte) error {
	if !w.sent {
		if w.look.held.Len()+len(p) <= holdOutput {
			w.look.held.Write(p)
			return nil
		}
		if !w.promising() {
			w.x.verdict = w.judge(false)
			return errNoAnswer
		}
		w.send(unknownLength)
	}
	return w.write(p)
}

// promising reports whether this is the beginning of an answer.
func (w *rpcReply) promising() bool {
	answers := w.look.outline.IsAnswer()
	if w.stream {
		answers = w.look.outline.Answers(w.x.Message.Literal(jsonrpc.ID))
	}
	return w.answerable() && answers
}

// takeEvent takes what comes next in an event stream. Only one event in it is the
// answer; the others are for clients who know what to do with them.
func (w *rpcReply) takeEvent(kind sse.Kind, part []byte) error {
	look := w.look
	switch kind {
	case sse.Data:
		if w.event.dropped {
			return nil
		}
		if w.event.broken {
			part = append([]byte{'\n'}, part...)
		}
		w.event.data, w.event.broken = true, false
		_, _ = look.outline.Write(part)
		if !w.sent && look.held.Len()+len(part) > holdOutput && !w.promising() {
			w.event.dropped = true
			return nil
		}
		return w.take(part)
	case sse.Frame:
		w.event.broken = w.event.data
	case sse.Dispatch:
		whole := look.outline.End()
		switch {
		case w.sent && !whole:
			w.x.verdict = jsonrpc.InvalidJSON(w.x.Server.Name)
			return errNoAnswer
		case !w.event.dropped && whole && w.promising():
			w.answer()
			// The stream should end now. If it does not, it is ended: a client
			// that keeps its connection waits for that with its next request.
			w.x.arrival.limitSilence(StreamGrace)
		default:
			look.held.Reset()
			look.outline.Reset()
		}
		w.event.data, w.event.broken, w.event.dropped = false, false, false
	}
	return nil
}

const StreamGrace = 100 * time.Millisecond

// unknownLength is the length of an answer that is not yet complete.
const unknownLength = -1

// send sends the header and what is held back of the answer.
func (w *rpcReply) send(length int) {
	w.sent = true
	header := w.Header()
	if w.stream || w.decoder != nil {
		httpbody.DropDescription(header)
	}
	header.Del("Trailer")
	header.Set("Content-Type", "application/json")
	if length != unknownLength {
		header.Set("Content-Length", strconv.Itoa(length))
	}
	status := http.StatusOK
	if w.refused() {
		status = w.status
	}
	w.x.Writer.WriteHeader(status)
	_ = w.write(w.look.held.Bytes())
	w.look.held.Reset()
}

func (w *rpcReply) write(p []byte) error {
	w.x.Traffic.recording().Add(p)
	_, err := w.x.Writer.Write(p)
	w.x.Left = w.x.Left || err != nil
	return err
}

// answer completes the answer.
func (w *rpcReply) answer() {
	if !w.sent {
		w.send(w.look.held.Len())
		if w.stream {
			_ = w.FlushError()
		}
	}
	w.answered = true
	w.x.endAnswered(w.look.outline)
}

// answerable reports whether an answer can come with this status. Some servers
// refuse what they may not do with 403, and say so in JSON-RPC.
func (w *rpcReply) answerable() bool {
	return w.status == http.StatusOK || w.status == http.StatusForbidden || w.refused()
}

// refused reports whether the request was refused by our own transport, which speaks for
// child processes: they know no HTTP, and what they say comes with 200.
func (w *rpcReply) refused() bool {
	return w.status >= 400 && w.x.Server.ChildrenOnly
}

func (w *rpcReply) complete() *jsonrpc.Failure {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	whole := true
	if w.decoder != nil {
		whole = w.decoder.Close() == nil
	}
	if w.event.data {
		_ = w.takeEvent(sse.Dispatch, nil) // the stream has ended without the empty line
	}
	if w.answered {
		return nil
	}
	if w.x.verdict != nil {
		return w.breakOff(w.x.verdict)
	}
	whole = whole && w.look.outline.End()
	if w.accepted() {
		header := w.Header()
		httpbody.DropDescription(header)
		header.Del("Content-Type")
		w.x.Writer.WriteHeader(http.StatusAccepted)
		w.x.endAnswered(nil)
		return nil
	}
	if failure := w.judge(whole); failure != nil {
		return w.breakOff(failure)
	}
	w.answer()
	return nil
}

// accepted reports whether a message that wants no answer has got none.
func (w *rpcReply) accepted() bool {
	if w.x.Message.IsRequest() {
		return false
	}
	return w.status == http.StatusAccepted || w.status == http.StatusNoContent ||
		w.status == http.StatusOK && (w.stream || w.look.held.Len() == 0) && !w.sent
}

// judge says what is wrong with an answer.
func (w *rpcReply) judge(whole bool) *jsonrpc.Failure {
	answer := w.look.outline.IsAnswer()
	switch server := w.x.Server.Name; {
	case !w.answerable(), w.status == http.StatusForbidden && !(whole && answer):
		failure := jsonrpc.HTTPError(server, w.status)
		if w.x.Server.SpeaksHTTPSSE() {
			failure.Message += ": it speaks HTTP+SSE, which needs a session, so call it where all servers are one"
		}
		return failure
	case w.stream:
		return jsonrpc.InvalidResponse(server)
	case !whole:
		return jsonrpc.InvalidJSON(server)
	case !answer:
		return jsonrpc.InvalidResponse(server)
	}
	return nil
}

func (w *rpcReply) breakOff(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if !w.sent {
		return failure
	}
	w.x.endWith(failure)
	panic(http.ErrAbortHandler)
}

func (w *rpcReply) done() bool { return w.answered }

func (w *rpcReply) timeLeft(time.Duration) time.Duration { return 0 }

func (w *rpcReply) release() {
	if w.decoder != nil {
		w.decoder.Stop()
	}
	w.look.giveBack()
	w.look = nil
}

// Interface guard
var _ reply = (*rpcReply)(nil)
