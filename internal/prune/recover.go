package prune

import (
	"errors"
	"strconv"
	"strings"
)

// A Range is some lines of a text, counted from 1, both included.
type Range struct {
	Start int `json:"start_line"`
	End   int `json:"end_line"`
}

// ErrRange says that a range is none of the text.
var ErrRange = errors.New("invalid range")

// Recover returns lines of a text in the order of the ranges, with their numbers in
// front if numbered. A range may end after the text does.
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

// writeNumber writes the number of line i as it stands in front of the line.
func writeNumber(b *strings.Builder, i int) {
	b.WriteString(strconv.Itoa(i + 1))
	b.WriteString("│ ")
}
