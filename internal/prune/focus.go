package prune

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// FocusOptions say how [Focus] shortens a text.
type FocusOptions struct {
	Goal string

	// MaxChars is the limit of the result in characters (Unicode code points), numbers and markers
	// included.
	MaxChars int

	// Ratio is the minimum share of lines to remove, 0 to 1. Default: 0
	Ratio float64

	// FirstLine is the number of the first line. Default: 1
	FirstLine int

	// Timeout bounds the time. Default: 2 seconds
	Timeout time.Duration
}

const defaultFocusTimeout = 2 * time.Second

// Focus returns the lines of text most relevant to the goal, in order, each with its number as
// Recover writes it, and a marker wherever lines are missing: at most MaxChars characters. Kept
// lines are kept to the byte, but a line that would take more than a quarter of MaxChars is
// shortened to its most relevant part, with an ellipsis where something is missing. A text within
// the limits is returned unchanged.
//
// The same text and options give the same result. ok is false if there is no result, because the
// text has too many lines or only one, the time was not enough, or MaxChars is too small.
func Focus(ctx context.Context, text string, f FocusOptions) (short string, kept int, ok bool) {
	l := split(text)
	n := l.len()
	minRemoved := f.minRemoved(n)
	if minRemoved == 0 && utf8.RuneCountInString(text) <= f.MaxChars {
		return text, n, true
	}
	if n < 2 || n > MaxLines || f.MaxChars <= 0 {
		return "", 0, false
	}
	timeout := f.Timeout
	if timeout <= 0 {
		timeout = defaultFocusTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := f.read(ctx, l)
	if err != nil {
		return "", 0, false
	}
	chosen, err := r.choose(ctx, minRemoved)
	if err != nil {
		return "", 0, false
	}
	short, kept = r.render(chosen)
	if kept == 0 || kept > n-minRemoved || utf8.RuneCountInString(short) > f.MaxChars {
		return "", 0, false
	}
	return short, kept, true
}

// minRemoved returns how many of n lines must be removed.
func (f *FocusOptions) minRemoved(n int) int {
	if !(f.Ratio > 0) {
		return 0
	}
	return min(n, int(math.Ceil(float64(n)*f.Ratio-1e-9)))
}

// A reading is a text with the values of its lines for a goal.
type reading struct {
	*FocusOptions
	lines
	outline *outline
	values  []float64      // value of keeping each line
	cut     map[int]string // shortened forms of long lines
}

func (f *FocusOptions) read(ctx context.Context, l lines) (*reading, error) {
	stopped := func() bool { return ctx.Err() != nil }
	goal := truncateGoal(f.Goal)
	content := l.withoutMark()
	source := detect(content)
	r := &reading{FocusOptions: f, lines: l, outline: outlineOf(content, source, stopped)}
	if r.outline == nil {
		return nil, ctx.Err()
	}
	w := readWording(content, goal, stopped)
	if w == nil {
		return nil, ctx.Err()
	}
	sheet, err := readFeatures(ctx, content, r.outline, source, goal, w)
	if err != nil {
		return nil, err
	}
	r.values = sheet.values()
	if l.len() < shortText {
		for i, rarest := range w.rarest {
			r.values[i] *= 1 + loneWordFactor*rarest
		}
	}
	if source == Logs {
		sheet.raiseFailures(r.values, r.outline)
	}
	r.shorten(parseGoal(goal))
	return r, ctx.Err()
}

// raiseFailures raises the values of failures in a log, on which the network was not trained, and
// lowers those of lines far from any match.
func (s *sheet) raiseFailures(values []float64, o *outline) {
	const atLeast = 0.1
	for i := range values {
		values[i] *= atLeast + float64(s.row(i)[near10])
		switch {
		case o.is(i, failure):
			values[i] *= 10
		case o.is(i, severe|trace):
			values[i] *= 5
		}
	}
}

// loneWordFactor is how much more a line of a short text is worth if no other line has one of its
// words of the goal. The network underestimates such lines, because it was trained on longer texts.
const loneWordFactor = 10

// markerFactor multiplies the cost of a marker: a few long runs are more useful to a reader than
// many short ones.
const markerFactor = 3

// choose decides which lines are kept.
func (r *reading) choose(ctx context.Context, minRemoved int) ([]bool, error) {
	n := r.len()
	units := make([]unit, n)
	for i := range units {
		units[i] = unit{
			start: i, end: i + 1, value: r.values[i], tokens: float64(r.chars(i)),
			under: r.outline.parent[i], bare: r.outline.is(i, blank|bracket),
		}
	}
	b := budget{
		removable:  n,
		enough:     minRemoved,
		tokens:     float64(r.MaxChars + 1), // the last line has no newline
		marker:     float64(len(leftOutMarker(r.number(n-1), r.number(n))) + 1),
		mustRemove: minRemoved > 0,
	}
	p := newProgram(units, markerFactor*b.marker)
	fits := func(sum total) bool { return sum.tokens-float64(sum.runs)*(p.marker-b.marker) <= b.tokens }
	price := smallest(ctx, func(price float64) bool { return fits(p.run(price, 0)) })
	tax := 0.0 // per kept line
	if p.run(price, 0).removed < minRemoved {
		tax = smallest(ctx, func(tax float64) bool {
			sum := p.run(price, -tax)
			return fits(sum) && sum.removed >= minRemoved
		})
	}
	// The choice at a slightly lower price keeps a little more, often one run. A part of that may fit.
	const before = 1 - 2*tolerance
	if tax > 0 {
		p.run(price, -tax*before)
	} else {
		p.run(price*before, 0)
	}
	more := slices.Clone(p.kept)
	p.run(price, -tax)
	p.marker = b.marker
	p.keepHeads(b)
	p.keepPart(more, b)
	p.restore(b)
	return p.kept, ctx.Err()
}

// keepPart looks for runs that only the greater choice keeps. It keeps the best part of one of them
// that fits.
func (p *program) keepPart(greater []bool, b budget) {
	left, lines := p.room(b)
	left -= b.marker // marker of the lines removed after it
	var start, bestStart, bestEnd int
	var value, best, tokens float64
	count := 0 // lines since start
	for i := range p.units {
		u := &p.units[i]
		if !greater[i] || p.kept[i] {
			start, value, tokens, count = i+1, 0, 0, 0
			continue
		}
		value, tokens, count = value+u.value, tokens+u.tokens, count+u.lines()
		for start <= i && (tokens > left || count > lines) {
			first := &p.units[start]
			value, tokens, count = value-first.value, tokens-first.tokens, count-first.lines()
			start++
		}
		if start <= i && value > best {
			best, bestStart, bestEnd = value, start, i+1
		}
	}
	for i := bestStart; i < bestEnd; i++ {
		p.kept[i] = true
	}
}

// chars returns how many characters keeping line i takes, with its number and newline.
func (r *reading) chars(i int) int {
	number := len(strconv.Itoa(r.number(i))) + utf8.RuneCountInString("│ ")
	return number + utf8.RuneCountInString(r.shown(i)) + len("\n")
}

// number returns the number of line i.
func (r *reading) number(i int) int { return i + max(r.FirstLine, 1) }

// shown returns line i as the result has it: whole or shortened.
func (r *reading) shown(i int) string {
	if short, ok := r.cut[i]; ok {
		return short
	}
	return r.line(i)
}

// leftOutMarker returns the marker for the lines from first to last.
func leftOutMarker(first, last int) string {
	if first == last {
		return fmt.Sprintf("[line %d left out]", first)
	}
	return fmt.Sprintf("[lines %d-%d left out]", first, last)
}

// render returns the result and the number of kept lines.
func (r *reading) render(chosen []bool) (short string, kept int) {
	var b strings.Builder
	for i := 0; i < len(chosen); {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		if chosen[i] {
			writeNumber(&b, r.number(i)-1)
			b.WriteString(r.shown(i))
			kept++
			i++
			continue
		}
		start := i
		for i < len(chosen) && !chosen[i] {
			i++
		}
		b.WriteString(leftOutMarker(r.number(start), r.number(i-1)))
	}
	return b.String(), kept
}

const ellipsis = "…"

// shorten shortens lines that would take more than a quarter of the characters.
func (r *reading) shorten(q *query) {
	maxChars := r.MaxChars / 4
	for i := range r.len() {
		if line := r.line(i); len(line) > maxChars && utf8.RuneCountInString(line) > maxChars {
			if r.cut == nil {
				r.cut = map[int]string{}
			}
			r.cut[i] = bestExcerpt(line, q, maxChars)
		}
	}
}

// A hit is a term of a goal in a line, at byte positions.
type hit struct {
	start, end int
	weight     float64 // lower if the term occurs often
}

// bestExcerpt returns the part of a longer line with the most terms of the goal, preferring rare
// terms. It has at most maxChars characters, including an ellipsis on each side that is cut.
func bestExcerpt(line string, q *query, maxChars int) string {
	maxChars = max(0, maxChars-2*utf8.RuneCountInString(ellipsis))
	start, end := bestPart(hitsIn(line, q), maxChars)
	// Extend it on both sides as far as possible.
	for room := maxChars - utf8.RuneCountInString(line[start:end]); room > 0; {
		before := room
		if start > 0 {
			_, size := utf8.DecodeLastRuneInString(line[:start])
			start -= size
			room--
		}
		if end < len(line) && room > 0 {
			_, size := utf8.DecodeRuneInString(line[end:])
			end += size
			room--
		}
		if room == before {
			break
		}
	}
	short := line[start:end]
	if start > 0 {
		short = ellipsis + short
	}
	if end < len(line) {
		short += ellipsis
	}
	return short
}

// hitsIn returns the terms of a goal in a line, in order.
func hitsIn(line string, q *query) []hit {
	lower := lowerInPlace(line)
	var all []hit
	for _, term := range q.terms {
		first := len(all)
		for _, form := range beginningsOf(term.stem) {
			for at := 0; ; {
				i := strings.Index(lower[at:], form)
				if i < 0 {
					break
				}
				at += i + len(form)
				all = append(all, hit{start: at - len(form), end: at})
			}
		}
		for i := first; i < len(all); i++ {
			all[i].weight = term.weight / float64(len(all)-first)
		}
	}
	slices.SortStableFunc(all, func(a, b hit) int { return a.start - b.start })
	return all
}

// bestPart returns the span of at most maxBytes bytes whose hits have the largest total weight, the
// first of equal ones.
func bestPart(hits []hit, maxBytes int) (start, end int) {
	best, weight, first := 0.0, 0.0, 0
	for i := range hits {
		weight += hits[i].weight
		for first <= i && hits[i].end-hits[first].start > maxBytes {
			weight -= hits[first].weight
			first++
		}
		if first <= i && weight > best {
			best, start, end = weight, hits[first].start, hits[i].end
		}
	}
	return start, end
}

// beginningsOf returns how words with a stem begin: with the stem, or with ie in place of its y.
func beginningsOf(stem string) []string {
	if rest, ok := strings.CutSuffix(stem, "y"); ok {
		return []string{stem, rest + "ie"}
	}
	return []string{stem}
}

// lowerInPlace returns text in lower case. Unlike strings.ToLower it keeps byte positions: a
// character whose lower case has another length stays.
func lowerInPlace(text string) string {
	b := []byte(text)
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if lower := unicode.ToLower(r); lower != r && utf8.RuneLen(lower) == size {
			utf8.EncodeRune(b[i:], lower)
		}
		i += size
	}
	return string(b)
}
