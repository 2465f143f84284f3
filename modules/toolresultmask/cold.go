package toolresultmask

import (
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

// A providerCache is what the answers of a route tell of the provider's cache.
type providerCache struct {
	used   atomic.Bool  // something was read from it or written to it
	misses atomic.Int32 // answers in a row that had nothing from it, although it should have had it
}

// enoughMisses is after how many answers a provider is taken to cache nothing. One may be
// chance: requests are sent to many machines.
const enoughMisses = 3

// learn takes what an answer tells. Expected says that the request before had much of this
// one, and had not long been sent.
func (p *providerCache) learn(told chat.Usage, expected bool) {
	switch {
	case told.Cached > 0 || told.CacheWrite > 0:
		p.used.Store(true)
		p.misses.Store(0)
	case told.Input > 0 && expected && p.misses.Load() < enoughMisses:
		p.misses.Add(1)
	}
}

// isCold reports whether the provider has nothing of a conversation in its cache, as far as is
// known: it caches nothing, is not asked to, or has had the time to forget it. Then results
// can be masked at no cost.
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

// expectsCache reports whether the provider should have much of a request in its cache: more
// than any needs to cache it, and sent a short while ago.
func expectsCache(plan chat.Plan, past chat.Past, now time.Time) bool {
	return !past.At.IsZero() && now.Sub(past.At) < time.Minute && plan.Shared >= 8*chat.MinCached*chat.CharsPerToken
}
