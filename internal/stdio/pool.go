package stdio

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Config configures the children of a [Pool]. Dir, Env, Withheld and Roots may be empty.
type Config struct {
	Command      []string // command and arguments
	Env          []string // the whole environment, as name=value
	Withheld     []string // names of network variables that Caddy has and Env does not
	Dir          string   // working directory
	Framing      Framing
	Isolation    Isolation
	Roots        []string      // response to roots/list if no client has roots
	SoleClient   bool          // a single client uses all children, so they get its roots
	StartTimeout time.Duration // to initialize a child
	StopGrace    time.Duration // for a child to end after its stdin was closed
	MaxMessage   int           // bytes
	MaxSessions  int
	SessionTTL   time.Duration // how long an unused session is kept
	Logger       func() *zap.Logger
}

// Isolation selects the clients that share a child.
type Isolation string

const (
	// SingleChild is one child for all clients.
	SingleChild Isolation = "none"
	// Shared is one child for all clients that declare the same capabilities.
	Shared Isolation = "shared"
	// PerSession is one child for each session. Requests without a session share children as
	// with Shared.
	PerSession Isolation = "session"
)

// An Observer receives events of a [Pool], for metrics.
type Observer interface {
	Started(server string, pid int, restart bool)
	Exited(server string, pid int, err error)
	Noise(server string)   // a line on stdout was not a message
	Dropped(server string) // a message could not be delivered
}

// A Pool runs children: at each address one for each group of clients that share it, or one
// for each session. It is an http.RoundTripper.
type Pool struct {
	config  Config
	observe Observer
	roots   []byte
	running sync.WaitGroup // goroutines, each child's included

	aliveTime    time.Duration // constant, except in tests
	discoverTime time.Duration // constant, except in tests

	mu           sync.Mutex
	servers      map[address]*server
	groups       map[groupKey]*group
	groupMeters  map[string]*quota.Meter // by server name
	sessions     map[string]*session
	listeners    map[*stream]bool         // streams that clients keep open
	answerers    map[string][]*Answerer   // by host
	watchers     map[string][]*Watcher    // by host
	streamsEnded bool                     // listeners end as soon as they are opened
	inFlight     map[string]int           // requests by host
	idle         map[string]chan struct{} // closed when no request is in flight at a host, or at any ("")
	users        map[string]int           // by host, or of any host (""); nil before the first Use
	closed       bool
	closeOnce    sync.Once
	sessionMeter *quota.Meter // sessions and the bytes kept for them
	opening      sync.Mutex   // held while room is made for a session
	starts       startLimiter
	rootsLogged  sync.Map       // server names; the log already says that they do not get roots of clients
	fullLog      rate.Sometimes // limits log lines about missing room for a group
}

// NewPool returns a pool. It starts no child yet.
func NewPool(config Config, observe Observer) *Pool {
	return &Pool{
		config:      config,
		observe:     observe,
		roots:       RootsResult(config.Roots),
		servers:     map[address]*server{},
		groups:      map[groupKey]*group{},
		groupMeters: map[string]*quota.Meter{},
		sessions:    map[string]*session{},
		listeners:   map[*stream]bool{},
		answerers:   map[string][]*Answerer{},
		watchers:    map[string][]*Watcher{},
		inFlight:    map[string]int{},
		idle:        map[string]chan struct{}{},

		sessionMeter: quota.NewMeter(sessionQuota, quota.Limits{
			Entries: config.MaxSessions, Bytes: maxBytes, OwnerBytes: maxOwnerBytes,
		}),
		starts:  startLimiter{limiters: map[string]*rate.Limiter{}},
		fullLog: rate.Sometimes{First: 10, Interval: time.Minute},

		aliveTime:    aliveTime,
		discoverTime: discoverTime,
	}
}

// RoundTrip implements http.RoundTripper.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if !p.beginRequest(req.URL.Host) {
		return nil, errStopped
	}
	rt := newRoundTrip(p, req)
	res, err := rt.serve()
	if err != nil || res.Body == http.NoBody || res.ContentLength >= 0 {
		rt.finish()
	}
	return res, err
}

// beginRequest counts a request, unless the pool has been closed.
func (p *Pool) beginRequest(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.inFlight[host]++
	}
	return !p.closed
}

func (p *Pool) endRequest(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight[host]--
	if p.inFlight[host] > 0 {
		return
	}
	delete(p.inFlight, host)
	for _, at := range []string{host, ""} {
		if idle := p.idle[at]; idle != nil && !p.inFlightAt(at) {
			close(idle)
			delete(p.idle, at)
		}
	}
}

// inFlightAt reports whether requests are in flight at a host, or at any (""). The caller
// holds the lock.
func (p *Pool) inFlightAt(host string) bool {
	return p.inFlight[host] > 0 || host == "" && len(p.inFlight) > 0
}

// An address identifies the server for the requests of an era. A server that supports both eras
// gets a child for each era in use, because the handshake decides which one a child speaks. In
// the legacy era the handshake includes the capabilities of clients; in the modern era each
// request does.
type address struct {
	host  string
	era   mcp.Era
	group *group // legacy clients that share a child
}

// name returns the name of the server.
func (a address) name() string {
	if i := strings.LastIndexByte(a.host, ':'); i >= 0 {
		return a.host[:i]
	}
	return a.host
}

// server returns the server at an address.
func (p *Pool) server(a address) (*server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.servers[a]
	if p.closed || s == nil && !p.isUsed(a.host) {
		return nil, errStopped
	}
	if s == nil {
		s = newServer(p, a, nil)
		p.servers[a] = s
	}
	if a.group != nil {
		a.group.lastUsed = time.Now()
	}
	return s, nil
}

// sharedServer returns the server at a host for a request without a session: that of clients
// with these capabilities or, if they are nil, one that runs.
func (p *Pool) sharedServer(host string, capabilities []byte, owner string) (*server, error) {
	p.mu.Lock()
	if p.closed || !p.isUsed(host) {
		p.mu.Unlock()
		return nil, errStopped
	}
	var g *group
	if capabilities == nil {
		g = p.anyGroup(host)
	} else {
		g = p.group(address{host: host}.name(), capabilities, owner)
	}
	p.mu.Unlock()
	return p.server(address{host, mcp.Legacy, g})
}

// eachSession calls f for every session.
func (p *Pool) eachSession(f func(*session)) {
	p.mu.Lock()
	sessions := slices.Collect(maps.Values(p.sessions))
	p.mu.Unlock()
	for _, s := range sessions {
		f(s)
	}
}

// open begins a session for a client that has sent initialize. It returns nil if there is no
// room.
func (p *Pool) open(initialize *jsonrpc.Message, host, owner string) *session {
	s := newSession(p, address{host: host}.name(), owner, initialize)
	s.created = time.Now()
	s.lastUsed = s.created
	p.opening.Lock()
	defer p.opening.Unlock()
	// Most of the sessions that this ends belong to clients that left without DELETE.
	for !p.sessionMeter.Fits(owner, s.bytes) && p.makeRoom(s) {
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.sessionMeter.Take(owner, s.bytes) {
		return nil
	}
	if p.config.Isolation == PerSession {
		s.server = newServer(p, address{host: host, era: mcp.Legacy}, s)
	} else {
		s.group = p.group(s.name, s.capabilities, owner)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openResponses = 1
	s.expires = time.AfterFunc(p.config.SessionTTL, func() { p.checkExpiry(s) })
	p.sessions[s.id] = s
	return s
}

// session returns a session of a server by its ID and marks it as used.
func (p *Pool) session(id, name string) *session {
	p.mu.Lock()
	s := p.sessions[id]
	p.mu.Unlock()
	if s == nil || s.name != name || !s.use() {
		return nil
	}
	return s
}

// checkExpiry ends a session that was unused for its time to live. It runs when that can be the
// case, because a timer that each request restarts costs more.
func (p *Pool) checkExpiry(s *session) {
	s.mu.Lock()
	left := p.config.SessionTTL
	if s.openResponses == 0 {
		left -= time.Since(s.lastUsed)
	}
	again := left > 0 && !s.ended
	if again {
		s.expires.Reset(left)
	}
	s.mu.Unlock()
	if !again {
		p.expire(s)
	}
}

// expire ends a session unless it is used.
func (p *Pool) expire(s *session) {
	s.mu.Lock()
	unused := s.openResponses == 0
	s.ended = s.ended || unused
	s.mu.Unlock()
	if unused {
		p.end(s)
	}
}

// end ends a session with its open requests.
func (p *Pool) end(s *session) {
	s.mu.Lock()
	s.ended = true
	size := s.bytes
	s.expires.Stop()
	s.mu.Unlock()
	s.streamInbox.Discard()
	s.refuseMatching(func(*serverRequest) bool { return true })
	s.endEvents()
	uris := s.uris()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[s.id] == s {
		delete(p.sessions, s.id)
		p.sessionMeter.Give(s.owner, size)
	}
	switch {
	case p.closed: // Close stops all servers
	case s.server != nil:
		p.running.Go(s.server.stop)
	case len(uris) > 0 || s.logLevel() != "":
		p.running.Go(func() { p.releaseShared(s.group, uris) })
	}
}

// releaseShared undoes what an ended session has set on shared children: its log level, and
// subscriptions that no other session has.
func (p *Pool) releaseShared(g *group, uris []string) {
	ctx, cancel := context.WithTimeout(context.Background(), p.config.StartTimeout)
	defer cancel()
	for _, server := range p.serversNamed(g.name, mcp.Legacy, g) {
		c := server.current()
		if c == nil {
			continue
		}
		for _, uri := range uris {
			if !server.isSubscribed(uri) {
				_, _ = c.request(ctx, "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
		server.updateLevel(c)
	}
}

// serversNamed returns the servers with a name and era, of all groups or one.
func (p *Pool) serversNamed(name string, era mcp.Era, g *group) (servers []*server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.servers {
		if a.era == era && a.name() == name && (g == nil || g == a.group) {
			servers = append(servers, s)
		}
	}
	return servers
}

// Check pings the children at a host. It starts a child if none runs, and restarts children
// that do not respond. Failures of children of a single session are not returned.
func (p *Pool) Check(ctx context.Context, host string) error {
	var servers []*server
	shared := false // a shared child runs
	for _, s := range p.serversAt(host) {
		if s.current() != nil {
			servers = append(servers, s)
			shared = shared || s.owner == nil
		}
	}
	if !shared {
		s, err := p.sharedServer(host, nil, "")
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	return check(ctx, servers)
}

// check pings children. Failures of children of a single session are not returned.
func check(ctx context.Context, servers []*server) error {
	errs := make([]error, len(servers))
	var checks sync.WaitGroup
	for i, s := range servers {
		checks.Go(func() {
			err := s.check(ctx)
			if s.owner == nil {
				errs[i] = err
			}
		})
	}
	checks.Wait()
	return errors.Join(errs...)
}

// Use notes that requests are sent to these hosts, or to any host if hosts is empty. After the
// first call, no child is started at other hosts.
func (p *Pool) Use(hosts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == nil {
		p.users = map[string]int{}
	}
	for _, host := range hostsOrAny(hosts) {
		p.users[host]++
	}
}

// hostsOrAny returns the hosts, or "" for any if there are none.
func hostsOrAny(hosts []string) []string {
	if len(hosts) == 0 {
		return []string{""}
	}
	return hosts
}

// Release undoes Use. At hosts that are no longer used it lets requests in flight finish, as
// Drain does, and stops the children.
func (p *Pool) Release(ctx context.Context, linger time.Duration, hosts ...string) {
	p.mu.Lock()
	for _, host := range hostsOrAny(hosts) {
		if p.users[host]--; p.users[host] == 0 {
			delete(p.users, host)
		}
	}
	unused := map[string]bool{}
	for a := range p.servers {
		unused[a.host] = !p.isUsed(a.host)
	}
	for _, s := range p.sessions {
		if s.server != nil {
			unused[s.server.address.host] = !p.isUsed(s.server.address.host)
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

// serves reports whether children can be started at a host.
func (p *Pool) serves(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isUsed(host)
}

// isUsed reports whether a user of the pool sends requests to a host. The caller holds the lock.
func (p *Pool) isUsed(host string) bool {
	return p.users == nil || p.users[""] > 0 || p.users[host] > 0
}

// isNameUsed reports whether a user of the pool sends requests to a server with this name. The
// caller holds the lock.
func (p *Pool) isNameUsed(name string) bool {
	for host := range p.users {
		if host == "" || (address{host: host}).name() == name {
			return true
		}
	}
	return p.users == nil
}

// stopHost stops the children at a host that is no longer used.
func (p *Pool) stopHost(ctx context.Context, linger time.Duration, host string) {
	for p.waitIdle(ctx, linger, host) {
	}
	p.mu.Lock()
	if p.closed || p.isUsed(host) { // it may be used again
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
	for _, s := range p.sessions {
		if s.server != nil && s.server.address.host == host || !p.isNameUsed(s.name) {
			ended = append(ended, s)
		}
	}
	p.mu.Unlock()
	for _, s := range ended {
		p.end(s)
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
func (p *Pool) EndStreams() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streamsEnded = true
	for st := range p.listeners {
		st.stop()
	}
}

// addListener notes a stream that does not end by itself.
func (p *Pool) addListener(st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners[st] = true
	if p.streamsEnded {
		st.stop()
	}
}

func (p *Pool) removeListener(st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.listeners, st)
}

// waitIdle waits until no request is in flight at a host, or at any (""), and then for linger.
// It reports whether more requests came in the meantime.
func (p *Pool) waitIdle(ctx context.Context, linger time.Duration, host string) bool {
	p.mu.Lock()
	var idle chan struct{}
	if p.inFlightAt(host) {
		if idle = p.idle[host]; idle == nil {
			idle = make(chan struct{})
			p.idle[host] = idle
		}
	}
	p.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return false
		}
	}
	backoff.Sleep(ctx, linger)
	p.mu.Lock()
	defer p.mu.Unlock()
	return (p.inFlightAt(host) || p.sessionChildBusy(host)) && ctx.Err() == nil
}

// sessionChildBusy reports whether calls wait for a child of a single session at a host. They
// may have come through another host of the same server. The caller holds the lock.
func (p *Pool) sessionChildBusy(host string) bool {
	for _, s := range p.sessions {
		if s.server != nil && s.server.address.host == host {
			if c := s.server.current(); c != nil && c.busy() {
				return true
			}
		}
	}
	return false
}

// Close ends all sessions and stops all children. It returns when the processes have ended.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true // from here on only Close stops the servers of sessions
	servers := slices.Collect(maps.Values(p.servers))
	sessions := slices.Collect(maps.Values(p.sessions))
	p.mu.Unlock()
	for _, s := range sessions {
		p.end(s)
		if s.server != nil {
			servers = append(servers, s.server)
		}
	}
	var stopping sync.WaitGroup
	for _, s := range servers {
		stopping.Go(s.stop)
	}
	stopping.Wait()
	p.running.Wait()
	p.closeOnce.Do(func() {
		p.sessionMeter.Close()
		p.closeGroups()
	})
}

// A Watcher is called when a child has sent a notification that a list has changed, with the
// sessions that have no open stream to receive it. It must not block.
type Watcher func(method string, sessions []string)

// Watch registers a Watcher for the children at a host, until release is called.
func (p *Pool) Watch(host string, watcher Watcher) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers[host] = append(p.watchers[host], &watcher)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watchers[host] = slices.DeleteFunc(p.watchers[host], func(other *Watcher) bool { return other == &watcher })
	}
}

func (p *Pool) watchersOf(host string) []*Watcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.watchers[host])
}
