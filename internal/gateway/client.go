package gateway

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A client is a legacy session, or all modern requests that seem to come from the same client.
type client struct {
	key         string // key in the clientTable, "" until the session has begun; set under its lock and mu
	refs        int    // number of users; guarded by clientTable.mu
	audience    string // key of the audience
	fingerprint uint64 // of the request that began the session, see [aggregateRequest.fingerprint]

	era          mcp.Era
	version      string
	identity     string    // "" if unknown
	owner        string    // whose quotas the client counts against
	issued       time.Time // when the session began
	introduction *introduction
	inspection   *upstream.Inspection // set for an operator that acts as this client

	record         recordState // exchanged with other replicas
	readyAnnounced atomic.Bool // servers have got notifications/initialized, or are about to

	ended    atomic.Bool // the client has ended the session
	isolated atomic.Bool // sends other credentials than its audience: nothing from servers is shared with others

	calls          activeCalls
	serverRequests serverRequests
	listed         listedItems

	mu      sync.Mutex
	links   []*link   // sorted by server ID
	streams []*stream // newest first: connections of older ones may be dead
	level   string    // log level that the client wants
	hash    [16]byte  // of key, computed when first needed
}

func newClient(era mcp.Era, version, identity, owner string, intro *introduction) *client {
	return &client{era: era, version: version, identity: identity, owner: owner, introduction: intro}
}

// joinAudience adds a legacy client to an audience. All its clients share one copy of the
// introduction.
func (c *client) joinAudience(g *Gateway, key string) {
	c.audience = key
	a := g.audience(c)
	c.audience, c.introduction = a.key, a.introduction
}

// setKey sets the key of a client whose session begins.
func (c *client) setKey(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = key
}

// hasKey reports whether the client's session has begun. Servers may still be connecting in the
// background when it begins. What runs there must call hasKey before it reads the key.
func (c *client) hasKey() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.key != ""
}

// keyHash returns the hash of the client's key.
func (c *client) keyHash() [16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hash == [16]byte{} {
		c.hash = hashKey(c.key)
	}
	return c.hash
}

// hashKey returns the hash of the key of a client.
func hashKey(key string) [16]byte {
	sum := sha256.Sum256([]byte(key))
	return [16]byte(sum[:])
}

// size returns the approximate memory use of an idle client.
func (c *client) size() int64 {
	size := 1<<10 + c.introduction.size()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		size += l.size()
	}
	return int64(size)
}

// hasUncarriedState reports whether the client has state that its session id does not carry.
func (c *client) hasUncarriedState() bool {
	return c.logLevel() != "" || slices.ContainsFunc(c.allLinks(), func(l *link) bool {
		return l.subscriptions.size() > 0 || !l.session.isCarried()
	})
}

// An uptime is a time since the process started; 0 means never. It takes a third of the memory of a
// [time.Time].
type uptime time.Duration

var processStart = time.Now()

func uptimeOf(t time.Time) uptime {
	if t.IsZero() {
		return 0
	}
	return uptime(t.Sub(processStart))
}

// listedItems are facts about the lists that a client got.
type listedItems struct {
	mu sync.Mutex
	at [mcp.ListKindCount]uptime // when the client last requested each list

	// plainUIs are the last tool lists in which the client got all UI resources under their own
	// URIs, by server ID.
	plainUIs map[string]catalog.Key
}

// note notes that the client gets a list. It reports whether it is the first of its kind.
func (l *listedItems) note(k mcp.ListKind) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = l.at[k] == 0
	l.at[k] = uptimeOf(time.Now())
	return first
}

// missedChanges returns the kinds of lists that changed after the client got them.
func (l *listedItems) missedChanges(lists *catalog.Cache) (missed []mcp.ListKind) {
	changed := lists.ChangedAt()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range catalog.AnnouncedKinds {
		if got := l.at[k]; got != 0 && uptimeOf(changed[k]) > got {
			missed = append(missed, k)
		}
	}
	return missed
}

// notePlainUIs notes that the client got a tool list in which all UI resources have their own URIs.
func (l *listedItems) notePlainUIs(s *upstream.Server, key catalog.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plainUIs == nil {
		l.plainUIs = map[string]catalog.Key{}
	}
	l.plainUIs[s.ID] = key
}

// plainUIList returns the tool list in which the client got the UI resources of a server under
// their own URIs. While that list is cached, the client knows them, even if another server starts
// to use the same URI.
func (l *listedItems) plainUIList(s *upstream.Server) catalog.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plainUIs[s.ID]
}

// existingLink returns the client's link to a server, nil if there is none.
func (c *client) existingLink(server *upstream.Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, l := c.findLink(server.ID)
	return l
}

// findLink returns the client's link to a server and its index in links. If there is none, it
// returns nil and the index to insert it at. The caller holds the lock.
func (c *client) findLink(id string) (i int, l *link) {
	compare := func(l *link, id string) int { return strings.Compare(l.serverID, id) }
	i, found := slices.BinarySearchFunc(c.links, id, compare)
	if found {
		l = c.links[i]
	}
	return i, l
}

// linkTo returns the client's link to a server. A new link is not open yet.
func (c *client) linkTo(server *upstream.Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, l := c.findLink(server.ID)
	if l == nil {
		l = newLink(c, server)
		c.links = slices.Insert(c.links, i, l)
	}
	return l
}

// allLinks returns a copy of links.
func (c *client) allLinks() []*link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.links)
}

// takesEmptyEvents reports whether the client accepts events without data. Older clients fail on
// them.
func (c *client) takesEmptyEvents() bool { return c.version >= mcp.Latest }

// askable reports whether the client can ask a person to confirm calls, and has rules that may
// require it. Operators see what such clients see.
func (c *client) askable(caller *access.Caller) bool {
	return caller.Policy() != nil && (c.inspection != nil || mcp.CanFillForms(c.introduction.capabilities))
}

// initializeParams returns the params of initialize with a protocol version.
func (c *client) initializeParams(version string) []byte {
	params := c.introduction.params
	if c.era == mcp.Modern {
		return slices.Concat([]byte(`{"protocolVersion":"`+version+`","capabilities":`), c.introduction.capabilities,
			[]byte(`,"clientInfo":`), c.introduction.info, []byte("}"))
	}
	for member := range jsonspan.Members(params) {
		if member.Key == "protocolVersion" {
			at := member.Value
			return jsonspan.Spliced(params, jsonspan.Edit{Start: at.Start, End: at.End, New: jsonrpc.Quote(version)})
		}
	}
	return params
}

// legacyVersion returns the legacy protocol version that the client prefers.
func (c *client) legacyVersion() string {
	if c.era == mcp.Legacy {
		return c.version
	}
	return mcp.Latest
}

// logLevel returns the log level that the client has set, "" if none.
func (c *client) logLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// openStreams returns the streams of the client, newest first.
func (c *client) openStreams() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.streams)
}

// otherStreamWants reports whether a stream of the client, except one, is subscribed to a resource.
func (c *client) otherStreamWants(except *stream, server, uri string) bool {
	return slices.ContainsFunc(c.openStreams(), func(s *stream) bool {
		return s != except && s.wants != nil && slices.Contains(s.wants.serverURIs[server], uri)
	})
}

// unsubscribe drops all subscriptions of a client that can no longer be notified.
func (c *client) unsubscribe(meter *quota.Meter) {
	for _, l := range c.allLinks() {
		l.subscriptions.removeAll(meter, c.owner)
	}
}

// callerOf returns the caller for a client.
func (g *Gateway) callerOf(c *client) access.Caller {
	caller := g.rules.Caller(c.identity)
	caller.Askable = c.askable(&caller)
	return caller
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
			c.setKey(key)
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

// expire forgets expired clients and calls others, with the lock held. That reports whether anything
// else is left that can expire.
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
