package toolresultmask

import (
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

// A providerCache records what responses reveal about the provider's prompt cache.
type providerCache struct {
	used   atomic.Bool  // a response reported tokens read from or written to it
	misses atomic.Int32 // consecutive responses without cached tokens although some were expected
}

// enoughMisses is how many misses show that a provider does not cache. A single miss may be chance,
// because providers spread requests over many machines.
const enoughMisses = 3

// update records the usage of a response. expected reports whether the provider should have had
// much of the request in its cache.
func (p *providerCache) update(usage chat.Usage, expected bool) {
	switch {
	case usage.Cached > 0 || usage.CacheWrite > 0:
		p.used.Store(true)
		p.misses.Store(0)
	case usage.Input > 0 && expected && p.misses.Load() < enoughMisses:
		p.misses.Add(1)
	}
}

// isCold reports whether the provider probably has nothing of the conversation in its cache: it
// does not cache, the client did not ask it to, or the entry has expired. Then masking is free.
func (h *Handler) isCold(c *chat.Conversation, past chat.Past, now time.Time) bool {
	if h.provider.misses.Load() >= enoughMisses || c.Uncached() && !h.provider.used.Load() {
		return true
	}
	ttl := time.Duration(h.CacheTTL)
	if ttl == 0 {
		ttl = c.CacheTTL()
	}
	return !past.At.IsZero() && now.Sub(past.At) > ttl
}

// expectsCache reports whether the provider should have much of the request in its cache: it was
// sent less than a minute ago, and shares far more than the smallest cacheable prompt.
func expectsCache(plan chat.Plan, past chat.Past, now time.Time) bool {
	return !past.At.IsZero() && now.Sub(past.At) < time.Minute && plan.Shared >= 8*chat.MinCached*chat.CharsPerToken
}
