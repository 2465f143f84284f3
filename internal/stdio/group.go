package stdio

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A group is the clients of a server, of the legacy era, that share its children because
// they declare the same capabilities. At each address of the server it has a child.
type group struct {
	groupKey
	owner    string // of the client that came first
	lastUsed time.Time
	expires  *time.Timer
}

type groupKey struct {
	name string // of the server
	can  string // what children are told that their clients can do, as JSON
}

// Clients choose what they declare, and each group is a process. Besides this number, a
// server has one for clients that declare nothing.
const (
	maxGroups      = 8
	maxOwnerGroups = 4
)

// groupsKept are groups of clients.
var groupsKept = quota.NewKind("stdio_groups")

const (
	nothing = "{}"
	// everything is what children are told if all clients share one: whom to ask is found
	// out when they ask.
	everything = `{"elicitation":{"form":{},"url":{}},"sampling":{}}`
)

// canonical returns capabilities in the form in which equal ones are the same text: the order
// of members and white space do not matter. Roots are no part of it, unless they are wanted.
func canonical(capabilities []byte, roots bool) string {
	d := json.NewDecoder(bytes.NewReader(capabilities))
	d.UseNumber()
	var members map[string]any
	if d.Decode(&members) != nil || members == nil {
		return nothing
	}
	if !roots {
		delete(members, "roots")
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // which would make it longer
	if e.Encode(members) != nil {
		return nothing
	}
	return string(bytes.TrimSpace(text.Bytes()))
}

// told returns what a child is told that its clients, a group, can do. There are roots if some are
// configured.
func (s *server) told(g *group) []byte {
	can := []byte(g.can)
	if s.hasRoots() && !mcp.CanBeAsked(can, rootsList) {
		return jsonspan.Spliced(can, jsonspan.Insert(can, []byte(`"roots":{}`)))
	}
	return can
}

// group returns the group of a client that declares these capabilities. If there is no room
// for another one, it is the nearest. The caller holds the lock.
func (p *Pool) group(name string, capabilities []byte, owner string) *group {
	key := groupKey{name, canonical(capabilities, p.config.SoleClient)}
	if p.config.Isolation == OneForAll {
		key.can = everything
		if p.config.SoleClient {
			key.can = canonical([]byte(`{"roots":{},`+everything[1:]), true)
		}
	}
	g := p.groups[key]
	switch {
	case g != nil:
	case key.can == nothing || p.config.Isolation == OneForAll:
		g = p.addGroup(key, owner)
	case p.admit(key, owner):
		g = p.addGroup(key, owner)
	default:
		g = p.nearest(key, owner)
		shares := g.can
		p.running.Go(func() { p.logFull(key, shares) }) // not under the lock
	}
	g.lastUsed = time.Now()
	return g
}

// logFull logs that a client shares the child of others because there is no room for its own
// group.
func (p *Pool) logFull(key groupKey, shares string) {
	p.full.Do(func() {
		p.config.Logger().Warn(
			"too many different capabilities of clients, so one shares the child of others that have less",
			zap.String("mcp_server", key.name),
			zap.String("capabilities", mcp.Shortened(key.can)), zap.String("shares", mcp.Shortened(shares)))
	})
}

// admit reports whether an owner can begin another group of a server, after a group that was
// not used for a while has made room for it. The caller holds the lock.
func (p *Pool) admit(key groupKey, owner string) bool {
	kept := p.groupsOf[key.name]
	if kept == nil {
		kept = quota.NewMeter(groupsKept, quota.Limits{Entries: maxGroups, OwnerEntries: maxOwnerGroups})
		p.groupsOf[key.name] = kept
	}
	if kept.Fits(owner, 0) {
		return kept.Take(owner, 0)
	}
	var own, abandoned []*group
	for _, g := range p.groups {
		if g.name != key.name || g.can == nothing {
			continue
		}
		if g.owner == owner {
			own = append(own, g)
		}
		if p.unused(g, abandonedTime) {
			abandoned = append(abandoned, g)
		}
	}
	if len(own) == maxOwnerGroups { // then it is one of these that has to go
		abandoned = slices.DeleteFunc(abandoned, func(g *group) bool { return g.owner != owner })
	}
	if len(abandoned) > 0 {
		p.drop(slices.MinFunc(abandoned, func(a, b *group) int { return a.lastUsed.Compare(b.lastUsed) }))
	}
	return kept.Take(owner, 0)
}

// addGroup begins a group. The caller holds the lock.
func (p *Pool) addGroup(key groupKey, owner string) *group {
	g := &group{groupKey: key, owner: owner}
	g.expires = time.AfterFunc(p.config.SessionTTL, func() { p.expireGroup(g) })
	p.groups[key] = g
	return g
}

// nearest returns the group with the most capabilities that has none besides these. The caller
// holds the lock.
func (p *Pool) nearest(key groupKey, owner string) (best *group) {
	var wanted map[string]any
	_ = json.Unmarshal([]byte(key.can), &wanted) // it is canonical
	for _, g := range p.groups {
		var has map[string]any
		_ = json.Unmarshal([]byte(g.can), &has)
		if g.name != key.name || !within(has, wanted) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(len(g.can), len(best.can)), cmp.Compare(best.can, g.can)) > 0 {
			best = g
		}
	}
	if best == nil {
		best = p.addGroup(groupKey{key.name, nothing}, owner)
	}
	return best
}

// within reports whether an object has only members that another one has as well, with
// values of which the same can be said.
func within(some, all map[string]any) bool {
	for name, value := range some {
		other, has := all[name]
		object, is := value.(map[string]any)
		others, are := other.(map[string]any)
		if !has || is != are || is && !within(object, others) || !is && !reflect.DeepEqual(value, other) {
			return false
		}
	}
	return true
}

// unused reports whether no session belongs to a group, and nothing was asked of its
// children for a while. The caller holds the lock.
func (p *Pool) unused(g *group, while time.Duration) bool {
	if time.Since(g.lastUsed) < while {
		return false
	}
	for _, s := range p.sessions {
		if s.group == g {
			return false
		}
	}
	for a, s := range p.servers {
		if c := s.current(); a.group == g && c != nil && c.busy() {
			return false
		}
	}
	return true
}

// expireGroup ends a group that is not used. The last child of a server that runs stays.
func (p *Pool) expireGroup(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.groups[g.groupKey] != g {
		return
	}
	if p.unused(g, p.config.SessionTTL) && (!p.runs(g.name, func(other *group) bool { return other == g }) ||
		p.runs(g.name, func(other *group) bool { return other != g })) {
		p.drop(g)
		return
	}
	wait := p.config.SessionTTL - time.Since(g.lastUsed)
	if wait <= 0 {
		wait = p.config.SessionTTL
	}
	g.expires.Reset(wait)
}

// runs reports whether a child runs of such a group of a server. The caller holds the lock.
func (p *Pool) runs(name string, such func(*group) bool) bool {
	for a, s := range p.servers {
		if a.group != nil && a.group.name == name && such(a.group) && s.current() != nil {
			return true
		}
	}
	return false
}

// drop ends a group and its children. The caller holds the lock.
func (p *Pool) drop(g *group) {
	g.expires.Stop()
	delete(p.groups, g.groupKey)
	if kept := p.groupsOf[g.name]; kept != nil && g.can != nothing {
		kept.Give(g.owner, 0)
	}
	for a, s := range p.servers {
		if a.group == g {
			delete(p.servers, a)
			p.running.Go(s.stop)
		}
	}
}

// closeGroups ends what is left of groups without servers.
func (p *Pool) closeGroups() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		g.expires.Stop()
	}
	for _, kept := range p.groupsOf {
		kept.Close()
	}
}

// anyGroup returns the group whose child at a host answers clients that declare nothing, and
// the gateway itself. So that no other is started for them, that is one which runs: that of
// clients without capabilities first, then the oldest. The caller holds the lock.
func (p *Pool) anyGroup(host string) *group {
	var (
		best     *server
		bestRank int
	)
	for a, s := range p.servers {
		if a.host != host || a.group == nil {
			continue
		}
		if rank := s.readiness(); rank > bestRank || rank > 0 && rank == bestRank && s.began.Before(best.began) {
			best, bestRank = s, rank
		}
	}
	if best == nil {
		return p.group(address{host: host}.name(), []byte(nothing), "")
	}
	best.at.group.lastUsed = time.Now()
	return best.at.group
}

// readiness ranks servers by how soon they answer. It is 0 for one that has never been ready,
// and may never be: a server can refuse the capabilities of its clients.
func (s *server) readiness() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.child != nil && s.at.group.can == nothing:
		return 3
	case s.child != nil:
		return 2
	case s.worked || s.starting != nil && s.at.group.can == nothing:
		return 1
	}
	return 0
}
