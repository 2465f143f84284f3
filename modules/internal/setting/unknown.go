package setting

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Advice says, for words that a block does not have, what to write in place of them.
type Advice map[string]string

// Refused returns the error about the current word, which a block does not have. It repeats the
// advice about the word, or names the most similar one of the block.
func Refused(d *caddyfile.Dispenser, words []string, advice Advice) error {
	word := d.Val()
	if advised, ok := advice[word]; ok {
		return d.Errf("unknown subdirective %s; %s", word, advised)
	}
	if similar := mostSimilar(word, words); similar != "" {
		return d.Errf("unknown subdirective %s (did you mean %s?)", word, similar)
	}
	return d.Errf("unknown subdirective %s", word)
}

// mostSimilar returns the word that another one was probably meant to be, or "".
func mostSimilar(word string, words []string) (similar string) {
	word = folded(word)
	limit := min(len(word)/3, 2)
	for _, candidate := range words {
		if distance := editDistance(word, folded(candidate)); distance <= limit {
			similar, limit = candidate, distance-1
		}
	}
	return similar
}

// folded returns a word without the marks in which spellings differ: maxChars, max-chars, max_chars.
func folded(word string) string {
	return strings.NewReplacer("_", "", "-", "", ":", "").Replace(strings.ToLower(word))
}

// editDistance returns how many bytes to insert, delete, replace or swap with the next turn a into b.
func editDistance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			replaced := row[j]
			if a[i] != b[j] {
				replaced++
			}
			next[j+1] = slices.Min([]int{replaced, row[j+1] + 1, next[j] + 1})
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
