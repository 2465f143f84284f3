package upstream

import (
	"net/http"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A passthroughReply passes an answer on as it is, and looks at it in passing.
type passthroughReply struct {
	x *Exchange
	r *http.Request // of the client

	status    int // 0 until WriteHeader
	media     httpbody.MediaType
	look      *look          // nil if there is nothing to see
	endpoints endpointSealer // of a stream that was opened to listen
	inEvent   bool           // something of an event has been sent, and not its end
	data      bool           // data of it, too
	answered  bool           // one of the events was the answer
}

const noBuffering = "X-Accel-Buffering"

func (w *passthroughReply) prepare(r *http.Request) {
	if w.x.listens || w.x.Traffic.recording() != nil {
		r.Header.Del("Accept-Encoding") // the answer is read
	}
}

func (w *passthroughReply) Header() http.Header { return w.x.Writer.Header() }

// WriteHeader passes the header on, unless it is that of an answer of which nothing
// is left: the mask lets out what it has held back when the server breaks off.
func (w *passthroughReply) WriteHeader(status int) {
	switch {
	case w.status != 0 || w.x.arrival.broken:
		return
	case status < 200:
		w.x.Writer.WriteHeader(status)
		return
	}
	w.status = status
	if httpbody.Encoding(w.Header()) == "" {
		w.media = httpbody.TypeOf(w.Header().Get("Content-Type"))
	}
	if w.media != httpbody.Other {
		w.look = borrowLook()
	}
	if w.media == httpbody.EventStream && w.Header().Get(noBuffering) == "" {
		w.Header().Set(noBuffering, "no") // else nginx in front of us holds events back
	}
	if w.media == httpbody.EventStream && (w.x.listens || w.x.Message.Is(jsonrpc.Method, mcp.MethodListen)) {
		streamable.CloseAfter(w.Header(), w.r)
	}
	w.x.Writer.WriteHeader(status)
}

// Write passes the next bytes of the body on.
func (w *passthroughReply) Write(p []byte) (int, error) {
	if w.status == 0 {
		if w.WriteHeader(http.StatusOK); w.status == 0 {
			return len(p), nil
		}
	}
	if w.x.listens { // whatever the type is: there are clients who do not look at it closely
		return w.seal(p)
	}
	w.x.Traffic.pass(len(p))
	if w.look != nil {
		w.observe(p)
	}
	return w.write(p)
}

func (w *passthroughReply) write(p []byte) (int, error) {
	n, err := w.x.Writer.Write(p)
	w.x.Left = w.x.Left || err != nil
	return n, err
}

// FlushError sends on what has been written.
func (w *passthroughReply) FlushError() error {
	if w.status == 0 {
		return nil
	}
	return http.NewResponseController(w.x.Writer).Flush()
}

// seal passes events on, and addresses in them as ours.
func (w *passthroughReply) seal(p []byte) (int, error) {
	sealed, err := w.endpoints.seal(p, w.x.sealedEndpoint)
	if len(sealed) > 0 {
		_, _ = w.write(sealed)
		w.data = w.endpoints.passing
	}
	if err != nil {
		w.x.verdict = jsonrpc.InvalidResponse(w.x.Server.Name)
		return 0, err
	}
	return len(p), w.FlushError() // which fails if a write has
}

// observe looks for the answer.
func (w *passthroughReply) observe(p []byte) {
	outline, answer := w.look.outline, w.x.Traffic.recording()
	if w.media == httpbody.JSON {
		outline.Look(p)
		answer.Add(p)
		return
	}
	w.look.events.Each(p, func(kind sse.Kind, part []byte) {
		switch kind {
		case sse.Data:
			w.inEvent, w.data = true, true
			outline.Look(part)
			if !w.answered {
				answer.Add(part)
			}
		case sse.Frame:
			w.inEvent = true
			outline.Gap(len(part))
		case sse.Dispatch:
			if w.x.Message.IsRequest() && !w.answered && outline.Answers(w.x.Message.Literal(jsonrpc.ID)) {
				w.answered = true
				w.x.endAnswered(outline)
			}
			if !w.answered {
				answer.Clear()
			}
			outline.Reset()
			w.inEvent, w.data = false, false
		}
	})
}

func (w *passthroughReply) complete() *jsonrpc.Failure {
	if rest := w.endpoints.rest(); len(rest) > 0 {
		_, _ = w.write(rest)
	}
	if !w.answered {
		w.x.endAnswered(nil)
		if w.media == httpbody.JSON {
			w.x.endAnswered(w.look.outline)
		}
	}
	if outcome := outcomeHTTP[w.status/100%10]; outcome != "" {
		w.x.Outcome = outcome
	}
	return nil
}

func (w *passthroughReply) breakOff(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if w.status == 0 {
		return failure
	}
	ours := failure == w.x.verdict || failure.Data.Symbol == "timeout"
	if ours && w.media == httpbody.EventStream && !w.data {
		w.endStream(failure)
		return nil
	}
	w.x.endWith(failure)
	panic(http.ErrAbortHandler)
}

// endStream answers in a stream that has fallen silent, if an answer is wanted.
func (w *passthroughReply) endStream(failure *jsonrpc.Failure) {
	w.x.endWith(failure)
	if !w.x.Message.IsRequest() {
		return
	}
	var event []byte
	if w.inEvent {
		event = append(event, "\n\n"...) // which ends whatever it was
	}
	message, answer := &streamable.Event{Type: "message"}, failure.Append(nil, w.x.Message.Literal(jsonrpc.ID))
	for _, part := range message.Buffers(answer) {
		event = append(event, part...)
	}
	w.x.Traffic.recording().Clear()
	w.x.Traffic.recording().Add(answer)
	_, _ = w.write(event)
	_ = w.FlushError()
}

func (w *passthroughReply) done() bool { return w.answered }

func (w *passthroughReply) timeLeft(time.Duration) time.Duration { return 0 }

func (w *passthroughReply) release() {
	w.look.giveBack()
	w.look = nil
}

// Interface guard
var _ reply = (*passthroughReply)(nil)
