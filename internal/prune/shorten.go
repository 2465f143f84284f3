package prune

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const ellipsis = "…"

// shorten shortens lines that would take more than a quarter of the characters.
func (r *reading) shorten(q *query) {
	most := r.MaxChars / 4
	for i := range r.len() {
		if line := r.line(i); len(line) > most && utf8.RuneCountInString(line) > most {
			if r.cut == nil {
				r.cut = map[int]string{}
			}
			r.cut[i] = shortened(line, q, most)
		}
	}
}

// A hit is a term of a goal in a line, at byte positions.
type hit struct {
	start, end int
	weight     float64 // lower if the term occurs often
}

// shortened returns the part of a longer line with the most terms of the goal, preferring rare ones,
// in at most so many characters.
func shortened(line string, q *query, most int) string {
	most = max(0, most-2*utf8.RuneCountInString(ellipsis))
	start, end := bestPart(hitsIn(line, q), most)
	// Extend it on both sides as far as possible.
	for room := most - utf8.RuneCountInString(line[start:end]); room > 0; {
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

// bestPart returns the span of the hits with the largest total weight within so many bytes, the first
// of equal ones.
func bestPart(hits []hit, most int) (start, end int) {
	best, weight, first := 0.0, 0.0, 0
	for i := range hits {
		weight += hits[i].weight
		for first <= i && hits[i].end-hits[first].start > most {
			weight -= hits[first].weight
			first++
		}
		if first <= i && weight > best {
			best, start, end = weight, hits[first].start, hits[i].end
		}
	}
	return start, end
}

// lowerASCII returns text with A to Z in lower case. Byte positions do not change.
func lowerASCII(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return string(b)
}
