package setting

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// Advice says, for words that a block does not have, what to write in place of them.
type Advice map[string]string

// Refused returns the error about the current word, which a block does not have. It repeats the
// advice about the word, or names the most similar one of the block.
func Refused(d *caddyfile.Dispenser, known []string, advice Advice) error {
	word := d.Val()
	if advised, ok := advice[word]; ok {
		return d.Errf("unknown subdirective %s; %s", word, advised)
	}
	return d.Errf("unknown subdirective %s%s", word, words.DidYouMean(word, known))
}
