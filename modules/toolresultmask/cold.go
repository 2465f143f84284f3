package toolresultmask

import (
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

// A providerCache is what responses reveal about the provider's cache.
type providerCache struct {
	used   atomic.Bool  // a response reported tokens read from or written to it
	misses atomic.Int32 // consecutive responses without cached tokens although some were expected
}

// enoughMisses is after how many misses a provider is assumed not to cache. A single miss may be
// chance: providers spread requests over many machines.
const enoughMisses = 3

// learn updates the state from the usage of a response. expected says that the previous request was
// recent and shared much of its beginning with this one.
func (p *providerCache) learn(usage chat.Usage, expected bool) {
	switch {
	case usage.Cached > 0 || usage.CacheWrite > 0:
		p.used.Store(true)
		p.misses.Store(0)
	case usage.Input > 0 && expected && p.misses.Load() < enoughMisses:
		p.misses.Add(1)
	}
}

// isCold reports whether the provider's cache probably has nothing of the conversation: it does not
// cache, was not asked to, or the entry has expired. Then masking is free.
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

// expectsCache reports whether the provider should have much of the request in its cache: it was sent
// less than a minute ago, and shares far more than the smallest cacheable prompt.
func expectsCache(plan chat.Plan, past chat.Past, now time.Time) bool {
	return !past.At.IsZero() && now.Sub(past.At) < time.Minute && plan.Shared >= 8*chat.MinCached*chat.CharsPerToken
}
