package toolresultmask

import (
	"math"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A prompt is how long a request is, in bytes, and how much of it a provider may
// have from the one before.
type prompt struct {
	unmasked, before int // as it came
	sent, shared     int
	broken           bool // shared ends where something is masked that was not before
}

func promptOf(body []byte, plan chat.Plan) prompt {
	return prompt{
		unmasked: len(body), before: plan.Before,
		sent: jsonspan.NewReader(body, plan.Edits).Len(), shared: plan.Shared,
		broken: plan.Broken,
	}
}

// become says that another handler has masked what p has sent.
func (p *prompt) become(other prompt) {
	if p.sent == 0 {
		*p = other
	} else if other.sent > 0 {
		p.sent, p.shared, p.broken = other.sent, other.shared, p.broken || other.broken
	}
}

// tokens returns how many tokens of input a prompt would have had unmasked, and has: as the provider tells, or else as
// its bytes say. Bytes that were not sent have as many tokens as the others.
func (p prompt) tokens(told chat.Usage) (unmasked, sent int64) {
	sent = int64(told.Input)
	if sent == 0 {
		sent = int64(p.sent / chat.CharsPerToken)
	}
	if p.sent == 0 {
		return sent, sent
	}
	return int64(math.Round(float64(sent) * float64(p.unmasked) / float64(p.sent))), sent
}

// A cost is in tokens of input that no cache is used for.
type cost struct{ sent, unmasked float64 }

// cost returns what a prompt has cost, by what the provider tells, and what it would
// have cost unmasked. That is an estimate: bytes that were not sent have as many
// tokens as the others, and would have been read from the cache if the request before
// had them. If the provider tells nothing, both are estimates.
func (p prompt) cost(told chat.Usage, prices *CachePrices) cost {
	if told.Input == 0 {
		at := bill.Prices{Read: prices.Read, Write: prices.Write}
		return cost{
			sent:     bill.Estimate(p.sent, p.shared, chat.MinCached).Cost(at),
			unmasked: bill.Estimate(p.unmasked, p.before, chat.MinCached).Cost(at),
		}
	}
	cached, rest := float64(told.Cached), float64(max(told.Input-told.Cached, 0))
	written := min(float64(told.CacheWrite), rest)
	price := prices.Write // of one of the rest
	if rest > 0 {
		price = (written*prices.Write + rest - written) / rest
	}
	c := cost{sent: cached*prices.Read + rest*price}
	c.unmasked = c.sent
	if p.sent == p.unmasked {
		return c
	}
	tokens := float64(told.Input) / float64(p.sent) // in a byte
	saved := float64(p.unmasked-p.sent) * tokens
	switch {
	case told.Cached == 0 && told.CacheWrite == 0: // there is no cache
		c.unmasked += saved
	case !p.broken && told.Cached == 0: // it has nothing of the request before
		c.unmasked += saved * price
	case !p.broken: // it has, and would have had what is masked in it
		c.unmasked += saved * prices.Read
	default:
		read := max(float64(p.before)*tokens, cached)
		c.unmasked = read*prices.Read + max(float64(told.Input)+saved-read, 0)*price
	}
	return c
}
