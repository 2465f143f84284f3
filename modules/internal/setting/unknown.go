package setting

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// Advice says what to write instead of words that a block does not have.
type Advice map[string]string

// UnknownSubdirective returns the error for the current word, which the block does not have. It includes the
// advice for the word, or else the most similar known word.
func UnknownSubdirective(d *caddyfile.Dispenser, known []string, advice Advice) error {
	word := d.Val()
	if advised, ok := advice[word]; ok {
		return d.Errf("unknown subdirective %s; %s", word, advised)
	}
	return d.Errf("unknown subdirective %s%s", word, words.DidYouMean(word, known))
}
