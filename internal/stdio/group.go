package stdio

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A group is a set of legacy clients that share children of a server because they declare the
// same capabilities. It has one child at each address of the server.
type group struct {
	groupKey
	owner    string // owner of the first client
	lastUsed time.Time
	expires  *time.Timer
}

type groupKey struct {
	name         string // name of the server
	capabilities string // JSON, as initialize declares them
}

// Limits of the groups of a server, in all and per owner. Clients choose what they declare, and
// each group is a process. The group without capabilities does not count.
const (
	maxGroups      = 8
	maxOwnerGroups = 4
)

// groups are the groups of all servers. The lock of the pool guards them as well: a group ends
// with its servers, and only if it has no sessions.
type groups struct {
	pool    *Pool
	byKey   map[groupKey]*group
	meters  map[string]*quota.Meter // by server name
	fullLog rate.Sometimes          // limits log lines about missing room
}

func newGroups(p *Pool) groups {
	return groups{
		pool:    p,
		byKey:   map[groupKey]*group{},
		meters:  map[string]*quota.Meter{},
		fullLog: rate.Sometimes{First: 10, Interval: time.Minute},
	}
}

// groupQuota limits groups.
var groupQuota = quota.NewKind("stdio_groups")

const (
	noCapabilities = "{}"
	// allCapabilities is what initialize declares if all clients share one child. Which client
	// gets a server request is decided when it arrives.
	allCapabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{}}`
)

// canonicalCapabilities returns capabilities as a text that is the same for equal capabilities: the
// order of members and white space do not matter. It removes roots unless they are wanted.
func canonicalCapabilities(capabilities []byte, roots bool) string {
	d := json.NewDecoder(bytes.NewReader(capabilities))
	d.UseNumber()
	var members map[string]any
	if d.Decode(&members) != nil || members == nil {
		return noCapabilities
	}
	if !roots {
		delete(members, "roots")
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // would only make it longer
	if e.Encode(members) != nil {
		return noCapabilities
	}
	return string(bytes.TrimSpace(text.Bytes()))
}

// of returns the group of a client with these capabilities, or the nearest one if there is
// no room for another. The caller holds the lock.
func (gs *groups) of(name string, capabilities []byte, owner string) *group {
	key := groupKey{name, canonicalCapabilities(capabilities, gs.pool.config.SoleClient)}
	if gs.pool.config.Isolation == SingleChild {
		key.capabilities = allCapabilities
		if gs.pool.config.SoleClient {
			key.capabilities = canonicalCapabilities([]byte(`{"roots":{},`+allCapabilities[1:]), true)
		}
	}
	g := gs.byKey[key]
	switch {
	case g != nil:
	case key.capabilities == noCapabilities || gs.pool.config.Isolation == SingleChild:
		g = gs.add(key, owner)
	case gs.admit(key, owner):
		g = gs.add(key, owner)
	default:
		g = gs.nearest(key, owner)
		shares := g.capabilities
		gs.pool.running.Go(func() { gs.logFull(key, shares) }) // not under the lock
	}
	g.lastUsed = time.Now()
	return g
}

// logFull logs that a client shares the child of another group because there is no room for
// its own.
func (gs *groups) logFull(key groupKey, shares string) {
	gs.fullLog.Do(func() {
		gs.pool.config.Logger().Warn(
			"too many different client capabilities; a client shares a child with clients that have fewer",
			zap.String("mcp_server", key.name),
			zap.String("capabilities", mcp.Shortened(key.capabilities)), zap.String("shares", mcp.Shortened(shares)))
	})
}

// admit reports whether an owner can begin another group of a server. If there is no room, it
// ends a group that was not used for a while. The caller holds the lock.
func (gs *groups) admit(key groupKey, owner string) bool {
	meter := gs.meters[key.name]
	if meter == nil {
		meter = quota.NewMeter(groupQuota, quota.Limits{Entries: maxGroups, OwnerEntries: maxOwnerGroups})
		gs.meters[key.name] = meter
	}
	if meter.Fits(owner, 0) {
		return meter.Take(owner, 0)
	}
	var own, abandoned []*group
	for _, g := range gs.byKey {
		if g.name != key.name || g.capabilities == noCapabilities {
			continue
		}
		if g.owner == owner {
			own = append(own, g)
		}
		if gs.isUnused(g, abandonedTime) {
			abandoned = append(abandoned, g)
		}
	}
	if len(own) == maxOwnerGroups { // then only a group of this owner makes room
		abandoned = slices.DeleteFunc(abandoned, func(g *group) bool { return g.owner != owner })
	}
	if len(abandoned) > 0 {
		gs.drop(slices.MinFunc(abandoned, func(a, b *group) int { return a.lastUsed.Compare(b.lastUsed) }))
	}
	return meter.Take(owner, 0)
}

// add begins a group. The caller holds the lock.
func (gs *groups) add(key groupKey, owner string) *group {
	g := &group{groupKey: key, owner: owner}
	g.expires = time.AfterFunc(gs.pool.config.SessionTTL, func() { gs.expire(g) })
	gs.byKey[key] = g
	return g
}

// nearest returns the group that has the most of these capabilities, and no others. The caller
// holds the lock.
func (gs *groups) nearest(key groupKey, owner string) (best *group) {
	var wanted map[string]any
	_ = json.Unmarshal([]byte(key.capabilities), &wanted) // it is canonical
	for _, g := range gs.byKey {
		var has map[string]any
		_ = json.Unmarshal([]byte(g.capabilities), &has)
		if g.name != key.name || !isSubset(has, wanted) {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(len(g.capabilities), len(best.capabilities)),
			cmp.Compare(best.capabilities, g.capabilities),
		) > 0 {
			best = g
		}
	}
	if best == nil {
		best = gs.add(groupKey{key.name, noCapabilities}, owner)
	}
	return best
}

// isSubset reports whether all members of an object are members of another one, with equal
// values or, for objects, values that are subsets.
func isSubset(some, all map[string]any) bool {
	for name, value := range some {
		other, found := all[name]
		object, isObject := value.(map[string]any)
		otherObject, otherIsObject := other.(map[string]any)
		switch {
		case !found, isObject != otherIsObject,
			isObject && !isSubset(object, otherObject), !isObject && !reflect.DeepEqual(value, other):
			return false
		}
	}
	return true
}

// isUnused reports whether a group has no sessions and its children had no requests for a while.
// The caller holds the lock.
func (gs *groups) isUnused(g *group, while time.Duration) bool {
	if time.Since(g.lastUsed) < while {
		return false
	}
	for _, s := range gs.pool.sessions.byID {
		if s.group == g {
			return false
		}
	}
	for a, s := range gs.pool.servers {
		if c := s.current(); a.group == g && c != nil && c.calls.busy() {
			return false
		}
	}
	return true
}

// expire ends a group that is not used. The last running child of a server stays.
func (gs *groups) expire(g *group) {
	gs.pool.mu.Lock()
	defer gs.pool.mu.Unlock()
	if gs.pool.closed || gs.byKey[g.groupKey] != g {
		return
	}
	if gs.isUnused(g, gs.pool.config.SessionTTL) && !gs.isLastRunning(g) {
		gs.drop(g)
		return
	}
	wait := gs.pool.config.SessionTTL - time.Since(g.lastUsed)
	if wait <= 0 {
		wait = gs.pool.config.SessionTTL
	}
	g.expires.Reset(wait)
}

// isLastRunning reports whether children of this group run, and none of other groups of the server.
// The caller holds the lock.
func (gs *groups) isLastRunning(g *group) (last bool) {
	for a, s := range gs.pool.servers {
		if a.group == nil || a.group.name != g.name || s.current() == nil {
			continue
		}
		if a.group != g {
			return false
		}
		last = true
	}
	return last
}

// drop ends a group and its children. The caller holds the lock.
func (gs *groups) drop(g *group) {
	g.expires.Stop()
	delete(gs.byKey, g.groupKey)
	if meter := gs.meters[g.name]; meter != nil && g.capabilities != noCapabilities {
		meter.Give(g.owner, 0)
	}
	for a, s := range gs.pool.servers {
		if a.group == g {
			delete(gs.pool.servers, a)
			gs.pool.running.Go(s.stop)
		}
	}
}

// close stops the timers and meters of groups.
func (gs *groups) close() {
	gs.pool.mu.Lock()
	defer gs.pool.mu.Unlock()
	for _, g := range gs.byKey {
		g.expires.Stop()
	}
	for _, meter := range gs.meters {
		meter.Close()
	}
}

// any returns the group whose child at a host serves requests that declare nothing and
// requests of the gateway itself. It prefers a child that runs, so that no other is started:
// first that of clients without capabilities, then the oldest. The caller holds the lock.
func (gs *groups) any(host string) *group {
	var (
		best     *server
		bestRank int
	)
	for a, s := range gs.pool.servers {
		if a.host != host || a.group == nil {
			continue
		}
		if rank := s.readiness(); rank > bestRank || rank > 0 && rank == bestRank && s.created.Before(best.created) {
			best, bestRank = s, rank
		}
	}
	if best == nil {
		return gs.of(nameAt(host), []byte(noCapabilities), "")
	}
	best.address.group.lastUsed = time.Now()
	return best.address.group
}

// isShared reports whether a group of legacy clients shares the server.
func (s *server) isShared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address.group != nil // becomeLegacy may set it
}

// readiness ranks servers by how soon they can respond. It is 0 for one that was never ready
// and may never be: a server can refuse the capabilities of its clients.
func (s *server) readiness() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.child != nil && s.address.group.capabilities == noCapabilities:
		return 3
	case s.child != nil:
		return 2
	case s.wasReady || s.starting != nil && s.address.group.capabilities == noCapabilities:
		return 1
	}
	return 0
}
