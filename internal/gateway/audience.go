package gateway

import (
	"maps"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An audience is the set of clients that servers cannot tell apart, see
// [audienceOf]. A server gives all of them the same capabilities, instructions and
// lists, until one of them has used its session. So a client needs no session of its own to know
// what a server offers.
type audience struct {
	key          string
	identity     string        // of all its clients
	owner        string        // whose quota the audience counts against
	introduction *introduction // of all its clients
	size         int64

	mu       sync.Mutex
	profiles map[string]*profile // by server ID
}

// profile returns the profile of a server, by server ID.
func (a *audience) profile(id string) *profile {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.profiles[id]
	if p == nil {
		p = &profile{fetching: make(chan struct{}, 1)}
		a.profiles[id] = p
	}
	return p
}

// A profile is what an audience knows about a server.
type profile struct {
	fetching chan struct{} // holds one token, for the client that requests the info
	lists    catalog.Cache

	mu            sync.Mutex
	info          *serverInfo      // nil if unknown
	failure       *jsonrpc.Failure // of the last failed attempt
	failedAt      time.Time        // when it failed
	readers       int              // streams with a listener for the server
	listeningLink *link            // of the last client that started to listen; nil if no client listens
	missing       bool             // clients got responses without this server
}

// listLink returns the link to request a list with. It is the client's own link if that is open,
// else an open and unused link of a client that listens, else the client's own, which must be
// opened first.
func (p *profile) listLink(c *client, s *upstream.Server) *link {
	own := c.existingLink(s)
	if own != nil && own.session.isOpen() {
		return own
	}
	p.mu.Lock()
	other := p.listeningLink
	p.mu.Unlock()
	if other != nil && other.session.isOpen() && !other.session.isUsed() {
		return other
	}
	return c.linkTo(s)
}

// noteListening notes that a link starts or stops to listen.
func (p *profile) noteListening(l *link, begins bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case begins:
		p.listeningLink = l
	case p.listeningLink == l:
		p.listeningLink = nil
	}
}

// addReader counts a stream that is about to listen to the server. It reports false if another
// stream does so already and this one need not.
func (p *profile) addReader(needed bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readers > 0 && !needed {
		return false
	}
	p.readers++
	return true
}

// removeReader notes that a stream has stopped listening. It reports whether it was the last one.
func (p *profile) removeReader() (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers--
	return p.readers == 0
}

// A serverInfo is the server's result of initialize or server/discover. It is immutable.
type serverInfo struct {
	capabilities, instructions interned
	mentionedURIs              interned // URIs in the instructions
	can                        mcp.Abilities
	hasSession                 bool // the server has sessions
	learned                    time.Time
}

// abilities returns what the server can do, none if info is nil.
func (info *serverInfo) abilities() mcp.Abilities {
	if info == nil {
		return 0
	}
	return info.can
}

// freshInfo returns the server's info, nil if it must be requested again. It stays fresh while a
// client listens to the server, because the end of the server ends the stream.
func (p *profile) freshInfo(s *upstream.Server) *serverInfo {
	watched := p.lists.HasListener(mcp.Tools)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.info == nil || s.IsUnavailable() || !watched && time.Since(p.info.learned) >= catalog.UnchangedTime {
		return nil
	}
	return p.info
}

// lastInfo returns the last known info of the server, however old. It is empty if there is none.
func (p *profile) lastInfo() *serverInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.info == nil {
		return new(serverInfo)
	}
	return p.info
}

func (p *profile) setInfo(info *serverInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = info
}

// forget drops the info and the lists of the server.
func (p *profile) forget() {
	p.mu.Lock()
	p.info = nil
	p.mu.Unlock()
	p.lists.Forget(catalog.EveryKind...)
}

// getInfo returns the info of a server. If it is unknown, one client of the audience opens its
// session and the others wait.
func (p *profile) getInfo(sc scope, c *client, s *upstream.Server) (*serverInfo, *jsonrpc.Failure) {
	if l := c.existingLink(s); l != nil && l.session.isOpen() {
		return l.session.serverInfo(), nil
	}
	if c.isolated.Load() {
		l := c.linkTo(s)
		failure := l.open(sc)
		return l.session.serverInfo(), failure
	}
	if known := p.freshInfo(s); known != nil {
		return known, nil
	}
	began := time.Now()
	select {
	case p.fetching <- struct{}{}:
		defer func() { <-p.fetching }()
	case <-sc.ctx.Done():
		return nil, jsonrpc.Timeout(s.Name)
	}
	if known := p.freshInfo(s); known != nil {
		return known, nil
	}
	if failure := p.failedSince(began); failure != nil {
		return nil, failure
	}
	l := c.linkTo(s)
	failure := l.open(sc)
	if failure == nil {
		return l.session.serverInfo(), nil
	}
	if sc.ctx.Err() == nil {
		p.mu.Lock()
		p.failure, p.failedAt = failure, time.Now()
		p.mu.Unlock()
	}
	return nil, failure
}

// failedSince returns the failure of the last attempt, nil if it failed before began.
func (p *profile) failedSince(began time.Time) *jsonrpc.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failedAt.Before(began) {
		return nil
	}
	return p.failure
}

// audiences has the audiences with recent requests or open streams.
type audiences struct {
	mu    sync.Mutex
	cache *quota.Cache[string, *audience]
}

const (
	// audienceTime is how long an audience is remembered after the last request of its clients.
	audienceTime = 10 * time.Minute
	// maxAudiences limits the bytes kept for all audiences. profileSize is the estimate for one
	// profile.
	maxAudiences, profileSize = 64 << 20, 1 << 10
)

var audiencesQuota = quota.NewKind("audiences")

func newAudiences() *audiences {
	limits := quota.Limits{Bytes: maxAudiences}
	return &audiences{cache: quota.NewCache[string, *audience](audiencesQuota, limits, audienceTime, nil)}
}

// close forgets all audiences and keeps no new ones.
func (all *audiences) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.cache.Close()
}

// audience returns the audience of a client and renews it.
func (g *Gateway) audience(c *client) *audience {
	all := g.audiences
	all.mu.Lock()
	defer all.mu.Unlock()
	a, ok := all.cache.Get(c.audience)
	if !ok {
		a = &audience{key: c.audience, identity: c.identity, owner: c.owner, introduction: c.introduction,
			profiles: map[string]*profile{}}
	}
	a.size = int64(profileSize*len(g.config.Servers)) + int64(c.introduction.size())
	all.cache.Put(a.owner, c.audience, a, a.size)
	return a
}

// each calls f for all audiences.
func (all *audiences) each(f func(*audience)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, a := range all.cache.All {
		f(a)
	}
}

// expire forgets audiences without recent requests or streams, and profiles of servers that no
// longer exist. It returns the number of audiences left.
func (all *audiences) expire(servers map[string]bool, listening []string) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, key := range listening {
		if a, ok := all.cache.Get(key); ok {
			all.cache.Put(a.owner, key, a, a.size)
		}
	}
	all.cache.Expire()
	for _, a := range all.cache.All {
		a.mu.Lock()
		maps.DeleteFunc(a.profiles, func(id string, _ *profile) bool { return !servers[id] })
		a.mu.Unlock()
	}
	return all.cache.Len()
}

// profile returns what the audience of a client knows about a server, by server ID.
func (g *Gateway) profile(c *client, id string) *profile { return g.audience(c).profile(id) }
