package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
)

// A contestant shortens the text of a task to a number of characters. It returns an empty
// string if it refuses.
type contestant struct {
	name   string
	answer func(t *task.Task, lines []string, budget int) string
}

var contestants = []contestant{
	{"head + tail", func(t *task.Task, lines []string, budget int) string { return headAndTail(lines, budget) }},
	{"BM25 by blocks", func(t *task.Task, lines []string, budget int) string { return bestBlocks(t.Goal, lines, budget) }},
	{"plain reference", func(t *task.Task, lines []string, budget int) string {
		return plainReference(t.Goal, lines, budget)
	}},
	{"focus", func(t *task.Task, _ []string, budget int) string {
		c := focus.Cutter{Goal: t.Goal, MaxChars: budget, Handle: "obs_3mKq81ZtBv", Hint: mask.DefaultHint}
		short, _ := c.Cut(context.Background(), t.Text)
		return short
	}},
	{"recovery", func(t *task.Task, _ []string, budget int) string {
		c := focus.Cutter{Goal: t.Goal, MaxChars: budget}
		short, _, _ := c.Lines(context.Background(), t.Text)
		return short
	}},
}

// withoutHead returns an answer without its first line if that is the mask's marker.
func withoutHead(answer string) string {
	if head, rest, ok := strings.Cut(answer, "\n"); ok && strings.HasPrefix(head, "[KIMI_PROXY_OBSERVATION_MASKED ") {
		return rest
	}
	return answer
}

// A page collects the lines to keep and counts their characters.
type page struct {
	lines []string
	kept  []bool
	left  int // characters left
}

func newPage(lines []string, budget int) *page {
	return &page{lines, make([]bool, len(lines)), budget - markerChars(lines)}
}

// markerChars returns the maximum length of a marker, with its line end.
func markerChars(lines []string) int { return len(marker(len(lines)-1, len(lines)+1)) + 1 }

// add keeps lines if all of them fit.
func (p *page) add(lines ...int) bool {
	left, added := p.left, []int(nil)
	for _, i := range lines {
		if p.kept[i] {
			continue
		}
		left -= len(strconv.Itoa(i+1)) + utf8.RuneCountInString(p.lines[i]) + len("| \n")
		left += markerChars(p.lines)
		if i > 0 && !p.kept[i-1] {
			left -= markerChars(p.lines)
		}
		if i+1 < len(p.kept) && !p.kept[i+1] {
			left -= markerChars(p.lines)
		}
		p.kept[i] = true
		added = append(added, i)
	}
	if left < 0 {
		for _, i := range added {
			p.kept[i] = false
		}
		return false
	}
	p.left = left
	return true
}

func marker(start, end int) string {
	if end-start == 1 {
		return fmt.Sprintf("[line %d left out]", end)
	}
	return fmt.Sprintf("[lines %d-%d left out]", start+1, end)
}

func (p *page) String() string {
	var all []string
	for i := 0; i < len(p.lines); {
		if p.kept[i] {
			all = append(all, fmt.Sprintf("%d│ %s", i+1, p.lines[i]))
			i++
			continue
		}
		start := i
		for i < len(p.lines) && !p.kept[i] {
			i++
		}
		all = append(all, marker(start, i))
	}
	return strings.Join(all, "\n")
}

// headAndTail keeps lines from both ends, in turn.
func headAndTail(lines []string, budget int) string {
	p := newPage(lines, budget)
	for head, tail := 0, len(lines)-1; head <= tail; {
		if !p.add(head) {
			break
		}
		head++
		if !p.add(tail) {
			break
		}
		tail--
	}
	return p.String()
}

// bestFirst returns the indexes of scores, highest score first.
func bestFirst(scores []float64) []int {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return order
}

// bestBlocks keeps the blocks that BM25 ranks first. If a block does not fit, it keeps the
// first lines of it.
func bestBlocks(goal string, lines []string, budget int) string {
	blocks := paragraphs(lines)
	texts := make([][]string, len(blocks))
	for i, b := range blocks {
		texts[i] = subwordsOf(lines[b.start:b.end])
	}
	p := newPage(lines, budget)
	for _, i := range bestFirst(bm25(subwords(goal), texts)) {
		for line := blocks[i].start; line < blocks[i].end && p.add(line); line++ {
		}
	}
	return p.String()
}

// minBlock is the minimum number of lines in a block. A single paragraph of code says little.
const minBlock = 10

// paragraphs splits a text at blank lines into blocks of at least minBlock lines.
func paragraphs(lines []string) []span {
	all := []span{{0, 1}}
	for i := 1; i < len(lines); i++ {
		if last := all[len(all)-1]; strings.TrimSpace(lines[i-1]) == "" && i-last.start >= minBlock {
			all = append(all, span{i, i})
		}
		all[len(all)-1].end = i + 1
	}
	return all
}
