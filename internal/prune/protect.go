package prune

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Some lines are never removed: those between the directives below, and failures in a log. Other
// groups of lines give a text its structure, such as imports, definitions and headings, or contain
// a word of the goal. Such a group is protected only if it is small compared to the lines that may
// stay. If one line in ten is a definition and few lines may stay, protecting all of them would
// leave no room for relevant lines, and each would stand between two markers. Then definitions are
// valued like other lines, and the heading of a kept line is kept if there is room.

const (
	noPruneBegin = "⟦NO_PRUNE_BEGIN⟧"
	noPruneEnd   = "⟦NO_PRUNE_END⟧"
)

// shortText is the number of lines below which a text is short. Choosing runs would save nothing,
// so all protected lines are kept, and the scores of a reranker are used directly.
const shortText = 60

// maxProtected returns how many lines a group may have to be protected: a twelfth of the lines that
// stay or a hundredth of all n lines, whichever is more, and any number in a short text.
func maxProtected(n, removable int) int {
	if n < shortText {
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
	for _, group := range [...][]int{
		o.all(imported | header), o.all(definition), o.all(heading),
		o.all(severe), o.all(trace), withNeighbors(failures, l.len()),
		w.at,
	} {
		if len(group) <= maxProtected(l.len(), removable) {
			keep(group)
		}
	}
	return must
}

// protectDirected protects the lines between the directives, and the directives themselves. Without
// an end directive it protects the rest of the text.
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

// withNeighbors returns the given lines and the lines next to them, in a text of n lines.
func withNeighbors(lines []int, n int) (all []int) {
	for _, i := range lines {
		for j := max(0, i-1); j <= min(n-1, i+1); j++ {
			if len(all) == 0 || all[len(all)-1] < j {
				all = append(all, j)
			}
		}
	}
	return all
}

// A wording says where the words of a goal occur as written, ignoring case.
type wording struct {
	lower   lines     // the text in lower case
	at      []int     // numbers of the lines with at least one word
	weights []float64 // by line: more for more and rarer words
	rarest  []float64 // by line: 1 / number of lines with its rarest word
}

const (
	minWord  = 4   // characters of a word; shorter ones are not searched
	maxWords = 100 // words that are searched
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
		at := w.lower.containing(word)
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
