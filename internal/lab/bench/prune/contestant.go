package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
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
