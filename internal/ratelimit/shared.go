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
	// lotsPerBurst is the number of lots that a burst is divided into. A replica keeps at most one
	// spare lot. So little of a burst is held where it cannot be used, and three replicas that kept
	// one lot each while the bucket filled again allow a burst that is one percent too large.
	lotsPerBurst = 300

	// lotTime is how long the tokens that a replica takes at once should last. With many replicas,
	// each one rarely sees a client, and takes only the tokens it needs.
	lotTime = 200 * time.Millisecond

	// leaseTime is how long a replica keeps tokens that it does not spend.
	leaseTime = time.Second

	// closeTimeout is how long Close tries to return tokens.
	closeTimeout = time.Second
)

// sharedBuckets are the buckets that replicas share in a store.
type sharedBuckets struct {
	space         *replicas.Space
	allowWhenDown bool

	ctx     context.Context // done when the buckets are closed
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	holders  map[*client]struct{} // clients with tokens
	sweeping bool                 // sweep is running
}

func newShared(space *replicas.Space, allowWhenDown bool) *sharedBuckets {
	s := &sharedBuckets{space: space, allowWhenDown: allowWhenDown, holders: map[*client]struct{}{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// leases are the tokens of a client that this replica holds. The client's lock guards them.
type leases struct {
	all      []*lease
	pending  *tokenRequest // in progress; nil for none
	isHolder bool          // the client is in shared.holders
}

// A lease is the tokens of a bucket that this replica has taken and not spent.
type lease struct {
	limit       Limit
	tokens      float64
	wanted      int     // calls that need a token now
	lot         float64 // spare tokens to take and keep
	requestedAt time.Time
	lastUsed    time.Time
}

// A tokenRequest is a request to the store for tokens. All calls that need tokens in the meantime
// wait for it.
type tokenRequest struct {
	limits  []Limit
	needing []*lease // leases without tokens
	buckets []replicas.Bucket
	done    chan struct{}

	// Result. If wait is 0, the leases have tokens.
	wait time.Duration
	err  error
}

// want returns how many tokens to request: more than needed now if the client is busy.
func (l *lease) want(now time.Time) float64 {
	l.lot, l.requestedAt = l.nextLot(now), now
	return max(l.lot, float64(l.wanted))
}

// nextLot returns how many tokens to take next, by how long the last lot lasted.
func (l *lease) nextLot(now time.Time) float64 {
	growth := min(2, lotTime.Seconds()/now.Sub(l.requestedAt).Seconds())
	return math.Floor(min(growth*max(1, l.lot), float64(l.limit.burst()/lotsPerBurst)))
}

// bucket returns the bucket of the lease, to take want tokens from it.
func (l *lease) bucket(want float64) replicas.Bucket {
	return replicas.Bucket{Key: l.limit.Key, Rate: float64(l.limit.rate()), Burst: float64(l.limit.burst()), Want: want}
}

// take is [Buckets.Take] for shared buckets. It succeeds if wait is 0.
//
// It requests as many tokens as concurrent calls need. Only one of them sends the request. The
// others get tokens of the response or, if it refuses exactly their limits, are refused as well.
func (s *sharedBuckets) take(ctx context.Context, c *client, limits []Limit) (wait time.Duration, err error) {
	if neverFill(limits) {
		return rate.InfDuration, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var room [8]*lease
	leases := c.leases.appendFor(room[:0], limits)
	for _, l := range leases {
		l.wanted++
	}
	defer s.release(c, leases)
	for !spend(leases) {
		q := c.leases.pending
		if q == nil {
			q = c.leases.newRequest(limits, leases)
			s.request(ctx, c, q)
			if q.err != nil || q.wait > 0 {
				return q.wait, q.err
			}
			continue
		}
		c.mu.Unlock()
		<-q.done
		c.mu.Lock()
		if q.err != nil || q.wait > 0 && slices.Equal(q.limits, limits) {
			return q.wait, q.err
		}
	}
	s.requestAhead(c, limits, leases)
	return 0, nil
}

// neverFill reports whether a limit is invalid, so that no token can be taken.
func neverFill(limits []Limit) bool {
	return slices.ContainsFunc(limits, func(l Limit) bool { return l.rate() <= 0 || l.burst() < 1 })
}

// appendFor appends the leases for limits, each once.
func (s *leases) appendFor(dst []*lease, limits []Limit) []*lease {
	for i := range limits {
		if l := s.find(&limits[i], dst); !slices.Contains(dst, l) {
			dst = append(dst, l)
		}
	}
	return dst
}

// find returns the lease for a limit. If the limit has changed, tokens beyond a lot of the new one
// are lost.
func (s *leases) find(limit *Limit, inUse []*lease) *lease {
	for _, l := range s.all {
		if l.limit.Key == limit.Key {
			if l.limit != *limit {
				l.limit, l.lot = *limit, 0
				l.tokens = min(l.tokens, float64(limit.burst()/lotsPerBurst))
			}
			return l
		}
	}
	now := time.Now()
	if len(s.all) == cap(s.all) {
		s.all = slices.DeleteFunc(s.all, func(l *lease) bool {
			return l.tokens == 0 && l.wanted == 0 && now.Sub(l.lastUsed) > leaseTime && !slices.Contains(inUse, l)
		})
	}
	l := &lease{limit: *limit, lastUsed: now}
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
		l.lastUsed = now
	}
	return true
}

// newRequest prepares the request for tokens of the leases that have none.
func (s *leases) newRequest(limits []Limit, leases []*lease) *tokenRequest {
	q := &tokenRequest{limits: slices.Clone(limits), done: make(chan struct{})}
	now := time.Now()
	for _, l := range leases {
		if l.tokens < 1 {
			q.needing = append(q.needing, l)
			q.buckets = append(q.buckets, l.bucket(l.want(now)))
		}
	}
	s.pending = q
	return q
}

// request sends the request, and applies the response. It unlocks the client in the meantime. It
// does not end with ctx, because other calls need the tokens, too.
func (s *sharedBuckets) request(ctx context.Context, c *client, q *tokenRequest) {
	c.mu.Unlock()
	taken, wait, err := s.space.Spend(context.WithoutCancel(ctx), c.name, q.buckets)
	c.mu.Lock()
	q.wait, q.err = wait, err
	if err == nil && taken == nil {
		q.wait = max(wait, 1) // the engine's wait may have overflowed
	}
	for i, l := range q.needing {
		if q.wait > 0 || q.err != nil {
			l.lot = 0 // few tokens are left
		} else {
			l.tokens += taken[i]
		}
	}
	c.leases.pending = nil
	close(q.done)
}

// requestAhead requests tokens in the background after a call that has spent the last token of a
// lot, so the next call does not wait. It does nothing if the next call must request tokens anyway.
func (s *sharedBuckets) requestAhead(c *client, limits []Limit, leases []*lease) {
	if c.leases.pending != nil || !slices.ContainsFunc(leases, func(l *lease) bool { return l.tokens < 1 }) {
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
	q := c.leases.newRequest(limits, leases)
	for _, l := range q.needing {
		l.wanted++
	}
	s.running.Go(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		s.request(context.Background(), c, q)
		s.release(c, q.needing)
	})
}

// release ends a call that needed tokens. At most one lot of spare tokens is kept. The caller holds
// the lock of the client.
func (s *sharedBuckets) release(c *client, leases []*lease) {
	var returned []replicas.Bucket
	keeps := false
	for _, l := range leases {
		l.wanted--
		// If the buckets are closed, close returns the rest.
		if spare := l.tokens - l.lot; spare > 0 && l.wanted == 0 && s.ctx.Err() == nil {
			returned = append(returned, l.bucket(-spare))
			l.tokens -= spare
		}
		keeps = keeps || l.tokens > 0
	}
	if returned == nil && (!keeps || c.leases.isHolder) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if keeps {
		c.leases.isHolder = true
		s.holders[c] = struct{}{}
	}
	if s.ctx.Err() != nil {
		return
	}
	if returned != nil {
		s.running.Go(func() { s.returnTokens(c, returned) })
	}
	if keeps && !s.sweeping {
		s.sweeping = true
		s.running.Go(s.sweep)
	}
}

// returnTokens returns tokens to the store. If that fails, they are lost: they may have been
// returned already, and must not be returned twice.
func (s *sharedBuckets) returnTokens(c *client, tokens []replicas.Bucket) {
	_, _, _ = s.space.Spend(context.Background(), c.name, tokens)
}

// sweep returns unused tokens, as long as there are any.
func (s *sharedBuckets) sweep() {
	tick := time.NewTicker(leaseTime / 2)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		s.returnUnused(s.ctx, time.Now().Add(-leaseTime))
		s.mu.Lock()
		s.sweeping = len(s.holders) > 0
		done := !s.sweeping
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// returnUnused returns tokens that were not used after since, until ctx ends. While the store is
// unavailable, it keeps them.
func (s *sharedBuckets) returnUnused(ctx context.Context, since time.Time) {
	s.mu.Lock()
	clients := slices.Collect(maps.Keys(s.holders))
	s.mu.Unlock()
	for _, c := range clients {
		if ctx.Err() != nil || !s.space.Up() {
			return
		}
		if tokens := s.takeUnused(c, since); tokens != nil {
			s.returnTokens(c, tokens)
		}
	}
}

// takeUnused takes tokens from a client that it has not used after since.
func (s *sharedBuckets) takeUnused(c *client, since time.Time) (taken []replicas.Bucket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keeps := false
	for _, l := range c.leases.all {
		if l.tokens > 0 && l.wanted == 0 && !l.lastUsed.After(since) {
			taken = append(taken, l.bucket(-l.tokens))
			l.tokens = 0
		}
		keeps = keeps || l.tokens > 0
	}
	if !keeps {
		c.leases.isHolder = false
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.holders, c)
	}
	return taken
}

// wait is [Buckets.Wait] for shared buckets.
func (s *sharedBuckets) wait(ctx context.Context, c *client, limits []Limit) (time.Duration, error) {
	if neverFill(limits) {
		return rate.InfDuration, nil
	}
	var buckets []replicas.Bucket
	c.mu.Lock()
	for _, l := range c.leases.appendFor(nil, limits) {
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

// close returns all tokens, within closeTimeout.
func (s *sharedBuckets) close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.returnUnused(ctx, time.Now())
}
