package main

import (
	"fmt"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// A text is the input of a baseline.
type text struct {
	goal   string
	source prune.Source
	lines  []string // with line ends
	tokens []int    // tokens of each line; one that spans two lines counts for the first
	marker int      // approximate tokens of a marker
}

func newText(content, goal string, source prune.Source) *text {
	t := &text{goal: goal, source: source}
	var starts []int
	at := 0
	for _, line := range prune.Lines(content) {
		end := at + len(line)
		end += len(content[end:]) - len(strings.TrimPrefix(content[end:], "\r"))
		end += len(content[end:]) - len(strings.TrimPrefix(content[end:], "\n"))
		t.lines, starts = append(t.lines, content[at:end]), append(starts, at)
		at = end
	}
	t.tokens = make([]int, len(t.lines))
	line := 0
	for offset, n := range tokens.Pieces(content) {
		for line+1 < len(starts) && starts[line+1] <= offset {
			line++
		}
		t.tokens[line] += n
	}
	t.marker = tokens.Count(marker(len(t.lines)/2, len(t.lines)) + "\n")
	return t
}

// handle replaces the random prune id in all markers, so that tokens are the same in each run.
const handle = "prn_3mKq81ZtBv"

// marker returns the marker for lines [start, end), as package prune writes it.
func marker(start, end int) string {
	return fmt.Sprintf("⟦PRUNÉ: prune_id=%s lignes %d-%d (%d) raison=hors focus⟧", handle, start+1, end, end-start)
}

// render returns the kept lines, with markers for removed ones.
func (t *text) render(kept []bool) string {
	var b strings.Builder
	for i := 0; i < len(t.lines); i++ {
		if kept[i] {
			b.WriteString(t.lines[i])
			continue
		}
		start := i
		for i+1 < len(t.lines) && !kept[i+1] {
			i++
		}
		b.WriteString(marker(start, i+1))
		if strings.HasSuffix(t.lines[i], "\n") {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// cost returns the approximate tokens of an answer. Counting exactly is slow.
func (t *text) cost(kept []bool) (sum int) {
	for i, is := range kept {
		if is {
			sum += t.tokens[i]
		} else if i == 0 || kept[i-1] {
			sum += t.marker
		}
	}
	return sum
}

// runs returns the number of runs of removed lines, which is the number of markers.
func runs(kept []bool) (n int) {
	for i, is := range kept {
		if !is && (i == 0 || kept[i-1]) {
			n++
		}
	}
	return n
}

// fill returns the largest answer of a baseline within a budget of tokens, counted exactly.
// Choose returns the lines to keep for about this many tokens.
func (t *text) fill(budget int, choose func(about int) []bool) answer {
	if whole := keepAll(len(t.lines)); t.cost(whole) <= budget {
		return answer{whole, t.cost(whole), 0}
	}
	const tries = 5
	var best answer
	for about, try := budget, 0; try < tries || best.kept == nil; try++ {
		kept := choose(about)
		a := answer{kept, tokens.Count(t.render(kept)), runs(kept)}
		if a.tokens <= budget && (best.kept == nil || a.tokens > best.tokens) {
			best = a
		}
		about += budget - a.tokens
		if about < 0 || a.tokens == budget { // a single marker may exceed the budget
			break
		}
	}
	if best.kept == nil {
		best.kept = make([]bool, len(t.lines))
		best.tokens, best.runs = tokens.Count(t.render(best.kept)), 1
	}
	return best
}
