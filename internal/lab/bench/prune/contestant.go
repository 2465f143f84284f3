package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// An answer is the output of a contestant for a task.
type answer struct {
	kept   []bool // kept lines
	tokens int    // tokens of the output, including markers
	runs   int    // runs of removed lines
}

// A baseline reads a text and returns a function that chooses the lines to keep for about
// this many tokens.
type baseline struct {
	name string
	read func(t *text) (choose func(about int) []bool)
}

var baselines = []baseline{
	{"head + tail", headAndTail},
	{"BM25 by blocks", byBlocks},
	{"reference", reference},
}

// headAndTail keeps equally many lines from the start and from the end.
func headAndTail(t *text) func(about int) []bool {
	keep := func(n int) []bool {
		kept := keepAll(len(t.lines))
		for i := (n + 1) / 2; i < len(kept)-n/2; i++ {
			kept[i] = false
		}
		return kept
	}
	return func(about int) []bool {
		return keep(sort.Search(len(t.lines), func(n int) bool { return t.cost(keep(n+1)) > about }))
	}
}

// byBlocks keeps the blocks that BM25 ranks first, then single lines of the best blocks that
// are too large.
func byBlocks(t *text) func(about int) []bool {
	blockOf, _ := t.blocks()
	scores := newQuery(t).ofBlocks(blockOf)
	blocks := make([][]int, len(scores)) // lines of each block
	for i, block := range blockOf {
		blocks[block] = append(blocks[block], i)
	}
	order := make([]int, len(blocks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return func(about int) []bool {
		kept := make([]bool, len(t.lines))
		try := func(lines []int) {
			with := slices.Clone(kept)
			for _, i := range lines {
				with[i] = true
			}
			if t.cost(with) <= about {
				kept = with
			}
		}
		for _, block := range order {
			try(blocks[block])
		}
		for _, block := range order {
			for i := range blocks[block] {
				if !kept[blocks[block][i]] {
					try(blocks[block][i : i+1])
				}
			}
		}
		return kept
	}
}

func keepAll(n int) []bool { return slices.Repeat([]bool{true}, n) }

// allowed returns how many of n lines may be removed.
func allowed(n int, ratio float64, minKeep int) int {
	return min(int(float64(n)*ratio+1e-9), n-min(n, minKeep))
}

// pruneTask runs package prune on a task.
func pruneTask(t *task.Task, ratio float64, minKeep int) *prune.Result {
	return prune.Prune(context.Background(), &prune.Request{
		Text: t.Text, Goal: t.Goal, Source: t.Source,
		Options: prune.Options{MaxPruneRatio: ratio, MinKeepLines: minKeep, Timeout: time.Minute, IncludeMarkers: true},
	})
}

// answerOf returns the answer in a result of package prune. The error says why the result is
// invalid.
func answerOf(result *prune.Result, lines []string, allowed int) (answer, error) {
	kept, err := checkResult(result, lines, allowed)
	return answer{kept, tokens.Count(strings.ReplaceAll(result.PrunedText, result.PruneID, handle)), runs(kept)}, err
}

// checkResult returns the lines that a result keeps. The error says why the result is invalid: it
// removes more lines than allowed, or other lines than its annotations say.
func checkResult(result *prune.Result, lines []string, allowed int) (kept []bool, err error) {
	var want []string
	removed, at := 0, 0
	keep := func(end int) {
		for ; at < end; at++ {
			kept = append(kept, true)
			want = append(want, lines[at])
		}
	}
	for i, a := range result.Annotations {
		first := at + 1
		if i > 0 {
			first++ // adjacent blocks must be one annotation
		}
		if a.Start < first || a.End < a.Start || a.End > len(lines) || a.Count != a.End-a.Start+1 {
			return keepAll(len(lines)), fmt.Errorf("annotation of lines %d to %d (%d) after line %d of %d", a.Start, a.End,
				a.Count, at, len(lines))
		}
		keep(a.Start - 1)
		kept = append(kept, make([]bool, a.Count)...)
		want = append(want, a.Marker)
		removed += a.Count
		at = a.End
	}
	keep(len(lines))
	stats := &result.Stats
	switch {
	case stats.UsedFallback:
		return kept, fmt.Errorf("fallback: %s", strings.Join(result.Warnings, ", "))
	case removed > allowed:
		return kept, fmt.Errorf("removed %d of %d lines, at most %d allowed", removed, len(lines), allowed)
	case stats.PrunedLines != removed || stats.KeptLines != len(lines)-removed || stats.OriginalLines != len(lines):
		return kept, fmt.Errorf("%d lines, %d removed, but the statistics are %+v", len(lines), removed, *stats)
	case stats.TokensAfter != tokens.Count(result.PrunedText):
		return kept, fmt.Errorf("%d tokens, but the statistics are %+v", tokens.Count(result.PrunedText), *stats)
	}
	return kept, compareLines(prune.Lines(result.PrunedText), want)
}

// compareLines returns an error for the first line that differs.
func compareLines(got, want []string) error {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("line %d of the answer is %q, want %q", i+1, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("the answer has %d lines, want %d", len(got), len(want))
	}
	return nil
}

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
