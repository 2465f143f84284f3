// Package bill estimates what a provider that caches prompts bills for a conversation, in which
// every request repeats the previous one.
//
// The model is simple: the common prefix of a request and the previous one is read from the cache,
// the rest is written to it. Real providers may recognize a common prefix only at breakpoints, or
// in blocks of many tokens, so a changed beginning costs more there.
package bill

import (
	"bytes"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Prices are the prices of tokens. The unit is an uncached input token.
type Prices struct{ Read, Write, Output float64 }

// Tokens are the tokens that a provider counts.
type Tokens struct{ Read, Written, Output int }

// Prompt returns the number of prompt tokens.
func (t Tokens) Prompt() int { return t.Read + t.Written }

// Cost returns the cost of the tokens.
func (t Tokens) Cost(p Prices) float64 {
	return float64(t.Read)*p.Read + float64(t.Written)*p.Write + float64(t.Output)*p.Output
}

// Estimate returns the tokens of a prompt of size bytes, of which the first cached bytes are in the
// cache. Fewer than minimum tokens are not read from the cache.
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

// A Cache simulates the provider's cache for one conversation: the last request.
type Cache struct {
	Minimum int           // smallest cached prefix in tokens
	TTL     time.Duration // lifetime; 0 means forever

	last prompt
	used time.Time
}

// Send bills a request sent at the given time. If the time is zero, nothing expires. shared is the
// length of the prefix in common with the previous request, cached or not.
func (c *Cache) Send(body []byte, edits []jsonspan.Edit, at time.Time) (billed Tokens, shared int) {
	shared, size := c.last.replace(body, edits)
	cached := shared
	if c.Expired(at) {
		cached = 0
	}
	c.used = at
	return Estimate(size, cached, c.Minimum), shared
}

// Expired reports whether the last request has left the cache at the given time.
func (c *Cache) Expired(at time.Time) bool {
	return c.TTL > 0 && !at.IsZero() && !c.used.IsZero() && at.Sub(c.used) > c.TTL
}

// Reset prepares c for another conversation.
func (c *Cache) Reset() { c.last, c.used = prompt{text: c.last.text[:0]}, time.Time{} }

// A prompt is the text of a request. The next one is compared while it is written, so only one is
// in memory.
type prompt struct {
	text   []byte
	shared int  // length of the prefix in common with the next one
	parted bool // the next one differs from here on, and is being stored in text
}

// replace replaces the text, and returns the length of the common prefix and of the new text.
func (p *prompt) replace(body []byte, edits []jsonspan.Edit) (shared, size int) {
	p.shared, p.parted = 0, false
	_ = jsonspan.Splice(p, body, edits) // Write never fails
	if !p.parted {
		p.text = p.text[:p.shared]
	}
	return p.shared, len(p.text)
}

// Write adds the next bytes of the new text. It never fails.
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

// commonPrefix returns the length of the common prefix of a and b.
func commonPrefix(a, b []byte) int {
	const piece = 4096 // bytes.Equal is faster than a loop
	n := 0
	for n+piece <= min(len(a), len(b)) && bytes.Equal(a[n:n+piece], b[n:n+piece]) {
		n += piece
	}
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
