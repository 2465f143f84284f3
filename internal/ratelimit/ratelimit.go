// Package ratelimit limits the rate of client requests with token buckets.
//
// A client may have several buckets: for all requests and for single tools, for bursts and for the
// long run. A request needs one token of each, and takes none if one is missing.
//
// Replicas can share the buckets. Each replica then takes some tokens at a time, and spends them
// without asking again.
package ratelimit

import (
	"context"
	"math"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// A Limit is a bucket of a client: N requests in Per, Burst of them at once. All are positive, but
// a Burst of 0 means N.
type Limit struct {
	Key   string // identifies the bucket of a client, also over reloads
	N     int
	Per   time.Duration
	Burst int
}

// rate returns how fast the bucket fills. An invalid limit never fills.
func (l Limit) rate() rate.Limit {
	if l.N <= 0 || l.Per <= 0 {
		return 0
	}
	return rate.Limit(float64(l.N) / l.Per.Seconds())
}

func (l Limit) burst() int {
	if l.Burst == 0 {
		return l.N
	}
	return l.Burst
}

// Buckets has the buckets of many clients. When there are too many, it forgets the client that was
// idle longest. It is safe for concurrent use, and starts no goroutines unless the buckets are
// shared.
type Buckets struct {
	max    int
	shared *sharedBuckets // nil if the buckets are not shared with other replicas

	mu      sync.Mutex // held only to find a client
	clients *simplelru.LRU[string, *client]
	counts  *quota.Meter
}

var bucketsQuota = quota.NewKind("rates")

// New returns Buckets for at most maxClients clients.
func New(maxClients int) *Buckets {
	// makeRoom evicts instead, because it knows which clients are in use.
	clients, _ := simplelru.NewLRU[string, *client](math.MaxInt, nil)
	maxClients = max(maxClients, 1)
	counts := quota.NewMeter(bucketsQuota, quota.Limits{Entries: maxClients})
	return &Buckets{max: maxClients, clients: clients, counts: counts}
}

// NewShared returns Buckets that replicas share, or the same as New if space is nil. While the
// space is unavailable, Take fails or, with allowWhenDown, each replica uses buckets of its own.
func NewShared(maxClients int, space *replicas.Space, allowWhenDown bool) *Buckets {
	b := New(maxClients)
	if space != nil {
		b.shared = newShared(space, allowWhenDown)
	}
	return b
}

// Close releases the buckets.
func (b *Buckets) Close() {
	if b.shared != nil {
		b.shared.close()
	}
	b.counts.Close()
}

// Take takes one token from each of the client's buckets for limits, or from none. If a token is
// missing, it returns how long to wait for it.
//
// A changed limit takes effect at once. The bucket keeps its tokens as far as they fit. An error
// says that shared buckets are unavailable.
func (b *Buckets) Take(ctx context.Context, client string, limits []Limit) (wait time.Duration, ok bool, err error) {
	if len(limits) == 0 {
		return 0, true, nil
	}
	c := b.find(client)
	defer c.users.Add(-1)
	if b.shared != nil {
		wait, err = b.shared.take(ctx, c, limits)
		if err == nil || !b.shared.allowWhenDown {
			return wait, err == nil && wait == 0, err
		}
	}
	wait, ok = c.take(limits)
	return wait, ok, nil
}

// Wait returns how long to wait until Take would succeed. It is 0 for a client that has not called
// Take here.
func (b *Buckets) Wait(ctx context.Context, client string, limits []Limit) (wait time.Duration, err error) {
	b.mu.Lock()
	c, ok := b.clients.Peek(client)
	b.mu.Unlock()
	if !ok || len(limits) == 0 {
		return 0, nil
	}
	if b.shared != nil {
		wait, err = b.shared.wait(ctx, c, limits)
		if err == nil || !b.shared.allowWhenDown {
			return wait, err
		}
	}
	return c.wait(limits), nil
}

// Len returns the number of known clients.
func (b *Buckets) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clients.Len()
}

// find returns a client. It is not evicted as long as it has users.
func (b *Buckets) find(name string) *client {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.clients.Get(name)
	if !ok {
		b.makeRoom()
		c = &client{name: strings.Clone(name), counted: b.counts.Take("", 0)}
		b.clients.Add(c.name, c)
	}
	c.users.Add(1)
	return c
}

// makeRoom evicts a client if there are too many. If all are in use, it evicts none: a client in
// the middle of a request would start with full buckets.
func (b *Buckets) makeRoom() {
	for range b.clients.Len() {
		if b.clients.Len() < b.max {
			return
		}
		name, c, _ := b.clients.GetOldest()
		if c.users.Load() > 0 {
			b.clients.Get(name) // moves it to the end
			continue
		}
		b.clients.Remove(name)
		if c.counted {
			b.counts.Give("", 0)
		}
	}
}

// A client has a few buckets.
type client struct {
	name    string
	users   atomic.Int32 // increased only while Buckets is locked
	counted bool         // counts in the quota

	mu      sync.Mutex
	buckets []*bucket
	takes   uint64
	leases  leases // of shared buckets
}

type bucket struct {
	limit    Limit
	rate     rate.Limit
	tokens   *rate.Limiter
	lastTake uint64 // number of the last take that used it
}

// take is [Buckets.Take] for buckets that are not shared. It reads the clock under the lock, so
// time never goes backwards for a bucket.
func (c *client) take(limits []Limit) (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.takes++
	for i := range limits {
		bucket := c.bucket(&limits[i], now)
		bucket.lastTake = c.takes
		wait = max(wait, bucket.wait(now))
	}
	if wait > 0 {
		return wait, false
	}
	for _, bucket := range c.buckets {
		if bucket.lastTake == c.takes {
			bucket.tokens.AllowN(now, 1)
		}
	}
	return 0, true
}

// wait is [Buckets.Wait] for buckets that are not shared.
func (c *client) wait(limits []Limit) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for i := range limits {
		wait = max(wait, c.bucket(&limits[i], now).wait(now))
	}
	return wait
}

// bucket returns the bucket of a limit.
func (c *client) bucket(limit *Limit, now time.Time) *bucket {
	for _, b := range c.buckets {
		if b.limit.Key == limit.Key {
			b.set(limit, now)
			return b
		}
	}
	if len(c.buckets) == cap(c.buckets) {
		c.dropFull(now)
	}
	b := &bucket{limit: *limit, rate: limit.rate()}
	b.tokens = rate.NewLimiter(b.rate, limit.burst())
	c.buckets = append(c.buckets, b)
	return b
}

// dropFull drops full buckets, which are like new ones. This also removes buckets of limits that no
// longer exist. The limits of one call do not show which these are, because other tools may have
// other limits.
func (c *client) dropFull(now time.Time) {
	kept := c.buckets[:0]
	for _, b := range c.buckets {
		if b.lastTake == c.takes || b.tokens.TokensAt(now) < float64(b.limit.burst()) {
			kept = append(kept, b)
		}
	}
	clear(c.buckets[len(kept):])
	c.buckets = kept
}

// set changes the limit of a bucket.
func (b *bucket) set(limit *Limit, now time.Time) {
	if b.limit == *limit {
		return
	}
	b.limit, b.rate = *limit, limit.rate()
	b.tokens.SetLimitAt(now, b.rate)
	b.tokens.SetBurstAt(now, limit.burst())
}

// wait returns how long it takes until the bucket has a token. Like AllowN, it ignores less than a
// nanosecond, which leaves room for rounding.
func (b *bucket) wait(now time.Time) time.Duration {
	missing := 1 - b.tokens.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	if b.rate <= 0 || b.limit.burst() < 1 {
		return rate.InfDuration
	}
	nanoseconds := missing / float64(b.rate) * float64(time.Second)
	switch {
	case nanoseconds < 1:
		return 0
	case nanoseconds >= math.MaxInt64:
		return rate.InfDuration
	}
	return time.Duration(math.Round(nanoseconds))
}

// Address returns the name under which an unidentified client is counted: its IPv4 address, or the
// /64 network of its IPv6 address. A text that is not an address is returned unchanged.
func Address(remote string) string {
	addr, err := netip.ParseAddr(strings.Trim(remote, "[]"))
	if err != nil {
		withPort, err := netip.ParseAddrPort(remote)
		if err != nil {
			return remote
		}
		addr = withPort.Addr()
	}
	addr = addr.WithZone("").Unmap()
	if addr.Is4() {
		return addr.String()
	}
	network, _ := addr.Prefix(64) // never fails for IPv6
	return network.String()
}
