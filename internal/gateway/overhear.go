package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// Many servers of the legacy era ask their questions not in the stream of the call that
// they need the answer for, but in that of the session. A client of the modern era does
// not know of such a stream, so it is listened to for it while it has calls there.

// lingering is how long a server is listened to after a call: mostly there is another.
const lingering = 30 * time.Second

// An overhearing is the stream of a session with a server of the legacy era, heard for
// the calls of a client of the modern era.
type overhearing struct {
	session string
	begun   chan struct{} // closed when the server has answered
	cancel  context.CancelFunc
	idle    *time.Timer // ends it; stopped while there are calls
}

// overhearings are all that there are.
type overhearings struct {
	mu    sync.Mutex
	all   map[*overhearing]bool
	ended bool
}

// add notes one, unless nothing is listened to any more.
func (all *overhearings) add(o *overhearing) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.all == nil {
		all.all = map[*overhearing]bool{}
	}
	if !all.ended {
		all.all[o] = true
	}
	return !all.ended
}

// remove notes that one has ended.
func (all *overhearings) remove(o *overhearing) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.all, o)
}

// end ends all of them.
func (all *overhearings) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ended = true
	for o := range all.all {
		o.cancel()
	}
}

// overhear listens to the server for a call. What it returns ends that.
func (held *heldCall) overhear(ctx context.Context) (end func()) {
	a, l := held.a, held.link
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, held)
	end = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls = slices.DeleteFunc(l.calls, func(other *heldCall) bool { return other == held })
		if l.overheard != nil && len(l.calls) == 0 {
			l.overheard.idle.Reset(lingering)
		}
	}
	if !l.client.inquirable() || l.deaf || l.hearing[tools] > 0 {
		return end // there is nothing to hear, or somebody else does
	}
	if l.overheard != nil && l.overheard.session == l.session {
		l.overheard.idle.Stop()
		return end
	}
	o := &overhearing{session: l.session, begun: make(chan struct{})}
	listening, cancel := context.WithCancel(context.WithoutCancel(ctx))
	o.cancel, o.idle = cancel, time.AfterFunc(time.Hour, cancel)
	o.idle.Stop()
	if !a.State.overhear.add(o) {
		cancel()
		return end
	}
	l.overheard = o
	a.running.Go(func() {
		defer cancel()
		defer a.State.overhear.remove(o)
		l.overhear(listening, a, held.of, o)
	})
	return end
}

// inquirable reports whether the client can be asked anything.
func (c *client) inquirable() bool {
	return slices.ContainsFunc([]string{"roots/list", "sampling/createMessage", "elicitation/create"}, c.can)
}

// listen waits until the server is listened to, if it is going to be, but not for long.
func (l *link) listen(ctx context.Context) {
	l.mu.Lock()
	o := l.overheard
	l.mu.Unlock()
	if o == nil {
		return
	}
	timer := time.NewTimer(joinPause)
	defer timer.Stop()
	select {
	case <-o.begun:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// overhear listens to the stream of a session.
func (l *link) overhear(ctx context.Context, a *Gateway, of *http.Request, o *overhearing) {
	begun := sync.OnceFunc(func() { close(o.begun) })
	defer begun()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.overheard == o {
			l.overheard = nil
		}
	}()
	r, _, era := l.prepare(ctx, a, of)
	server := a.of(l)
	if era != mcp.Legacy || server == nil {
		return
	}
	emptyBody(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	var asides Asides
	defer asides.Wait()
	h := &streamable.Reader{OnHeader: func(status int) bool {
		if status == http.StatusMethodNotAllowed {
			l.mu.Lock()
			l.deaf = true
			l.mu.Unlock()
		}
		begun()
		return status == http.StatusOK
	}}
	h.OnMessage = func(e *streamable.Event) error {
		m := e.Message
		switch {
		case len(e.Data) == 0 || m.IsAnswer():
		case !m.IsRequest():
			l.noted(a, m)
			l.spread(a, m)
		case !l.inquire(m):
			l.refuse(a, of, ctx, &asides, m, "nobody knows which call of the client this is for")
		}
		return nil
	}
	_ = a.newExchange(l, h, nil).send(r) // without it, calls go on
}

// spread gives the client what was heard besides: by each of the streams of the modern
// era that wants it, or by one of the legacy era.
func (l *link) spread(a *Gateway, m *jsonrpc.Message) (delivered bool) {
	for _, s := range l.client.listening() {
		if s.a.Load().of(l) == nil || !s.deliver(a, l, m, "") {
			continue
		}
		if delivered = true; s.wants == nil {
			break
		}
	}
	return delivered
}

// inquire puts a question that came outside of any call to the one call of the client
// that there is. Of several nobody knows which one it is for.
func (l *link) inquire(m *jsonrpc.Message) bool {
	l.mu.Lock()
	calls := slices.Clone(l.calls)
	l.mu.Unlock()
	if len(calls) != 1 {
		return false
	}
	return calls[0].take(m)
}

// take takes a message of the server. It reports whether somebody waits for it.
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
