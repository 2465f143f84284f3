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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Sessions have owners: clients as they have proved who they are or, if they have not,
// their addresses. No owner can end the sessions of another that has fewer.

// sessionsKept are the sessions with child processes.
var sessionsKept = quota.NewKind("stdio_sessions")

// OwnerKey is where a context has the owner of sessions that a request begins, a string.
type OwnerKey struct{}

// WithOwner has sessions that a request begins belong to an owner.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, OwnerKey{}, owner)
}

// HasOwner reports whether a request says whose the sessions are that it begins.
func HasOwner(ctx context.Context) bool { return ctx.Value(OwnerKey{}) != nil }

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(OwnerKey{}).(string)
	return owner
}

// What is kept for sessions: what clients have said of themselves, and the resources
// that they have subscribed to.
const (
	maxBytes      = 64 << 20
	maxOwnerBytes = 8 << 20
)

// abandonedTime is how long a session is not used until it counts as abandoned.
const abandonedTime = time.Minute

// A candidate is a session that may end so that another can begin.
type candidate struct {
	*session
	now   activity
	since time.Time
	bytes int64
	owns  *holding
}

// A holding is what an owner has.
type holding struct {
	sessions, bytes int64
	held, idle      int64 // the one or the other of these: that for which there is no room
}

// makeRoom ends a session so that another can begin, and reports whether it has. A
// session that is not used comes first: that which has not been used for longest, of the
// owner that has most such. An owner can take abandoned sessions of those that have less,
// but not the only one that somebody has while there is another way. Sessions in use end
// for others if their owner has more than half of all, and those that only listen if it
// has more than its share.
func (p *Pool) makeRoom(next *session) bool {
	var all []candidate
	owners := map[string]*holding{next.owner: {}}
	p.each(func(s *session) {
		now, since, bytes := s.activity()
		if owners[s.owner] == nil {
			owners[s.owner] = new(holding)
		}
		all = append(all, candidate{s, now, since, bytes, owners[s.owner]})
	})
	limit, weight := int64(p.config.MaxSessions), func(int64) int64 { return 1 }
	if len(all) < p.config.MaxSessions {
		limit, weight = maxBytes, func(bytes int64) int64 { return bytes }
	}
	for _, c := range all {
		c.owns.sessions++
		c.owns.bytes += c.bytes
		c.owns.held += weight(c.bytes)
		if c.now == idle {
			c.owns.idle += weight(c.bytes)
		}
	}
	own := owners[next.owner]
	mine := own.held + weight(next.bytes)
	rank := func(c candidate) int {
		abandoned := time.Since(c.since) > abandonedTime
		more := c.owns.held > mine
		switch {
		case c.owns == own && c.now == idle:
			return 1
		case c.owns == own, own.bytes+next.bytes > maxOwnerBytes:
			return 0
		case c.now == idle && more:
			return 1
		case c.now == idle && abandoned && c.owns.sessions > 1:
			return 2
		case c.now == listening && more && (c.owns.held > limit/2 || abandoned && c.owns.held > limit/int64(len(owners))):
			return 3
		case c.now == idle && abandoned:
			return 4
		case more && c.owns.held > limit/2:
			return 5
		}
		return 0
	}
	all = slices.DeleteFunc(all, func(c candidate) bool { return rank(c) == 0 })
	if len(all) == 0 {
		return false
	}
	last := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.owns.idle, a.owns.idle), cmp.Compare(b.owns.held, a.owns.held), a.since.Compare(b.since))
	})
	if last.now == idle {
		p.expire(last.session) // unless it is used again
	} else {
		p.end(last.session)
	}
	return true
}

// How fast an owner can begin sessions that have a child of their own.
const (
	startRate  = 5  // in a second
	startBurst = 50 // at once
	startWait  = 10 * time.Second
)

// starts limits how fast owners begin sessions.
type starts struct {
	mu sync.Mutex
	of map[string]*rate.Limiter
}

// wait waits until an owner can begin a session. It reports whether it can, which it
// cannot if it would have to wait for longer than so long.
func (s *starts) wait(ctx context.Context, owner string, longest time.Duration) (bool, error) {
	pause, ok := s.reserve(owner, longest)
	if !ok || pause == 0 {
		return ok, nil
	}
	if !backoff.Sleep(ctx, pause) { // its turn is lost
		return false, context.Cause(ctx)
	}
	return true, nil
}

// reserve returns after what time it is the owner's turn, if that is not too long. The
// clock is read under the lock, so that it does not run backwards for a limiter, which
// would then give more turns than it should.
func (s *starts) reserve(owner string, longest time.Duration) (pause time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limiter := s.limiter(owner)
	if limiter == nil {
		return 0, false
	}
	now := time.Now()
	turn := limiter.ReserveN(now, 1)
	if pause = turn.DelayFrom(now); pause > longest {
		turn.CancelAt(now)
		return 0, false
	}
	return pause, true
}

// limiter returns what limits an owner, or nil if there are too many owners. The caller
// holds the lock.
func (s *starts) limiter(owner string) *rate.Limiter {
	const many = 10_000
	limiter := s.of[owner]
	if limiter == nil {
		if len(s.of) >= many { // those that have not been used for a while are as good as new
			maps.DeleteFunc(s.of, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= startBurst })
		}
		if len(s.of) >= many {
			return nil
		}
		limiter = rate.NewLimiter(startRate, startBurst)
		s.of[owner] = limiter
	}
	return limiter
}
