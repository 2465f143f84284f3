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

// A State is what is remembered of clients. It outlives configurations: a Gateway
// that takes the place of another goes on with its clients, their connections to
// servers that are the same, their streams and the calls that wait for them.
type State struct {
	common    *replicas.Space // what replicas share; nil if there are none
	elsewhere *elsewhere      // the other replicas; nil if there are none

	shelf   *catalog.Shelf
	index   index
	running sync.WaitGroup // calls that are given up, and sessions that are being ended
	parked  sync.WaitGroup // streams whose handlers have returned
	ending  chan struct{}  // has a token for each of the latter, of which there are only so many at once
	holding *quota.Meter   // of calls that wait for their clients

	lines      *replicas.Lines // by which replicas go on with each other's calls; nil if there are none
	forwarding *quota.Meter    // of those

	subscribing *quota.Meter // to resources
	listening   *quota.Meter // by streams
	sidesKept   *quota.Meter // of sides whose requests were answered

	audiences     *audiences
	sideStreams   sideStreams
	upstream      *upstream.State
	confirmations *inbound.Confirmations

	mu       sync.Mutex
	busy     map[string]*client            // those that are being served
	idle     *quota.Cache[string, *client] // those that have been: a busy one may be there or not
	resting  *quota.Cache[string, *client] // sessions not seen for long that have more to them than their ids say
	over     sessionsOver
	sweeping *time.Timer // nil if there is nothing to sweep
	held     map[string]*heldCall
	streams  map[string]map[*stream]bool // by the audience of their clients
	members  []*Gateway
	ended    bool

	parkClosed bool // no more streams are parked
}

const (
	// idleTime is how long a client that does nothing is remembered. One of the modern era
	// never says that it leaves, and may have sessions with servers of the other era that
	// nobody else ends. A session of the legacy era goes on from what its id carries.
	idleTime = 30 * time.Minute

	// restTime is how long a session is remembered after that, if its client has
	// subscribed to something or has set a log level: its id does not carry that.
	restTime = 24 * time.Hour
)

// What is kept for clients, as the metrics call it.
var (
	keptClients = quota.NewKind("clients")
	keptResting = quota.NewKind("resting_sessions")
	keptStreams = quota.NewKind("streams") // which connections limit
	keptCalls   = quota.NewKind("held_calls")
)

// NewState returns a State without clients. What replicas have in common is in a space, which is nil if
// there are none.
func NewState(space *replicas.Space) *State {
	s := &State{
		common:        space,
		shelf:         catalog.NewShelf(),
		ending:        make(chan struct{}, 16),
		holding:       quota.NewMeter(keptCalls, heldCallLimits),
		forwarding:    quota.NewMeter(forwardedCalls, forwardLimits),
		listening:     quota.NewMeter(keptStreams, quota.Limits{}),
		subscribing:   quota.NewMeter(keptSubscriptions, subscriptionLimits),
		sidesKept:     quota.NewMeter(keptSides, sideLimits),
		audiences:     newAudiences(),
		upstream:      upstream.NewState(),
		confirmations: inbound.NewConfirmations(space),
		busy:          map[string]*client{},
		over:          newSessionsOver(),
		held:          map[string]*heldCall{},
		streams:       map[string]map[*stream]bool{},
	}
	s.idle = quota.NewCache(keptClients, clientLimits(0), idleTime, func(_ string, c *client) { s.forget(c) })
	unsubscribe := func(_ string, c *client) { c.unsubscribe(s.subscribing) }
	s.resting = quota.NewCache(keptResting, clientLimits(0), restTime, unsubscribe)
	if space != nil {
		s.lines = space.Lines("calls", s.goOn)
	}
	s.elsewhere = newElsewhere(s, space)
	return s
}

// clientLimits returns the limits for so many clients: in memory 4 KiB each, of which
// most need less.
func clientLimits(clients int) quota.Limits {
	return quota.Limits{Entries: clients, Bytes: int64(max(clients, 64)) << 12}
}

// client returns the client that is known under a key, or makes it known, and keeps it
// until it is released.
func (s *State) client(key string, make func() *client) *client {
	if c := s.known(key, nil); c != nil {
		return c
	}
	c := make() // which may take a while
	if c == nil {
		return nil
	}
	return s.known(key, c)
}

// known returns the client that is known under a key, or else makes another one known.
func (s *State) known(key string, or *client) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.busy[key]
	if c == nil {
		if c, _ = s.idle.Get(key); c == nil {
			c, _ = s.resting.Remove(key)
		}
		if c == nil {
			c = or
		}
		if c == nil {
			return nil
		}
		if c.key == "" {
			c.key = key
		}
		s.busy[c.key] = c // which is kept already: session ids are long
	}
	c.using++
	return c
}

// keep counts another user of a client that is being served.
func (s *State) keep(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.using++
}

// release says that a client is no longer needed.
func (s *State) release(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.using--; c.using > 0 || c.key == "" {
		return
	}
	delete(s.busy, c.key)
	if s.ended || c.ended.Load() {
		s.idle.Remove(c.key)
		c.unsubscribe(s.subscribing)
		return
	}
	if bytes := c.size(); !s.idle.Put(c.owner, c.key, c, bytes) {
		s.forget(c)
	}
	if s.sweeping == nil {
		s.sweeping = time.AfterFunc(idleTime/10, s.sweep)
	}
}

// sweep forgets clients that were not seen for long.
func (s *State) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Expire()
	s.resting.Expire()
	lists := s.shelf.Expire()
	if lists == 0 {
		s.index.clear()
	}
	known := s.audiences.expire(s.serverIDs(), maps.Keys(s.streams))
	if s.ended || lists == 0 && known == 0 && s.idle.Len() == 0 && s.resting.Len() == 0 {
		s.sweeping = nil
		return
	}
	s.sweeping.Reset(idleTime / 10)
}

// forget forgets a client, unless it is busy. The caller holds the lock.
func (s *State) forget(c *client) {
	if c.using > 0 {
		return
	}
	if c.era == mcp.Legacy {
		if c.hasMore() && !s.resting.Put(c.owner, c.key, c, c.size()) {
			c.unsubscribe(s.subscribing)
		}
		return // what its id carries is good in any case
	}
	for _, l := range c.allLinks() {
		i := slices.IndexFunc(s.members, func(member *Gateway) bool { return member.of(l) != nil })
		if i < 0 || l.ender == nil {
			continue
		}
		g := s.members[i]
		s.running.Go(func() {
			s.ending <- struct{}{}
			defer func() { <-s.ending }()
			ctx, cancel := context.WithTimeout(context.Background(), g.config.JoinTimeout)
			defer cancel()
			l.end(behalf{ctx: ctx, g: g, r: l.ender})
		})
	}
}

// setLimits sets how many clients are remembered. The caller holds the lock.
func (s *State) setLimits(clients int) {
	s.idle.SetLimits(clientLimits(clients))
	s.resting.SetLimits(clientLimits(clients))
}

// join adds a Gateway, which may replace another one of its generation.
func (s *State) join(g, replaces *Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.alone = true
	for _, member := range s.members {
		if member.config.Generation == g.config.Generation && member != replaces {
			g.alone, member.alone = false, false
		}
	}
	if replaces != nil {
		replaces.heir = g
	}
	s.members = append(s.members, g)
	s.setLimits(g.config.MaxClients)
}

// leave says that g serves no more requests. Who listens to its servers listens to
// those of its successor from now on. If there is none, or nobody knows which one that
// is, the streams are ended: their clients come back by themselves.
func (s *State) leave(g *Gateway) {
	s.mu.Lock()
	s.members = slices.DeleteFunc(s.members, func(member *Gateway) bool { return member == g })
	to := g.heir
	if to == nil || to.left {
		to = s.successor(g)
	}
	g.left, g.place.current = true, to
	if to != nil {
		to.place = g.place
	}
	if len(s.members) > 0 {
		s.setLimits(s.members[len(s.members)-1].config.MaxClients)
	}
	s.dropLinks()
	moving := s.streamsOf(g)
	s.mu.Unlock()
	for _, stream := range moving {
		if to == nil {
			stream.end()
		} else {
			stream.move(g, to)
		}
	}
}

// streamsOf returns the streams that listen to the servers of g. The caller holds the lock.
func (s *State) streamsOf(g *Gateway) (all []*stream) {
	for _, audience := range s.streams {
		for stream := range audience {
			if stream.g.Load() == g {
				all = append(all, stream)
			}
		}
	}
	return all
}

// endStreams ends the streams of g.
func (s *State) endStreams(g *Gateway) {
	s.mu.Lock()
	ending := s.streamsOf(g)
	s.mu.Unlock()
	for _, stream := range ending {
		stream.end()
	}
}

// dropLinks forgets connections to servers that are no longer there. The caller holds
// the lock.
func (s *State) dropLinks() {
	there := s.serverIDs()
	if len(there) == 0 {
		return
	}
	s.upstream.Keep(func(server string) bool { return there[server] })
	for _, c := range s.everybody() {
		c.mu.Lock()
		c.links = slices.DeleteFunc(c.links, func(l *link) bool {
			if !there[l.id] {
				l.subscriptions.removeAll(s.subscribing, c.owner)
			}
			return !there[l.id]
		})
		c.mu.Unlock()
	}
}

// serverIDs returns the IDs of all servers. The caller holds the lock.
func (s *State) serverIDs() map[string]bool {
	ids := map[string]bool{}
	for _, member := range s.members {
		for _, server := range member.config.Servers {
			ids[server.ID] = true
		}
	}
	return ids
}

// successor returns the Gateway that takes the place of another: one with the same
// servers or, if there never was more than one at a time, the one that is there. Two
// gateways that happen to have the same name must not take each other's clients.
func (s *State) successor(g *Gateway) *Gateway {
	var others []*Gateway
	siblings := 0
	for _, member := range s.members {
		switch {
		case member.config.Generation == g.config.Generation:
			siblings++
		case member.fingerprint == g.fingerprint:
			return member
		default:
			others = append(others, member)
		}
	}
	if g.alone && siblings == 0 && len(others) == 1 && others[0].alone {
		return others[0]
	}
	return nil
}

// Destruct ends all calls that are held open, and waits for them.
func (s *State) Destruct() error {
	s.elsewhere.close()
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
	s.over.ids.Close()
	s.holding.Close()
	s.subscribing.Close()
	s.listening.Close()
	s.sidesKept.Close()
	s.shelf.Close()
	s.confirmations.Close()
	s.audiences.close()
	s.mu.Unlock()
	s.waitForParked()
	s.sideStreams.end()
	if s.lines != nil {
		s.lines.Close()
	}
	s.forwarding.Close()
	s.running.Wait()
	s.elsewhere.leaveEnds()
	s.upstream.Close() // ended calls have used its sessions to say so
	return nil
}

// Retained is what a gateway keeps across reloads besides its clients.
type Retained struct {
	// Templates are the resource templates that the admin API has the gateway host.
	Templates *resourcetemplate.Set

	// Usage is what clients have used of their rates.
	Usage *inbound.Usage

	common *replicas.Space // what replicas share; nil if there are none
	tasks  *upstream.Tasks
}

// NewRetained returns a Retained of a new gateway, see [NewState]. It has to be destructed. allowWhenDown
// says that rates are those of this replica while those that replicas share cannot be reached.
func NewRetained(space *replicas.Space, allowWhenDown bool) *Retained {
	return &Retained{
		Usage:     inbound.NewUsage(space, allowWhenDown),
		Templates: resourcetemplate.New(),
		common:    space,
		tasks:     upstream.NewTasks(space),
	}
}

// Destruct implements caddy.Destructor.
func (k *Retained) Destruct() error {
	k.Usage.Close()
	k.Templates.Close()
	k.tasks.Close()
	return nil
}

// clients returns all clients that are remembered.
func (s *State) clients() []*client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.everybody()
}

// everybody is clients for callers that hold the lock.
func (s *State) everybody() []*client {
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

// putAway keeps a call until its client makes it again, under the key that it returns.
func (s *State) putAway(held *heldCall) (key string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.holding.Take(held.client.owner, held.bytes) {
		return "", false
	}
	key = rand.Text()
	held.key = key
	s.held[key] = held
	held.expires = time.AfterFunc(streamable.QuestionTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[key] == held {
			s.unhold(held)
			s.running.Go(held.abandon)
		}
	})
	return key, true
}

// takeUp returns the call that is held under a key, if it fits. No other request can take it up then.
func (s *State) takeUp(key string, fits func(*heldCall) bool) *heldCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[key]
	if held == nil || !fits(held) {
		return nil
	}
	s.unhold(held)
	return held
}

// retire forgets a call that is over before its client has come back.
func (s *State) retire(held *heldCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[held.key] == held {
		s.unhold(held)
	}
}

// unhold gives the place of a call back. The caller holds the lock.
func (s *State) unhold(held *heldCall) {
	delete(s.held, held.key)
	s.holding.Give(held.client.owner, held.bytes)
	held.expires.Stop()
}

// end notes that a session has ended, for as long as its id would be good.
func (s *State) end(c *client) {
	c.ended.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over.add(overKey(c), sessionOver{c.owner, c.issued})
}

// hasEnded reports whether a session has been ended, or has lasted too long.
func (s *State) hasEnded(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, over := s.over.ids.Get(overKey(c))
	if over || time.Since(c.issued) > sessionTime || !c.issued.After(s.over.until[c.owner]) {
		c.ended.Store(true)
	}
	return c.ended.Load()
}
