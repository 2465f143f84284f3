// Package ratelimit counts what clients do in token buckets.
//
// A client may have several buckets, for all it does and for single tools, for
// bursts and for the long run. What it does needs one token of each, and takes none
// if one is missing.
//
// Replicas can share the buckets. Each then takes some tokens at a time, and spends them
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

// A Limit is one bucket of a client: N requests in Per, Burst of them at once. All
// are positive, but a Burst of 0 is N.
type Limit struct {
	Key   string // tells the buckets of a client apart, and is the same over reloads
	N     int
	Per   time.Duration
	Burst int
}

// rate returns how fast the bucket fills. One that makes no sense never does.
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

// Buckets has the buckets of many clients. When there are too many, it forgets those
// that were idle the longest. It is safe for concurrent use and starts no goroutines,
// unless the buckets are shared.
type Buckets struct {
	max    int
	shared *shared // nil if no other replica has these buckets

	mu      sync.Mutex // held only to find a client
	clients *simplelru.LRU[string, *client]
	counts  *quota.Meter
}

var keptBuckets = quota.NewKind("rates")

// New returns Buckets that remember so many clients.
func New(maxClients int) *Buckets {
	clients, _ := simplelru.NewLRU[string, *client](math.MaxInt, nil) // makeRoom knows who is in use
	maxClients = max(maxClients, 1)
	return &Buckets{max: maxClients, clients: clients, counts: quota.NewMeter(keptBuckets, quota.Limits{Entries: maxClients})}
}

// NewShared returns Buckets that replicas share, as New does if space is nil. While they cannot be
// reached, nothing can be taken; or, if allowWhenDown, each replica has buckets of its own.
func NewShared(maxClients int, space *replicas.Space, allowWhenDown bool) *Buckets {
	b := New(maxClients)
	if space != nil {
		b.shared = newShared(space, allowWhenDown)
	}
	return b
}

// Close says that the buckets are no longer used.
func (b *Buckets) Close() {
	if b.shared != nil {
		b.shared.close()
	}
	b.counts.Close()
}

// Take takes one from each of the buckets of a client that limits names, or from none.
// If it took none, it returns how long to wait until it could.
//
// A limit that differs from what it was before holds at once. The bucket keeps what it
// has, as far as that fits. An error says that shared buckets cannot be reached.
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

// Wait returns how long to wait until Take would take one from each of the buckets of a
// client that limits names. Of a client that has taken nothing here, it knows nothing.
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

// Len returns how many clients are remembered.
func (b *Buckets) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clients.Len()
}

// find returns a client, which is not forgotten as long as it has users.
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

// makeRoom forgets a client if there are too many. If all are in use, there is one
// more: who is in the middle of a request would otherwise start anew.
func (b *Buckets) makeRoom() {
	for range b.clients.Len() {
		if b.clients.Len() < b.max {
			return
		}
		name, c, _ := b.clients.GetOldest()
		if c.users.Load() > 0 {
			b.clients.Get(name) // it is not the oldest
			continue
		}
		b.clients.Remove(name)
		if c.counted {
			b.counts.Give("", 0)
		}
	}
}

// A client has few buckets.
type client struct {
	name    string
	users   atomic.Int32 // is raised only while Buckets is locked
	counted bool         // there was room for it

	mu      sync.Mutex
	buckets []*bucket
	turn    uint64
	leases  leases // of shared buckets
}

type bucket struct {
	limit  Limit
	rate   rate.Limit
	tokens *rate.Limiter
	turn   uint64 // of the client, in which it was named last
}

// take is Take. The clock is read under the lock, so that for no bucket it runs
// backwards.
func (c *client) take(limits []Limit) (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.turn++
	for i := range limits {
		bucket := c.bucket(&limits[i], now)
		bucket.turn = c.turn
		wait = max(wait, bucket.wait(now))
	}
	if wait > 0 {
		return wait, false
	}
	for _, bucket := range c.buckets {
		if bucket.turn == c.turn {
			bucket.tokens.AllowN(now, 1)
		}
	}
	return 0, true
}

// wait is Wait.
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

// dropFull drops the buckets that are full, for they are like new ones. This is how
// those go that no limit names any more: that the limits of one call do not name a
// bucket says nothing, for they may be those of another tool.
func (c *client) dropFull(now time.Time) {
	kept := c.buckets[:0]
	for _, b := range c.buckets {
		if b.turn == c.turn || b.tokens.TokensAt(now) < float64(b.limit.burst()) {
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

// wait returns how long it takes until the bucket has a token. Like AllowN, it does
// not wait for less than a nanosecond; that leaves room to round.
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

// Address returns under which name to count a client that nobody knows: its IPv4
// address, or the 64 bits of its IPv6 address that it cannot choose. What is no
// address is returned as it is.
func Address(remote string) string {
	addr, err := netip.ParseAddr(strings.Trim(remote, "[]"))
	if err != nil {
		withPort, err := netip.ParseAddrPort(remote)
		if err != nil {
			return remote
		}
		addr = withPort.Addr()
	}
	if addr = addr.WithZone("").Unmap(); addr.Is4() {
		return addr.String()
	}
	network, _ := addr.Prefix(64) // IPv6 addresses have them
	return network.String()
}
