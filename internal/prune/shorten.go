package prune

import (
	"slices"
	"strings"
	"unicode/utf8"
)

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
	lower := lowerASCII(line)
	var all []hit
	for _, term := range q.terms {
		first := len(all)
		for at := 0; ; {
			i := strings.Index(lower[at:], term.stem)
			if i < 0 {
				break
			}
			at += i + len(term.stem)
			all = append(all, hit{start: at - len(term.stem), end: at})
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

// lowerASCII returns text with A to Z in lower case. Unlike strings.ToLower it keeps byte
// positions.
func lowerASCII(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return string(b)
}
