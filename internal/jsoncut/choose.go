package jsoncut

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"unicode/utf8"
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
