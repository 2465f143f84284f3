package ratelimit

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

const (
	// lots is into how many parts a burst is divided. A replica keeps at most one of them to
	// spare: so no more of the burst is where it cannot be used, and three replicas that have kept one each while
	// the bucket has filled again let a burst pass that is one percent too large.
	lots = 300

	// lotTime is how long the tokens should last that a replica takes at once. Of many replicas, each sees
	// a client seldom, and takes only what is wanted.
	lotTime = 200 * time.Millisecond

	// leaseTime is how long a replica keeps tokens that it does not spend.
	leaseTime = time.Second

	// closeTime is how long it tries to give them back when it ends.
	closeTime = time.Second
)

// A shared has the buckets that replicas share, which are in a store.
type shared struct {
	space         *replicas.Space
	allowWhenDown bool

	ctx     context.Context // ends with the buckets
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	leasing  map[*client]struct{} // those with tokens
	sweeping bool                 // as long as there are any
}

func newShared(space *replicas.Space, allowWhenDown bool) *shared {
	s := &shared{space: space, allowWhenDown: allowWhenDown, leasing: map[*client]struct{}{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// leases are what this replica has of the buckets of a client. The client's lock guards them.
type leases struct {
	all     []*lease
	asking  *question // that is under way; nil if none is
	leasing bool      // it is among those with tokens
}

// A lease is what this replica has taken of a bucket and not spent yet.
type lease struct {
	limit  Limit
	tokens float64
	wanted int     // calls that want one now
	lot    float64 // how many spare tokens are taken and kept
	asked  time.Time
	used   time.Time
}

// A question asks the store for tokens. All calls that want some meanwhile wait for the answer.
type question struct {
	limits   []Limit
	lacking  []*lease // of which there are none here
	buckets  []replicas.Bucket
	answered chan struct{}

	// The answer. If there is nothing to wait for, there are more tokens.
	wait time.Duration
	err  error
}

// want returns how many tokens to ask for: more than are wanted now if the client is busy.
func (l *lease) want(now time.Time) float64 {
	l.lot, l.asked = l.nextLot(now), now
	return max(l.lot, float64(l.wanted))
}

// nextLot returns how many tokens to take next, by how long the last lot has lasted.
func (l *lease) nextLot(now time.Time) float64 {
	growth := min(2, lotTime.Seconds()/now.Sub(l.asked).Seconds())
	return math.Floor(min(growth*max(1, l.lot), float64(l.limit.burst()/lots)))
}

// bucket returns the bucket of the lease, to take so many tokens of it.
func (l *lease) bucket(want float64) replicas.Bucket {
	return replicas.Bucket{Key: l.limit.Key, Rate: float64(l.limit.rate()), Burst: float64(l.limit.burst()), Want: want}
}

// take is [Buckets.Take] for shared buckets: there is one of each if there is nothing to wait for.
//
// It asks for as many tokens as calls want at the same time. Only one of them asks: the others get
// tokens of the answer or, if it is a refusal of just what they want, are refused as well.
func (s *shared) take(ctx context.Context, c *client, limits []Limit) (wait time.Duration, err error) {
	if neverFill(limits) {
		return rate.InfDuration, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var room [8]*lease
	leases := c.leases.of(room[:0], limits)
	for _, l := range leases {
		l.wanted++
	}
	defer s.leave(c, leases)
	for !spend(leases) {
		q := c.leases.asking
		if q == nil {
			q = c.leases.ask(limits, leases)
			if s.answer(ctx, c, q); q.err != nil || q.wait > 0 {
				return q.wait, q.err
			}
			continue
		}
		c.mu.Unlock()
		<-q.answered
		c.mu.Lock()
		if q.err != nil || q.wait > 0 && slices.Equal(q.limits, limits) {
			return q.wait, q.err
		}
	}
	s.askAhead(c, limits, leases)
	return 0, nil
}

// neverFill reports whether a limit makes no sense, so that there is nothing to ask for.
func neverFill(limits []Limit) bool {
	return slices.ContainsFunc(limits, func(l Limit) bool { return l.rate() <= 0 || l.burst() < 1 })
}

// of appends the lease of each bucket that limits name, once.
func (s *leases) of(to []*lease, limits []Limit) []*lease {
	for i := range limits {
		if l := s.find(&limits[i], to); !slices.Contains(to, l) {
			to = append(to, l)
		}
	}
	return to
}

// find returns the lease of a bucket. If the limit has changed, what is too much for the new one is lost.
func (s *leases) find(limit *Limit, inUse []*lease) *lease {
	for _, l := range s.all {
		if l.limit.Key == limit.Key {
			if l.limit != *limit {
				l.limit, l.lot = *limit, 0
				l.tokens = min(l.tokens, float64(limit.burst()/lots))
			}
			return l
		}
	}
	now := time.Now()
	if len(s.all) == cap(s.all) {
		s.all = slices.DeleteFunc(s.all, func(l *lease) bool {
			return l.tokens == 0 && l.wanted == 0 && now.Sub(l.used) > leaseTime && !slices.Contains(inUse, l)
		})
	}
	l := &lease{limit: *limit, used: now}
	s.all = append(s.all, l)
	return l
}

// spend spends a token of each lease, or of none.
func spend(leases []*lease) bool {
	if slices.ContainsFunc(leases, func(l *lease) bool { return l.tokens < 1 }) {
		return false
	}
	now := time.Now()
	for _, l := range leases {
		l.tokens--
		l.used = now
	}
	return true
}

// ask begins to ask for tokens of the leases that have none.
func (s *leases) ask(limits []Limit, leases []*lease) *question {
	q := &question{limits: slices.Clone(limits), answered: make(chan struct{})}
	now := time.Now()
	for _, l := range leases {
		if l.tokens < 1 {
			q.lacking = append(q.lacking, l)
			q.buckets = append(q.buckets, l.bucket(l.want(now)))
		}
	}
	s.asking = q
	return q
}

// answer gets the answer to a question. The lock of the client is free meanwhile. The caller may end
// before: what was taken is for others, too.
func (s *shared) answer(ctx context.Context, c *client, q *question) {
	c.mu.Unlock()
	taken, wait, err := s.space.Spend(context.WithoutCancel(ctx), c.name, q.buckets)
	c.mu.Lock()
	if q.wait, q.err = wait, err; err == nil && taken == nil {
		q.wait = max(wait, 1) // whatever the engine makes of one that is too long for a number
	}
	for i, l := range q.lacking {
		if q.wait > 0 || q.err != nil {
			l.lot = 0 // there is little left
		} else {
			l.tokens += taken[i]
		}
	}
	c.leases.asking = nil
	close(q.answered)
}

// askAhead asks for tokens behind a call that has spent the last ones of a lot, so that the next call does
// not wait for them. It does not if that one has to ask in any case.
func (s *shared) askAhead(c *client, limits []Limit, leases []*lease) {
	if c.leases.asking != nil || !slices.ContainsFunc(leases, func(l *lease) bool { return l.tokens < 1 }) {
		return
	}
	now := time.Now()
	if slices.ContainsFunc(leases, func(l *lease) bool {
		return l.tokens < 1 && (l.lot < 1 || l.wanted > 1 || l.nextLot(now) < 1)
	}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	q := c.leases.ask(limits, leases)
	for _, l := range q.lacking {
		l.wanted++
	}
	s.running.Go(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		s.answer(context.Background(), c, q)
		s.leave(c, q.lacking)
	})
}

// leave ends a call that wanted tokens. Spare tokens are kept for later if they are at most a lot.
// The caller holds the lock of the client.
func (s *shared) leave(c *client, leases []*lease) {
	var back []replicas.Bucket
	keeps := false
	for _, l := range leases {
		l.wanted--
		if over := l.tokens - l.lot; over > 0 && l.wanted == 0 && s.ctx.Err() == nil { // close gives back the rest
			back = append(back, l.bucket(-over))
			l.tokens -= over
		}
		keeps = keeps || l.tokens > 0
	}
	if back == nil && (!keeps || c.leases.leasing) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if keeps {
		c.leases.leasing = true
		s.leasing[c] = struct{}{}
	}
	if s.ctx.Err() != nil {
		return
	}
	if back != nil {
		s.running.Go(func() { s.giveBack(c, back) })
	}
	if keeps && !s.sweeping {
		s.sweeping = true
		s.running.Go(s.sweep)
	}
}

// giveBack puts tokens back. If that fails, they are lost: they may be there already, and there must
// not be more than there were.
func (s *shared) giveBack(c *client, back []replicas.Bucket) {
	_, _, _ = s.space.Spend(context.Background(), c.name, back)
}

// sweep gives back what is not spent, as long as there is something to spend.
func (s *shared) sweep() {
	tick := time.NewTicker(leaseTime / 2)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		s.giveBackUnused(s.ctx, time.Now().Add(-leaseTime))
		s.mu.Lock()
		s.sweeping = len(s.leasing) > 0
		done := !s.sweeping
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// giveBackUnused gives back all that was not used after a time, until the context ends. While the store
// is unavailable, it is better to have it.
func (s *shared) giveBackUnused(ctx context.Context, since time.Time) {
	s.mu.Lock()
	clients := slices.Collect(maps.Keys(s.leasing))
	s.mu.Unlock()
	for _, c := range clients {
		if ctx.Err() != nil || !s.space.Up() {
			return
		}
		if back := s.unused(c, since); back != nil {
			s.giveBack(c, back)
		}
	}
}

// unused takes from a client what it has not used after a time.
func (s *shared) unused(c *client, since time.Time) (back []replicas.Bucket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keeps := false
	for _, l := range c.leases.all {
		if l.tokens > 0 && l.wanted == 0 && !l.used.After(since) {
			back = append(back, l.bucket(-l.tokens))
			l.tokens = 0
		}
		keeps = keeps || l.tokens > 0
	}
	if !keeps {
		c.leases.leasing = false
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.leasing, c)
	}
	return back
}

// wait is [Buckets.Wait] for shared buckets.
func (s *shared) wait(ctx context.Context, c *client, limits []Limit) (time.Duration, error) {
	if neverFill(limits) {
		return rate.InfDuration, nil
	}
	var buckets []replicas.Bucket
	c.mu.Lock()
	for _, l := range c.leases.of(nil, limits) {
		if l.tokens < 1 {
			buckets = append(buckets, l.bucket(0))
		}
	}
	c.mu.Unlock()
	if buckets == nil {
		return 0, nil
	}
	_, wait, err := s.space.Spend(context.WithoutCancel(ctx), c.name, buckets)
	return wait, err
}

// close gives everything back, as far as that does not take long.
func (s *shared) close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	s.giveBackUnused(ctx, time.Now())
}
