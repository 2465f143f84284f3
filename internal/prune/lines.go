package prune

import "strings"

// lines are the lines of a text. Each ends with LF, CRLF or CR; the last may end with
// none. Other characters that break lines elsewhere, such as form feed and U+2028, do
// not here: editors and compilers do not count them.
type lines struct {
	text   string
	starts []int // of each line, and the length of the text
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

// whole returns line i with its end.
func (l lines) whole(i int) string { return l.text[l.starts[i]:l.starts[i+1]] }

// line returns line i without its end.
func (l lines) line(i int) string {
	line := l.whole(i)
	if rest, ok := strings.CutSuffix(line, "\n"); ok {
		return strings.TrimSuffix(rest, "\r")
	}
	return strings.TrimSuffix(line, "\r")
}

// CountLines returns how many lines a text has.
func CountLines(text string) int { return split(text).len() }

// Lines returns the lines of a text without their ends.
func Lines(text string) []string {
	l := split(text)
	all := make([]string, l.len())
	for i := range all {
		all[i] = l.line(i)
	}
	return all
}
