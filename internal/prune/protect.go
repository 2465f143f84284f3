package prune

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Some lines are never removed: those between the directives below, and the failures
// of a log. Others hold a text together: what it imports and defines, its headings, and
// lines that have a word of the goal. They are kept as long as there are few of a sort,
// by what may stay. Where one line in ten defines something, and little may stay, to keep
// those would leave nothing for what was asked for, and each would stand alone between two
// markers. Then they have their value like all lines, and what names a kept line is kept
// with it as far as there is room.

const (
	noPruneBegin = "⟦NO_PRUNE_BEGIN⟧"
	noPruneEnd   = "⟦NO_PRUNE_END⟧"
)

// short is how many lines a text has in which everything protected is kept, and a
// reranker is taken at its word: too few to save anything by choosing.
const short = 60

// few returns how many lines of a sort are few in a text of n, of which so many may be
// removed: a twelfth of those that stay, or a hundredth of all.
func few(n, removable int) int {
	if n < short {
		return n
	}
	return max(n/100, (n-removable)/12)
}

// protect returns which lines must be kept.
func protect(l lines, o *outline, w *wording, removable int) []bool {
	must := make([]bool, l.len())
	protectDirected(l, must)
	keep := func(lines []int) {
		for _, i := range lines {
			must[i] = true
		}
	}
	failures := o.all(failure)
	keep(failures)
	for _, sort := range [...][]int{
		o.all(imported | header), o.all(definition), o.all(heading),
		o.all(severe), o.all(trace), withNeighbours(failures, l.len()),
		w.at,
	} {
		if len(sort) <= few(l.len(), removable) {
			keep(sort)
		}
	}
	return must
}

// protectDirected protects what stands between the directives, and they themselves.
// Without an end that is all of the rest.
func protectDirected(l lines, must []bool) {
	if !strings.Contains(l.text, noPruneBegin) {
		return
	}
	inside := false
	for i := range must {
		line := strings.TrimSpace(l.line(i))
		inside = inside || line == noPruneBegin
		must[i] = must[i] || inside
		inside = inside && line != noPruneEnd
	}
}

// all returns the lines of a kind.
func (o *outline) all(k kind) (at []int) {
	for i := range o.kinds {
		if o.is(i, k) {
			at = append(at, i)
		}
	}
	return at
}

func withNeighbours(at []int, n int) (all []int) {
	for _, i := range at {
		for j := max(0, i-1); j <= min(n-1, i+1); j++ {
			if len(all) == 0 || all[len(all)-1] < j {
				all = append(all, j)
			}
		}
	}
	return all
}

// A wording is where the words of a goal stand as they are written, in any case.
type wording struct {
	lower   lines     // the text in lower case
	at      []int     // the lines that have some
	weights []float64 // of all lines: more for more words, and rare ones
	rarest  []float64 // of all lines: 1 by how many lines have the rarest of them
}

// minWord is how many characters a word has that lines are kept for, and maxWords how
// many words are looked for.
const (
	minWord  = 4
	maxWords = 100
)

func readWording(l lines, goal string, stopped func() bool) *wording {
	words := strings.FieldsFunc(strings.ToLower(goal), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) && r != '_'
	})
	words = slices.DeleteFunc(words, func(word string) bool { return utf8.RuneCountInString(word) < minWord })
	words = words[:min(len(words), maxWords)]
	slices.Sort(words)
	words = slices.Compact(words)
	n := l.len()
	w := &wording{lower: l.lower(), weights: make([]float64, n), rarest: make([]float64, n)}
	for _, word := range words {
		if stopped() {
			return nil
		}
		at := w.lower.with(word)
		weight := math.Log(float64(n+1) / float64(len(at)+1))
		for _, i := range at {
			w.weights[i] += weight
			w.rarest[i] = max(w.rarest[i], 1/float64(len(at)))
		}
	}
	for i, rarest := range w.rarest {
		if rarest > 0 {
			w.at = append(w.at, i)
		}
	}
	return w
}
