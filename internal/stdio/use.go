package stdio

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
)

// A pool outlives the configurations that use it. Its hosts have users, and children run until the
// last one has released their host and no request is in flight.

// hosts counts the users of each host, or of any host (""). Use does not wait for the lock of the
// pool: its caller may hold a lock that the logger takes, and servers log under theirs.
type hosts struct {
	mu    sync.Mutex
	users map[string]int // nil before the first add; all hosts are in use then
}

// add adds a user of these hosts, or of any host if there are none.
func (h *hosts) add(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == nil {
		h.users = map[string]int{}
	}
	for _, host := range hostsOrAny(names) {
		h.users[host]++
	}
}

// remove undoes add.
func (h *hosts) remove(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, host := range hostsOrAny(names) {
		if h.users[host]--; h.users[host] == 0 {
			delete(h.users, host)
		}
	}
}

// hostsOrAny returns the hosts, or "" for any if there are none.
func hostsOrAny(hosts []string) []string {
	if len(hosts) == 0 {
		return []string{""}
	}
	return hosts
}

// inUse reports whether a host has users.
func (h *hosts) inUse(host string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.users == nil || h.users[""] > 0 || h.users[host] > 0
}

// nameInUse reports whether a host of the server with this name has users.
func (h *hosts) nameInUse(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for host := range h.users {
		if host == "" || nameAt(host) == name {
			return true
		}
	}
	return h.users == nil
}

// snapshot returns a copy, for decisions that depend on each other.
func (h *hosts) snapshot() *hosts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &hosts{users: maps.Clone(h.users)}
}

// requestCounts counts the requests in flight at each host.
type requestCounts struct {
	mu     sync.Mutex
	byHost map[string]int
	idle   map[string]chan struct{} // closed when no request is in flight at a host, or at any ("")
	closed bool
}

// begin counts a request, unless the pool has been closed.
func (r *requestCounts) begin(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.byHost[host]++
	}
	return !r.closed
}

func (r *requestCounts) end(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byHost[host]--
	if r.byHost[host] > 0 {
		return
	}
	delete(r.byHost, host)
	for _, at := range []string{host, ""} {
		if idle := r.idle[at]; idle != nil && !r.anyAt(at) {
			close(idle)
			delete(r.idle, at)
		}
	}
}

// close makes begin refuse requests.
func (r *requestCounts) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// anyAt reports whether requests are in flight at a host, or at any (""). The caller holds the
// lock.
func (r *requestCounts) anyAt(host string) bool {
	return r.byHost[host] > 0 || host == "" && len(r.byHost) > 0
}

// busy reports whether requests are in flight at a host, or at any ("").
func (r *requestCounts) busy(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.anyAt(host)
}

// wait waits until no request is in flight at a host, or at any (""). It reports false if ctx is
// done before.
func (r *requestCounts) wait(ctx context.Context, host string) bool {
	r.mu.Lock()
	if !r.anyAt(host) {
		r.mu.Unlock()
		return true
	}
	idle := r.idle[host]
	if idle == nil {
		idle = make(chan struct{})
		r.idle[host] = idle
	}
	r.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// Use notes that requests are sent to these hosts, or to any host if hosts is empty. After the
// first call, no child is started at other hosts.
func (p *Pool) Use(hosts ...string) { p.hosts.add(hosts) }

// Release undoes Use. At hosts that are no longer used it lets requests in flight finish, as
// Drain does, and stops the children.
func (p *Pool) Release(ctx context.Context, linger time.Duration, hosts ...string) {
	p.mu.Lock()
	p.hosts.remove(hosts)
	unused := map[string]bool{}
	for a := range p.servers {
		unused[a.host] = !p.hosts.inUse(a.host)
	}
	for _, s := range p.sessions.byID {
		if s.server != nil {
			unused[s.server.address.host] = !p.hosts.inUse(s.server.address.host)
		}
	}
	p.mu.Unlock()
	var retiring sync.WaitGroup
	for host := range unused {
		if unused[host] {
			retiring.Go(func() { p.stopHost(ctx, linger, host) })
		}
	}
	retiring.Wait()
}

// stopHost stops the children at a host that is no longer used.
func (p *Pool) stopHost(ctx context.Context, linger time.Duration, host string) {
	for p.waitIdle(ctx, linger, host) {
	}
	p.mu.Lock()
	hosts := p.hosts.snapshot()
	if p.closed || hosts.inUse(host) { // it may be used again
		p.mu.Unlock()
		return
	}
	var stopping sync.WaitGroup
	for a, s := range p.servers {
		if a.host == host {
			delete(p.servers, a)
			stopping.Go(s.stop)
		}
	}
	var ended []*session
	for _, s := range p.sessions.byID {
		if s.hasServerAt(host) || !hosts.nameInUse(s.name) {
			ended = append(ended, s)
		}
	}
	p.mu.Unlock()
	for _, s := range ended {
		s.end()
		if s.server != nil {
			stopping.Go(s.server.stop)
		}
	}
	stopping.Wait()
}

// Drain lets requests in flight finish, at most until ctx is done, and closes the pool. The
// streams of sessions end at once, so that their clients open new ones elsewhere. Requests that
// come late are still served while others are in flight, and for linger after them.
func (p *Pool) Drain(ctx context.Context, linger time.Duration) {
	p.EndStreams()
	for p.waitIdle(ctx, linger, "") {
	}
	p.Close()
}

// EndStreams ends the streams that clients have opened to listen, and those that they open later.
func (p *Pool) EndStreams() { p.endListening() }

// addListening lets EndStreams end a stream.
func (p *Pool) addListening(st *stream) {
	remove := context.AfterFunc(p.listening, st.stop)
	context.AfterFunc(st.ctx, func() { remove() })
}

// waitIdle waits until no request is in flight at a host, or at any (""), and then for linger.
// It reports whether more requests came in the meantime.
func (p *Pool) waitIdle(ctx context.Context, linger time.Duration, host string) bool {
	if !p.inFlight.wait(ctx, host) {
		return false
	}
	backoff.Sleep(ctx, linger)
	return (p.inFlight.busy(host) || p.sessions.busyAt(host)) && ctx.Err() == nil
}
