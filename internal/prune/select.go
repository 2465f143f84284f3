package prune

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

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
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range scores {
		if !math.IsNaN(s) {
			low, high = min(low, s), max(high, s)
		}
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
			values[i] = (s/2 - low/2) / (high/2 - low/2) // halves cannot overflow
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
