package gateway

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// firstWait is how long a client waits for servers that are not connected yet, if it hears of them when they
// are. Clients give up a server that does not answer initialize within a few seconds, and a person looks at the
// screen meanwhile. Most servers that are installed start in less.
const firstWait = 2 * time.Second

// rewaitPause is how often it is checked, after that, whether a client hears of servers by now.
const rewaitPause = firstWait / 10

// A side is what the gateway does for a client beside a request: it goes on after the request was answered, if there is
// room for it. Then it ends when the gateway is closed, or after sideTime.
type side struct {
	behalf
	client  *client
	bytes   int64 // of the request
	cancel  context.CancelFunc
	settle  func()        // gives back what leave has taken
	pending atomic.Int64  // calls of Go that have not ended, and the request as long as it adds some
	turns   chan struct{} // holds a value for each server that is asked at the moment
}

// sideLimits bound the sides that go on after their requests were answered. Each asks up to maxFanOut servers at the
// same time.
var sideLimits = quota.Limits{Entries: 512, Bytes: 32 << 20, OwnerEntries: 32, OwnerBytes: 4 << 20}

var keptSides = quota.NewKind("background_requests")

// sideTime returns how long a side goes on: a server has JoinTimeout for the handshake, and again for its list.
func (g *Gateway) sideTime() time.Duration { return 2 * g.config.JoinTimeout }

// beside returns a side for what may go on after the request was answered. The request has to leave it.
func (v *visit) beside() *side {
	ctx, cancel := context.WithCancel(newBesideContext(v.g.config.Exiting, v.g, v.ctx))
	kept := keepRequest(v.HTTP)
	s := &side{behalf: behalf{ctx: ctx, g: v.g, r: kept.in(ctx)}, client: v.client, bytes: kept.size(), cancel: cancel,
		settle: func() {}, turns: make(chan struct{}, maxFanOut)}
	s.pending.Store(1)
	return s
}

// Go runs f in a goroutine.
func (s *side) Go(f func()) {
	s.pending.Add(1)
	run := func() {
		defer s.release()
		s.turns <- struct{}{}
		defer func() { <-s.turns }()
		f()
	}
	if !s.g.runFor(s.client, run) {
		s.cancel() // the gateway has ended
		run()
	}
}

// leave says that the request is answered. A side that has no room to go on ends now.
func (s *side) leave() {
	if s.pending.Load() == 1 || !s.goesOn() {
		s.cancel()
	}
	s.release()
}

// goesOn reports whether there is room for the side after its request, and takes it.
func (s *side) goesOn() bool {
	if s.ctx.Err() != nil || !s.g.sidesKept.Take(s.client.owner, s.bytes) {
		return false
	}
	unbind := context.AfterFunc(s.g.closing, s.cancel)
	late := time.AfterFunc(s.g.sideTime(), s.cancel)
	s.settle = func() {
		unbind()
		late.Stop()
		s.g.sidesKept.Give(s.client.owner, s.bytes)
	}
	return true
}

// release says that the request, or a goroutine, has ended.
func (s *side) release() {
	if s.pending.Add(-1) == 0 {
		s.settle()
		s.cancel()
	}
}

// runFor runs f in a goroutine, for a client that is kept until f returns. It reports false if the State has ended.
func (s *State) runFor(c *client, f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	c.using++
	s.running.Go(func() {
		defer s.release(c)
		f()
	})
	return true
}

// listWait returns how long a list waits for servers that are not connected yet, if the client hears of them when they
// are. Clients wait longer for lists than for initialize, and a program that lists once ignores what it hears: an
// operator whose servers are slow has a longer join_timeout.
func (g *Gateway) listWait() time.Duration { return max(firstWait, g.config.JoinTimeout/8) }

// gather takes n results that arrive from goroutines of a side. The client waits for firstWait, then as long as
// waits returns true, and no longer than JoinTimeout. It reports whether all have arrived. If the client leaves, the
// side is given up.
func (v *visit) gather(s *side, n int, arrivals <-chan func(), waits func() bool) (complete bool) {
	last, next := time.NewTimer(v.g.config.JoinTimeout), time.NewTimer(firstWait)
	defer last.Stop()
	defer next.Stop()
	for ; n > 0; n-- {
		for arrived := false; !arrived; {
			select {
			case take := <-arrivals:
				take()
				arrived = true
			case <-next.C:
				if !waits() {
					return false
				}
				next.Reset(rewaitPause)
			case <-last.C:
				return false
			case <-v.ctx.Done():
				s.cancel()
				return false
			}
		}
	}
	return true
}

// leaveOut notes that the client is answered without a server, so that it is told when the server is there.
func (v *visit) leaveOut(s *upstream.Server, p *profile) {
	p.mu.Lock()
	p.missing = true
	p.mu.Unlock()
	s.Missing.Store(true)
}

// came tells clients that were answered without a server that it is there.
func (g *Gateway) came(s *upstream.Server) {
	if !s.Missing.Swap(false) {
		return
	}
	concerned := map[string]bool{}
	g.audiences.each(func(a *audience) { concerned[a.key] = a.at(s.ID).noteCame() })
	g.mu.Lock()
	streams := g.streamsOf(g)
	g.mu.Unlock()
	for _, stream := range streams {
		if concerned[stream.visit.client.audience] && g.rules.Sees(stream.visit.caller.Identity, s.Name) {
			stream.later(func() { stream.announce(mcp.Tools, mcp.Prompts, mcp.Resources) })
		}
	}
}

// noteCame notes that the server is there. It reports whether clients were answered without it. Those that listen
// later are told then.
func (p *profile) noteCame() (missing bool) {
	p.mu.Lock()
	missing, p.missing = p.missing, false
	p.mu.Unlock()
	if missing {
		p.lists.ChangedBefore(catalog.AnnouncedKinds...)
	}
	return missing
}

// hears reports whether the client has a stream by which it is told that lists of a kind have changed.
func (c *client) hears(k mcp.ListKind) bool {
	notice := mcp.ListKinds[k].Notice
	for _, s := range c.listening() {
		if notice != "" && s.ctx.Err() == nil && (s.wants == nil || s.wants.wantsNotice(notice)) {
			return true
		}
	}
	return false
}

// retry has a server that cannot be reached tried beside requests, on behalf of the client that asks for it now, if
// that is not done already.
func (l *link) retry(o behalf, s *upstream.Server) {
	if !s.BeginRetrying() {
		return
	}
	ctx := newBesideContext(o.g.closing, o.g, o.ctx)
	kept := keepRequest(o.r)
	o = behalf{ctx: ctx, g: o.g, r: kept.in(ctx)}
	if !o.g.runFor(l.client, func() { l.keepRetrying(o, s) }) {
		s.EndRetrying()
	}
}

// keepRetrying tries a server until it can be reached, the client has left, or no client has asked for long.
func (l *link) keepRetrying(o behalf, s *upstream.Server) {
	defer s.EndRetrying()
	for s.WaitForRetry(o.ctx) && !l.client.ended.Load() && !l.isOpen() {
		_ = l.connect(o, true) // which notes and logs it
	}
}

// A besideContext is the context of what is done beside requests, with the values of the context of a request.
type besideContext struct {
	context.Context
	values context.Context
	owner  any
}

// newBesideContext returns a context that is done when another one is.
func newBesideContext(until context.Context, g *Gateway, of context.Context) *besideContext {
	return &besideContext{until, g.config.Detach(of), of.Value(stdio.OwnerKey{})}
}

func (c *besideContext) Value(key any) any {
	if _, ok := key.(stdio.OwnerKey); ok {
		return c.owner
	}
	if value := c.Context.Value(key); value != nil { // which package context asks for
		return value
	}
	return c.values.Value(key)
}
