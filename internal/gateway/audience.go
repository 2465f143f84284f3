package gateway

import (
	"crypto/sha256"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An audience is the set of clients that servers cannot tell apart, see
// [clientFinder.audience]. A server gives all of them the same capabilities, instructions and
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

// A clientFinder finds the client that sent a request.
type clientFinder struct{ *aggregateRequest }

// modern returns the client of a modern request. An audience counts as one client. The caller
// must release it.
func (f clientFinder) modern() (*client, *jsonrpc.Failure) {
	intro := introduction{
		capabilities: f.Message.Literal(jsonrpc.ClientCapabilities),
		info:         f.Message.Literal(jsonrpc.ClientInfo),
	}
	if len(intro.capabilities)+len(intro.info) > maxIntroduction {
		return nil, introductionTooLarge("_meta: clientInfo and clientCapabilities are larger than 16 KiB")
	}
	var room [8]string
	names := upstream.HeaderNames(room[:0], f.HTTP.Header, upstream.IsIdentifying)
	key := f.audience(names, intro.capabilities, intro.info)
	return f.g.clients.get(key, func() *client {
		// Clone: they outlive the message.
		intro.capabilities, intro.info = slices.Clone(intro.capabilities), slices.Clone(intro.info)
		c := newClient(mcp.Modern, mcp.Stateless, f.Caller.Identity, f.Caller.Owner(), intro.complete())
		c.audience = key
		return c
	}), nil
}

// ofSession returns the client of a session. The caller must release it.
func (f clientFinder) ofSession(id string) (*client, *jsonrpc.Failure) {
	g := f.g
	c := g.clients.get(id, func() *client {
		t, ok := g.sealer.openTicket(id)
		if !ok || t.Identity != f.Caller.Identity {
			return nil // the session belongs to another client: do not store this one's headers for it
		}
		owner := t.Identity
		if owner == "" {
			owner = "@" + t.Address
		}
		c := newClient(mcp.Legacy, t.Version, t.Identity, owner, readIntroduction(t.InitParams))
		c.issued = time.Unix(t.Issued, 0)
		f.beginSession(c)
		t.restoreLinks(c, g.config.Servers)
		return c
	})
	switch {
	case c == nil:
		return nil, jsonrpc.UnknownSession()
	case c.identity != f.Caller.Identity:
		g.clients.release(c)
		return nil, jsonrpc.UnknownSession()
	}
	g.replicaSync.syncSession(f.ctx, c)
	switch {
	case g.endedSessions.has(c):
		g.clients.release(c)
		return nil, jsonrpc.UnknownSession()
	case !c.isolated.Load() && f.fingerprint() != c.fingerprint:
		c.isolated.Store(true)
	}
	return c, nil
}

// audience returns the key of the client's audience: clients with the same identity, the same parts
// (what they say about themselves), and the same values of these headers. Without an identity,
// clients must also have the same address and certificate.
func (f clientFinder) audience(headers []string, parts ...[]byte) string {
	key := append(make([]byte, 0, 1<<10), f.Caller.Identity...)
	if f.Caller.Identity == "" {
		key = append(append(key, '@'), f.Peer.Address...)
		if tls := f.HTTP.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			key = append(append(key, 0), tls.PeerCertificates[0].Raw...)
		}
	}
	key = append(key, 0)
	for _, name := range headers {
		key = append(key, name...)
		for _, value := range f.HTTP.Header[name] {
			key = append(append(key, 0), value...)
		}
		key = append(key, '\n')
	}
	for _, part := range parts {
		key = append(append(key, part...), 0)
	}
	sum := sha256.Sum256(key)
	return string(sum[:])
}

// legacyAudience returns the key of the audience of a legacy client. Servers may choose their lists
// by any header, so all such headers count.
func (f clientFinder) legacyAudience(c *client) string {
	names := upstream.HeaderNames(nil, f.HTTP.Header, upstream.MayVaryLists)
	return f.audience(names, []byte("initialize"), c.introduction.params)
}

// A headerValue is one value of a header.
type headerValue struct {
	name, value string
	number      int
}

var fingerprintSeed = maphash.MakeSeed()

// fingerprint returns a hash of the sender and the headers of the request. It differs whenever
// legacyAudience differs, and is cheaper to compute: each request is compared with the one that
// began the session.
func (f clientFinder) fingerprint() (sum uint64) {
	if f.Caller.Identity == "" {
		sum = maphash.String(fingerprintSeed, f.Peer.Address)
		if tls := f.HTTP.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			sum += maphash.Bytes(fingerprintSeed, tls.PeerCertificates[0].Raw)
		}
	}
	for name, values := range f.HTTP.Header {
		if !upstream.MayVaryLists(name) {
			continue
		}
		for i, value := range values {
			sum += maphash.Comparable(fingerprintSeed, headerValue{name, value, i})
		}
	}
	return sum
}

// beginSession sets the fingerprint and the audience of a new client.
func (f clientFinder) beginSession(c *client) {
	c.fingerprint = f.fingerprint()
	c.joinAudience(f.g, f.legacyAudience(c))
}
