package gateway

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A State is what a gateway remembers of clients. It outlives configurations: after a reload, the
// new Gateway takes over the clients, their links to unchanged servers, their streams, and held
// calls.
type State struct {
	space       *replicas.Space // shared by replicas; nil if there are none
	replicaSync *replicaSync    // nil if there are no other replicas

	shelf     *catalog.Shelf
	index     index
	running   sync.WaitGroup // background work; Destruct waits for it
	ending    chan struct{}  // one token per session that is being ended, to limit them
	heldMeter *quota.Meter   // held calls

	peers        *replicas.Peers // connections to continue calls at other replicas; nil if there are none
	forwardMeter *quota.Meter    // calls continued at other replicas

	subscriptionMeter *quota.Meter // resource subscriptions
	backgroundMeter   *quota.Meter // backgrounds whose requests are answered

	streams       *openStreams
	parked        parkedStreams
	audiences     *audiences
	sideStreams   sideStreams
	upstream      *upstream.Retained
	confirmations *inbound.Confirmations

	mu             sync.Mutex
	busy           map[string]*client            // clients in use
	idle           *quota.Cache[string, *client] // recently used clients; may contain busy ones
	resting        *quota.Cache[string, *client] // older sessions with state that their ids do not carry
	endedSessions  endedSessions
	sweeping       *time.Timer // nil if there is nothing to expire
	held           map[string]*heldCall
	activeGateways []*Gateway
	ended          bool
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

// Kinds of client state, as the quota metrics name them.
var (
	clientsQuota   = quota.NewKind("clients")
	restingQuota   = quota.NewKind("resting_sessions")
	streamsQuota   = quota.NewKind("streams") // limited by connections
	heldCallsQuota = quota.NewKind("held_calls")
)

// NewState returns a State without clients. space is shared by replicas; nil if there are none.
func NewState(space *replicas.Space) *State {
	s := &State{
		space:             space,
		shelf:             catalog.NewShelf(),
		ending:            make(chan struct{}, 16),
		heldMeter:         quota.NewMeter(heldCallsQuota, heldCallLimits),
		forwardMeter:      quota.NewMeter(forwardedCallsQuota, forwardLimits),
		subscriptionMeter: quota.NewMeter(subscriptionsQuota, subscriptionLimits),
		backgroundMeter:   quota.NewMeter(backgroundsQuota, backgroundLimits),
		streams:           newOpenStreams(),
		audiences:         newAudiences(),
		upstream:          upstream.NewRetained(),
		confirmations:     inbound.NewConfirmations(space),
		busy:              map[string]*client{},
		endedSessions:     newEndedSessions(),
		held:              map[string]*heldCall{},
	}
	s.idle = quota.NewCache(clientsQuota, clientLimits(0), idleTime, func(_ string, c *client) { s.forget(c) })
	unsubscribe := func(_ string, c *client) { c.unsubscribe(s.subscriptionMeter) }
	s.resting = quota.NewCache(restingQuota, clientLimits(0), restTime, unsubscribe)
	if space != nil {
		s.peers = space.Peers("calls", s.serveContinuation)
	}
	s.replicaSync = newReplicaSync(s, space)
	return s
}

// clientLimits returns the limits for a number of clients. It reserves 4 KiB for each; most need
// less.
func clientLimits(clients int) quota.Limits {
	return quota.Limits{Entries: clients, Bytes: int64(max(clients, 64)) << 12}
}

// client returns the client with a key, or adds the one that make returns. The caller must release
// it.
func (s *State) client(key string, make func() *client) *client {
	if c := s.lookUp(key, nil); c != nil {
		return c
	}
	c := make() // without the lock: this may take a while
	if c == nil {
		return nil
	}
	return s.lookUp(key, c)
}

// lookUp returns the client with a key. If there is none, it adds a client, unless add is nil.
func (s *State) lookUp(key string, add *client) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.busy[key]
	if c == nil {
		if c, _ = s.idle.Get(key); c == nil {
			c, _ = s.resting.Remove(key)
		}
		if c == nil {
			c = add
		}
		if c == nil {
			return nil
		}
		if c.key == "" {
			c.key = key
		}
		s.busy[c.key] = c // share the string: session ids are long
	}
	c.refs++
	return c
}

// addRef adds a reference to a client in use.
func (s *State) addRef(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refs++
}

// release drops a reference to a client. Without references, the client becomes idle.
func (s *State) release(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refs--
	if c.refs > 0 || c.key == "" {
		return
	}
	delete(s.busy, c.key)
	if s.ended || c.ended.Load() {
		s.idle.Remove(c.key)
		c.unsubscribe(s.subscriptionMeter)
		return
	}
	if bytes := c.size(); !s.idle.Put(c.owner, c.key, c, bytes) {
		s.forget(c)
	}
	if s.sweeping == nil {
		s.sweeping = time.AfterFunc(idleTime/10, s.sweep)
	}
}

// sweep forgets expired clients, lists and audiences.
func (s *State) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Expire()
	s.resting.Expire()
	lists := s.shelf.Expire()
	if lists == 0 {
		s.index.clear()
	}
	known := s.audiences.expire(s.serverIDs(), s.streams.audiences())
	if s.ended || lists == 0 && known == 0 && s.idle.Len() == 0 && s.resting.Len() == 0 {
		s.sweeping = nil
		return
	}
	s.sweeping.Reset(idleTime / 10)
}

// forget forgets a client, unless it is in use. The caller holds the lock.
func (s *State) forget(c *client) {
	if c.refs > 0 {
		return
	}
	if c.era == mcp.Legacy {
		if c.hasUncarriedState() && !s.resting.Put(c.owner, c.key, c, c.size()) {
			c.unsubscribe(s.subscriptionMeter)
		}
		return // the session id stays valid
	}
	for _, l := range c.allLinks() {
		i := slices.IndexFunc(s.activeGateways, func(member *Gateway) bool { return member.linkServer(l) != nil })
		if i < 0 || l.endRequest == nil {
			continue
		}
		g := s.activeGateways[i]
		s.running.Go(func() {
			s.ending <- struct{}{}
			defer func() { <-s.ending }()
			ctx, cancel := context.WithTimeout(context.Background(), g.config.JoinTimeout)
			defer cancel()
			l.end(scope{ctx: ctx, g: g, r: l.endRequest})
		})
	}
}

// setLimits sets the number of clients to remember. The caller holds the lock.
func (s *State) setLimits(clients int) {
	s.idle.SetLimits(clientLimits(clients))
	s.resting.SetLimits(clientLimits(clients))
}

// addGateway adds a Gateway. It may replace another one of its generation.
func (s *State) addGateway(g, replaces *Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.onlyOne = true
	for _, member := range s.activeGateways {
		if member.config.Generation == g.config.Generation && member != replaces {
			g.onlyOne, member.onlyOne = false, false
		}
	}
	if replaces != nil {
		replaces.replacement = g
	}
	s.activeGateways = append(s.activeGateways, g)
	s.setLimits(g.config.MaxClients)
}

// removeGateway removes a Gateway that serves no more requests. Its streams move to its successor.
// If there is none, or it is ambiguous, the streams end and clients reconnect.
func (s *State) removeGateway(g *Gateway) {
	s.mu.Lock()
	s.activeGateways = slices.DeleteFunc(s.activeGateways, func(member *Gateway) bool { return member == g })
	to := g.replacement
	if to == nil || to.removed {
		to = s.successor(g)
	}
	g.removed, g.succession.current = true, to
	if to != nil {
		to.succession = g.succession
	}
	if len(s.activeGateways) > 0 {
		s.setLimits(s.activeGateways[len(s.activeGateways)-1].config.MaxClients)
	}
	s.dropRemovedLinks()
	moving := s.streams.of(g)
	s.mu.Unlock()
	for _, stream := range moving {
		if to == nil {
			stream.end()
		} else {
			stream.move(g, to)
		}
	}
}

// dropRemovedLinks drops links to servers that no longer exist. The caller holds the lock.
func (s *State) dropRemovedLinks() {
	existing := s.serverIDs()
	if len(existing) == 0 {
		return
	}
	s.upstream.EndRemovedSessions(func(server string) bool { return existing[server] })
	for _, c := range s.clientsLocked() {
		c.mu.Lock()
		c.links = slices.DeleteFunc(c.links, func(l *link) bool {
			if !existing[l.serverID] {
				l.subscriptions.removeAll(s.subscriptionMeter, c.owner)
			}
			return !existing[l.serverID]
		})
		c.mu.Unlock()
	}
}

// serverIDs returns the IDs of all servers. The caller holds the lock.
func (s *State) serverIDs() map[string]bool {
	ids := map[string]bool{}
	for _, member := range s.activeGateways {
		for _, server := range member.config.Servers {
			ids[server.ID] = true
		}
	}
	return ids
}

// successor returns the Gateway that takes over from g: one with the same servers or, if there was
// never more than one per configuration, the only other one. Two gateways that happen to have the
// same name must not take each other's clients.
func (s *State) successor(g *Gateway) *Gateway {
	var others []*Gateway
	siblings := 0
	for _, member := range s.activeGateways {
		switch {
		case member.config.Generation == g.config.Generation:
			siblings++
		case member.fingerprint == g.fingerprint:
			return member
		default:
			others = append(others, member)
		}
	}
	if g.onlyOne && siblings == 0 && len(others) == 1 && others[0].onlyOne {
		return others[0]
	}
	return nil
}

// Destruct cancels all held calls, closes the state, and waits for background work.
func (s *State) Destruct() error {
	s.replicaSync.close()
	s.mu.Lock()
	for _, held := range s.held {
		held.expires.Stop()
		s.running.Go(held.abandon)
	}
	clear(s.held)
	s.ended = true
	if s.sweeping != nil {
		s.sweeping.Stop()
	}
	s.idle.Close()
	s.resting.Close()
	s.endedSessions.ids.Close()
	s.heldMeter.Close()
	s.subscriptionMeter.Close()
	s.streams.meter.Close()
	s.backgroundMeter.Close()
	s.shelf.Close()
	s.confirmations.Close()
	s.audiences.close()
	s.mu.Unlock()
	s.parked.drain()
	s.sideStreams.end()
	if s.peers != nil {
		s.peers.Close()
	}
	s.forwardMeter.Close()
	s.running.Wait()
	s.replicaSync.handEndsToStore()
	s.upstream.Close() // last: canceled calls use its sessions
	return nil
}

// Retained is what a gateway keeps over reloads besides its clients.
type Retained struct {
	// Templates are the resource templates that were added by the admin API.
	Templates *resourcetemplate.Set

	// Usage is the clients' usage of rate limits.
	Usage *inbound.Usage

	space *replicas.Space // shared by replicas; nil if there are none
	tasks *upstream.Tasks
}

// NewRetained returns the Retained of a new gateway, see [NewState]. The caller must call Destruct.
// allowWhenDown says that each replica counts rates on its own while the shared store is
// unavailable.
func NewRetained(space *replicas.Space, allowWhenDown bool) *Retained {
	return &Retained{
		Usage:     inbound.NewUsage(space, allowWhenDown),
		Templates: resourcetemplate.New(),
		space:     space,
		tasks:     upstream.NewTasks(space),
	}
}

// Destruct implements caddy.Destructor.
func (r *Retained) Destruct() error {
	r.Usage.Close()
	r.Templates.Close()
	r.tasks.Close()
	return nil
}

// clients returns all remembered clients.
func (s *State) clients() []*client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clientsLocked()
}

// clientsLocked is like clients. The caller holds the lock.
func (s *State) clientsLocked() []*client {
	all := slices.Collect(maps.Values(s.busy))
	for key, c := range s.idle.All {
		if s.busy[key] == nil {
			all = append(all, c)
		}
	}
	for _, c := range s.resting.All {
		all = append(all, c)
	}
	return all
}

// holdCall holds a call until its client continues it with the returned key. It expires after
// [streamable.ServerRequestTimeout].
func (s *State) holdCall(held *heldCall) (key string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.heldMeter.Take(held.client.owner, held.bytes) {
		return "", false
	}
	key = rand.Text()
	held.key = key
	s.held[key] = held
	held.expires = time.AfterFunc(streamable.ServerRequestTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[key] == held {
			s.dropHeldLocked(held)
			s.running.Go(held.abandon)
		}
	})
	return key, true
}

// takeHeld removes and returns the held call with a key, if fits accepts it.
func (s *State) takeHeld(key string, fits func(*heldCall) bool) *heldCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[key]
	if held == nil || !fits(held) {
		return nil
	}
	s.dropHeldLocked(held)
	return held
}

// dropHeld removes a call that ended before its client continued it.
func (s *State) dropHeld(held *heldCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[held.key] == held {
		s.dropHeldLocked(held)
	}
}

// dropHeldLocked removes a held call and returns its quota. The caller holds the lock.
func (s *State) dropHeldLocked(held *heldCall) {
	delete(s.held, held.key)
	s.heldMeter.Give(held.client.owner, held.bytes)
	held.expires.Stop()
}

// endSession notes that a session has ended, so that its id is refused.
func (s *State) endSession(c *client) {
	c.ended.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endedSessions.add(endedKey(c), endedSession{c.owner, c.issued})
}

// hasEnded reports whether a session has been ended or has expired.
func (s *State) hasEnded(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ended := s.endedSessions.ids.Get(endedKey(c))
	if ended || time.Since(c.issued) > sessionTime || !c.issued.After(s.endedSessions.cutoffs[c.owner]) {
		c.ended.Store(true)
	}
	return c.ended.Load()
}
