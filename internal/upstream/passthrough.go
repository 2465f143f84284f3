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

// A passthroughReply forwards a response unchanged, and parses it on the way.
type passthroughReply struct {
	x *Exchange
	r *http.Request // from the client

	status    int            // 0 until WriteHeader
	parser    *parser        // nil if there is nothing to parse
	endpoints endpointSealer // of a stream that was opened to listen
	media     httpbody.MediaType
	inEvent   bool // an event has been sent in part
	sentData  bool // including a part of its data
	answered  bool // one of the events was the response
}

const noBuffering = "X-Accel-Buffering"

func (w *passthroughReply) prepare(r *http.Request) {
	if w.x.isListening || w.x.Traffic.recording() != nil {
		r.Header.Del("Accept-Encoding") // the response is parsed
	}
}

func (w *passthroughReply) Header() http.Header { return w.x.Writer.Header() }

// WriteHeader forwards the header. After a broken response it does nothing, because the mask then
// flushes the bytes that it holds back.
func (w *passthroughReply) WriteHeader(status int) {
	switch {
	case w.status != 0 || w.x.receiver.incomplete:
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
		w.parser = getParser()
	}
	if w.media == httpbody.EventStream && w.Header().Get(noBuffering) == "" {
		w.Header().Set(noBuffering, "no") // otherwise nginx in front holds events back
	}
	if w.media == httpbody.EventStream && (w.x.isListening || w.x.Message.Is(jsonrpc.Method, mcp.MethodListen)) {
		streamable.CloseAfter(w.Header(), w.r)
	}
	w.x.Writer.WriteHeader(status)
}

// Write forwards the next bytes of the body.
func (w *passthroughReply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
		if w.status == 0 {
			return len(p), nil
		}
	}
	if w.x.isListening { // for any type: some clients ignore it
		return w.seal(p)
	}
	w.x.Traffic.addSent(len(p))
	if w.parser != nil {
		w.observe(p)
	}
	return w.write(p)
}

func (w *passthroughReply) write(p []byte) (int, error) {
	n, err := w.x.Writer.Write(p)
	w.x.ClientGone = w.x.ClientGone || err != nil
	return n, err
}

// FlushError flushes what has been written.
func (w *passthroughReply) FlushError() error {
	if w.status == 0 {
		return nil
	}
	return http.NewResponseController(w.x.Writer).Flush()
}

// seal forwards events, and replaces endpoints in them.
func (w *passthroughReply) seal(p []byte) (int, error) {
	sealed, err := w.endpoints.seal(p)
	if len(sealed) > 0 {
		_, _ = w.write(sealed)
		w.sentData = w.endpoints.forwarding
	}
	if err != nil {
		w.x.failure = jsonrpc.InvalidResponse(w.x.Server.Name)
		return 0, err
	}
	return len(p), w.FlushError() // fails if a write failed
}

// observe looks for the response.
func (w *passthroughReply) observe(p []byte) {
	outline, answer := w.parser.outline, w.x.Traffic.recording()
	if w.media == httpbody.JSON {
		outline.Look(p)
		answer.Add(p)
		return
	}
	w.parser.events.Each(p, func(kind sse.Kind, part []byte) {
		switch kind {
		case sse.Data:
			w.inEvent, w.sentData = true, true
			outline.Look(part)
			if !w.answered {
				answer.Add(part)
			}
		case sse.Frame:
			w.inEvent = true
			outline.Gap(len(part))
		case sse.Dispatch:
			if w.x.Message.IsRequest() && !w.answered && outline.IsResponseTo(w.x.Message.Literal(jsonrpc.ID)) {
				w.answered = true
				w.x.endAnswered(outline)
			}
			if !w.answered {
				answer.Clear()
			}
			outline.Reset()
			w.inEvent, w.sentData = false, false
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
			w.x.endAnswered(w.parser.outline)
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
	canReport := failure == w.x.failure || failure.Data.Symbol == "timeout"
	if canReport && w.media == httpbody.EventStream && !w.sentData {
		w.endStream(failure)
		return nil
	}
	w.x.endWith(failure)
	panic(http.ErrAbortHandler)
}

// endStream sends the failure in a stream that has fallen silent, if the client waits for a
// response.
func (w *passthroughReply) endStream(failure *jsonrpc.Failure) {
	w.x.endWith(failure)
	if !w.x.Message.IsRequest() {
		return
	}
	var event []byte
	if w.inEvent {
		event = append(event, "\n\n"...) // ends the incomplete event
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
	w.parser.release()
	w.parser = nil
}
