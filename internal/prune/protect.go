package prune

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Some lines are never removed: those between the directives below, and the failures
// of a log. Others hold a text together: what it imports and defines, its headings, and
// lines that have a word of the goal. They are kept as long as there are few of a sort.
// Where one line in ten defines something, to keep all of those would leave nothing for
// what was asked for, and each would stand alone between two markers. Then some of them
// are kept, the fewer the more there are; the rest has its value like all lines, and
// what a kept line is under is kept with it.

const (
	noPruneBegin = "⟦NO_PRUNE_BEGIN⟧"
	noPruneEnd   = "⟦NO_PRUNE_END⟧"
)

// short is how many lines a text has in which everything protected is kept, and a
// reranker is taken at its word: too few to save anything by choosing.
const short = 60

// few returns how many lines of a sort are few in a text of n, of which so many may be
// removed: a tenth of those that stay, or a fiftieth of all.
func few(n, removable int) int {
	if n < short {
		return n
	}
	return max(n/50, (n-removable)/10)
}

// protect returns which lines must be kept.
func protect(l lines, o *outline, w *wording, values []float64, removable int) []bool {
	must := make([]bool, l.len())
	limit := few(l.len(), removable)
	protectDirected(l, must)
	for _, sort := range [...]kind{imported | header, definition, heading, severe} {
		protectBest(must, o.all(sort), limit, values)
	}
	failures := o.all(failure)
	protectBest(must, failures, len(failures), nil)
	for _, together := range [...][]int{withNeighbours(failures, l.len()), o.all(trace)} {
		if len(together) <= limit { // half of them would tell nothing
			protectBest(must, together, limit, nil)
		}
	}
	// Who says a word wants to see it, so more of these are few.
	protectBest(must, w.at, max(limit, l.len()/33), w.weights)
	return must
}

// protectBest protects lines of a sort: all of them up to limit, and the more there are
// beyond it the fewer, those that are worth most.
func protectBest(must []bool, at []int, limit int, values []float64) {
	if len(at) > limit {
		at = slices.Clone(at)
		slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
		at = at[:limit*limit/len(at)*limit/len(at)]
	}
	for _, i := range at {
		must[i] = true
	}
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
	w := &wording{weights: make([]float64, n), rarest: make([]float64, n)}
	if len(words) == 0 {
		return w
	}
	lines := make([][]int, len(words)) // of each word
	for i := range n {
		if i%stride == 0 && stopped() {
			return nil
		}
		line := strings.ToLower(l.line(i))
		found := false
		for j, word := range words {
			if strings.Contains(line, word) {
				lines[j] = append(lines[j], i)
				found = true
			}
		}
		if found {
			w.at = append(w.at, i)
		}
	}
	for _, at := range lines {
		weight := math.Log(float64(n+1) / float64(len(at)+1))
		for _, i := range at {
			w.weights[i] += weight
			w.rarest[i] = max(w.rarest[i], 1/float64(len(at)))
		}
	}
	return w
}
