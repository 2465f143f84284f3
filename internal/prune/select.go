package prune

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// savesTokens reports whether removing blocks saves tokens, even with the handle that has the most.
func savesTokens(l lines, o *outline, source Source, costs []int, blocks []block) bool {
	before := 0
	for _, cost := range costs {
		before += cost
	}
	var b strings.Builder
	end := 0
	for _, block := range blocks {
		b.WriteString(l.text[l.starts[end]:l.starts[block.start]])
		b.WriteString(annotate(costliestHandle, block, o.reasonOf(block, source)).Marker + "\n")
		end = block.end
	}
	b.WriteString(l.text[l.starts[end]:])
	return tokens.Count(b.String()) < before
}

// chooseEstimated chooses by the built-in estimate.
func (r *Request) chooseEstimated(
	ctx context.Context, l lines, o *outline, costs []int, removable int,
) (units []unit, kept []bool, err error) {
	goal := truncateGoal(r.Goal)
	w := readWording(l, goal, func() bool { return ctx.Err() != nil })
	if w == nil {
		return nil, nil, ctx.Err()
	}
	sheet, err := readFeatures(ctx, l, o, r.Source, goal, w)
	if err != nil {
		return nil, nil, err
	}
	values := sheet.values()
	units = newUnits(o, costs, values, protect(l, o, w, removable))
	b := budget{removable: removable, enough: (removable + 1) / 2, marker: markerTokens(l.len())}
	for i := range units {
		b.tokens += units[i].tokens
	}
	b.tokens *= 1 - targetSaving(float64(removable)/float64(l.len()))
	kept, err = choose(ctx, units, b)
	return units, kept, err
}

// maxGoal is how many bytes of a goal are read. It should be a sentence or a short text.
const maxGoal = 16 << 10

func truncateGoal(goal string) string {
	if len(goal) <= maxGoal {
		return goal
	}
	return strings.ToValidUTF8(goal[:maxGoal], "")
}

// chooseScored chooses by the scores of a reranker. They do not consider tokens, so every line
// costs the same. Of a short text it just keeps the best lines.
func (r *Request) chooseScored(
	ctx context.Context, l lines, o *outline, costs []int, removable int,
) (units []unit, kept []bool, err error) {
	values := normalizeScores(r.Scores)
	units = newUnits(o, costs, values, protect(l, o, new(wording), removable))
	if l.len() < shortText {
		return units, keepBest(units, removable), nil
	}
	b := budget{removable: removable, enough: removable, marker: markerTokens(l.len()), mustRemove: true}
	for i := range units {
		b.tokens += units[i].tokens
	}
	for i := range units {
		units[i].tokens = b.tokens / float64(l.len()) * float64(units[i].lines())
	}
	kept, err = choose(ctx, units, b)
	return units, kept, err
}

// targetSaving returns the share of tokens to save if the share ratio of the lines may be removed.
// It is less than ratio, because markers cost tokens and relevant lines are long. The factors are
// empirical.
func targetSaving(ratio float64) float64 { return ratio * (0.845 + 0.06*ratio) }

// Handles for estimates. The handle of the request is not used, because it differs between
// processes, and the same lines must be kept in all of them.
const (
	typicalHandle   = "prn_3SEMd5UxCK"
	costliestHandle = "prn_0a0a0a0a0a" // digits and letters alternate, which takes the most tokens
)

// markerTokens returns the cost of a marker in a text of n lines. Markers are counted even if they
// are not written, so that the same lines are kept.
func markerTokens(n int) float64 {
	return float64(tokens.Count(annotate(typicalHandle, block{n - 1, n}, offGoal).Marker + "\n"))
}

// newUnits returns the units of a text.
func newUnits(o *outline, costs []int, values []float64, must []bool) []unit {
	units := make([]unit, 0, len(values))
	of := make([]int, len(values)) // unit by line
	for i, value := range values {
		if o.is(i, joined) {
			last := &units[len(units)-1]
			last.end++
			last.value += value
			last.tokens += float64(costs[i])
			last.must = last.must || must[i]
			last.bare = false
		} else {
			under := o.parent[i]
			if under >= 0 {
				under = of[under]
			}
			units = append(units, unit{i, i + 1, value, float64(costs[i]), must[i], under, o.is(i, blank|bracket)})
		}
		of[i] = len(units) - 1
	}
	return units
}

// normalizeScores maps the scores of a reranker, on any scale, to values above 0 and up to 1. A
// line without a score gets a little less than the nearest scored line.
func normalizeScores(scores []float64) []float64 {
	finite := func(s float64) float64 { return min(max(s, -math.MaxFloat64), math.MaxFloat64) }
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range scores {
		if !math.IsNaN(s) {
			low, high = min(low, finite(s)), max(high, finite(s))
		}
	}
	scale := 1.0
	if math.IsInf(high-low, 0) {
		scale = 0.5 // halves cannot overflow
	}
	values := make([]float64, len(scores))
	distance := make([]int, len(scores)) // distance from the line with the score
	for i, s := range scores {
		switch {
		case math.IsNaN(s) && i > 0:
			values[i], distance[i] = values[i-1], distance[i-1]+1
		case math.IsNaN(s):
			distance[i] = len(scores)
		case high > low:
			values[i] = (finite(s)*scale - low*scale) / (high*scale - low*scale)
		}
	}
	for i := len(scores) - 2; i >= 0; i-- {
		if distance[i+1]+1 < distance[i] {
			values[i], distance[i] = values[i+1], distance[i+1]+1
		}
	}
	for i := range values {
		values[i] = 0.001 + 0.999*values[i]
		if distance[i] > 0 {
			values[i] *= 0.999
		}
	}
	return values
}

// keepBest keeps the best units, the first of equal ones, until no more lines than allowed are
// removed.
func keepBest(units []unit, removable int) []bool {
	order := make([]int, len(units))
	kept := make([]bool, len(units))
	left := 0
	for i := range units {
		order[i], kept[i] = i, units[i].must
		if !kept[i] {
			left += units[i].lines()
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(units[b].value, units[a].value) })
	for _, i := range order {
		if left <= removable {
			break
		}
		if !kept[i] {
			kept[i] = true
			left -= units[i].lines()
		}
	}
	return kept
}

// removedBlocks returns the runs of units that are not kept, as blocks of lines.
func removedBlocks(units []unit, kept []bool) (blocks []block) {
	for i := range units {
		if kept[i] {
			continue
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].end == units[i].start {
			blocks[last].end = units[i].end
			continue
		}
		blocks = append(blocks, block{units[i].start, units[i].end})
	}
	return blocks
}

// countRemoved returns the number of lines in blocks.
func countRemoved(blocks []block) (n int) {
	for _, b := range blocks {
		n += b.end - b.start
	}
	return n
}

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
