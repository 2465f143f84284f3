package jsoncut

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// A candidate is a part that may be kept, and why.
type candidate struct {
	span
	score float64 // how well it fits the goal
	rank  int     // its place among those that fit alike
}

// prefer orders candidates by preference.
func prefer(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), a.rank-b.rank)
}

// A part is an item, member or line that may be kept.
type part struct {
	value
	goal  bool   // bears on the goal
	index int    // among its siblings
	key   int    // where its key begins if it is a member
	extra int    // characters that it takes besides its value
	given int    // characters that its value is given at least
	short []byte // the value, cut
}

// best returns up to limit of the n parts of a value, in the order of preference: those
// that fit the goal best, and of those that fit alike the first, the last, the second and
// so on.
func (w *work) best(spans iter.Seq[span], n int, of value, limit int) []part {
	score := w.scorer(spans, n, of)
	found := make([]candidate, 0, min(n, 2*limit))
	for s := range spans {
		c := candidate{span: s, score: score(s), rank: 2 * s.index}
		if last := n - 1 - s.index; last < s.index {
			c.rank = 2*last + 1
		}
		if c.score == 0 && c.rank >= limit {
			continue
		}
		if found = append(found, c); len(found) == 2*limit {
			slices.SortFunc(found, prefer)
			found = found[:limit]
		}
	}
	slices.SortFunc(found, prefer)
	parts := make([]part, min(len(found), limit))
	for i := range parts {
		c := &found[i]
		v := w.measure(value{start: c.start, end: c.end, node: c.node, line: c.line})
		parts[i] = part{value: v, goal: c.score > 0, index: c.index, key: c.key}
	}
	return parts
}

// An item that is too long for its array is cut rather than left out, but not to less
// than this share of the array, nor to less than so many characters if half of the array
// has them.
const (
	minShare = 12
	minChars = 160
)

// choose takes parts, in their order, as long as room lasts. They are of n.
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
		left := room - p.extra - gap // a part divides a gap, unless it stands at an end of one
		for _, beside := range [...]int{p.index - 1, p.index + 1} {
			if kept[beside] {
				left += gap
			}
		}
		p.given = p.within(all - p.extra - gap)(p.least)
		want := p.size(enough)
		if p.goal {
			want = max(want, p.size(min(goalShare*enough, left)))
		}
		if want > left {
			if p.chars+p.extra <= gap {
				others = append(others, p)
			}
			continue
		}
		p.given = want
		room = left - want
		kept[p.index] = true
		chosen = append(chosen, p)
	}
	return append(chosen, shortGaps(others, kept, gap)...)
}

// shortGaps returns those of the other parts that fill a gap between parts that are kept
// and take no more room than its marker.
func shortGaps(others []part, kept map[int]bool, marker int) (fill []part) {
	slices.SortFunc(others, func(a, b part) int { return a.index - b.index })
	for len(others) > 0 {
		end, size := 0, 0 // of the first parts that stand side by side
		for ; end < len(others) && others[end].index == others[0].index+end; end++ {
			others[end].given = others[end].chars
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
	return max(min(room, p.most), p.given)
}

// goalShare is how many times more room a part gets that bears on the goal.
const goalShare = 3

// share divides room among the values of parts and cuts them. Short ones stay whole, and
// the long ones get the same, or more if they bear on the goal.
func (w *work) share(parts []part, room int) {
	if len(parts) == 0 {
		return
	}
	level := 0
	size := func(p *part) int {
		if p.goal {
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
	// The highest level at which all fit.
	for step := bits.Len(uint(room)); step >= 0; step-- {
		if level += 1 << step; sum() > room {
			level -= 1 << step
		}
	}

	order := make([]*part, 0, len(parts))
	long := 0 // parts that have use for more room
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
