package prune

import (
	"errors"
	"strconv"
	"strings"
)

// A Range is a range of lines, counted from 1, both included.
type Range struct {
	Start int `json:"start_line"`
	End   int `json:"end_line"`
}

// ErrRange is returned for a range that the text does not have.
var ErrRange = errors.New("invalid range")

// Recover returns the lines of the ranges, in their order, prefixed with their numbers if numbered.
// A range may end beyond the text.
func Recover(text string, ranges []Range, numbered bool) (string, error) {
	l := split(text)
	var b strings.Builder
	first := true
	for _, r := range ranges {
		if r.Start < 1 || r.End < r.Start || r.Start > l.len() {
			return "", ErrRange
		}
		for i := r.Start - 1; i < min(r.End, l.len()); i++ {
			if !first {
				b.WriteByte('\n')
			}
			first = false
			if numbered {
				writeNumber(&b, i)
			}
			b.WriteString(l.line(i))
		}
	}
	return b.String(), nil
}

// writeNumber writes the prefix of line i.
func writeNumber(b *strings.Builder, i int) {
	b.WriteString(strconv.Itoa(i + 1))
	b.WriteString("│ ")
}
