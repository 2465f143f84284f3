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

// Many legacy servers send requests in the stream of the session, not in the stream of the call
// that they belong to. Modern clients do not have such a stream, so the gateway reads it during
// their calls.

// sideStreamTime is how long a side stream stays open after a call. Usually another call follows.
const sideStreamTime = 30 * time.Second

// A sideStream is the stream of a legacy session, read for the calls of a modern client.
type sideStream struct {
	session string
	started chan struct{} // closed when the server has responded
	cancel  context.CancelFunc
	idle    *time.Timer // ends the stream; stopped during calls
}

// sideStreams are all open side streams.
type sideStreams struct {
	mu    sync.Mutex
	open  map[*sideStream]bool
	ended bool
}

// add adds a stream. It reports false if the State has ended.
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

func (all *sideStreams) remove(s *sideStream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, s)
}

// end ends all streams and prevents new ones.
func (all *sideStreams) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ended = true
	for s := range all.open {
		s.cancel()
	}
}

// heldCalls are the calls of a modern client to a legacy server, with their side stream.
type heldCalls struct {
	link *link

	mu          sync.Mutex
	calls       []*heldCall
	stream      *sideStream
	unavailable bool // the server has no such stream
}

// begin adds a call, and opens the side stream if it is needed.
func (h *heldCalls) begin(held *heldCall, sc scope) (end func()) {
	session, listens := h.link.session.current().Session, h.link.lists.hasListener()
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
	if !h.link.client.introduction.supportsAny() || h.unavailable || listens {
		return end // no server requests are possible, or another stream reads them
	}
	if h.stream != nil && h.stream.session == session {
		h.stream.idle.Stop()
		return end
	}
	s := &sideStream{session: session, started: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(sc.ctx))
	s.cancel, s.idle = cancel, time.AfterFunc(time.Hour, cancel)
	s.idle.Stop()
	if !sc.g.sideStreams.add(s) {
		cancel()
		return end
	}
	if h.stream != nil { // of a session that the server has forgotten
		h.stream.idle.Reset(sideStreamTime)
	}
	h.stream = s
	sc.g.running.Go(func() {
		defer cancel()
		defer sc.g.sideStreams.remove(s)
		h.read(sc.withContext(ctx), s)
	})
	return end
}

// waitStarted waits until the side stream is open, if there is one, at most joinWait.
func (h *heldCalls) waitStarted(ctx context.Context) {
	h.mu.Lock()
	s := h.stream
	h.mu.Unlock()
	if s != nil {
		waitToJoin(ctx, s.started)
	}
}

// read reads a side stream.
func (h *heldCalls) read(sc scope, s *sideStream) {
	l := h.link
	markStarted := sync.OnceFunc(func() { close(s.started) })
	defer markStarted()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.stream == s {
			h.stream = nil
		}
	}()
	r, session := l.newRequest(sc)
	if session.Era != mcp.Legacy || sc.g.linkServer(l) == nil {
		return
	}
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	var sideRequests upstream.SideRequests
	defer sideRequests.Wait()
	reader := &streamable.Reader{OnHeader: func(status int) bool {
		if status == http.StatusMethodNotAllowed {
			h.mu.Lock()
			h.unavailable = true
			h.mu.Unlock()
		}
		markStarted()
		return status == http.StatusOK
	}}
	u := unsolicited{sc, l}
	reader.OnMessage = func(e *streamable.Event) error {
		m := e.Message
		switch {
		case len(e.Data) == 0 || m.IsResponse():
		case !m.IsRequest():
			u.note(m)
			u.broadcast(m)
		default:
			h.offer(u, &sideRequests, m, "the request cannot be assigned to a single call of the client")
		}
		return nil
	}
	_ = sc.g.exchange(l, reader, nil).Send(r) // calls continue without it
}

// offer passes a server request to the client's call, if there is exactly one. With several, it is
// unknown which one it belongs to, and the request is refused. offer does not wait until the call,
// which may wait for its client, takes the request.
func (h *heldCalls) offer(u unsolicited, sideRequests *upstream.SideRequests, m *jsonrpc.Message, refusal string) {
	h.mu.Lock()
	calls := slices.Clone(h.calls)
	h.mu.Unlock()
	if len(calls) != 1 || m.Is(jsonrpc.Method, "ping") { // a ping needs no client
		u.refuse(sideRequests, m, refusal)
		return
	}
	request := copyMessage(m, nil)
	sideRequests.Go(func() {
		if !calls[0].offer(u.ctx, request) {
			u.refuse(sideRequests, &request.message, refusal)
		}
	})
}

// offer passes a server request to the call. It reports false if ctx is done, or if the call no
// longer takes messages.
func (held *heldCall) offer(ctx context.Context, request heldMessage) bool {
	reader := held.reader.Load()
	if reader != nil {
		reader.ServerRequestOpened()
	}
	select {
	case held.messages <- request:
		return true
	case <-held.answered:
	case <-held.done:
	case <-ctx.Done():
	}
	if reader != nil {
		reader.ServerRequestClosed()
	}
	return false
}
