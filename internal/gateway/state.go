package gateway

import (
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
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
	replicaSync *replicaSync // nil if there are no other replicas

	shelf   *catalog.Shelf
	index   index
	running sync.WaitGroup // background work; Destruct waits for it

	subscriptionMeter *quota.Meter // resource subscriptions
	backgroundMeter   *quota.Meter // backgrounds whose requests are answered

	clients       *clientTable
	waiting       *waitingCalls
	continuations *continuations
	streams       *openStreams
	parked        parkedStreams
	audiences     *audiences
	sideStreams   sideStreams
	endedSessions *endedSessions
	upstream      *upstream.Retained
	confirmations *inbound.Confirmations

	moving sync.Mutex // held while streams move to another Gateway; locked before mu

	mu             sync.Mutex
	activeGateways gatewayList
	ended          bool
}

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
		shelf:             catalog.NewShelf(),
		subscriptionMeter: quota.NewMeter(subscriptionsQuota, subscriptionLimits),
		backgroundMeter:   quota.NewMeter(backgroundsQuota, backgroundLimits),
		streams:           newOpenStreams(),
		audiences:         newAudiences(),
		upstream:          upstream.NewRetained(),
		confirmations:     inbound.NewConfirmations(space),
		endedSessions:     newEndedSessions(),
	}
	s.clients = newClientTable(&s.running, s.subscriptionMeter, s.sweep)
	s.waiting = newWaitingCalls(&s.running)
	s.continuations = newContinuations(space, s.waiting)
	s.replicaSync = newReplicaSync(s, space)
	return s
}

// sweep forgets expired clients, lists and audiences.
func (s *State) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients.expire(func() (left bool) {
		lists := s.shelf.Expire()
		if lists == 0 {
			s.index.clear()
		}
		known := s.audiences.expire(s.activeGateways.serverIDs(), s.streams.audiences())
		return lists > 0 || known > 0
	})
}

// run runs f in a goroutine, unless the State has ended.
func (s *State) run(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.running.Go(f)
	}
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
	s.clients.follow(s.activeGateways)
}

// removeGateway removes a Gateway that serves no more requests. Its streams move to its successor.
// If there is none, or it is ambiguous, the streams end and clients reconnect.
func (s *State) removeGateway(g *Gateway) {
	s.moving.Lock() // a successor that is removed, too, passes on all streams
	defer s.moving.Unlock()
	s.mu.Lock()
	s.activeGateways = slices.DeleteFunc(s.activeGateways, func(member *Gateway) bool { return member == g })
	to := g.replacement
	if to == nil || to.removed {
		to = s.activeGateways.successor(g)
	}
	g.removed, g.succession.current = true, to
	if to != nil {
		to.succession = g.succession
	}
	s.clients.follow(s.activeGateways)
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
	existing := s.activeGateways.serverIDs()
	if len(existing) == 0 {
		return
	}
	s.upstream.EndRemovedSessions(func(server string) bool { return existing[server] })
	for _, c := range s.clients.all() {
		c.mu.Lock()
		c.links = slices.DeleteFunc(c.links, func(l *link) bool {
			if !existing[l.serverID] {
				l.subscriptions.close(s.subscriptionMeter, c.owner)
			}
			return !existing[l.serverID]
		})
		c.mu.Unlock()
	}
}

// gateways returns all Gateways of the State.
func (s *State) gateways() gatewayList {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.activeGateways)
}

// A gatewayList is the Gateways of a State, newest last.
type gatewayList []*Gateway

// latest returns the Gateway that serves now, nil if there is none.
func (all gatewayList) latest() *Gateway {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// logger returns the logger of the latest Gateway.
func (all gatewayList) logger() *zap.Logger {
	if g := all.latest(); g != nil {
		return g.config.Logger
	}
	return zap.NewNop()
}

// server returns the server with an ID from the newest Gateway that has it, nil if none does.
func (all gatewayList) server(id string) *upstream.Server {
	for _, g := range slices.Backward(all) {
		if s := g.byID[id]; s != nil {
			return s
		}
	}
	return nil
}

// ofLink returns the oldest Gateway that has the server of a link, nil if none does.
func (all gatewayList) ofLink(l *link) *Gateway {
	for _, g := range all {
		if g.linkServer(l) != nil {
			return g
		}
	}
	return nil
}

// serverIDs returns the IDs of all servers.
func (all gatewayList) serverIDs() map[string]bool {
	ids := map[string]bool{}
	for _, g := range all {
		for _, server := range g.config.Servers {
			ids[server.ID] = true
		}
	}
	return ids
}

// successor returns the Gateway that takes over from g, which is no longer in the list: one with
// the same servers or, if there was never more than one per configuration, the only other one. Two
// gateways that happen to have the same name must not take each other's clients.
func (all gatewayList) successor(g *Gateway) *Gateway {
	var others []*Gateway
	siblings := 0
	for _, member := range all {
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
	s.ended = true
	s.clients.close()
	s.endedSessions.close()
	s.subscriptionMeter.Close()
	s.streams.meter.Close()
	s.backgroundMeter.Close()
	s.shelf.Close()
	s.confirmations.Close()
	s.audiences.close()
	s.mu.Unlock()
	s.waiting.end()
	s.parked.drain()
	s.sideStreams.end()
	s.continuations.close()
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

	tasks *upstream.Tasks
}

// NewRetained returns the Retained of a new gateway, see [NewState]. The caller must call Destruct.
// allowWhenDown says that each replica counts rates on its own while the shared store is
// unavailable.
func NewRetained(space *replicas.Space, allowWhenDown bool) *Retained {
	return &Retained{
		Usage:     inbound.NewUsage(space, allowWhenDown),
		Templates: resourcetemplate.New(),
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

// waitingCalls are the held calls that wait until their clients continue them.
type waitingCalls struct {
	meter   *quota.Meter    // held calls, and others that wait for a confirmation
	running *sync.WaitGroup // calls being abandoned

	mu    sync.Mutex
	byKey map[string]*heldCall
	ended bool
}

func newWaitingCalls(running *sync.WaitGroup) *waitingCalls {
	meter := quota.NewMeter(heldCallsQuota, heldCallLimits)
	return &waitingCalls{meter: meter, running: running, byKey: map[string]*heldCall{}}
}

// add adds a call until its client continues it with the returned key. It expires after
// [streamable.ServerRequestTimeout]. add reports false if there are too many or the State has
// ended.
func (w *waitingCalls) add(held *heldCall) (key string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || !w.meter.Take(held.client.owner, held.bytes) {
		return "", false
	}
	key = rand.Text()
	held.key = key
	w.byKey[key] = held
	held.expires = time.AfterFunc(streamable.ServerRequestTimeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.byKey[key] == held {
			w.drop(held)
			w.running.Go(held.abandon)
		}
	})
	return key, true
}

// take removes and returns the call with a key, if fits accepts it.
func (w *waitingCalls) take(key string, fits func(*heldCall) bool) *heldCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.byKey[key]
	if held == nil || !fits(held) {
		return nil
	}
	w.drop(held)
	return held
}

// remove removes a call that ended before its client continued it.
func (w *waitingCalls) remove(held *heldCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey[held.key] == held {
		w.drop(held)
	}
}

// drop removes a call and returns its quota. The caller holds the lock.
func (w *waitingCalls) drop(held *heldCall) {
	delete(w.byKey, held.key)
	w.meter.Give(held.client.owner, held.bytes)
	held.expires.Stop()
}

// end abandons all calls and prevents new ones.
func (w *waitingCalls) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, held := range w.byKey {
		held.expires.Stop()
		w.running.Go(held.abandon)
	}
	clear(w.byKey)
	w.ended = true
	w.meter.Close()
}
