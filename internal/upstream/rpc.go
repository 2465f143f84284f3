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

// maxHeld is how many bytes of a response are held back. Until they are sent, an invalid response
// can still become a proper error.
const maxHeld = 1 << 20

// An rpcReply turns the response of a server into one JSON-RPC response.
type rpcReply struct {
	x        *Exchange
	status   int               // 0 until WriteHeader
	isStream bool              // the response is an event of a stream
	decoder  *httpbody.Decoder // of an encoded body, unless a mask has decoded it
	body     io.Writer         // writer for the body
	parser   *parser
	event    struct {
		data, broken bool // it has data; there was a line break since
		dropped      bool // it is too large, and not the response
	}
	sent     bool // the header has been sent
	answered bool // the response is complete
}

// A parser holds the buffers for parsing a response. They are pooled.
type parser struct {
	outline *jsonrpc.Outline
	events  sse.Scanner
	held    bytes.Buffer
}

var parserPool = sync.Pool{New: func() any { return &parser{outline: jsonrpc.NewOutline()} }}

func getParser() *parser {
	p := parserPool.Get().(*parser)
	p.outline.Reset()
	p.events = sse.Scanner{}
	p.held.Reset()
	return p
}

func (p *parser) release() {
	if p != nil && p.held.Cap() <= 2*maxHeld {
		parserPool.Put(p)
	}
}

func (w *rpcReply) prepare(r *http.Request) {
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Del("Accept-Encoding") // the response is parsed; encode has seen this header already
}

func (w *rpcReply) Header() http.Header { return w.x.Writer.Header() }

// WriteHeader records the status. Nothing is sent before there is a response.
func (w *rpcReply) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status = status
	w.parser = getParser()
	w.body = rpcBody{w}
	w.isStream = status == http.StatusOK && httpbody.TypeOf(w.Header().Get("Content-Type")) == httpbody.EventStream
	if encoding := httpbody.Encoding(w.Header()); encoding != "" {
		if w.decoder = httpbody.NewDecoder(encoding, rpcBody{w}); w.decoder != nil {
			w.body = w.decoder
		} else {
			w.body = undecodable{}
		}
	}
}

// Write parses the next bytes of the body.
func (w *rpcReply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.x.Traffic.addSent(len(p))
	n, err := w.body.Write(p)
	if err != nil && !w.x.ClientGone && w.x.failure == nil {
		w.x.failure = jsonrpc.InvalidJSON(w.x.Server.Name) // the decoder failed
	}
	return n, err
}

// FlushError flushes what has been sent. Held bytes stay.
func (w *rpcReply) FlushError() error {
	if !w.sent {
		return nil
	}
	return http.NewResponseController(w.x.Writer).Flush()
}

// rpcBody parses the decoded body.
type rpcBody struct{ w *rpcReply }

func (b rpcBody) Write(p []byte) (int, error) {
	w := b.w
	if !w.isStream {
		_, _ = w.parser.outline.Write(p)
		return len(p), w.forward(p)
	}
	var err error
	w.parser.events.Each(p, func(kind sse.Kind, part []byte) {
		if err == nil && !w.answered {
			err = w.handleEvent(kind, part)
		}
	})
	return len(p), err
}

// undecodable refuses a body with an unknown encoding.
type undecodable struct{}

func (undecodable) Write([]byte) (int, error) { return 0, errNoResponse }

// errNoResponse stops a server that sends much and does not respond.
var errNoResponse = errors.New("MCP server sent no JSON-RPC response")

// forward holds back or sends the next bytes of the response, which the outline has read.
func (w *rpcReply) forward(p []byte) error {
	if !w.sent {
		if w.parser.held.Len()+len(p) <= maxHeld {
			w.parser.held.Write(p)
			return nil
		}
		if !w.mayBeResponse() {
			w.x.failure = w.responseFailure(false)
			return errNoResponse
		}
		w.send(unknownLength)
	}
	return w.write(p)
}

// mayBeResponse reports whether this may be the beginning of the response.
func (w *rpcReply) mayBeResponse() bool {
	answers := w.parser.outline.IsResponse()
	if w.isStream {
		answers = w.parser.outline.IsResponseTo(w.x.Message.Literal(jsonrpc.ID))
	}
	return w.mayHaveResponse() && answers
}

// handleEvent handles the next part of an event stream. Only one event is the response. Clients at
// RPC do not get the others.
func (w *rpcReply) handleEvent(kind sse.Kind, part []byte) error {
	p := w.parser
	switch kind {
	case sse.Data:
		if w.event.dropped {
			return nil
		}
		if w.event.broken {
			part = append([]byte{'\n'}, part...)
		}
		w.event.data, w.event.broken = true, false
		_, _ = p.outline.Write(part)
		if !w.sent && p.held.Len()+len(part) > maxHeld && !w.mayBeResponse() {
			w.event.dropped = true
			return nil
		}
		return w.forward(part)
	case sse.Frame:
		w.event.broken = w.event.data
	case sse.Dispatch:
		whole := p.outline.End()
		switch {
		case w.sent && !whole:
			w.x.failure = jsonrpc.InvalidJSON(w.x.Server.Name)
			return errNoResponse
		case !w.event.dropped && whole && w.mayBeResponse():
			w.finish()
			// The stream should end now. If it does not, end it: a client that keeps its connection
			// waits for that with its next request.
			w.x.limits.limitIdle(StreamGrace)
		default:
			p.held.Reset()
			p.outline.Reset()
		}
		w.event.data, w.event.broken, w.event.dropped = false, false, false
	}
	return nil
}

// StreamGrace is how long a stream may stay open after the response.
const StreamGrace = 100 * time.Millisecond

// unknownLength is the length of a response that is not yet complete.
const unknownLength = -1

// send sends the header and the held bytes of the response.
func (w *rpcReply) send(length int) {
	w.sent = true
	header := w.Header()
	if w.isStream || w.decoder != nil {
		httpbody.DropDescription(header)
	}
	header.Del("Trailer")
	header.Set("Content-Type", "application/json")
	if length != unknownLength {
		header.Set("Content-Length", strconv.Itoa(length))
	}
	status := http.StatusOK
	if w.isTransportRefusal() {
		status = w.status
	}
	w.x.Writer.WriteHeader(status)
	_ = w.write(w.parser.held.Bytes())
	w.parser.held.Reset()
}

func (w *rpcReply) write(p []byte) error {
	w.x.Traffic.recording().Add(p)
	_, err := w.x.Writer.Write(p)
	w.x.ClientGone = w.x.ClientGone || err != nil
	return err
}

// finish completes the response.
func (w *rpcReply) finish() {
	if !w.sent {
		w.send(w.parser.held.Len())
		if w.isStream {
			_ = w.FlushError()
		}
	}
	w.answered = true
	w.x.endAnswered(w.parser.outline)
}

// mayHaveResponse reports whether a JSON-RPC response can come with this status. Some servers send
// one with 403.
func (w *rpcReply) mayHaveResponse() bool {
	return w.status == http.StatusOK || w.status == http.StatusForbidden || w.isTransportRefusal()
}

// isTransportRefusal reports whether the transport of child processes refused the request. The
// responses of the child processes themselves come with 200.
func (w *rpcReply) isTransportRefusal() bool {
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
		_ = w.handleEvent(sse.Dispatch, nil) // the stream ended without the empty line
	}
	if w.answered {
		return nil
	}
	if w.x.failure != nil {
		return w.breakOff(w.x.failure)
	}
	whole = whole && w.parser.outline.End()
	if w.isAccepted() {
		header := w.Header()
		httpbody.DropDescription(header)
		header.Del("Content-Type")
		w.x.Writer.WriteHeader(http.StatusAccepted)
		w.x.endAnswered(nil)
		return nil
	}
	if failure := w.responseFailure(whole); failure != nil {
		return w.breakOff(failure)
	}
	w.finish()
	return nil
}

// isAccepted reports whether the server accepted a message that needs no response.
func (w *rpcReply) isAccepted() bool {
	if w.x.Message.IsRequest() {
		return false
	}
	return w.status == http.StatusAccepted || w.status == http.StatusNoContent ||
		w.status == http.StatusOK && (w.isStream || w.parser.held.Len() == 0) && !w.sent
}

// responseFailure returns the failure of an invalid response; nil if it is valid.
func (w *rpcReply) responseFailure(whole bool) *jsonrpc.Failure {
	outline := w.parser.outline
	answer := outline.IsResponse()
	valid := whole && answer && (outline.Has(jsonrpc.Result) || outline.Has(jsonrpc.ErrorCode))
	switch server := w.x.Server.Name; {
	case !w.mayHaveResponse(), w.status == http.StatusForbidden && !valid:
		failure := jsonrpc.HTTPError(server, w.status)
		if w.x.Server.SpeaksHTTPSSE() {
			failure.Message += ": it speaks HTTP+SSE, which needs a session; " +
				"use the endpoint of all servers, /mcp by default"
		}
		return failure
	case w.isStream:
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
	w.parser.release()
	w.parser = nil
}
