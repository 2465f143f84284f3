package main

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// reference ranks lines by BM25 over subwords, without a trained model. The score of a line
// is that of its block, of windows of 4 and of 16 lines on both sides, and of the line that
// names its definition or section. Blank lines and brackets count less. It keeps whole runs:
// see chooseRuns.
//
// It shares with package prune only the splitting of lines, and internal/words, which splits
// identifiers. Its constants and rules are the best of some 35 variants on 840 tasks of the
// measured repositories. A few of these are tasks of this command, which is in its favor.
func reference(t *text) func(about int) []bool {
	q := newQuery(t)
	blocks, heads := t.blocks()
	byBlock, by4, by16 := relative(q.ofBlocks(blocks)), relative(q.ofWindows(4)), relative(q.ofWindows(16))
	byLine, byName := q.ofWindows(0), make([]float64, len(t.lines))
	for i, head := range heads {
		if head >= 0 {
			byName[i] = byLine[head]
		}
	}
	byName = relative(byName)
	values := make([]float64, len(t.lines))
	for i, line := range t.lines {
		value := byBlock[blocks[i]] + by4[i] + by16[i]/2 + byName[i]/2 + 0.02
		if !letter.MatchString(line) {
			value /= 2
		}
		values[i] = value * value
	}
	return func(about int) []bool { return t.chooseRuns(values, about) }
}

var letter = regexp.MustCompile(`[\pL\d]`)

// relative scales values so that the greatest is 1.
func relative(values []float64) []float64 {
	greatest := max(slices.Max(values), 1e-9)
	for i := range values {
		values[i] /= greatest
	}
	return values
}

// A query has the occurrences of a goal's subwords in a text.
type query struct {
	weights []float64   // weight of each subword
	hits    [][]float64 // by subword and line: 1 if the line has it, less for a similar one
	lengths []float64   // number of subwords in each line
}

func newQuery(t *text) *query {
	q := &query{lengths: make([]float64, len(t.lines))}
	var goal []string
	for word := range words.Terms(t.goal) {
		if slices.Contains(goal, word) {
			continue
		}
		weight := 1.0
		if vague[word] {
			weight = 0.3
		}
		goal, q.weights, q.hits = append(goal, word), append(q.weights, weight), append(q.hits, make([]float64, len(t.lines)))
	}
	for i, line := range t.lines {
		seen := map[string]bool{}
		for word := range words.Split(line) {
			word = words.Stem(word)
			if seen[word] {
				continue
			}
			seen[word] = true
			q.lengths[i]++
			for j := range goal {
				q.hits[j][i] = max(q.hits[j][i], similarity(word, goal[j]))
			}
		}
	}
	return q
}

// vague are subwords for actions, which say little about their object.
var vague = func() map[string]bool {
	set := map[string]bool{}
	for word := range words.Terms(`add all allow also avoid bug change clean correct doc docs ensure feat fix handle implement improve issue make
		missing more move new no not only prevent refactor remove rename should simplify some support update use when without wrong`) {
		set[word] = true
	}
	return set
}()

// similarity returns 1 for equal subwords, and less if one is a prefix of the other.
func similarity(a, b string) float64 {
	if len(a) > len(b) {
		a, b = b, a
	}
	switch {
	case a == b:
		return 1
	case len(a) >= 4 && strings.HasPrefix(b, a):
		return 0.4
	}
	return 0
}

// addBM25 adds the score of a subword with this weight to each part of a text. times has its
// occurrences in each part; found of n parts have it.
func addBM25(scores, times, lengths []float64, weight float64, found, n int) {
	const k1, b = 1.2, 0.75
	mean := 1.0
	for _, length := range lengths {
		mean += length / float64(len(lengths))
	}
	weight *= math.Log(1 + (float64(n-found)+0.5)/(float64(found)+0.5))
	for i, f := range times {
		scores[i] += weight * f * (k1 + 1) / (f + k1*(1-b+b*lengths[i]/mean))
	}
}

// ofBlocks returns the scores of blocks. Its argument is the block of each line.
func (q *query) ofBlocks(blocks []int) []float64 {
	n := slices.Max(blocks) + 1
	scores, lengths := make([]float64, n), make([]float64, n)
	for i, block := range blocks {
		lengths[block] += q.lengths[i]
	}
	for j, hits := range q.hits {
		times := make([]float64, n)
		for i, block := range blocks {
			times[block] += hits[i]
		}
		addBM25(scores, times, lengths, q.weights[j], countPositive(times), n)
	}
	return scores
}

// ofWindows returns the score of each line with radius lines on both sides.
func (q *query) ofWindows(radius int) []float64 {
	n := len(q.lengths)
	scores, lengths := make([]float64, n), sums(q.lengths, radius)
	for j, hits := range q.hits {
		addBM25(scores, sums(hits, radius), lengths, q.weights[j], countPositive(hits), n)
	}
	return scores
}

func countPositive(values []float64) (n int) {
	for _, value := range values {
		if value > 0 {
			n++
		}
	}
	return n
}

// sums returns the sum of each value with radius values on both sides.
func sums(values []float64, radius int) []float64 {
	n := len(values)
	upTo, all := make([]float64, n+1), make([]float64, n)
	for i, value := range values {
		upTo[i+1] = upTo[i] + value
	}
	for i := range all {
		all[i] = upTo[min(n, i+radius+1)] - upTo[max(0, i-radius)]
	}
	return all
}

// chooseRuns keeps runs of lines whose values exceed the price of their tokens and of a
// marker for each removed run, at the lowest price of a token that gives about this many
// tokens. Then it adds the best lines next to them while they fit.
func (t *text) chooseRuns(values []float64, about int) []bool {
	kept := make([]bool, len(values))
	for low, high, try := 1e-9, 1e3, 0; try < 25; try++ {
		price := math.Sqrt(low * high)
		if worth := t.bestRuns(values, price); t.cost(worth) <= about {
			high, kept = price, worth
		} else {
			low = price
		}
	}
	for left := about - t.cost(kept); ; {
		best, bestWorth, bestCost := -1, 0.0, 0
		for i, value := range values {
			before, after := i == 0 || kept[i-1], i+1 == len(kept) || kept[i+1]
			if kept[i] || !before && !after {
				continue
			}
			cost := t.tokens[i]
			if before && after {
				cost -= t.marker
			}
			if worth := value / float64(t.tokens[i]+1); cost <= left && worth > bestWorth {
				best, bestWorth, bestCost = i, worth, cost
			}
		}
		if best < 0 {
			return kept
		}
		kept[best] = true
		left -= bestCost
	}
}

// bestRuns returns the lines with the highest total value after subtracting the price of
// their tokens and of the markers.
func (t *text) bestRuns(values []float64, price float64) []bool {
	keep, remove := 0.0, math.Inf(-1)       // best total so far, if the last line is kept or not
	wasKept := make([][2]bool, len(values)) // whether the best total keeps the line before, if this one is removed or kept
	for i, value := range values {
		begun := keep - price*float64(t.marker)
		wasKept[i] = [2]bool{begun > remove, keep >= remove}
		keep, remove = max(keep, remove)+value-price*float64(t.tokens[i]), max(begun, remove)
	}
	kept := make([]bool, len(values))
	is := keep >= remove
	for i := len(values) - 1; i >= 0; i-- {
		kept[i] = is
		if is {
			is = wasKept[i][1]
		} else {
			is = wasKept[i][0]
		}
	}
	return kept
}
