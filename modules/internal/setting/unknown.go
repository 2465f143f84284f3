package setting

import (
	"strings"

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
	if similar := mostSimilar(word, known); similar != "" {
		return d.Errf("unknown subdirective %s (did you mean %s?)", word, similar)
	}
	return d.Errf("unknown subdirective %s", word)
}

// mostSimilar returns the word that another one was probably meant to be, or "".
func mostSimilar(word string, among []string) (similar string) {
	word = folded(word)
	limit := min(len(word)/3, 2)
	for _, candidate := range among {
		if distance := words.Distance(word, folded(candidate)); distance <= limit {
			similar, limit = candidate, distance-1
		}
	}
	return similar
}

// folded returns a word without the marks in which spellings differ: maxChars, max-chars, max_chars.
func folded(word string) string {
	return strings.NewReplacer("_", "", "-", "", ":", "").Replace(strings.ToLower(word))
}
