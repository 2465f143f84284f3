package prune

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// lines are the lines of a text. Each ends with LF, CRLF or CR; the last may have no line end.
// Other separators, such as form feed and U+2028, do not end lines, as in editors and compilers.
type lines struct {
	text   string
	starts []int // start of each line, and the length of the text
}

func split(text string) lines {
	starts := make([]int, 0, 2+strings.Count(text, "\n"))
	for at := 0; at < len(text); {
		starts = append(starts, at)
		end := strings.IndexAny(text[at:], "\r\n")
		if end < 0 {
			break
		}
		at += end + 1
		if text[at-1] == '\r' && at < len(text) && text[at] == '\n' {
			at++
		}
	}
	return lines{text, append(starts, len(text))}
}

func (l lines) len() int { return len(l.starts) - 1 }

// whole returns line i with its line end.
func (l lines) whole(i int) string { return l.text[l.starts[i]:l.starts[i+1]] }

// line returns line i without its line end.
func (l lines) line(i int) string {
	line := l.whole(i)
	if rest, ok := strings.CutSuffix(line, "\n"); ok {
		return strings.TrimSuffix(rest, "\r")
	}
	return strings.TrimSuffix(line, "\r")
}

// withoutMark returns the lines without a byte order mark at the beginning, to examine what the
// first line says.
func (l lines) withoutMark() lines {
	const mark = "\ufeff"
	if strings.HasPrefix(l.text, mark) {
		l.starts = slices.Clone(l.starts)
		l.starts[0] = len(mark)
	}
	return l
}

// lower returns the lines in lower case, all ending with LF.
func (l lines) lower() lines {
	var b strings.Builder
	b.Grow(len(l.text))
	starts := make([]int, 0, len(l.starts))
	for i := range l.len() {
		starts = append(starts, b.Len())
		b.WriteString(strings.ToLower(l.line(i)))
		b.WriteByte('\n')
	}
	return lines{b.String(), append(starts, b.Len())}
}

// containing returns the numbers of the lines that contain a word. The word has no line ends.
func (l lines) containing(word string) (at []int) {
	for line, from := 0, 0; line < l.len(); line, from = line+1, l.starts[line+1] {
		found := strings.Index(l.text[from:], word)
		if found < 0 {
			break
		}
		for l.starts[line+1] <= from+found {
			line++
		}
		at = append(at, line)
	}
	return at
}

// tokens returns the number of tokens of each line. A token that spans several lines, such as blank
// ones, is divided among them by bytes.
func (l lines) tokens() []int {
	all := make([]int, l.len())
	line, start, count := 0, 0, 0 // next line; start and tokens of the piece not yet counted
	add := func(end int) {
		counted := 0
		for ; start < end && line < l.len() && l.starts[line+1] <= end; line++ {
			upTo := count * (l.starts[line+1] - start) / (end - start)
			all[line] += upTo - counted
			counted = upTo
		}
		if counted < count {
			all[line] += count - counted
		}
	}
	for at, n := range tokens.Pieces(l.text) {
		add(at)
		start, count = at, n
	}
	add(len(l.text))
	return all
}

// CountLines returns the number of lines of a text.
func CountLines(text string) int { return split(text).len() }

// Lines returns the lines of a text without line ends.
func Lines(text string) []string {
	l := split(text)
	all := make([]string, l.len())
	for i := range all {
		all[i] = l.line(i)
	}
	return all
}

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
