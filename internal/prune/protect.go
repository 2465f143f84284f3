package prune

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What must not be removed is of two sorts. Some lines never are: between the
// directives below, and the failures of a log. Others are as long as there are few of
// them, for then they are what holds the text together: where one line in ten defines
// something, keeping all of those leaves nothing for what was asked for. They still
// have their scores, and what a kept line is under is kept with it.

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
func protect(l lines, o *outline, w *wording, removable int) []bool {
	must := make([]bool, l.len())
	protectDirected(l, must)
	limit := few(l.len(), removable)
	protectFew(must, limit, o.all(imported|header))
	protectFew(must, limit, o.all(definition))
	protectFew(must, limit, o.all(heading))
	failures := o.all(failure)
	for _, i := range failures {
		must[i] = true
	}
	protectFew(must, limit, withNeighbours(failures, l.len()))
	protectFew(must, limit, o.all(trace))
	// Those who say a word want to see it, and the rarest words tell most.
	limit = 3 * limit
	for _, at := range w.lines {
		if limit -= len(at); limit < 0 {
			break
		}
		protectFew(must, len(at), at)
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

// protectFew protects lines unless there are more than limit.
func protectFew(must []bool, limit int, at []int) {
	if len(at) > limit {
		return
	}
	for _, i := range at {
		must[i] = true
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
	lines [][]int // of each word, the rarest first
}

// minWord is how many characters a word has that lines are kept for.
const minWord = 4

func readWording(l lines, goal string) *wording {
	words := strings.FieldsFunc(strings.ToLower(goal), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !unicode.IsMark(r) && r != '_'
	})
	words = slices.DeleteFunc(words, func(word string) bool { return utf8.RuneCountInString(word) < minWord })
	slices.Sort(words)
	words = slices.Compact(words)
	words = words[:min(len(words), maxQueryTerms)]
	w := &wording{lines: make([][]int, len(words))}
	if len(words) == 0 {
		return w
	}
	for i := range l.len() {
		line := strings.ToLower(l.line(i))
		for j, word := range words {
			if strings.Contains(line, word) {
				w.lines[j] = append(w.lines[j], i)
			}
		}
	}
	slices.SortStableFunc(w.lines, func(a, b []int) int { return len(a) - len(b) })
	return w
}
