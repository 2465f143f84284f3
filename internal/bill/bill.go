// Package bill adds up what a provider that caches prompts bills for a
// conversation, in which every request repeats what was said before.
//
// The provider is a simple one. What a request has in common with the one before,
// from the first byte on, is read from the cache; the rest is written to it. Real
// ones may find a common beginning only at breakpoints, or count it in blocks of
// many tokens, so a beginning that changes costs more there than here.
package bill

import (
	"bytes"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Prices are what a token costs. The unit is a token of input that is neither read
// from the cache nor written to it.
type Prices struct{ Read, Write, Output float64 }

// Tokens are what a provider counts.
type Tokens struct{ Read, Written, Output int }

// Prompt returns how many tokens of prompts there are.
func (t Tokens) Prompt() int { return t.Read + t.Written }

// Cost returns what they cost.
func (t Tokens) Cost(p Prices) float64 {
	return float64(t.Read)*p.Read + float64(t.Written)*p.Write + float64(t.Output)*p.Output
}

// Estimate returns the tokens of a prompt of so many bytes, of which the first ones are
// cached. Fewer than a minimum of tokens are not read from the cache.
func Estimate(size, cached, minimum int) (t Tokens) {
	if read := cached / chat.CharsPerToken; read >= minimum {
		t.Read = read
	}
	t.Written = size/chat.CharsPerToken - t.Read
	return t
}

// Add adds the tokens of another request.
func (t *Tokens) Add(other Tokens) {
	t.Read += other.Read
	t.Written += other.Written
	t.Output += other.Output
}

// TTL is how long most providers cache a prompt, counted from its last use.
const TTL = 5 * time.Minute

// A Cache is what a provider remembers of one conversation: the last request.
type Cache struct {
	Minimum int           // tokens that a cached beginning has at least
	TTL     time.Duration // how long it is cached; 0 for ever

	last prompt
	used time.Time
}

// Send bills a request that is sent at the given time, which may be zero if it is
// not known: then nothing expires. Shared is how many bytes it begins with like the
// request before, whether they are read from the cache or not.
func (c *Cache) Send(body []byte, edits []jsonspan.Edit, at time.Time) (billed Tokens, shared int) {
	shared, size := c.last.replace(body, edits)
	cached := shared
	if c.Expired(at) {
		cached = 0
	}
	c.used = at
	return Estimate(size, cached, c.Minimum), shared
}

// Expired reports whether, at the given time, the cache has forgotten the last request.
func (c *Cache) Expired(at time.Time) bool {
	return c.TTL > 0 && !at.IsZero() && !c.used.IsZero() && at.Sub(c.used) > c.TTL
}

// Reset forgets the conversation, so that c can be used for another one.
func (c *Cache) Reset() { c.last, c.used = prompt{text: c.last.text[:0]}, time.Time{} }

// A prompt is the text of a request, of which the next one is compared as it is put
// together. So there is never more than one of them in memory.
type prompt struct {
	text   []byte
	shared int  // bytes that the next one has begun with
	parted bool // it goes on otherwise, and text with it
}

// replace makes p another text, and returns how many bytes the two begin with alike,
// and how many it has.
func (p *prompt) replace(body []byte, edits []jsonspan.Edit) (shared, size int) {
	p.shared, p.parted = 0, false
	_ = jsonspan.Splice(p, body, edits) // its error would be that of Write
	if !p.parted {
		p.text = p.text[:p.shared]
	}
	return p.shared, len(p.text)
}

// Write takes the next bytes of the new text. It never fails.
func (p *prompt) Write(next []byte) (int, error) {
	rest := next
	if !p.parted {
		n := commonPrefix(p.text[p.shared:], next)
		p.shared += n
		rest = next[n:]
		if len(rest) == 0 {
			return len(next), nil
		}
		p.text, p.parted = p.text[:p.shared], true
	}
	p.text = append(p.text, rest...)
	return len(next), nil
}

// commonPrefix returns how many bytes a and b begin with alike.
func commonPrefix(a, b []byte) int {
	const piece = 4096 // which bytes.Equal compares faster than a loop
	n := 0
	for n+piece <= min(len(a), len(b)) && bytes.Equal(a[n:n+piece], b[n:n+piece]) {
		n += piece
	}
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
