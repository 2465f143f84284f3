package jsoncut

import (
	"bytes"
	"cmp"
	"iter"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// A candidate is a part that may be kept, with its preference.
type candidate struct {
	span
	score float64 // how well it matches the goal
	rank  int     // order among candidates with the same score
}

// comparePreference sorts preferred candidates first.
func comparePreference(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), a.rank-b.rank)
}

// A part is an item, member or line that may be kept.
type part struct {
	value
	fitsGoal bool   // it matches the goal
	index    int    // among its siblings
	key      int    // offset of its key if it is a member
	extra    int    // characters that it needs besides its value
	minimum  int    // minimum length of its value in characters
	short    []byte // the cut value
}

// best returns up to limit of the n parts of parent, the preferred ones first: those
// that match the goal best, and among equals the first, the last, the second, the
// second to last and so on.
func (w *work) best(spans iter.Seq[span], n int, parent value, limit int) []part {
	score := w.scorer(spans, n, parent)
	found := make([]candidate, 0, min(n, 2*limit))
	for s := range spans {
		c := candidate{span: s, score: score(s), rank: 2 * s.index}
		if last := n - 1 - s.index; last < s.index {
			c.rank = 2*last + 1
		}
		if c.score == 0 && c.rank >= limit {
			continue
		}
		found = append(found, c)
		if len(found) == 2*limit {
			slices.SortFunc(found, comparePreference)
			found = found[:limit]
		}
	}
	slices.SortFunc(found, comparePreference)
	parts := make([]part, min(len(found), limit))
	for i := range parts {
		c := &found[i]
		v := w.measure(value{start: c.start, end: c.end, node: c.node, isLine: c.isLine})
		parts[i] = part{value: v, fitsGoal: c.score > 0, index: c.index, key: c.key}
	}
	return parts
}

// A part that is too long for the room is cut rather than left out, but not to less
// than 1/minShare of the room, and not to less than minChars characters or half of the
// room, whichever is smaller.
const (
	minShare = 12
	minChars = 160
)

// choose returns those of the best parts that fit into room. n is the number of all parts.
func (w *work) choose(best []part, n int, f form, room int) []part {
	gap := w.gapChars(f, n)
	if gap > 0 {
		gap += len(f.separator)
	}
	room += len(f.separator) - gap // nothing is kept yet
	all := room
	enough := max(room/minShare, min(room/2, minChars))
	kept := map[int]bool{-1: true, n: true}
	var chosen, others []part
	for _, p := range best {
		left := room - p.extra - gap // a part in the middle of a gap splits it into two gaps
		for _, neighbor := range [...]int{p.index - 1, p.index + 1} {
			if kept[neighbor] {
				left += gap
			}
		}
		p.minimum = p.within(all - p.extra - gap)(p.least)
		want := p.size(enough)
		if p.fitsGoal {
			want = max(want, p.size(min(goalShare*enough, left)))
		}
		if want > left {
			if p.chars+p.extra <= gap {
				others = append(others, p)
			}
			continue
		}
		p.minimum = want
		room = left - want
		kept[p.index] = true
		chosen = append(chosen, p)
	}
	return append(chosen, gapFillers(others, kept, gap)...)
}

// gapFillers returns those of the other parts that completely fill a gap between kept
// parts and need no more room than its marker.
func gapFillers(others []part, kept map[int]bool, marker int) (fill []part) {
	slices.SortFunc(others, func(a, b part) int { return a.index - b.index })
	for len(others) > 0 {
		end, size := 0, 0 // of the first run of adjacent parts
		for ; end < len(others) && others[end].index == others[0].index+end; end++ {
			others[end].minimum = others[end].chars
			size += others[end].chars + others[end].extra
		}
		if size <= marker && kept[others[0].index-1] && kept[others[end-1].index+1] {
			fill = append(fill, others[:end]...)
		}
		others = others[end:]
	}
	return fill
}

// size returns how many characters of room a part uses.
func (p *part) size(room int) int {
	if room >= p.chars {
		return p.chars
	}
	return max(min(room, p.most), p.minimum)
}

// goalShare is how many times more room a part gets that matches the goal.
const goalShare = 3

// share divides room among the values of parts and cuts them. Short values stay whole.
// Long ones get equal room, or goalShare times more if they match the goal.
func (w *work) share(parts []part, room int) {
	if len(parts) == 0 {
		return
	}
	level := 0
	size := func(p *part) int {
		if p.fitsGoal {
			return p.size(goalShare * level)
		}
		return p.size(level)
	}
	sum := func() (used int) {
		for i := range parts {
			used += size(&parts[i])
		}
		return used
	}
	// Find the highest level at which all values fit.
	for step := bits.Len(uint(room)); step >= 0; step-- {
		level += 1 << step
		if sum() > room {
			level -= 1 << step
		}
	}

	order := make([]*part, 0, len(parts))
	long := 0 // parts that can use more room
	for i := range parts {
		p := &parts[i]
		order = append(order, p)
		if p.most > size(p) {
			long++
		}
	}
	slices.SortStableFunc(order, func(a, b *part) int { return a.most - b.most })
	rest := room - sum()
	for _, p := range order {
		limit := size(p)
		rest += limit
		if p.most > limit {
			limit = min(p.most, limit+(rest-limit)/long)
			long--
		}
		if limit >= p.chars {
			p.short = w.text[p.start:p.end]
			rest -= p.chars
			continue
		}
		p.short = w.append(nil, p.value, limit)
		rest -= utf8.RuneCount(p.short)
	}
}

const (
	maxTerms      = 32      // terms of the goal
	maxHits       = 1 << 18 // hits of each term
	maxKnownWords = 1000    // words whose terms are cached
	maxWordBytes  = 1000    // longer ASCII words are data
	maxHitsSeen   = 1 << 24 // hits scored in total; a nested hit counts once per level
	maxSplitBytes = 1 << 24 // bytes of words split into terms
)

// A hit is an occurrence of a term of the goal in the text.
type hit struct {
	offset uint32
	term   uint8
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
	slices.SortFunc(w.hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.term, b.term))
	})
}

// findTerm finds a term in the text. Splitting the whole text into terms would be slow,
// so it splits only the words that contain the beginning of the term.
func (w *work) findTerm(folded []byte, term string, number uint8) {
	prefix := []byte(stablePrefix(term))
	known := make(map[string]int) // occurrences of the term in words seen before
	found := 0
	for at := 0; at < len(folded) && found < maxHits; {
		i := bytes.Index(folded[at:], prefix)
		if i < 0 {
			return
		}
		start, end, wide := wordAround(folded, at, at+i)
		at = max(end, at+i+1)
		if end-start > maxWordBytes && !wide {
			continue // data, not a word
		}
		times, ok := known[string(w.text[start:end])]
		if !ok {
			if w.splitBytes += end - start; w.splitBytes > maxSplitBytes {
				return
			}
			word := string(w.text[start:end])
			for t := range words.Terms(word) {
				if t == term {
					times++
				}
			}
			if len(known) < maxKnownWords && len(word) <= maxWordBytes {
				known[word] = times
			}
		}
		for range times {
			w.hits = append(w.hits, hit{uint32(start), number})
		}
		found += times
	}
}

// fold returns text with ASCII letters in lower case and escapes replaced by spaces.
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

// stablePrefix returns the beginning of a term that all words with this term share in
// folded text. A term is a word in lower case without its endings, some of which become
// a y.
func stablePrefix(term string) string {
	term = strings.TrimSuffix(term, "y")
	for i, r := range term {
		if r >= utf8.RuneSelf && (unicode.SimpleFold(r) != r || unicode.ToLower(r) != r) {
			return term[:i]
		}
	}
	return term
}

// wordAround returns the start and end of the letters and digits around folded[i], not
// before folded[from], and whether some of them are not ASCII.
func wordAround(folded []byte, from, i int) (start, end int, wide bool) {
	start, end = i, i
	for start > from && isWordByte(folded[start-1]) {
		start--
		wide = wide || folded[start] >= utf8.RuneSelf
	}
	for end < len(folded) && isWordByte(folded[end]) {
		wide = wide || folded[end] >= utf8.RuneSelf
		end++
	}
	return start, end, wide
}

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c >= utf8.RuneSelf || c == '\''
}

// hitsIn returns the hits from offset start up to end.
func (w *work) hitsIn(start, end int) []hit {
	from := sort.Search(len(w.hits), func(i int) bool { return int(w.hits[i].offset) >= start })
	return w.hits[from:][:sort.Search(len(w.hits)-from, func(i int) bool { return int(w.hits[from+i].offset) >= end })]
}

// The usual parameters of BM25: k1 limits the weight of repeated terms, b is the weight
// of the length of a text.
const (
	k1 = 1.2
	b  = 0.75
)

// scorer returns a function that scores with BM25 how well each of the n parts of parent
// matches the goal. It must be called for all parts, in order.
func (w *work) scorer(parts iter.Seq[span], n int, parent value) func(span) float64 {
	hits := w.hitsIn(parent.start, parent.end)
	// Deeply nested values count the same hits at each level, so their number is limited.
	if n < 2 || len(hits) == 0 || w.hitsSeen+len(hits) > maxHitsSeen {
		return func(span) float64 { return 0 }
	}
	w.hitsSeen += len(hits)
	// countTerms returns how often the part s has each term, and removes its hits from rest.
	countTerms := func(rest *[]hit, s span) (counts [maxTerms]float64, some bool) {
		for len(*rest) > 0 && int((*rest)[0].offset) < s.end {
			counts[(*rest)[0].term]++
			some = true
			*rest = (*rest)[1:]
		}
		return counts, some
	}
	var rarity [maxTerms]float64 // how many parts have a term, then the weight of the term
	rest := hits
	for s := range parts {
		counts, some := countTerms(&rest, s)
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
			rarity[term] = math.Log(float64(n) / have) // 0 if all parts have it
		}
	}
	average := float64(parent.end-parent.start) / float64(n)
	return func(s span) (score float64) {
		counts, some := countTerms(&hits, s)
		if !some {
			return 0
		}
		length := float64(s.end-s.key) / average
		for term, count := range counts {
			score += rarity[term] * count * (k1 + 1) / (count + k1*(1-b+b*length))
		}
		return score
	}
}
