package recovery

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// A line that is longer than a whole answer, as JSON often is, is shown by
	// excerpts: so many characters on either side of what matches, and so many in all.
	aroundMatch = 200
	maxExcerpt  = 600

	// Answers of fewer characters have no room to say where an excerpt stands.
	minLabelled = 120
)

// A search shows the lines of a text that match, as grep -n -C does. Lines end with
// \n and nothing else. Where one has carriage returns in it, it is several to those who
// count lines, and has the number of the first.
type search struct {
	arguments
	text  string
	limit int // characters of an answer
	room  int // how many are left
	work  int // steps that are left

	out   strings.Builder
	found int
	shown int // where the line after the last one shown begins, or 0

	// The place whose number was asked for last, in bytes and in characters.
	placeByte, placeChar int
}

func newSearch(a arguments, text string, limit int) *search {
	if limit <= 0 {
		limit = math.MaxInt
	}
	// To look through the text once is never too much. Only a line that is shown by
	// excerpts is searched anew after each of them, and for that there is as much.
	return &search{arguments: a, text: text, limit: limit, room: limit, work: 2 * maxWork}
}

// A line of the text, without its end.
type line struct {
	number     int // from 1
	start, end int // bytes
}

// lineAt returns the line that begins at start, which is behind the end if the last
// one had none.
func (s *search) lineAt(number, start int) line {
	start = min(start, len(s.text))
	end := len(s.text)
	if n := strings.IndexByte(s.text[start:], '\n'); n >= 0 {
		end = start + n
	}
	return line{number, start, end}
}

// next returns the line after another.
func (s *search) next(l line) line {
	end := min(l.end+1, len(s.text))
	return s.lineAt(l.number+lineBreaks(s.text[l.start:end]), l.end+1)
}

// run shows the lines that match between two places in bytes. It returns where to go
// on, or -1.
func (s *search) run(from, to int) (next int) {
	start := strings.LastIndexByte(s.text[:from], '\n') + 1
	l := s.lineAt(lineBreaks(s.text[:start])+1, start)
	after, full := 0, false // lines to show behind a match; no room for them
	for ; l.start < len(s.text) && (l.start < to || after > 0 && !full); l = s.next(l) {
		at, end := max(l.start, from), min(l.end, to)
		var match []int
		if l.start < to {
			match = s.match(l, at, end)
		}
		if match == nil && after > 0 && !full {
			full = !s.show(l, s.whole(l, '-'))
		}
		after--
		for first := true; match != nil; first = false {
			if full || s.found == s.matches || s.work < 0 {
				return at
			}
			shown, rest := s.matched(l, at, first, match)
			if first && !s.showMatch(l, shown) || !first && !s.write(shown) {
				return at
			}
			s.found++
			after = s.context
			if at, match = rest, nil; rest < end {
				match = s.match(l, at, end)
			}
		}
	}
	return -1
}

// match returns what matches in a line between two places, or nil.
func (s *search) match(l line, at, end int) []int {
	if at == end && l.start < l.end {
		return nil // only the end of the line is asked for
	}
	s.work -= s.steps * (end - at)
	match := s.pattern.FindStringIndex(s.text[at:end])
	if match != nil {
		match[0], match[1] = match[0]+at, match[1]+at
	}
	return match
}

// matched returns how a line that matches is shown, and where in it to go on.
func (s *search) matched(l line, at int, first bool, match []int) (shown string, rest int) {
	if !s.tooLong(l) {
		return s.whole(l, ':'), l.end
	}
	if first {
		at = l.start
	}
	width := min(s.space(l), maxExcerpt)
	start := s.back(match[0], at, min(aroundMatch, width/3))
	rest = min(s.forward(match[1], l.end, aroundMatch), s.forward(start, l.end, width))
	return s.excerpt(l, ':', start, rest), rest
}

// showMatch shows a line that matches, and the lines before it, but for those there
// is no room for. It reports whether there was room for the line.
func (s *search) showMatch(l line, shown string) bool {
	var lines []line
	for p := l; len(lines) < s.context && p.start > s.shown; {
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
			all += s.whole(p, '-') + "\n"
		}
		if s.show(first, all+shown) {
			s.shown = l.end + 1
			return true
		}
		// What finds no room beside other matches finds more of it in the next answer.
		if s.found > 0 || len(lines) == 0 {
			return false
		}
		lines = lines[1:]
	}
}

// show shows a line, or some of which l is the first, if there is room.
func (s *search) show(l line, shown string) bool {
	if s.out.Len() > 0 && l.start != s.shown {
		shown = "--\n" + shown
	}
	if !s.write(shown) {
		return false
	}
	s.shown = l.end + 1
	return true
}

func (s *search) write(shown string) bool {
	if s.out.Len() > 0 {
		shown = "\n" + shown
	}
	n := utf8.RuneCountInString(shown)
	if n > s.room {
		return false
	}
	s.room -= n
	s.out.WriteString(shown)
	return true
}

// tooLong reports whether a line finds no room in any answer.
func (s *search) tooLong(l line) bool {
	n := len(prefix(l, ':'))
	return l.end-l.start > s.limit-n && utf8.RuneCountInString(s.text[l.start:l.end]) > s.limit-n
}

// whole returns how a line is shown: as a whole, or by its beginning.
func (s *search) whole(l line, mark byte) string {
	if !s.tooLong(l) {
		return prefix(l, mark) + s.text[l.start:l.end]
	}
	return s.excerpt(l, mark, l.start, s.forward(l.start, l.end, min(s.space(l), aroundMatch)))
}

// space is how many characters of a line that is too long are shown at most.
func (s *search) space(l line) int {
	n := s.limit - len(prefix(l, ':'))
	if s.limit >= minLabelled {
		n -= len(label(len(s.text), len(s.text)))
	}
	return max(n, 1)
}

func (s *search) excerpt(l line, mark byte, start, end int) string {
	shown := prefix(l, mark)
	if s.limit >= minLabelled {
		shown += label(s.charAt(start), s.charAt(end))
	}
	shown += s.text[start:end]
	return shown[:advance(shown, s.limit)]
}

func prefix(l line, mark byte) string { return fmt.Sprintf("%d%c ", l.number, mark) }

func label(start, end int) string { return fmt.Sprintf("[characters %d to %d] ", start, end) }

// forward returns the place n characters after another, or end if that comes first.
func (s *search) forward(place, end, n int) int { return place + advance(s.text[place:end], n) }

// back returns the place n characters before another, or floor if that comes first.
func (s *search) back(place, floor, n int) int {
	for ; n > 0 && place > floor; n-- {
		_, size := utf8.DecodeLastRuneInString(s.text[floor:place])
		place -= size
	}
	return place
}

// byteAt returns where a character begins.
func (s *search) byteAt(char int) int { return advance(s.text, char) }

// charAt returns how many characters there are before a place. Those that are asked
// for lie near each other, so it counts from the last one.
func (s *search) charAt(place int) int {
	if place >= s.placeByte {
		s.placeChar += utf8.RuneCountInString(s.text[s.placeByte:place])
	} else {
		s.placeChar -= utf8.RuneCountInString(s.text[place:s.placeByte])
	}
	s.placeByte = place
	return s.placeChar
}

// advance returns how many bytes the first n characters of a text take, or all of it
// if it has fewer.
func advance(text string, n int) int {
	for i := range text {
		if n == 0 {
			return i
		}
		n--
	}
	return len(text)
}
