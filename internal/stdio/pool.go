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

// A Config says how children are run. All fields are needed but Dir, Env, Withheld and Roots.
type Config struct {
	Command      []string // and its arguments
	Env          []string // all of the environment, as name=value
	Withheld     []string // names of variables for the network that Caddy has, and Env does not
	Dir          string   // where it runs
	Framing      Framing
	Isolation    Isolation
	Roots        []string      // the answer to roots/list where no client gives one
	SoleClient   bool          // one client uses all children, so they get its roots
	StartTimeout time.Duration // for a child to be initialized
	StopGrace    time.Duration // for a child to end by itself
	MaxMessage   int           // bytes
	MaxSessions  int
	SessionTTL   time.Duration // for which an unused session is kept
	Logger       func() *zap.Logger
}

// Isolation is who shares a child.
type Isolation string

const (
	// OneForAll is one child for all clients.
	OneForAll Isolation = "none"
	// Shared is one child for all clients that declare the same capabilities.
	Shared Isolation = "shared"
	// PerSession is one child for each session. Clients without a session share them as
	// with Shared.
	PerSession Isolation = "session"
)

// An Observer is told what happens.
type Observer interface {
	Started(server string, pid int, restart bool)
	Exited(server string, pid int, err error)
	Noise(server string)   // a line on stdout was no message
	Dropped(server string) // a message had nobody to go to
}

// A Pool runs children: at each address that requests are sent to, one for each group of
// clients that share it, or one for each session. It is an http.RoundTripper.
type Pool struct {
	config  Config
	observe Observer
	roots   []byte
	running sync.WaitGroup // goroutines, each child's included

	aliveTime  time.Duration // constant, but for tests
	silentTime time.Duration // the same

	mu        sync.Mutex
	servers   map[address]*server
	groups    map[groupKey]*group
	groupsOf  map[string]*quota.Meter // of groups, by the name of their server
	sessions  map[string]*session
	listening map[*stream]bool         // streams that would not end by themselves
	answerers map[string][]*Answerer   // by host
	watchers  map[string][]*Watcher    // by host
	hungUp    bool                     // they all have to
	inFlight  map[string]int           // requests, by host
	idle      map[string]chan struct{} // closed when nothing is in flight any more at a host, or at any ("")
	users     map[string]int           // by host, or of any host (""); nil if nobody has said
	closed    bool
	closeOnce sync.Once
	kept      *quota.Meter // of sessions, with what they have said of themselves and subscribed to
	opening   sync.Mutex   // held while there is made room for a session
	starts    starts
	rootsStay sync.Map       // names of servers of which was logged that clients keep their roots
	full      rate.Sometimes // limits how often it is logged that there is no room for a group
}

// NewPool returns a pool. It starts nothing yet.
func NewPool(config Config, observe Observer) *Pool {
	return &Pool{
		config:    config,
		observe:   observe,
		roots:     RootsResult(config.Roots),
		servers:   map[address]*server{},
		groups:    map[groupKey]*group{},
		groupsOf:  map[string]*quota.Meter{},
		sessions:  map[string]*session{},
		listening: map[*stream]bool{},
		answerers: map[string][]*Answerer{},
		watchers:  map[string][]*Watcher{},
		inFlight:  map[string]int{},
		idle:      map[string]chan struct{}{},

		kept:   quota.NewMeter(sessionsKept, quota.Limits{Entries: config.MaxSessions, Bytes: maxBytes, OwnerBytes: maxOwnerBytes}),
		starts: starts{of: map[string]*rate.Limiter{}},
		full:   rate.Sometimes{First: 10, Interval: time.Minute},

		aliveTime:  aliveTime,
		silentTime: silentTime,
	}
}

// RoundTrip implements http.RoundTripper.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if !p.enter(req.URL.Host) {
		return nil, errStopped
	}
	rt := newRoundTrip(p, req)
	res, err := rt.serve()
	if err != nil || res.Body == http.NoBody || res.ContentLength >= 0 {
		rt.done()
	}
	return res, err
}

// enter counts a request, unless the pool has been closed.
func (p *Pool) enter(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.inFlight[host]++
	}
	return !p.closed
}

func (p *Pool) leave(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[host]--; p.inFlight[host] > 0 {
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

// An address is where requests of an era are sent to. A server that knows both
// eras gets a child for each that is asked for: how it has been greeted decides how
// it talks. In the legacy era that includes what its clients can do; in the modern era
// each request says so.
type address struct {
	host  string
	era   mcp.Era
	group *group // of clients of the legacy era that share a child
}

// name returns the name of the server at an address.
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
	if p.closed || s == nil && !p.used(a.host) {
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

// sharedServer returns the server at a host for a client without a session: that of clients
// with these capabilities. Without any it is one that runs.
func (p *Pool) sharedServer(host string, capabilities []byte, owner string) (*server, error) {
	p.mu.Lock()
	if p.closed || !p.used(host) {
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

// each calls f for every session.
func (p *Pool) each(f func(*session)) {
	p.mu.Lock()
	sessions := slices.Collect(maps.Values(p.sessions))
	p.mu.Unlock()
	for _, s := range sessions {
		f(s)
	}
}

// open begins a session of an owner. It returns nil if there is no room.
func (p *Pool) open(hello *jsonrpc.Message, host, owner string) *session {
	s := newSession(p, address{host: host}.name(), owner, hello)
	s.began = time.Now()
	s.lastUsed = s.began
	p.opening.Lock()
	defer p.opening.Unlock()
	for !p.kept.Fits(owner, s.bytes) && p.makeRoom(s) { // of clients that did not say goodbye, most likely
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.kept.Take(owner, s.bytes) {
		return nil
	}
	if p.config.Isolation == PerSession {
		s.server = newServer(p, address{host: host, era: mcp.Legacy}, s)
	} else {
		s.group = p.group(s.name, s.can, owner)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.using = 1
	s.expires = time.AfterFunc(p.config.SessionTTL, func() { p.lapse(s) })
	p.sessions[s.id] = s
	return s
}

// session returns a session with the server of a name, in use.
func (p *Pool) session(id, name string) *session {
	p.mu.Lock()
	s := p.sessions[id]
	p.mu.Unlock()
	if s == nil || s.name != name || !s.use() {
		return nil
	}
	return s
}

// lapse ends a session that was not used for its time to live. The time is looked at when it can
// be over, because a timer that each request stops and starts again costs more.
func (p *Pool) lapse(s *session) {
	s.mu.Lock()
	left := p.config.SessionTTL
	if s.using == 0 {
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

// expire ends a session that is not used.
func (p *Pool) expire(s *session) {
	s.mu.Lock()
	unused := s.using == 0
	s.ended = s.ended || unused
	s.mu.Unlock()
	if unused {
		p.end(s)
	}
}

// end ends a session and everything that is under way for it.
func (p *Pool) end(s *session) {
	s.mu.Lock()
	s.ended = true
	kept := s.bytes
	s.expires.Stop()
	s.mu.Unlock()
	s.mail.Discard()
	s.drop(func(*question) bool { return true })
	s.endEvents()
	uris := s.uris()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions[s.id] == s {
		delete(p.sessions, s.id)
		p.kept.Give(s.owner, kept)
	}
	switch {
	case p.closed: // Close stops everybody
	case s.server != nil:
		p.running.Go(s.server.stop)
	case len(uris) > 0 || s.logLevel() != "":
		p.running.Go(func() { p.forget(s.group, uris) })
	}
}

// forget takes back what a session that has ended wanted of shared children: its
// subscriptions, where it was the last to have them, and its log level.
func (p *Pool) forget(g *group, uris []string) {
	ctx, cancel := context.WithTimeout(context.Background(), p.config.StartTimeout)
	defer cancel()
	for _, server := range p.named(g.name, mcp.Legacy, g) {
		c := server.current()
		if c == nil {
			continue
		}
		for _, uri := range uris {
			if !server.wanted(uri) {
				_, _ = c.request(ctx, "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
		server.relevel(c)
	}
}

// named returns the servers of a name and era, all or those of a group.
func (p *Pool) named(name string, era mcp.Era, of *group) (servers []*server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.servers {
		if a.era == era && a.name() == name && (of == nil || of == a.group) {
			servers = append(servers, s)
		}
	}
	return servers
}

// Check finds out whether what runs at a host is alive. It starts a child if there
// is none, and another in the place of one that does not answer. That a session's
// own child does not is no fault of the others.
func (p *Pool) Check(ctx context.Context, host string) error {
	var servers []*server
	shared := false // one that runs is
	for _, s := range p.at(host) {
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

// check finds out whether children are alive. Those of sessions speak for themselves only.
func check(ctx context.Context, servers []*server) error {
	errs := make([]error, len(servers))
	var checks sync.WaitGroup
	for i, s := range servers {
		checks.Go(func() {
			if err := s.check(ctx); s.owner == nil {
				errs[i] = err
			}
		})
	}
	checks.Wait()
	return errors.Join(errs...)
}

// Use says that requests are sent to these hosts, or to any if none is named. Once it
// has been said, nothing is started elsewhere.
func (p *Pool) Use(hosts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == nil {
		p.users = map[string]int{}
	}
	for _, host := range orAny(hosts) {
		p.users[host]++
	}
}

// orAny returns the hosts, or "" for any if there are none.
func orAny(hosts []string) []string {
	if len(hosts) == 0 {
		return []string{""}
	}
	return hosts
}

// Release takes back what Use has said. At hosts that nobody uses any more it lets what
// is in flight come to its end, as Drain does, and stops the children.
func (p *Pool) Release(ctx context.Context, linger time.Duration, hosts ...string) {
	p.mu.Lock()
	for _, host := range orAny(hosts) {
		if p.users[host]--; p.users[host] == 0 {
			delete(p.users, host)
		}
	}
	unused := map[string]bool{}
	for a := range p.servers {
		unused[a.host] = !p.used(a.host)
	}
	for _, s := range p.sessions {
		if s.server != nil {
			unused[s.server.at.host] = !p.used(s.server.at.host)
		}
	}
	p.mu.Unlock()
	var retiring sync.WaitGroup
	for host := range unused {
		if unused[host] {
			retiring.Go(func() { p.retire(ctx, linger, host) })
		}
	}
	retiring.Wait()
}

// serves reports whether something can be started at a host.
func (p *Pool) serves(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used(host)
}

// used reports whether requests may be sent to a host. The caller holds the lock.
func (p *Pool) used(host string) bool {
	return p.users == nil || p.users[""] > 0 || p.users[host] > 0
}

// usedName reports whether requests may be sent to a server of this name. The caller
// holds the lock.
func (p *Pool) usedName(name string) bool {
	for host := range p.users {
		if host == "" || (address{host: host}).name() == name {
			return true
		}
	}
	return p.users == nil
}

// retire stops what runs at a host that is no longer used.
func (p *Pool) retire(ctx context.Context, linger time.Duration, host string) {
	for p.busy(ctx, linger, host) {
	}
	p.mu.Lock()
	if p.closed || p.used(host) { // again
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
		if s.server != nil && s.server.at.host == host || !p.usedName(s.name) {
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

// Drain lets what is in flight come to its end, for as long as ctx lasts, and
// closes the pool. The streams of sessions end at once: their clients open new ones
// elsewhere. Requests that come late are still served as long as others are, and
// for the time of linger after them.
func (p *Pool) Drain(ctx context.Context, linger time.Duration) {
	p.Hangup()
	for p.busy(ctx, linger, "") {
	}
	p.Close()
}

// Hangup ends the streams that clients have opened to listen, and those that they
// will open yet.
func (p *Pool) Hangup() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hungUp = true
	for st := range p.listening {
		st.stop()
	}
}

// listen notes a stream that would not end by itself.
func (p *Pool) listen(st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listening[st] = true
	if p.hungUp {
		st.stop()
	}
}

func (p *Pool) unlisten(st *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.listening, st)
}

// busy waits until nothing is in flight at a host, or at any (""), and then for a while.
// It reports whether something came in the meantime.
func (p *Pool) busy(ctx context.Context, linger time.Duration, host string) bool {
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
	return (p.inFlightAt(host) || p.ownBusy(host)) && ctx.Err() == nil
}

// ownBusy reports whether calls wait for a session's own child at a host. They may have
// come by another host of the same server. The caller holds the lock.
func (p *Pool) ownBusy(host string) bool {
	for _, s := range p.sessions {
		if s.server != nil && s.server.at.host == host {
			if c := s.server.current(); c != nil && c.busy() {
				return true
			}
		}
	}
	return false
}

// Close ends all sessions and stops all children. It returns when they have ended.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true // from here on nobody else stops the server of a session
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
		p.kept.Close()
		p.closeGroups()
	})
}
