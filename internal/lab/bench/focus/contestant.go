package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
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

func subwords(text string) []string { return slices.Collect(words.Terms(text)) }

func subwordsOf(lines []string) []string { return subwords(strings.Join(lines, "\n")) }

// bm25 returns the score of each text for a query, all of them as subwords.
func bm25(query []string, texts [][]string) []float64 {
	const k1, b = 1.2, 0.75
	query = slices.Compact(slices.Sorted(slices.Values(query)))
	counts := make([]map[string]float64, len(texts))
	frequency := map[string]float64{} // number of texts with a subword
	total := 0
	for i, text := range texts {
		counts[i] = map[string]float64{}
		total += len(text)
		for _, word := range text {
			counts[i][word]++
			if counts[i][word] == 1 {
				frequency[word]++
			}
		}
	}
	n := float64(len(texts))
	mean := max(1, float64(total)/max(1, n))
	scores := make([]float64, len(texts))
	for i, text := range texts {
		for _, word := range query {
			f := counts[i][word]
			scores[i] += math.Log(1+(n-frequency[word]+0.5)/(frequency[word]+0.5)) * f * (k1 + 1) / (f +
				k1*(1-b+b*float64(len(text))/mean))
		}
	}
	return scores
}

// plainReference keeps the lines that BM25 over subwords ranks first, without a trained
// model. The score of a line is that of its block, of windows of 4 and of 16 lines around
// it, and of the line that names its definition or section. Blank lines and braces count
// less. It keeps whole runs: see keepRuns.
func plainReference(goal string, lines []string, budget int) string {
	query := subwords(goal)
	inLine := make([][]string, len(lines))
	for i, line := range lines {
		inLine[i] = subwords(line)
	}
	blocks := indented(lines)
	inBlock := make([][]string, len(blocks))
	named := make([][]string, len(blocks))
	for i, b := range blocks {
		inBlock[i] = slices.Concat(inLine[b.start:b.end]...)
		named[i] = inLine[b.start]
	}
	byBlock, byName := bm25(query, inBlock), bm25(query, named)
	by4, by16 := bm25(query, windows(inLine, 4)), bm25(query, windows(inLine, 16))
	scores := make([]float64, len(lines))
	for i, b := range blocks {
		for line := b.start; line < b.end; line++ {
			scores[line] = 0.5*byBlock[i] + by4[line] + by16[line] + byName[i]
			if !letters.MatchString(lines[line]) {
				scores[line] *= 0.6
			}
		}
	}
	return keepRuns(lines, scores, budget)
}

var letters = regexp.MustCompile(`[\pL\d]`)

// windows returns the subwords of size lines around each line.
func windows(inLine [][]string, size int) [][]string {
	all := make([][]string, len(inLine))
	for i := range inLine {
		all[i] = slices.Concat(inLine[max(0, i-size/2):min(len(inLine), i+size/2+1)]...)
	}
	return all
}

// A span is a range of lines, [start, end).
type span struct{ start, end int }

// indented splits a text before each unindented line that follows a blank or indented one:
// into definitions, sections and paragraphs, each with its name first.
func indented(lines []string) []span {
	all := []span{{0, 1}}
	for i := 1; i < len(lines); i++ {
		before, line := lines[i-1], lines[i]
		outer := strings.TrimLeft(line, " \t") == line && letters.MatchString(line)
		if outer && (strings.TrimSpace(before) == "" || strings.TrimLeft(before, " \t") != before) {
			all = append(all, span{i, i})
		}
		all[len(all)-1].end = i + 1
	}
	return all
}

// keepRuns keeps runs of lines whose scores exceed the price of their characters and of a
// marker. It finds the price of a character for the budget by bisection.
func keepRuns(lines []string, scores []float64, budget int) string {
	low, high := 0.0, 1.0+slices.Max(scores)
	best := newPage(lines, budget)
	for range 40 {
		price := (low + high) / 2
		p := newPage(lines, budget)
		if fits := p.add(bestRuns(p, scores, price)...); fits {
			high, best = price, p
		} else {
			low = price
		}
	}
	// Fill up with the best lines next to kept ones.
	for _, i := range bestFirst(scores) {
		if i > 0 && best.kept[i-1] || i+1 < len(lines) && best.kept[i+1] {
			best.add(i)
		}
	}
	return best.String()
}

// bestRuns returns the lines of the runs with the highest total score after subtracting
// the price of their characters and of one marker each.
func bestRuns(p *page, scores []float64, price float64) []int {
	var kept, removed float64 // best total so far, if the last line is kept or not
	fromKept := make([][2]bool, len(scores))
	cost := price * float64(markerChars(p.lines))
	for i, score := range scores {
		value := score - price*float64(len(p.lines[i])+7)
		fromKept[i] = [2]bool{kept-cost > removed, kept > removed}
		removed, kept = max(removed, kept-cost), max(kept, removed)+value
	}
	var all []int
	is := kept > removed
	for i := len(scores) - 1; i >= 0; i-- {
		if is {
			all = append(all, i)
			is = fromKept[i][1]
		} else {
			is = fromKept[i][0]
		}
	}
	return all
}
