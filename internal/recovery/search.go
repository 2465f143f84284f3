package recovery

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// A line that is longer than a whole response, as JSON often is, is shown as excerpts:
	// excerptMargin characters on either side of a match, and maxExcerpt in total.
	excerptMargin = 200
	maxExcerpt    = 600

	// Excerpts are labeled with their position only if responses have this many characters.
	minLabeled = 120
)

// A search shows the matching lines of a text, as grep -n -C does. Only \n ends a line.
// Line numbers also count each \r without a \n. A line that contains some shows the first
// of its numbers.
type search struct {
	arguments
	text      string
	limit     int // characters per response
	charsLeft int // characters left in this response
	stepsLeft int // steps left, see maxWork

	out        strings.Builder
	matchCount int // matches shown
	shownEnd   int // start of the line after the last one shown, or 0

	// The last offset passed to charAt, in bytes and in characters.
	lastByte, lastChar int
}

func newSearch(a arguments, text string, limit int) *search {
	if limit <= 0 {
		limit = math.MaxInt
	}
	// One pass over the text costs at most maxWork. The other half is for lines shown as
	// excerpts, which are searched again after each excerpt.
	return &search{arguments: a, text: text, limit: limit, charsLeft: limit, stepsLeft: 2 * maxWork}
}

// A line is a line of the text, without its end.
type line struct {
	number     int // from 1
	start, end int // bytes
}

// lineAt returns the line that begins at start. A start beyond the text gives an empty line
// at its end.
func (s *search) lineAt(number, start int) line {
	start = min(start, len(s.text))
	end := len(s.text)
	if n := strings.IndexByte(s.text[start:], '\n'); n >= 0 {
		end = start + n
	}
	return line{number, start, end}
}

// lineAfter returns the line after l.
func (s *search) lineAfter(l line) line {
	end := min(l.end+1, len(s.text))
	return s.lineAt(l.number+lineBreaks(s.text[l.start:end]), l.end+1)
}

// run shows the matching lines between two byte offsets. It returns the offset at which the
// next search should continue, or -1 if it is done.
func (s *search) run(from, to int) (next int) {
	start := strings.LastIndexByte(s.text[:from], '\n') + 1
	l := s.lineAt(lineBreaks(s.text[:start])+1, start)
	after, full := 0, false // context lines to show after a match; no room for them
	for ; l.start < len(s.text) && (l.start < to || after > 0 && !full); l = s.lineAfter(l) {
		at, end := max(l.start, from), min(l.end, to)
		var match []int
		if l.start < to {
			match = s.match(l, at, end)
		}
		if match == nil && after > 0 && !full {
			full = !s.show(l, s.formatLine(l, '-'))
		}
		after--
		for first := true; match != nil; first = false {
			if full || s.matchCount == s.matches || s.stepsLeft < 0 {
				return at
			}
			shown, rest := s.formatMatch(l, at, first, match)
			if first && !s.showMatch(l, shown) || !first && !s.write(shown) {
				return at
			}
			s.matchCount++
			after = s.context
			at, match = rest, nil
			if rest < end {
				match = s.match(l, at, end)
			}
		}
	}
	return -1
}

// match returns the start and end of the first match between two offsets of a line, or nil. A
// carriage return at the end of the line is part of the line end: $ matches before it.
func (s *search) match(l line, at, end int) []int {
	lineEnd := l.start + len(strings.TrimSuffix(s.text[l.start:l.end], "\r"))
	end = min(end, lineEnd)
	if at > end || at == end && l.start < lineEnd {
		return nil // the range contains only the end of the line
	}
	s.stepsLeft -= s.steps * (end - at)
	match := s.pattern.FindStringIndex(s.text[at:end])
	if match != nil {
		match[0], match[1] = match[0]+at, match[1]+at
	}
	return match
}

// formatMatch returns the output for a matching line, and the offset to continue at.
func (s *search) formatMatch(l line, at int, first bool, match []int) (shown string, rest int) {
	if !s.tooLong(l) {
		return s.formatLine(l, ':'), l.end
	}
	if first {
		at = l.start
	}
	width := min(s.lineWidth(l), maxExcerpt)
	start := s.back(match[0], at, min(excerptMargin, width/3))
	rest = min(s.forward(match[1], l.end, excerptMargin), s.forward(start, l.end, width))
	return s.formatExcerpt(l, ':', start, rest), rest
}

// showMatch shows a matching line and as many context lines before it as fit. It reports
// whether the line fit.
func (s *search) showMatch(l line, shown string) bool {
	var lines []line
	for p := l; len(lines) < s.context && p.start > s.shownEnd; {
		end := p.start - 1
		start := strings.LastIndexByte(s.text[:end], '\n') + 1
		p = line{p.number - lineBreaks(s.text[start:p.start]), start, end}
		lines = append(lines, p)
	}
	slices.Reverse(lines)
	for {
		all, first := "", l
		if len(lines) > 0 {
			first = lines[0]
		}
		for _, p := range lines {
			all += s.formatLine(p, '-') + "\n"
		}
		if s.show(first, all+shown) {
			s.shownEnd = l.end + 1
			return true
		}
		// After other matches, leave the line to the next response, which has more room.
		if s.matchCount > 0 || len(lines) == 0 {
			return false
		}
		lines = lines[1:]
	}
}

// show shows lines of which l is the first. It reports whether they fit.
func (s *search) show(l line, shown string) bool {
	if s.out.Len() > 0 && l.start != s.shownEnd {
		shown = "--\n" + shown
	}
	if !s.write(shown) {
		return false
	}
	s.shownEnd = l.end + 1
	return true
}

// write adds a line of output. It reports whether the line fit.
func (s *search) write(shown string) bool {
	if s.out.Len() > 0 {
		shown = "\n" + shown
	}
	n := utf8.RuneCountInString(shown)
	if n > s.charsLeft {
		return false
	}
	s.charsLeft -= n
	s.out.WriteString(shown)
	return true
}

// tooLong reports whether a line does not fit even into an empty response.
func (s *search) tooLong(l line) bool {
	n := len(prefix(l, ':'))
	return l.end-l.start > s.limit-n && utf8.RuneCountInString(s.text[l.start:l.end]) > s.limit-n
}

// formatLine returns the output for a line: the whole line, or its beginning if it is too long.
func (s *search) formatLine(l line, mark byte) string {
	if !s.tooLong(l) {
		return prefix(l, mark) + s.text[l.start:l.end]
	}
	return s.formatExcerpt(l, mark, l.start, s.forward(l.start, l.end, min(s.lineWidth(l), excerptMargin)))
}

// lineWidth returns how many characters of a line fit into a response after its labels.
func (s *search) lineWidth(l line) int {
	n := s.limit - len(prefix(l, ':'))
	if s.limit >= minLabeled {
		n -= len(label(len(s.text), len(s.text)))
	}
	return max(n, 1)
}

func (s *search) formatExcerpt(l line, mark byte, start, end int) string {
	shown := prefix(l, mark)
	if s.limit >= minLabeled {
		shown += label(s.charAt(start), s.charAt(end))
	}
	shown += s.text[start:end]
	return shown[:advance(shown, s.limit)]
}

func prefix(l line, mark byte) string { return fmt.Sprintf("%d%c ", l.number, mark) }

func label(start, end int) string { return fmt.Sprintf("[characters %d to %d] ", start, end) }

// forward returns the offset n characters after another, at most end.
func (s *search) forward(offset, end, n int) int { return offset + advance(s.text[offset:end], n) }

// back returns the offset n characters before another, at least floor.
func (s *search) back(offset, floor, n int) int {
	for ; n > 0 && offset > floor; n-- {
		_, size := utf8.DecodeLastRuneInString(s.text[floor:offset])
		offset -= size
	}
	return offset
}

// byteAt converts an offset in characters to one in bytes.
func (s *search) byteAt(char int) int { return advance(s.text, char) }

// charAt converts an offset in bytes to one in characters. It counts from the offset of
// the last call, which is usually near.
func (s *search) charAt(offset int) int {
	if offset >= s.lastByte {
		s.lastChar += utf8.RuneCountInString(s.text[s.lastByte:offset])
	} else {
		s.lastChar -= utf8.RuneCountInString(s.text[offset:s.lastByte])
	}
	s.lastByte = offset
	return s.lastChar
}

// advance returns the length in bytes of the first n characters of a text, or of the whole
// text if it has fewer.
func advance(text string, n int) int {
	for i := range text {
		if n == 0 {
			return i
		}
		n--
	}
	return len(text)
}
