package aggregate

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A State is what is remembered of clients. It outlives configurations: an Aggregate
// that takes the place of another goes on with its clients, their connections to
// servers that are the same, their streams and the calls that wait for them.
type State struct {
	shelf   shelf
	index   index
	running sync.WaitGroup // calls that are given up, and sessions that are being ended
	ending  chan struct{}  // has a token for each of the latter, of which there are only so many at once

	mu       sync.Mutex
	busy     map[string]*client                 // those that are being served
	idle     [2]*simplelru.LRU[string, *client] // the others, by era
	max      int                                // how many of each are kept
	sweeping *time.Timer                        // nil if there is nothing to sweep
	held     map[string]*heldCall
	streams  map[*stream]bool
	overhear map[*overhearing]bool
	members  []*Aggregate
	ended    bool
}

// idleTime is how long a client of the modern era is remembered. It never says that it
// leaves, and may have sessions with servers of the other era that nobody else ends.
const idleTime = 30 * time.Minute

// NewState returns a State in which nobody is known.
func NewState() *State {
	s := &State{ending: make(chan struct{}, 16), busy: map[string]*client{}, held: map[string]*heldCall{}, streams: map[*stream]bool{}, overhear: map[*overhearing]bool{}}
	for era := range s.idle {
		s.idle[era], _ = simplelru.NewLRU[string, *client](math.MaxInt32, nil)
	}
	return s
}

// client returns the client that is known under a key, or makes it known, and keeps it
// until it is released.
func (s *State) client(era mcp.Era, key string, make func() *client) *client {
	if c := s.known(era, key, nil); c != nil {
		return c
	}
	c := make() // which may take a while
	if c == nil {
		return nil
	}
	return s.known(era, key, c)
}

// known returns the client that is known under a key, or else makes another one known.
func (s *State) known(era mcp.Era, key string, or *client) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.busy[key]
	if c == nil {
		if c, _ = s.idle[era].Peek(key); c != nil {
			s.idle[era].Remove(key)
		} else if c = or; c == nil {
			return nil
		}
		c.key = key
		s.busy[key] = c
	}
	c.using++
	return c
}

// keep keeps a client that is being served for somebody else, too.
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
	delete(s.busy, c.key) // and if it has ended, that is remembered
	c.idleSince = time.Now()
	s.idle[c.era].Add(c.key, c)
	for s.idle[c.era].Len() > s.max {
		s.forget(c.era)
	}
	if c.era == mcp.Modern && s.sweeping == nil {
		s.sweeping = time.AfterFunc(idleTime/10, s.sweep)
	}
}

// sweep forgets clients of the modern era that were not seen for long.
func (s *State) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		_, c, ok := s.idle[mcp.Modern].GetOldest()
		if !ok {
			s.sweeping = nil
			return
		}
		if time.Since(c.idleSince) < idleTime {
			s.sweeping.Reset(idleTime / 10)
			return
		}
		s.forget(mcp.Modern)
	}
}

// forget forgets the client that was not seen for the longest time. The caller holds
// the lock.
func (s *State) forget(era mcp.Era) {
	_, c, ok := s.idle[era].RemoveOldest()
	if !ok || era == mcp.Legacy || len(s.members) == 0 {
		return // what a session of ours carries is still good
	}
	for _, l := range c.allLinks() {
		i := slices.IndexFunc(s.members, func(member *Aggregate) bool { return member.of(l) != nil })
		if i < 0 || l.of == nil {
			continue
		}
		a := s.members[i]
		s.running.Go(func() {
			s.ending <- struct{}{}
			defer func() { <-s.ending }()
			ctx, cancel := context.WithTimeout(context.Background(), a.config.JoinTimeout)
			defer cancel()
			l.end(ctx, a, l.of)
		})
	}
}

func (s *State) join(a *Aggregate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.alone = true
	for _, member := range s.members {
		if member.config.Generation == a.config.Generation {
			a.alone, member.alone = false, false
		}
	}
	s.members = append(s.members, a)
	s.max = a.config.MaxClients
}

// leave says that a serves no more requests. Who listens to its servers listens to
// those of its successor from now on. If there is none, or nobody knows which one that
// is, the streams are ended: their clients come back by themselves.
func (s *State) leave(a *Aggregate) {
	s.mu.Lock()
	s.members = slices.DeleteFunc(s.members, func(member *Aggregate) bool { return member == a })
	to := s.successor(a)
	a.left, a.next = true, to
	if len(s.members) > 0 {
		s.max = s.members[len(s.members)-1].config.MaxClients
	}
	s.dropLinks()
	var moving []*stream
	for stream := range s.streams {
		if stream.a.Load() == a {
			moving = append(moving, stream)
		}
	}
	s.mu.Unlock()
	for _, stream := range moving {
		if to == nil {
			stream.end()
		} else {
			stream.move(a, to)
		}
	}
}

// overhears notes what is listened to for calls, unless nothing is any more.
func (s *State) overhears(o *overhearing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.overhear[o] = true
	}
	return !s.ended
}

// overheard notes that it has ended.
func (s *State) overheard(o *overhearing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.overhear, o)
}

// dropLinks forgets connections to servers that are no longer there. The caller holds
// the lock.
func (s *State) dropLinks() {
	there := map[string]bool{}
	for _, member := range s.members {
		for _, server := range member.config.Servers {
			there[server.ID] = true
		}
	}
	if len(there) == 0 {
		return
	}
	for _, c := range s.everybody() {
		c.mu.Lock()
		maps.DeleteFunc(c.links, func(id string, _ *link) bool { return !there[id] })
		c.mu.Unlock()
	}
}

// successor returns the Aggregate that takes the place of another: one with the same
// servers or, if there never was more than one at a time, the one that is there. Two
// gateways that happen to have the same name must not take each other's clients.
func (s *State) successor(a *Aggregate) *Aggregate {
	var others []*Aggregate
	siblings := 0
	for _, member := range s.members {
		switch {
		case member.config.Generation == a.config.Generation:
			siblings++
		case member.fingerprint == a.fingerprint:
			return member
		default:
			others = append(others, member)
		}
	}
	if a.alone && siblings == 0 && len(others) == 1 && others[0].alone {
		return others[0]
	}
	return nil
}

// Destruct ends all calls that are held open, and waits for them.
func (s *State) Destruct() error {
	s.mu.Lock()
	for _, held := range s.held {
		held.expires.Stop()
		s.running.Go(held.giveUp)
	}
	clear(s.held)
	for o := range s.overhear {
		o.cancel()
	}
	s.ended = true
	if s.sweeping != nil {
		s.sweeping.Stop()
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}
