package gateway

import (
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An audience is all clients that servers cannot tell apart, see [visit.audience]. What a server
// says of itself to one of them, it says to all, and so it does with its lists, until a session
// has been used. So a client needs no session with a server to know what that has.
type audience struct {
	key          string
	identity     string        // of its clients
	owner        string        // of what is kept for them
	introduction *introduction // of each of them
	size         int64

	mu       sync.Mutex
	profiles map[string]*profile // by the ID of the server
}

// at returns what is known of a server.
func (a *audience) at(id string) *profile {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.profiles[id]
	if p == nil {
		p = &profile{meeting: make(chan struct{}, 1)}
		a.profiles[id] = p
	}
	return p
}

// A profile is what an audience knows of a server.
type profile struct {
	meeting chan struct{} // holds one token: its holder asks the server
	lists   catalog.Cache

	mu      sync.Mutex
	about   *about           // nil if it is not known
	failure *jsonrpc.Failure // of the last attempt to ask
	asked   time.Time        // when that ended
	readers int              // streams of clients that have a listener for the server
	heardBy *link            // of the client that has begun to listen last; nil if none does
	missing bool             // clients were answered without the server
}

// lender returns the link in whose session a list is asked for on behalf of a client: its own if it has
// a session, or that of a client which listens and has not used it. Otherwise it is the client's own,
// which has to be opened.
func (p *profile) lender(c *client, s *upstream.Server) *link {
	own := c.linked(s)
	if own != nil && own.isOpen() {
		return own
	}
	p.mu.Lock()
	other := p.heardBy
	p.mu.Unlock()
	if other != nil && other.isOpen() && !other.isUsed() {
		return other
	}
	return c.link(s)
}

// noteHeard notes by which link the server is listened to, and by which not anymore.
func (p *profile) noteHeard(l *link, begins bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case begins:
		p.heardBy = l
	case p.heardBy == l:
		p.heardBy = nil
	}
}

// addReader notes that a stream of a client is going to listen to the server. If another does so
// already and this one need not, it reports false.
func (p *profile) addReader(needed bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readers > 0 && !needed {
		return false
	}
	p.readers++
	return true
}

// removeReader notes that a stream no longer listens, and reports whether it was the last one.
func (p *profile) removeReader() (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers--
	return p.readers == 0
}

// about is what a server has said of itself. It never changes.
type about struct {
	capabilities, instructions interned
	mentioned                  interned // the URIs in its instructions
	can                        mcp.Abilities
	session                    bool // it begins a session with each client
	learned                    time.Time
}

// abilities returns what the server can do, as far as that is known.
func (a *about) abilities() mcp.Abilities {
	if a == nil {
		return 0
	}
	return a.can
}

// current returns what the server has said of itself, nil if it has to be asked again. As long as
// one client listens to it, the end of the server would be noticed.
func (p *profile) current(s *upstream.Server) *about {
	heard := p.lists.HasListener(mcp.Tools)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.about == nil || s.IsOut() || !heard && time.Since(p.about.learned) >= catalog.UnchangedTime {
		return nil
	}
	return p.about
}

// last returns what the server has said of itself, however long ago.
func (p *profile) last() *about {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.about == nil {
		return new(about)
	}
	return p.about
}

// learn notes what the server has said of itself.
func (p *profile) learn(said *about) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.about = said
}

// forget has the server asked again.
func (p *profile) forget() {
	p.mu.Lock()
	p.about = nil
	p.mu.Unlock()
	p.lists.Forget(catalog.EveryKind...)
}

// meet returns what a server says of itself to a client. If that is not known, one client asks by
// opening its session, and the others wait.
func (p *profile) meet(o behalf, c *client, s *upstream.Server) (*about, *jsonrpc.Failure) {
	if l := c.linked(s); l != nil && l.isOpen() {
		return l.description(), nil
	}
	if c.apart.Load() {
		l := c.link(s)
		failure := l.open(o)
		return l.description(), failure
	}
	if known := p.current(s); known != nil {
		return known, nil
	}
	began := time.Now()
	select {
	case p.meeting <- struct{}{}:
		defer func() { <-p.meeting }()
	case <-o.ctx.Done():
		return nil, jsonrpc.Timeout(s.Name)
	}
	if known := p.current(s); known != nil {
		return known, nil
	}
	if failure := p.failedSince(began); failure != nil {
		return nil, failure
	}
	l := c.link(s)
	failure := l.open(o)
	if failure == nil {
		return l.description(), nil
	}
	if o.ctx.Err() == nil {
		p.mu.Lock()
		p.failure, p.asked = failure, time.Now()
		p.mu.Unlock()
	}
	return nil, failure
}

// failedSince returns why the server could not be asked since a time.
func (p *profile) failedSince(began time.Time) *jsonrpc.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked.Before(began) {
		return nil
	}
	return p.failure
}

// audiences are all that are remembered.
type audiences struct {
	mu   sync.Mutex
	kept *quota.Cache[string, *audience]
}

const (
	// audienceTime is how long an audience is remembered of which no client asks for anything.
	audienceTime = 10 * time.Minute
	// How many bytes are kept of audiences, and about how many a profile takes.
	maxAudiences, profileSize = 64 << 20, 1 << 10
)

var keptAudiences = quota.NewKind("audiences")

func newAudiences() *audiences {
	limits := quota.Limits{Bytes: maxAudiences}
	return &audiences{kept: quota.NewCache[string, *audience](keptAudiences, limits, audienceTime, nil)}
}

// close forgets all of them, and keeps no more.
func (all *audiences) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.kept.Close()
}

// audience returns that of a client, and renews it.
func (g *Gateway) audience(c *client) *audience {
	all := g.audiences
	all.mu.Lock()
	defer all.mu.Unlock()
	a, ok := all.kept.Get(c.audience)
	if !ok {
		a = &audience{key: c.audience, identity: c.identity, owner: c.owner, introduction: c.introduction,
			profiles: map[string]*profile{}}
	}
	a.size = int64(profileSize*len(g.config.Servers)) + int64(c.introduction.size())
	all.kept.Put(a.owner, c.audience, a, a.size)
	return a
}

// each calls f for all audiences.
func (all *audiences) each(f func(*audience)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, a := range all.kept.All {
		f(a)
	}
}

// expire forgets audiences whose clients have not asked for anything for long, unless they listen, and
// servers that are no longer there. It returns how many audiences are left.
func (all *audiences) expire(servers map[string]bool, listening iter.Seq[string]) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	for key := range listening {
		if a, ok := all.kept.Get(key); ok {
			all.kept.Put(a.owner, key, a, a.size)
		}
	}
	all.kept.Expire()
	for _, a := range all.kept.All {
		a.mu.Lock()
		maps.DeleteFunc(a.profiles, func(id string, _ *profile) bool { return !servers[id] })
		a.mu.Unlock()
	}
	return all.kept.Len()
}

// profile returns what the audience of a client knows of a server.
func (g *Gateway) profile(c *client, id string) *profile { return g.audience(c).at(id) }
