package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// An answer is what a contestant makes of a task.
type answer struct {
	kept   []bool // by line
	tokens int    // of the text that is left, markers included
}

// A baseline chooses which lines to keep: as many as it is told.
type baseline struct {
	name string
	kept func(t *task.Task, lines []string, keep int) []bool
}

func baselines(seed uint64) []baseline {
	return []baseline{
		{"random", func(t *task.Task, lines []string, keep int) []bool { return keepRandom(seed, lines, keep) }},
		{"head + tail", func(t *task.Task, lines []string, keep int) []bool { return keepEnds(lines, keep) }},
		{"structure only", func(t *task.Task, lines []string, keep int) []bool { return keepStructure(t.Source, lines, keep) }},
		{"BM25 by words", func(t *task.Task, lines []string, keep int) []bool { return keepMatches(t.Goal, lines, keep, 0) }},
		{"BM25, ±8 lines", func(t *task.Task, lines []string, keep int) []bool { return keepMatches(t.Goal, lines, keep, 8) }},
	}
}

// first keeps the first lines of an order.
func first(order []int, keep int) []bool {
	kept := make([]bool, len(order))
	for _, i := range order[:keep] {
		kept[i] = true
	}
	return kept
}

func keepRandom(seed uint64, lines []string, keep int) []bool {
	return first(rand.New(rand.NewPCG(seed, uint64(len(lines)))).Perm(len(lines)), keep)
}

func keepEnds(lines []string, keep int) []bool {
	kept := make([]bool, len(lines))
	head := (keep + 1) / 2
	for i := range kept {
		kept[i] = i < head || i >= len(lines)-(keep-head)
	}
	return kept
}

// structures are the lines that a text of a source is built around.
var structures = map[prune.Source]*regexp.Regexp{
	prune.Code: regexp.MustCompile(`^\s*(package|import|func|type|var|const)\b`),
	prune.Docs: regexp.MustCompile(`^#{1,6}\s`),
	prune.Logs: regexp.MustCompile(`(?i)error|fail|panic|fatal|exception|traceback`),
}

// keepStructure keeps the structure of a text, then its head.
func keepStructure(source prune.Source, lines []string, keep int) []bool {
	structure := structures[source]
	return keepBest(lines, keep, func(i int) float64 {
		if structure.MatchString(lines[i]) {
			return 1
		}
		return 0
	})
}

// keepBest keeps the lines of the highest scores, of equal ones the first.
func keepBest(lines []string, keep int, score func(i int) float64) []bool {
	scores, order := make([]float64, len(lines)), make([]int, len(lines))
	for i := range lines {
		scores[i], order[i] = score(i), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return first(order, keep)
}

var word = regexp.MustCompile(`\w+`)

func words(text string) []string { return word.FindAllString(strings.ToLower(text), -1) }

// keepMatches keeps the lines that BM25 ranks first by the words of a goal, each line
// a document, together with as many lines around them.
func keepMatches(goal string, lines []string, keep, around int) []bool {
	const k1, b = 1.2, 0.75
	counts, lengths, total := make([]map[string]int, len(lines)), make([]int, len(lines)), 0
	has := map[string]int{} // how many lines have a word
	for i, line := range lines {
		all := words(line)
		counts[i], lengths[i] = map[string]int{}, len(all)
		total += len(all)
		for _, word := range all {
			if counts[i][word]++; counts[i][word] == 1 {
				has[word]++
			}
		}
	}
	n := float64(len(lines))
	mean := max(1, float64(total)/n)
	query, upTo := words(goal), make([]float64, len(lines)+1) // the scores of the lines before, added up
	for i := range lines {
		upTo[i+1] = upTo[i]
		for _, word := range query {
			f, df := float64(counts[i][word]), float64(has[word])
			upTo[i+1] += math.Log(1+(n-df+0.5)/(df+0.5)) * f * (k1 + 1) / (f + k1*(1-b+b*float64(lengths[i])/mean))
		}
	}
	return keepBest(lines, keep, func(i int) float64 {
		return upTo[min(i+around+1, len(lines))] - upTo[max(0, i-around)]
	})
}

// handle stands in every marker, that of package prune having another one in each
// process: else the same answer would cost more in one run than in the next.
const handle = "prn_3mKq81ZtBv"

// render returns the lines that are kept, and markers where others were.
func render(lines []string, kept []bool) string {
	var b strings.Builder
	for i := 0; i < len(lines); i++ {
		if kept[i] {
			b.WriteString(lines[i] + "\n")
			continue
		}
		start := i + 1
		for i+1 < len(lines) && !kept[i+1] {
			i++
		}
		fmt.Fprintf(&b, "⟦PRUNÉ: prune_id=%s lignes %d-%d (%d) raison=hors focus⟧\n", handle, start, i+1, i+2-start)
	}
	return b.String()
}

// allowed returns how many of n lines may be left out.
func allowed(n int, ratio float64, minKeep int) int {
	return min(int(float64(n)*ratio+1e-9), n-min(n, minKeep))
}

func (b baseline) answer(t *task.Task, lines []string, keep int) answer {
	kept := b.kept(t, lines, keep)
	return answer{kept, prune.EstimateTokens(render(lines, kept))}
}

// pruneTask has package prune do a task, and says how long it took. The error is of an
// answer that is not as it must be.
func pruneTask(t *task.Task, lines []string, ratio float64, minKeep int) (a answer, took time.Duration, err error) {
	request := &prune.Request{
		Text: t.Text, Goal: t.Goal, Source: t.Source,
		Options: prune.Options{MaxPruneRatio: ratio, MinKeepLines: minKeep, Timeout: time.Minute, IncludeMarkers: true},
	}
	start := time.Now()
	result := prune.Prune(context.Background(), request)
	took = time.Since(start)
	kept, err := judge(result, lines, allowed(len(lines), ratio, minKeep))
	text := strings.ReplaceAll(result.PrunedText, result.PruneID, handle)
	return answer{kept, prune.EstimateTokens(text)}, took, err
}

// judge returns the lines that a result keeps. The error says why the result must not
// be: more lines are missing than allowed, or not those that it says.
func judge(result *prune.Result, lines []string, allowed int) (kept []bool, err error) {
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
			first++ // blocks that touch are one block
		}
		if a.Start < first || a.End < a.Start || a.End > len(lines) || a.Count != a.End-a.Start+1 {
			return everything(lines), fmt.Errorf("annotation of lines %d to %d (%d) after line %d of %d", a.Start, a.End, a.Count, at, len(lines))
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
		return kept, fmt.Errorf("%d of %d lines are left out, %d may be", removed, len(lines), allowed)
	case stats.PrunedLines != removed || stats.KeptLines != len(lines)-removed || stats.OriginalLines != len(lines):
		return kept, fmt.Errorf("of %d lines %d are left out, not as in %+v", len(lines), removed, *stats)
	case stats.TokensAfter != prune.EstimateTokens(result.PrunedText):
		return kept, fmt.Errorf("%d tokens, not as in %+v", prune.EstimateTokens(result.PrunedText), *stats)
	}
	return kept, compareLines(prune.Lines(result.PrunedText), want)
}

// compareLines returns an error that says where lines are not as wanted.
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

func everything(lines []string) []bool { return slices.Repeat([]bool{true}, len(lines)) }
