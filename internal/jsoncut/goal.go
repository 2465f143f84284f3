package jsoncut

import (
	"bytes"
	"cmp"
	"iter"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

const (
	maxTerms   = 32      // of the goal
	maxHits    = 1 << 18 // of each term
	maxKnown   = 1000    // words remembered
	maxRun     = 1000    // bytes that words without a space between them have at most
	maxSeen    = 1 << 24 // hits that are looked at, counted each time
	maxDivided = 1 << 24 // bytes of words that are divided into terms
)

// A hit is a place in the text that has a term of the goal.
type hit struct {
	at   uint32
	term uint8
}

// findGoal finds the terms of the goal in the text.
func (w *work) findGoal() {
	var terms []string
	for term := range words.Terms(w.Goal) {
		if len(terms) < maxTerms && !slices.Contains(terms, term) {
			terms = append(terms, term)
		}
	}
	if len(terms) == 0 {
		return
	}
	folded := fold(w.text)
	for i, term := range terms {
		w.findTerm(folded, term, uint8(i))
	}
	slices.SortFunc(w.hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.term, b.term)) })
}

// findTerm finds a term in the text. To divide all text into terms would take long, so
// that is done only where the beginning of this one stands.
func (w *work) findTerm(folded []byte, term string, number uint8) {
	beginning := []byte(fixed(term))
	known := make(map[string]int) // how often words seen before have the term
	found := 0
	for at := 0; at < len(folded) && found < maxHits; {
		i := bytes.Index(folded[at:], beginning)
		if i < 0 {
			return
		}
		start, end, wide := run(folded, at, at+i)
		at = max(end, at+i+1)
		if end-start > maxRun && !wide {
			continue // data
		}
		times, ok := known[string(w.text[start:end])]
		if !ok {
			if w.divided += end - start; w.divided > maxDivided {
				return
			}
			word := string(w.text[start:end])
			for t := range words.Terms(word) {
				if t == term {
					times++
				}
			}
			if len(known) < maxKnown && len(word) <= maxRun {
				known[word] = times
			}
		}
		for range times {
			w.hits = append(w.hits, hit{uint32(start), number})
		}
		found += times
	}
}

// fold returns text with ASCII letters in lower case and spaces for escapes.
func fold(text []byte) []byte {
	folded := make([]byte, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != '\\' {
			folded[i] = c
			continue
		}
		end := i + 2
		if text[i+1] == 'u' {
			end = i + 6
		}
		for ; i < end; i++ {
			folded[i] = ' '
		}
		i--
	}
	return folded
}

// fixed returns the beginning of a term that all words with this term have in folded text.
// A term is a word in lower case without its endings, some of which become a y.
func fixed(term string) string {
	term = strings.TrimSuffix(term, "y")
	for i, r := range term {
		if r >= utf8.RuneSelf && (unicode.SimpleFold(r) != r || unicode.ToLower(r) != r) {
			return term[:i]
		}
	}
	return term
}

// run returns the letters and digits around folded[i], from no further than folded[from],
// and whether some are not ASCII.
func run(folded []byte, from, i int) (start, end int, wide bool) {
	start, end = i, i
	for start > from && inRun(folded[start-1]) {
		start--
		wide = wide || folded[start] >= utf8.RuneSelf
	}
	for end < len(folded) && inRun(folded[end]) {
		wide = wide || folded[end] >= utf8.RuneSelf
		end++
	}
	return start, end, wide
}

func inRun(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c >= utf8.RuneSelf || c == '\''
}

// hitsIn returns the hits between two places in the text.
func (w *work) hitsIn(start, end int) []hit {
	from := sort.Search(len(w.hits), func(i int) bool { return int(w.hits[i].at) >= start })
	return w.hits[from:][:sort.Search(len(w.hits)-from, func(i int) bool { return int(w.hits[from+i].at) >= end })]
}

// The usual parameters of BM25: how soon more of the same term stops to count, and how
// much the length of a text does.
const (
	k1 = 1.2
	b  = 0.75
)

// scorer returns a function that tells how well each of the n parts of a value fits the
// goal, which is BM25. It is called for all of them in their order.
func (w *work) scorer(parts iter.Seq[span], n int, of value) func(span) float64 {
	hits := w.hitsIn(of.start, of.end)
	// What is nested deeply has the same hits at each depth.
	if n < 2 || len(hits) == 0 || w.seen+len(hits) > maxSeen {
		return func(span) float64 { return 0 }
	}
	w.seen += len(hits)
	// take returns how often the next part has each term.
	take := func(rest *[]hit, s span) (counts [maxTerms]float64, some bool) {
		for len(*rest) > 0 && int((*rest)[0].at) < s.end {
			counts[(*rest)[0].term]++
			some = true
			*rest = (*rest)[1:]
		}
		return counts, some
	}
	var rarity [maxTerms]float64 // first how many parts have a term, then what that means
	rest := hits
	for s := range parts {
		counts, some := take(&rest, s)
		if !some {
			continue
		}
		for term, count := range counts {
			if count > 0 {
				rarity[term]++
			}
		}
	}
	for term, have := range rarity {
		if have > 0 {
			rarity[term] = math.Log(float64(n) / have) // 0 if all have it
		}
	}
	usual := float64(of.end-of.start) / float64(n)
	return func(s span) (score float64) {
		counts, some := take(&hits, s)
		if !some {
			return 0
		}
		length := float64(s.end-s.key) / usual
		for term, count := range counts {
			score += rarity[term] * count * (k1 + 1) / (count + k1*(1-b+b*length))
		}
		return score
	}
}
