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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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
	NotStarted(server string, restart bool) // a start has failed
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

	hosts       hosts
	inFlight    requestCounts
	answerers   registry[Answerer]
	watchers    registry[Watcher]
	rootsLogged sync.Map // server names; the log already says that they do not get roots of clients

	// listening is done when the streams end that clients keep open to listen. They do not end by
	// themselves.
	listening    context.Context
	endListening context.CancelFunc

	mu       sync.Mutex // guards what groups and sessions contain, too
	servers  map[address]*server
	groups   groups
	sessions sessions
	closed   bool
}

// NewPool returns a pool. It starts no child yet.
func NewPool(config Config, observe Observer) *Pool {
	p := &Pool{
		config:   config,
		observe:  observe,
		roots:    RootsResult(config.Roots),
		servers:  map[address]*server{},
		inFlight: requestCounts{byHost: map[string]int{}, idle: map[string]chan struct{}{}},

		aliveTime:    aliveTime,
		discoverTime: discoverTime,
	}
	p.listening, p.endListening = context.WithCancel(context.Background())
	p.groups = newGroups(p)
	p.sessions = newSessions(p)
	return p
}

// RoundTrip implements http.RoundTripper.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if !p.inFlight.begin(req.URL.Host) {
		return nil, errStopped
	}
	rt := newRoundTrip(p, req)
	res, err := rt.serve()
	if err != nil || res.Body == http.NoBody || res.ContentLength >= 0 {
		rt.finish()
	}
	return res, err
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

// nameAt returns the name of the server at a host.
func nameAt(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		return host[:i]
	}
	return host
}

// server returns the server at an address.
func (p *Pool) server(a address) (*server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.servers[a]
	if p.closed || s == nil && !p.hosts.inUse(a.host) {
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
	if p.closed || !p.hosts.inUse(host) {
		p.mu.Unlock()
		return nil, errStopped
	}
	var g *group
	if capabilities == nil {
		g = p.groups.any(host)
	} else {
		g = p.groups.of(nameAt(host), capabilities, owner)
	}
	p.mu.Unlock()
	return p.server(address{host, mcp.Legacy, g})
}

// serversNamed returns the servers with a name and era, of all groups or one.
func (p *Pool) serversNamed(name string, era mcp.Era, g *group) (servers []*server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.servers {
		if a.era == era && nameAt(a.host) == name && (g == nil || g == a.group) {
			servers = append(servers, s)
		}
	}
	return servers
}

// hasServer reports whether there is a server at an address.
func (p *Pool) hasServer(a address) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[a] != nil
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
	return forEach(servers, func(s *server) error {
		err := s.check(ctx)
		if s.owner != nil {
			return nil
		}
		return err
	})
}

// forEach calls do for all servers at once, and returns its errors.
func forEach(servers []*server, do func(*server) error) error {
	errs := make([]error, len(servers))
	var calls sync.WaitGroup
	for i, s := range servers {
		calls.Go(func() { errs[i] = do(s) })
	}
	calls.Wait()
	return errors.Join(errs...)
}

// Close ends all sessions and stops all children. It returns when the processes have ended.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true // from here on only Close stops the servers of sessions
	p.inFlight.close()
	servers := slices.Collect(maps.Values(p.servers))
	sessions := slices.Collect(maps.Values(p.sessions.byID))
	p.mu.Unlock()
	for _, s := range sessions {
		s.end()
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
	p.sessions.meter.Close()
	p.groups.close()
}

// A Watcher is called when a child has sent a notification that a list has changed, with the
// sessions that have no open stream to receive it. It must not block.
type Watcher func(method string, sessions []string)

// Watch registers a Watcher for the children at a host, until release is called.
func (p *Pool) Watch(host string, watcher Watcher) (release func()) {
	return p.watchers.add(host, watcher)
}

// A registry holds the functions that are registered for each host.
type registry[F any] struct {
	mu     sync.Mutex
	byHost map[string][]*F
}

// add registers a function until release is called.
func (r *registry[F]) add(host string, f F) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byHost == nil {
		r.byHost = map[string][]*F{}
	}
	r.byHost[host] = append(r.byHost[host], &f)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.byHost[host] = slices.DeleteFunc(r.byHost[host], func(other *F) bool { return other == &f })
	}
}

// at returns the functions of a host, the oldest first.
func (r *registry[F]) at(host string) []*F {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.byHost[host])
}
