package stdio

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Sessions have owners: clients as they have proved who they are or, if they have not,
// their addresses. No owner can end the sessions of another that has fewer.

// sessionsKept are the sessions with child processes.
var sessionsKept = quota.NewKind("stdio_sessions")

type ownerKey struct{}

// WithOwner has sessions that a request begins belong to an owner.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// HasOwner reports whether a request says whose the sessions are that it begins.
func HasOwner(ctx context.Context) bool { return ctx.Value(ownerKey{}) != nil }

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}

// makeRoom ends a session so that an owner can begin one: that which has not been used
// for longest, of the owner that has most. An owner that has more than half of all loses
// one even if it is in use.
func (p *Pool) makeRoom(owner string) {
	held := map[string][]*session{owner: {nil}} // with the one to come
	p.each(func(s *session) { held[s.owner] = append(held[s.owner], s) })
	most := slices.MaxFunc(slices.Collect(maps.Values(held)), func(a, b []*session) int { return len(a) - len(b) })
	if len(held[owner]) == len(most) {
		most = held[owner]
	}
	var oldest *session
	var since time.Time
	for _, s := range most {
		if s == nil {
			continue
		}
		if unused, at := s.unused(); unused && (oldest == nil || at.Before(since)) {
			oldest, since = s, at
		}
	}
	switch {
	case oldest != nil:
		p.expire(oldest)
	case len(most) > len(held[owner]) && len(most) > p.config.MaxSessions/2:
		p.end(slices.MinFunc(most, func(a, b *session) int { return a.began.Compare(b.began) }))
	}
}

// How fast an owner can begin sessions that have a child of their own.
const (
	startRate  = 5  // in a second
	startBurst = 50 // at once
)

// starts limits how fast owners begin sessions.
type starts struct {
	mu sync.Mutex
	of map[string]*rate.Limiter
}

// allow reports whether an owner can begin a session now.
func (s *starts) allow(owner string) bool {
	const many = 10_000
	s.mu.Lock()
	defer s.mu.Unlock()
	limiter := s.of[owner]
	if limiter == nil {
		if len(s.of) >= many { // those that have not been used for a while are as good as new
			maps.DeleteFunc(s.of, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= startBurst })
		}
		if len(s.of) >= many {
			return false
		}
		limiter = rate.NewLimiter(startRate, startBurst)
		s.of[owner] = limiter
	}
	return limiter.Allow()
}
