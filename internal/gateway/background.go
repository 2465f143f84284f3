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

// firstWait is how long initialize and server/discover wait for servers that are not connected yet,
// if the client is notified when they are. Many clients give up after a few seconds. Most installed
// servers start faster.
const firstWait = 2 * time.Second

// recheckPause is the interval, after firstWait, of checks whether the client can be notified by
// now.
const recheckPause = firstWait / 10

// A background runs requests to servers that may continue after the client's request is answered,
// if the quota allows it. It ends when the gateway is closed, or after its timeout.
type background struct {
	scope
	client       *client
	bytes        int64 // size of the request
	cancel       context.CancelFunc
	releaseQuota func()        // returns what reserve took
	pending      atomic.Int64  // running calls of Go, plus 1 until requestAnswered
	slots        chan struct{} // one value per request that runs now
	requested    int           // calls of Go
	arrivals     chan func()   // what the request does with results, one function per call of Go
}

// backgroundLimits bound the backgrounds that continue after their requests. Each of them sends to
// at most maxFanOut servers at a time.
var backgroundLimits = quota.Limits{Entries: 512, Bytes: 32 << 20, OwnerEntries: 32, OwnerBytes: 4 << 20}

var backgroundsQuota = quota.NewKind("background_requests")

// newBackground returns a background for requests to at most n servers. The request of the client
// must call requestAnswered.
func newBackground(req *aggregateRequest, n int) *background {
	ctx, cancel := context.WithCancel(newBackgroundContext(req.g.config.Exiting, req.g, req.ctx))
	saved := saveRequest(req.HTTP)
	bg := &background{
		scope: scope{ctx: ctx, g: req.g, r: saved.withContext(ctx)}, client: req.client, bytes: saved.size(),
		cancel: cancel, releaseQuota: func() {}, slots: make(chan struct{}, maxFanOut), arrivals: make(chan func(), n),
	}
	bg.pending.Store(1)
	return bg
}

// Go runs f in a goroutine, at most maxFanOut at a time. f must send one function to arrivals.
func (bg *background) Go(f func()) {
	bg.requested++
	bg.pending.Add(1)
	run := func() {
		defer bg.done()
		bg.slots <- struct{}{}
		defer func() { <-bg.slots }()
		f()
	}
	if !bg.g.clients.runFor(bg.client, run) {
		bg.cancel() // the gateway is closed
		run()
	}
}

// requestAnswered cancels the background unless the quota lets it continue.
func (bg *background) requestAnswered() {
	if bg.pending.Load() == 1 || !bg.reserve() {
		bg.cancel()
	}
	bg.done()
}

// reserve takes the quota for continuing after the request. It reports whether there was enough.
func (bg *background) reserve() bool {
	if bg.ctx.Err() != nil || !bg.g.backgroundMeter.Take(bg.client.owner, bg.bytes) {
		return false
	}
	unbind := context.AfterFunc(bg.g.closing, bg.cancel)
	timeout := time.AfterFunc(2*bg.g.config.JoinTimeout, bg.cancel) // for the handshake and for the list
	bg.releaseQuota = func() {
		unbind()
		timeout.Stop()
		bg.g.backgroundMeter.Give(bg.client.owner, bg.bytes)
	}
	return true
}

// done counts down pending. The last call ends the background.
func (bg *background) done() {
	if bg.pending.Add(-1) == 0 {
		bg.releaseQuota()
		bg.cancel()
	}
}

// collect runs the functions that arrive. It waits for them for firstWait, then while waits returns
// true, and at most JoinTimeout. If ctx is done because the client disconnected, it cancels the
// background.
func (bg *background) collect(ctx context.Context, waits func() bool) {
	last, next := time.NewTimer(bg.g.config.JoinTimeout), time.NewTimer(firstWait)
	defer last.Stop()
	defer next.Stop()
	for left := bg.requested; left > 0; {
		select {
		case take := <-bg.arrivals:
			take()
			left--
		case <-next.C:
			if !waits() {
				return
			}
			next.Reset(recheckPause)
		case <-last.C:
			return
		case <-ctx.Done():
			bg.cancel()
			return
		}
	}
}

// collectLate runs the functions that have arrived since collect.
func (bg *background) collectLate() {
	for {
		select {
		case take := <-bg.arrivals:
			take()
		default:
			return
		}
	}
}

// noteLeftOut notes that a client gets a response without the server, so that it is notified when
// the server becomes available.
func (p *profile) noteLeftOut(s *upstream.Server) {
	p.mu.Lock()
	p.missing = true
	p.mu.Unlock()
	s.Missing.Store(true)
}

// noteAvailable notes that the server is available, and reports whether clients got responses
// without it. Clients without a stream are notified when they open one.
func (p *profile) noteAvailable() (missing bool) {
	p.mu.Lock()
	missing, p.missing = p.missing, false
	p.mu.Unlock()
	if missing {
		p.lists.ChangedBefore(catalog.AnnouncedKinds...)
	}
	return missing
}

// isNotifiedOf reports whether the client has a stream for notifications that lists of a kind have
// changed.
func (c *client) isNotifiedOf(k mcp.ListKind) bool {
	notice := mcp.ListKinds[k].Notice
	for _, s := range c.openStreams() {
		if notice != "" && s.ctx.Err() == nil && (s.wants == nil || s.wants.wantsNotice(notice)) {
			return true
		}
	}
	return false
}

// retry starts to reconnect to an unreachable server in the background, unless that runs already.
func (l *link) retry(sc scope, s *upstream.Server) {
	if !s.BeginRetrying() {
		return
	}
	ctx := newBackgroundContext(sc.g.closing, sc.g, sc.ctx)
	saved := saveRequest(sc.r)
	sc = scope{ctx: ctx, g: sc.g, r: saved.withContext(ctx)}
	// Until the server is reachable, the client has ended its session, or clients have stopped
	// asking for the server.
	reconnect := func() {
		defer s.EndRetrying()
		for s.WaitForRetry(sc.ctx) && !l.client.ended.Load() && !l.session.isOpen() {
			_ = l.connect(sc, true) // notes and logs the failure
		}
	}
	if !sc.g.clients.runFor(l.client, reconnect) {
		s.EndRetrying()
	}
}

// A backgroundContext has the values of a request's context but not its deadline or cancellation.
type backgroundContext struct {
	context.Context
	values context.Context
	owner  any
}

// newBackgroundContext returns a context that is done when until is.
func newBackgroundContext(until context.Context, g *Gateway, values context.Context) *backgroundContext {
	return &backgroundContext{until, g.config.Detach(values), values.Value(stdio.OwnerKey{})}
}

func (c *backgroundContext) Value(key any) any {
	if _, ok := key.(stdio.OwnerKey); ok {
		return c.owner
	}
	if value := c.Context.Value(key); value != nil { // values that package context itself looks up
		return value
	}
	return c.values.Value(key)
}
