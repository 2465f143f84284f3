package stdio

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Sessions have owners: the identity of the client or, without one, its address. No owner can
// end the sessions of another one that has fewer.

// sessionQuota limits sessions with child processes.
var sessionQuota = quota.NewKind("stdio_sessions")

// OwnerKey is the context key of the owner of new sessions, a string.
type OwnerKey struct{}

// WithOwner sets the owner of sessions that a request begins.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, OwnerKey{}, owner)
}

// HasOwner reports whether the context has an owner.
func HasOwner(ctx context.Context) bool { return ctx.Value(OwnerKey{}) != nil }

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(OwnerKey{}).(string)
	return owner
}

// An account is the memory of a session that counts toward the quota.
type account struct {
	meter *quota.Meter
	owner string

	mu     sync.Mutex
	bytes  int64
	closed bool
}

// grow adds bytes, or removes them if they are negative. It reports false, and does nothing, if
// there is no room or the session has ended.
func (a *account) grow(bytes int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || !a.meter.Grow(a.owner, bytes) {
		return false
	}
	a.bytes += bytes
	return true
}

func (a *account) size() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// close returns the bytes, which do not change anymore.
func (a *account) close() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return a.bytes
}

// Limits of the memory for sessions: their initialize requests, capabilities, subscriptions and
// events. In all and per owner.
const (
	maxBytes      = 64 << 20
	maxOwnerBytes = 8 << 20
)

// sessions are the sessions of all clients. The lock of the pool guards them, because their
// groups and servers change with them.
type sessions struct {
	pool    *Pool
	byID    map[string]*session
	meter   *quota.Meter // sessions and the bytes kept for them
	opening sync.Mutex   // held while room is made for a session
	starts  startLimiter
}

func newSessions(p *Pool) sessions {
	return sessions{
		pool: p,
		byID: map[string]*session{},
		meter: quota.NewMeter(sessionQuota, quota.Limits{
			Entries: p.config.MaxSessions, Bytes: maxBytes, OwnerBytes: maxOwnerBytes,
		}),
		starts: startLimiter{limiters: map[string]*rate.Limiter{}},
	}
}

// open begins a session for a client that has sent initialize. It returns nil if there is no room,
// or if the host is no longer used: Release does not know the session yet.
func (ss *sessions) open(initialize *jsonrpc.Message, host, owner string) *session {
	p := ss.pool
	s := newSession(p, nameAt(host), owner, initialize)
	ss.opening.Lock()
	defer ss.opening.Unlock()
	// Most of the sessions that this ends belong to clients that left without DELETE.
	for !ss.meter.Fits(owner, s.memory.bytes) && ss.makeRoom(s) {
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.hosts.inUse(host) || !ss.meter.Take(owner, s.memory.bytes) {
		return nil
	}
	if p.config.Isolation == PerSession {
		s.server = newServer(p, address{host: host, era: mcp.Legacy}, s)
	} else {
		s.group = p.groups.of(s.name, s.capabilities, owner)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openResponses = 1
	s.expires = time.AfterFunc(p.config.SessionTTL, s.checkExpiry)
	ss.byID[s.id] = s
	return s
}

// get returns a session of a server by its ID and marks it as used.
func (ss *sessions) get(id, name string) *session {
	ss.pool.mu.Lock()
	s := ss.byID[id]
	ss.pool.mu.Unlock()
	if s == nil || s.name != name || !s.use() {
		return nil
	}
	return s
}

// each calls f for every session.
func (ss *sessions) each(f func(*session)) {
	ss.pool.mu.Lock()
	all := slices.Collect(maps.Values(ss.byID))
	ss.pool.mu.Unlock()
	for _, s := range all {
		f(s)
	}
}

// busyAt reports whether calls wait for a child of a single session at a host. They may have come
// through another host of the same server.
func (ss *sessions) busyAt(host string) bool {
	ss.pool.mu.Lock()
	defer ss.pool.mu.Unlock()
	for _, s := range ss.byID {
		if s.hasServerAt(host) {
			if c := s.server.current(); c != nil && c.calls.busy() {
				return true
			}
		}
	}
	return false
}

// abandonedTime is how long a session is unused before it counts as abandoned.
const abandonedTime = time.Minute

// A candidate is a session that may be ended to make room for another one.
type candidate struct {
	*session
	activityNow activity
	since       time.Time
	bytes       int64
	usage       *usage
}

// A usage adds up the sessions of an owner. used and idle count sessions or bytes, whichever is
// exhausted.
type usage struct {
	sessions, bytes int64
	used, idle      int64
}

// makeRoom ends a session so that another one can begin, and reports whether it did. Idle
// sessions go first: of the owner with the most, the one that was unused for the longest time.
// Abandoned sessions of owners that have less can go as well, but the only session of an owner
// goes last. Sessions in use are ended if their owner has more than half of all, and sessions
// with just an open stream if it has more than its share.
func (ss *sessions) makeRoom(next *session) bool {
	var all []candidate
	owners := map[string]*usage{next.owner: {}}
	ss.each(func(s *session) {
		now, since := s.activity()
		if owners[s.owner] == nil {
			owners[s.owner] = new(usage)
		}
		all = append(all, candidate{s, now, since, s.memory.size(), owners[s.owner]})
	})
	limit, weight := int64(ss.pool.config.MaxSessions), func(int64) int64 { return 1 }
	if len(all) < ss.pool.config.MaxSessions {
		limit, weight = maxBytes, func(bytes int64) int64 { return bytes }
	}
	for _, c := range all {
		c.usage.sessions++
		c.usage.bytes += c.bytes
		c.usage.used += weight(c.bytes)
		if c.activityNow == idle {
			c.usage.idle += weight(c.bytes)
		}
	}
	own := owners[next.owner]
	mine := own.used + weight(next.memory.bytes)
	rank := func(c candidate) int {
		abandoned := time.Since(c.since) > abandonedTime
		more := c.usage.used > mine
		switch {
		case c.usage == own && c.activityNow == idle:
			return 1
		case c.usage == own, own.bytes+next.memory.bytes > maxOwnerBytes:
			return 0
		case c.activityNow == idle && more:
			return 1
		case c.activityNow == idle && abandoned && c.usage.sessions > 1:
			return 2
		case c.activityNow == listening && more &&
			(c.usage.used > limit/2 || abandoned &&
				c.usage.used > limit/int64(len(owners))):
			return 3
		case c.activityNow == idle && abandoned:
			return 4
		case more && c.usage.used > limit/2:
			return 5
		}
		return 0
	}
	all = slices.DeleteFunc(all, func(c candidate) bool { return rank(c) == 0 })
	if len(all) == 0 {
		return false
	}
	last := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.usage.idle, a.usage.idle),
			cmp.Compare(b.usage.used, a.usage.used), a.since.Compare(b.since))
	})
	if last.activityNow == idle {
		last.expire() // unless it is used again
	} else {
		last.end()
	}
	return true
}

// How fast an owner can begin sessions with their own child.
const (
	startRate  = 5  // per second
	startBurst = 50 // at once
	startWait  = 10 * time.Second
)

// A startLimiter limits how fast owners begin sessions.
type startLimiter struct {
	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

// wait waits until an owner can begin a session. It reports false if that would take longer
// than maxWait.
func (s *startLimiter) wait(ctx context.Context, owner string, maxWait time.Duration) (bool, error) {
	pause, ok := s.reserve(owner, maxWait)
	if !ok || pause == 0 {
		return ok, nil
	}
	if !backoff.Sleep(ctx, pause) { // the reservation is lost
		return false, context.Cause(ctx)
	}
	return true, nil
}

// reserve returns how long the owner has to wait, if that is at most maxWait. It reads the clock
// under the lock: if time went backwards for a limiter, it would admit too many.
func (s *startLimiter) reserve(owner string, maxWait time.Duration) (pause time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limiter := s.limiter(owner)
	if limiter == nil {
		return 0, false
	}
	now := time.Now()
	reservation := limiter.ReserveN(now, 1)
	pause = reservation.DelayFrom(now)
	if pause > maxWait {
		reservation.CancelAt(now)
		return 0, false
	}
	return pause, true
}

// limiter returns the limiter of an owner, or nil if there are too many owners. The caller
// holds the lock.
func (s *startLimiter) limiter(owner string) *rate.Limiter {
	const maxOwners = 10_000
	limiter := s.limiters[owner]
	if limiter == nil {
		if len(s.limiters) >= maxOwners { // full limiters are as good as new ones
			maps.DeleteFunc(s.limiters, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= startBurst })
		}
		if len(s.limiters) >= maxOwners {
			return nil
		}
		limiter = rate.NewLimiter(startRate, startBurst)
		s.limiters[owner] = limiter
	}
	return limiter
}
