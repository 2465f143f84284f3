package mcpgateway

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A streamReply passes an answer on as it is, and looks at it in passing.
type streamReply struct {
	x      *exchange
	opened bool   // by GET, to listen
	path   string // of the request, as the client has sent it

	status    int // 0 until WriteHeader
	media     httpbody.MediaType
	look      *look // nil if there is nothing to see
	searching bool  // for the event that names an endpoint
	inEvent   bool  // something of an event has been sent, and not its end
	data      bool  // data of it, too
	answered  bool  // one of the events was the answer
}

const noBuffering = "X-Accel-Buffering"

func (w *streamReply) Header() http.Header { return w.x.w.Header() }

// WriteHeader passes the header on, unless it is that of an answer of which nothing
// is left: the mask lets out what it has held back when the server breaks off.
func (w *streamReply) WriteHeader(status int) {
	switch {
	case w.status != 0 || w.x.arrival.broken:
		return
	case status < 200:
		w.x.w.WriteHeader(status)
		return
	}
	w.status = status
	if httpbody.Encoding(w.Header()) == "" {
		w.media = httpbody.TypeOf(w.Header().Get("Content-Type"))
	}
	if w.media != httpbody.Other {
		w.look = borrowLook()
		w.searching = w.opened && w.media == httpbody.EventStream
	}
	if w.media == httpbody.EventStream && w.Header().Get(noBuffering) == "" {
		w.Header().Set(noBuffering, "no") // else nginx in front of us holds events back
	}
	w.x.w.WriteHeader(status)
}

// Write passes the next bytes of the body on.
func (w *streamReply) Write(p []byte) (int, error) {
	if w.status == 0 {
		if w.WriteHeader(http.StatusOK); w.status == 0 {
			return len(p), nil
		}
	}
	if w.searching {
		return w.search(p)
	}
	if w.look != nil && !w.opened {
		w.observe(p)
	}
	return w.write(p)
}

func (w *streamReply) write(p []byte) (int, error) {
	n, err := w.x.w.Write(p)
	w.x.left = w.x.left || err != nil
	return n, err
}

// FlushError sends on what has been written.
func (w *streamReply) FlushError() error {
	if w.status == 0 {
		return nil
	}
	return http.NewResponseController(w.x.w).Flush()
}

// longestEndpoint is how much is held back of a stream to find its first event.
const longestEndpoint = 64 << 10

// search holds back the first event of a stream until it is complete. Comments
// before it, by which servers keep connections open, are not held.
func (w *streamReply) search(p []byte) (int, error) {
	held := &w.look.held
	w.look.events.Each(p, func(kind sse.Kind, part []byte) {
		held.Write(part)
		w.data = w.data || kind == sse.Data
		if kind != sse.Dispatch || !w.searching {
			return
		}
		event := held.Bytes()
		if w.data {
			w.searching = false
			event = w.x.server.rewriteEndpoint(event, w.path, w.x.caller.identity)
		}
		_, _ = w.write(event)
		held.Reset()
	})
	w.searching = w.searching && held.Len() <= longestEndpoint
	if !w.searching {
		_, _ = w.write(held.Bytes())
	}
	return len(p), w.FlushError() // which fails if a write has
}

// observe looks for the answer.
func (w *streamReply) observe(p []byte) {
	outline := w.look.outline
	if w.media == httpbody.JSON {
		_, _ = outline.Write(p)
		return
	}
	w.look.events.Each(p, func(kind sse.Kind, part []byte) {
		switch kind {
		case sse.Data:
			w.inEvent, w.data = true, true
			_, _ = outline.Write(part)
		case sse.Frame:
			w.inEvent = true
			outline.Gap(len(part))
		case sse.Dispatch:
			if w.x.message.IsRequest() && !w.answered && outline.Answers(w.x.message.Literal(jsonrpc.ID)) {
				w.answered = true
				w.x.told(outline)
			}
			outline.Reset()
			w.inEvent, w.data = false, false
		}
	})
}

func (w *streamReply) complete() *jsonrpc.Failure {
	if w.searching {
		_, _ = w.write(w.look.held.Bytes()) // a stream that has ended in its first event
	}
	if !w.answered {
		w.x.told(nil)
		if w.media == httpbody.JSON {
			w.x.told(w.look.outline)
		}
	}
	if outcome := outcomeHTTP[w.status/100%10]; outcome != "" {
		w.x.outcome = outcome
	}
	return nil
}

func (w *streamReply) breakOff(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if w.status == 0 {
		return failure
	}
	if ours := failure == w.x.verdict || failure.Data.Symbol == "timeout"; ours && w.media == httpbody.EventStream && !w.data {
		w.endStream(failure)
		return nil
	}
	w.x.outcome, w.x.errorCode = failure.Data.Symbol, failure.Code
	if w.searching {
		_, _ = w.write(w.look.held.Bytes())
	}
	panic(http.ErrAbortHandler)
}

// endStream answers in a stream that has fallen silent, if an answer is wanted.
func (w *streamReply) endStream(failure *jsonrpc.Failure) {
	w.x.outcome, w.x.errorCode = failure.Data.Symbol, failure.Code
	if !w.x.message.IsRequest() {
		return
	}
	var event []byte
	if w.inEvent {
		event = append(event, "\n\n"...) // which ends whatever it was
	}
	event = sse.AppendEvent(event, failure.Append(nil, w.x.message.Literal(jsonrpc.ID)))
	_, _ = w.write(event)
	_ = w.FlushError()
}

func (w *streamReply) done() bool { return w.answered }

func (w *streamReply) release() {
	w.look.giveBack()
	w.look = nil
}

// Interface guard
var _ reply = (*streamReply)(nil)
