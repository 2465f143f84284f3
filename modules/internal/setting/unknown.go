package setting

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// Advice holds what to write instead of an unknown word, by that word.
type Advice map[string]string

// UnknownSubdirective returns the error that the block has no subdirective with the current word.
// The error includes the advice for the word, or else the most similar known word.
func UnknownSubdirective(d *caddyfile.Dispenser, known []string, advice Advice) error {
	word := d.Val()
	if advised, ok := advice[word]; ok {
		return d.Errf("unknown subdirective %s; %s", word, advised)
	}
	return d.Errf("unknown subdirective %s%s", word, words.DidYouMean(word, known))
}
