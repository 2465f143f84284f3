package toolresultmask

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A prompt holds the length of a request in bytes, and how many bytes at its beginning it shares
// with the previous request. The provider may have cached these.
type prompt struct {
	unmasked, unmaskedShared int  // as received: length, and bytes shared with the previous request
	sent, shared             int  // the same as sent
	broken                   bool // shared ends at a result that is masked for the first time
}

// promptOf returns the prompt of a request that is masked as planned.
func promptOf(body []byte, plan chat.Plan) prompt {
	return prompt{
		unmasked: len(body), unmaskedShared: plan.Before,
		sent: jsonspan.NewReader(body, plan.Edits).Len(), shared: plan.Shared,
		broken: plan.Broken,
	}
}

// maskedBy records that another handler has masked the same request further.
func (p *prompt) maskedBy(other prompt) {
	if p.sent == 0 {
		*p = other
	} else if other.sent > 0 {
		p.sent, p.shared, p.broken = other.sent, other.shared, p.broken || other.broken
	}
}

// tokens returns the number of input tokens of a prompt, unmasked and as sent: from the reported
// usage, or else estimated from the bytes. It assumes that masked bytes have as many tokens as the
// others.
func (p prompt) tokens(usage chat.Usage) (unmasked, sent int64) {
	sent = int64(usage.Input)
	sent = cmp.Or(sent, int64(p.sent/chat.CharsPerToken))
	if p.sent == 0 {
		return sent, sent
	}
	return int64(math.Round(float64(sent) * float64(p.unmasked) / float64(p.sent))), sent
}

// A cost is in uncached input tokens.
type cost struct{ sent, unmasked float64 }

// cost returns the cost of a prompt as sent, from the reported usage, and an estimate of its cost
// unmasked. The estimate assumes that masked bytes have as many tokens as the others, and that the
// provider would have read them from the cache if the previous request had them. Without usage,
// both are estimates.
func (p prompt) cost(usage chat.Usage, prices *CachePrices) cost {
	if usage.Input == 0 {
		rates := bill.Prices{Read: prices.Read, Write: prices.Write}
		return cost{
			sent:     bill.Estimate(p.sent, p.shared, chat.MinCached).Cost(rates),
			unmasked: bill.Estimate(p.unmasked, p.unmaskedShared, chat.MinCached).Cost(rates),
		}
	}
	cached, rest := float64(usage.Cached), float64(max(usage.Input-usage.Cached, 0))
	written := min(float64(usage.CacheWrite), rest)
	price := prices.Write // average price of a token of the rest
	if rest > 0 {
		price = (written*prices.Write + rest - written) / rest
	}
	c := cost{sent: cached*prices.Read + rest*price}
	c.unmasked = c.sent
	if p.sent == p.unmasked {
		return c
	}
	tokens := float64(usage.Input) / float64(p.sent) // per byte
	saved := float64(p.unmasked-p.sent) * tokens
	switch {
	case usage.Cached == 0 && usage.CacheWrite == 0: // the provider did not use a cache
		c.unmasked += saved
	case !p.broken && usage.Cached == 0: // nothing of the previous request is cached
		c.unmasked += saved * price
	case !p.broken: // the masked bytes would have been cached, too
		c.unmasked += saved * prices.Read
	default:
		read := max(float64(p.unmaskedShared)*tokens, cached)
		c.unmasked = read*prices.Read + max(float64(usage.Input)+saved-read, 0)*price
	}
	return c
}

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
	ttl = cmp.Or(ttl, c.CacheTTL())
	return !past.At.IsZero() && now.Sub(past.At) > ttl
}

// expectsCache reports whether the provider should have much of the request in its cache: it was
// sent less than a minute ago, and shares far more than the smallest cacheable prompt.
func expectsCache(plan chat.Plan, past chat.Past, now time.Time) bool {
	return !past.At.IsZero() && now.Sub(past.At) < time.Minute && plan.Shared >= 8*chat.MinCached*chat.CharsPerToken
}
