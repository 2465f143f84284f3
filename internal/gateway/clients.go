package gateway

import (
	"context"
	"crypto/sha256"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// findModern finds the client of a modern request. An audience counts as one client.
func (req *aggregateRequest) findModern() *jsonrpc.Failure {
	intro := introduction{
		capabilities: req.Message.Literal(jsonrpc.ClientCapabilities),
		info:         req.Message.Literal(jsonrpc.ClientInfo),
	}
	if len(intro.capabilities)+len(intro.info) > maxIntroduction {
		return introductionTooLarge("_meta: clientInfo and clientCapabilities are larger than 16 KiB")
	}
	var room [8]string
	names := upstream.HeaderNames(room[:0], req.HTTP.Header, upstream.IsIdentifying)
	key := audienceOf(req.Request, names, intro.capabilities, intro.info)
	req.client = req.g.clients.get(key, func() *client {
		// Clone: they outlive the message.
		intro.capabilities, intro.info = slices.Clone(intro.capabilities), slices.Clone(intro.info)
		c := newClient(mcp.Modern, mcp.Stateless, req.Caller.Identity, req.Caller.Owner(), intro.complete())
		c.audience = key
		return c
	})
	return nil
}

// findSession finds the client of the session that the request names.
func (req *aggregateRequest) findSession() *jsonrpc.Failure {
	g, id := req.g, httpbody.GetHeader(req.HTTP.Header, mcp.SessionHeader)
	if id == "" {
		if req.HTTP.Method == http.MethodGet {
			// Clients of HTTP+SSE and browsers send such requests.
			failure := jsonrpc.MethodNotAllowed("POST")
			failure.Message += ": this address is for MCP clients, not for browsers"
			return failure
		}
		return jsonrpc.InvalidRequest("the header Mcp-Session-Id is missing: initialize first")
	}
	c := g.clients.get(id, func() *client { return clientOfTicket(req, id) })
	switch {
	case c == nil:
		return jsonrpc.UnknownSession()
	case c.identity != req.Caller.Identity:
		g.clients.release(c)
		return jsonrpc.UnknownSession()
	}
	if g.replicaSync != nil {
		g.replicaSync.records.sync(req.ctx, c)
	}
	switch {
	case g.endedSessions.has(c):
		g.clients.release(c)
		return jsonrpc.UnknownSession()
	case !c.isolated.Load() && fingerprintOf(req.Request) != c.fingerprint:
		c.isolated.Store(true)
	}
	req.client = c
	return nil
}

// clientOfTicket returns a client that continues the session with an id. It returns nil if the id
// is not valid for the client of the request.
func clientOfTicket(req *aggregateRequest, id string) *client {
	t, ok := req.g.sealer.openTicket(id)
	if !ok || t.Identity != req.Caller.Identity {
		return nil // the session belongs to another client: do not store this one's headers for it
	}
	owner := t.Identity
	if owner == "" {
		owner = "@" + t.Address
	}
	c := newClient(mcp.Legacy, t.Version, t.Identity, owner, readIntroduction(t.InitParams))
	c.issued = time.Unix(t.Issued, 0)
	setAudience(c, req.g, req.Request)
	t.restoreLinks(c, req.g.config.Servers)
	return c
}

// audienceOf returns the key of the audience of a client: clients with the same identity, the same
// parts (what they say about themselves), and the same values of these headers. Without an
// identity, clients must also have the same address and certificate.
func audienceOf(q *inbound.Request, headers []string, parts ...[]byte) string {
	key := append(make([]byte, 0, 1<<10), q.Caller.Identity...)
	if q.Caller.Identity == "" {
		key = append(append(key, '@'), q.Peer.Address...)
		if tls := q.HTTP.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			key = append(append(key, 0), tls.PeerCertificates[0].Raw...)
		}
	}
	key = append(key, 0)
	for _, name := range headers {
		key = append(key, name...)
		for _, value := range q.HTTP.Header[name] {
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

// legacyAudienceOf returns the key of the audience of a legacy client. Servers may choose their
// lists by any header, so all such headers count.
func legacyAudienceOf(q *inbound.Request, c *client) string {
	names := upstream.HeaderNames(nil, q.HTTP.Header, upstream.MayVaryLists)
	return audienceOf(q, names, []byte("initialize"), c.introduction.params)
}

// A headerValue is one value of a header.
type headerValue struct {
	name, value string
	number      int
}

var fingerprintSeed = maphash.MakeSeed()

// fingerprintOf returns a hash of the sender and the headers of the request. It differs whenever
// legacyAudienceOf differs, and is cheaper to compute: each request is compared with the one that
// began the session.
func fingerprintOf(q *inbound.Request) (sum uint64) {
	if q.Caller.Identity == "" {
		sum = maphash.String(fingerprintSeed, q.Peer.Address)
		if tls := q.HTTP.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			sum += maphash.Bytes(fingerprintSeed, tls.PeerCertificates[0].Raw)
		}
	}
	for name, values := range q.HTTP.Header {
		if !upstream.MayVaryLists(name) {
			continue
		}
		for i, value := range values {
			sum += maphash.Comparable(fingerprintSeed, headerValue{name, value, i})
		}
	}
	return sum
}

// setAudience sets the fingerprint and the audience of a new client. All clients of an
// audience share one copy of its key and of the introduction.
func setAudience(c *client, g *Gateway, q *inbound.Request) {
	c.fingerprint, c.audience = fingerprintOf(q), legacyAudienceOf(q, c)
	a := g.audience(c)
	c.audience, c.introduction = a.key, a.introduction
}

// A clientTable has the clients that are remembered. If its lock is held together with State.mu,
// State.mu is locked first.
type clientTable struct {
	running       *sync.WaitGroup // background work
	ending        chan struct{}   // one token per session that is being ended, to limit them
	subscriptions *quota.Meter    // resource subscriptions
	sweep         func()          // called regularly while there is something to expire

	mu       sync.Mutex
	busy     map[string]*client            // clients in use
	idle     *quota.Cache[string, *client] // recently used clients; may contain busy ones
	resting  *quota.Cache[string, *client] // older sessions with state that their ids do not carry
	sweeping *time.Timer                   // nil if there is nothing to expire
	gateways gatewayList                   // they end the sessions of forgotten clients
	ended    bool
}

const (
	// idleTime is how long an idle client is remembered. Modern clients never say that they are
	// done, so the gateway then ends their sessions with legacy servers. Legacy sessions can
	// continue from their ids.
	idleTime = 30 * time.Minute

	// restTime is how long a legacy session is remembered after that, if it has subscriptions or a
	// log level, which its id does not carry.
	restTime = 24 * time.Hour
)

func newClientTable(running *sync.WaitGroup, subscriptions *quota.Meter, sweep func()) *clientTable {
	t := &clientTable{
		running: running, ending: make(chan struct{}, 16), subscriptions: subscriptions, sweep: sweep,
		busy: map[string]*client{},
	}
	t.idle = quota.NewCache(clientsQuota, clientLimits(0), idleTime, func(_ string, c *client) { t.forget(c) })
	unsubscribe := func(_ string, c *client) { c.unsubscribe(subscriptions) }
	t.resting = quota.NewCache(restingQuota, clientLimits(0), restTime, unsubscribe)
	return t
}

// clientLimits returns the limits for a number of clients. It reserves 4 KiB for each; most need
// less.
func clientLimits(clients int) quota.Limits {
	return quota.Limits{Entries: clients, Bytes: int64(max(clients, 64)) << 12}
}

// get returns the client with a key, or adds the one that make returns. The caller must release
// it.
func (t *clientTable) get(key string, make func() *client) *client {
	if c := t.lookUp(key, nil); c != nil {
		return c
	}
	c := make() // without the lock: this may take a while
	if c == nil {
		return nil
	}
	return t.lookUp(key, c)
}

// lookUp returns the client with a key. If there is none, it adds a client, unless add is nil.
func (t *clientTable) lookUp(key string, add *client) *client {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.busy[key]
	if c == nil {
		if c, _ = t.idle.Get(key); c == nil {
			c, _ = t.resting.Remove(key)
		}
		if c == nil {
			c = add
		}
		if c == nil {
			return nil
		}
		if c.key == "" {
			c.mu.Lock() // of hasKey
			c.key = key
			c.mu.Unlock()
		}
		t.busy[c.key] = c // share the string: session ids are long
		if t.sweeping == nil && !t.ended {
			t.sweeping = time.AfterFunc(idleTime/10, t.sweep)
		}
	}
	c.refs++
	return c
}

// addRef adds a reference to a client in use.
func (t *clientTable) addRef(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.refs++
}

// release drops a reference to a client. Without references, the client becomes idle.
func (t *clientTable) release(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.refs--
	if c.refs > 0 || c.key == "" {
		return
	}
	delete(t.busy, c.key)
	if t.ended || c.ended.Load() {
		t.idle.Remove(c.key)
		c.unsubscribe(t.subscriptions)
		return
	}
	if bytes := c.size(); !t.idle.Put(c.owner, c.key, c, bytes) {
		t.forget(c)
	}
}

// expire forgets expired clients and calls others, with the lock held. That reports whether
// anything else is left that can expire.
func (t *clientTable) expire(others func() (left bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle.Expire()
	t.resting.Expire()
	left := others() || len(t.busy) > 0 || t.idle.Len() > 0 || t.resting.Len() > 0
	if t.ended || !left {
		t.sweeping = nil
		return
	}
	t.sweeping.Reset(idleTime / 10)
}

// forget forgets a client, unless it is in use. The caller holds the lock.
func (t *clientTable) forget(c *client) {
	if c.refs > 0 {
		return
	}
	if c.era == mcp.Legacy {
		if c.hasUncarriedState() && !t.resting.Put(c.owner, c.key, c, c.size()) {
			c.unsubscribe(t.subscriptions)
		}
		return // the session id stays valid
	}
	for _, l := range c.allLinks() {
		g := t.gateways.ofLink(l)
		if g == nil || l.endRequest == nil {
			continue
		}
		t.running.Go(func() {
			t.ending <- struct{}{}
			defer func() { <-t.ending }()
			ctx, cancel := context.WithTimeout(context.Background(), g.config.JoinTimeout)
			defer cancel()
			l.end(scope{ctx: ctx, g: g, r: l.endRequest})
		})
	}
}

// runFor runs f in a goroutine and keeps the client in memory until f returns. It reports false if
// the State has ended.
func (t *clientTable) runFor(c *client, f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	c.refs++
	t.running.Go(func() {
		defer t.release(c)
		f()
	})
	return true
}

// noteParked removes a client with a parked stream from the idle clients, until it is released.
func (t *clientTable) noteParked(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle.Remove(c.key)
}

// follow notes the Gateways that serve now. The newest one sets the number of clients to remember.
func (t *clientTable) follow(all gatewayList) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gateways = slices.Clone(all)
	if latest := all.latest(); latest != nil {
		t.setLimits(latest.config.MaxClients)
	}
}

// setLimits sets the number of clients to remember. The caller holds the lock.
func (t *clientTable) setLimits(clients int) {
	t.idle.SetLimits(clientLimits(clients))
	t.resting.SetLimits(clientLimits(clients))
}

// all returns all clients.
func (t *clientTable) all() []*client {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.busy))
	for key, c := range t.idle.All {
		if t.busy[key] == nil {
			all = append(all, c)
		}
	}
	for _, c := range t.resting.All {
		all = append(all, c)
	}
	return all
}

// close forgets all clients that are not in use, and the others when they are released.
func (t *clientTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if t.sweeping != nil {
		t.sweeping.Stop()
	}
	t.idle.Close()
	t.resting.Close()
}

// sessionTime is the lifetime of a session. A replica that has not learned about the end of a
// session accepts its id until then.
const sessionTime = 7 * 24 * time.Hour

// endedSessions are the sessions that ended before sessionTime. Their ids are refused.
type endedSessions struct {
	mu  sync.Mutex
	ids *quota.Cache[[16]byte, endedSession] // by hash of the session id

	// cutoffs are for owners with too many ended sessions: all sessions of the owner that began up
	// to this time count as ended.
	cutoffs map[string]time.Time
}

// An endedSession is a session that has ended.
type endedSession struct {
	owner  string
	issued time.Time
}

const (
	maxEndedSessions = 100_000 // 30 MB
	maxEndedOwners   = 1_000
)

var endedSessionsQuota = quota.NewKind("ended_sessions")

func newEndedSessions() *endedSessions {
	ended := &endedSessions{cutoffs: map[string]time.Time{}}
	onEvict := func(_ [16]byte, s endedSession) {
		if time.Since(s.issued) < sessionTime && ended.cutoffs[s.owner].Before(s.issued) {
			ended.cutoffs[s.owner] = s.issued
		}
	}
	ended.ids = quota.NewCache(endedSessionsQuota, quota.Limits{Entries: maxEndedSessions}, sessionTime, onEvict)
	return ended
}

// end notes that the session of a client has ended.
func (ended *endedSessions) end(c *client) {
	c.ended.Store(true)
	ended.add(c.keyHash(), endedSession{c.owner, c.issued})
}

// add adds a session that has ended. hash is that of its id.
func (ended *endedSessions) add(hash [16]byte, s endedSession) {
	ended.mu.Lock()
	defer ended.mu.Unlock()
	ended.ids.Put(s.owner, hash, s, 0)
	if len(ended.cutoffs) > maxEndedOwners {
		ended.forgetOldest()
	}
}

// forgetOldest makes room for another owner. The forgotten owner can use its own ended sessions
// again until they expire. The alternative would be to end sessions of other owners. The caller
// holds the lock.
func (ended *endedSessions) forgetOldest() {
	var oldest string
	for owner, until := range ended.cutoffs {
		if oldest == "" || until.Before(ended.cutoffs[oldest]) {
			oldest = owner
		}
	}
	delete(ended.cutoffs, oldest)
}

// has reports whether the session of a client has been ended or has expired. A session that was
// added before the client was looked up is always seen.
func (ended *endedSessions) has(c *client) bool {
	hash := c.keyHash()
	ended.mu.Lock()
	defer ended.mu.Unlock()
	_, found := ended.ids.Get(hash)
	if found || time.Since(c.issued) > sessionTime || !c.issued.After(ended.cutoffs[c.owner]) {
		c.ended.Store(true)
	}
	return c.ended.Load()
}

// close forgets all sessions.
func (ended *endedSessions) close() {
	ended.mu.Lock()
	defer ended.mu.Unlock()
	ended.ids.Close()
}
