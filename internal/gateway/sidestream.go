package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Many servers of the legacy era ask their questions not in the stream of the call that
// needs the answer, but in that of the session. A client of the modern era does not have
// such a stream, so the gateway reads it while the client has calls there.

// sideStreamTime is how long a side stream stays open after a call: mostly there is another.
const sideStreamTime = 30 * time.Second

// A sideStream is the stream of a session with a server of the legacy era, read for the calls
// of a client of the modern era.
type sideStream struct {
	session string
	begun   chan struct{} // closed when the server has answered
	cancel  context.CancelFunc
	idle    *time.Timer // ends it; stopped while there are calls
}

// sideStreams are all that are open.
type sideStreams struct {
	mu    sync.Mutex
	open  map[*sideStream]bool
	ended bool
}

// add notes one, unless no more may be opened.
func (all *sideStreams) add(s *sideStream) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.open == nil {
		all.open = map[*sideStream]bool{}
	}
	if !all.ended {
		all.open[s] = true
	}
	return !all.ended
}

// remove notes that one has ended.
func (all *sideStreams) remove(s *sideStream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, s)
}

// end ends all of them.
func (all *sideStreams) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ended = true
	for s := range all.open {
		s.cancel()
	}
}

// heldCalls are the calls of a client of the modern era to a server of the legacy era, with
// the side stream that is read for them.
type heldCalls struct {
	link *link

	mu          sync.Mutex
	calls       []*heldCall
	stream      *sideStream
	unavailable bool // the server has no such stream
}

// begin notes a call, and opens the side stream if there is a point in it.
func (h *heldCalls) begin(held *heldCall, o behalf) (end func()) {
	session, listens := h.link.sessionID(), h.link.hasListener()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, held)
	end = func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls = slices.DeleteFunc(h.calls, func(other *heldCall) bool { return other == held })
		if h.stream != nil && len(h.calls) == 0 {
			h.stream.idle.Reset(sideStreamTime)
		}
	}
	if !h.link.client.canBeAsked() || h.unavailable || listens {
		return end // there is nothing to read, or another stream reads it
	}
	if h.stream != nil && h.stream.session == session {
		h.stream.idle.Stop()
		return end
	}
	s := &sideStream{session: session, begun: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(o.ctx))
	s.cancel, s.idle = cancel, time.AfterFunc(time.Hour, cancel)
	s.idle.Stop()
	if !o.g.sideStreams.add(s) {
		cancel()
		return end
	}
	h.stream = s
	o.g.running.Go(func() {
		defer cancel()
		defer o.g.sideStreams.remove(s)
		h.read(o.within(ctx), s)
	})
	return end
}

// await waits until the side stream has begun, if there is to be one, but not for long.
func (h *heldCalls) await(ctx context.Context) {
	h.mu.Lock()
	s := h.stream
	h.mu.Unlock()
	if s == nil {
		return
	}
	timer := time.NewTimer(joinPause)
	defer timer.Stop()
	select {
	case <-s.begun:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// read reads a side stream.
func (h *heldCalls) read(o behalf, s *sideStream) {
	l := h.link
	begun := sync.OnceFunc(func() { close(s.begun) })
	defer begun()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.stream == s {
			h.stream = nil
		}
	}()
	r, _, era := l.prepare(o)
	if era != mcp.Legacy || o.g.of(l) == nil {
		return
	}
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	var asides upstream.Asides
	defer asides.Wait()
	reader := &streamable.Reader{OnHeader: func(status int) bool {
		if status == http.StatusMethodNotAllowed {
			h.mu.Lock()
			h.unavailable = true
			h.mu.Unlock()
		}
		begun()
		return status == http.StatusOK
	}}
	others := l.unsolicited(o)
	reader.OnMessage = func(e *streamable.Event) error {
		m := e.Message
		switch {
		case len(e.Data) == 0 || m.IsAnswer():
		case !m.IsRequest():
			others.note(m)
			others.broadcast(m)
		case !h.ask(m):
			others.refuse(&asides, m, "the question belongs to no call of the client, or to several")
		}
		return nil
	}
	_ = o.g.exchange(l, reader, nil).Send(r) // without it, calls go on
}

// ask puts a question that came outside of any call to the client's call, if there is just
// one. Of several it is not known which one needs the answer.
func (h *heldCalls) ask(m *jsonrpc.Message) bool {
	h.mu.Lock()
	calls := slices.Clone(h.calls)
	h.mu.Unlock()
	if len(calls) != 1 {
		return false
	}
	return calls[0].take(m)
}

// take takes a message of the server. It reports whether the call still takes messages.
func (held *heldCall) take(m *jsonrpc.Message) bool {
	h := held.hearing.Load()
	asks := h != nil && m.IsRequest()
	if asks {
		h.QuestionAsked()
	}
	select {
	case held.messages <- held.keep(m, nil):
		return true
	case <-held.answering:
	case <-held.done:
	}
	if asks {
		h.QuestionAnswered()
	}
	return false
}
