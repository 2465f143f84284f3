package prune

import (
	"strings"
	"unicode/utf8"
)

// A kind is a set of properties of a line, as far as its looks tell.
type kind uint16

const (
	blank      kind = 1 << iota
	bracket         // only punctuation
	comment         // or part of one
	header          // beginning of a file
	imported        // an import, or part of one
	decorator       // of the definition that follows
	definition      // of a function, a type or a module
	heading         // of a section
	fenced          // part of a fenced block
	joined          // kept or removed together with the line before
	failure         // in a log: reports that something failed
	severe          // in a log: reports something severe
	trace           // in a log: part of a stack trace
)

// An outline says how the lines of a text belong together.
type outline struct {
	kinds  []kind
	indent []int

	// The line of the definition or heading that a line is under, or -1. A definition is under the
	// enclosing one.
	parent []int

	// The block of a line: the lines of one definition, heading or log record, without those inside
	// it. Numbered from 0.
	block  []int
	blocks int

	// The paragraph of a line: a run without blank lines.
	paragraph  []int
	paragraphs int
}

func (o *outline) is(i int, k kind) bool { return o.kinds[i]&k != 0 }

// head returns the definition or heading of line i, which may be line i itself, or -1.
func (o *outline) head(i int) int {
	if o.is(i, definition|heading) {
		return i
	}
	return o.parent[i]
}

// outlineOf returns the outline of a text, or nil if stopped.
func outlineOf(l lines, source Source, stopped func() bool) *outline {
	n := l.len()
	o := &outline{
		kinds:     make([]kind, n),
		indent:    make([]int, n),
		parent:    make([]int, n),
		block:     make([]int, n),
		paragraph: make([]int, n),
	}
	for i := range n {
		if i%stride == 0 && stopped() {
			return nil
		}
		line := l.line(i)
		rest := strings.TrimLeft(line, " \t\f\v")
		o.indent[i] = columns(line[:len(line)-len(rest)])
		o.parent[i] = -1
		switch {
		case strings.TrimSpace(rest) == "":
			o.kinds[i] = blank
		case isPunctuation(rest):
			o.kinds[i] = bracket
		}
	}
	switch source {
	case Code:
		o.readCode(l)
	case Docs:
		o.readDocs(l)
	case Logs:
		o.readLogs(l)
	}
	o.numberParagraphs()
	return o
}

// stride is how many lines are read between checks of stopped.
const stride = 1024

// columns returns the width of leading white space; a tab has four columns.
func columns(space string) int {
	return len(space) + 3*strings.Count(space, "\t")
}

func isPunctuation(text string) bool {
	for i := 0; i < len(text); i++ {
		if c := text[i]; isLetter(c) || isDigit(c) || c == '_' || c >= 0x80 {
			return false
		}
	}
	return true
}

func (o *outline) numberParagraphs() {
	for i := range o.kinds {
		starts := o.is(i, definition|heading) && i > 0 && !o.is(i-1, comment|decorator)
		if i > 0 && (o.is(i, blank) != o.is(i-1, blank) || starts) {
			o.paragraphs++
		}
		o.paragraph[i] = o.paragraphs
	}
	o.paragraphs++
}

// readDocs finds headings and fences of Markdown, and headings of reStructuredText, AsciiDoc and
// HTML.
func (o *outline) readDocs(l lines) {
	var fence string // open fence
	var levels []int // levels of the enclosing headings
	var under []int  // their lines
	for i := 0; i < l.len(); i++ {
		text := strings.TrimSpace(l.line(i))
		mark := fenceOf(withoutBullets(text))
		switch {
		case fence != "":
			o.kinds[i] |= fenced | joined
			text = strings.TrimLeft(text, "> \t") // the block may be in a quotation
			if strings.HasPrefix(text, fence) && fenceOf(text) == text {
				fence = ""
			}
		case mark != "" && o.indent[i] <= maxFenceIndent:
			o.kinds[i] |= fenced
			fence = mark
		default:
			level := 0
			if o.indent[i] <= maxHeadingIndent {
				level = headingLevel(text)
			}
			if level == 0 && i+1 < l.len() && !o.is(i, blank|bracket) && (i == 0 || o.is(i-1, blank|bracket)) {
				level = underlineLevel(text, l.line(i+1))
			}
			if level == 0 {
				break
			}
			o.kinds[i] |= heading
			for len(levels) > 0 && levels[len(levels)-1] >= level {
				levels, under = levels[:len(levels)-1], under[:len(under)-1]
			}
			if len(under) > 0 {
				o.parent[i] = under[len(under)-1]
			}
			levels, under = append(levels, level), append(under, i)
			o.blocks++
			o.block[i] = o.blocks
			if isUnderline(l, i+1) && headingLevel(text) == 0 {
				i++
				o.kinds[i] |= heading | joined
				o.parent[i], o.block[i] = i-1, o.blocks
			}
			continue
		}
		o.block[i] = o.blocks
		if len(under) > 0 {
			o.parent[i] = under[len(under)-1]
		}
	}
	o.blocks++
}

// maxHeadingIndent is the largest indentation of a heading. Indented code has more, and comments in
// it look like headings.
const maxHeadingIndent = 3

// maxFenceIndent is the largest indentation of a fence. Fences in lists have less, those in code
// more.
const maxFenceIndent = 12

// withoutBullets returns a line without list bullets and quotation marks.
func withoutBullets(text string) string {
	for {
		rest := strings.TrimLeft(text, "0123456789")
		if len(rest) < len(text) && !strings.HasPrefix(rest, ". ") && !strings.HasPrefix(rest, ") ") {
			return text
		}
		if rest = strings.TrimLeft(rest, ">"); len(rest) == len(text) {
			if len(rest) < 2 || rest[1] != ' ' || strings.IndexByte("-*+.)", rest[0]) < 0 {
				return text
			}
			rest = rest[1:]
		} else if strings.HasPrefix(rest, ". ") || strings.HasPrefix(rest, ") ") {
			rest = rest[1:]
		}
		text = strings.TrimLeft(rest, " \t")
	}
}

// fenceOf returns the fence at the beginning of a line, or nothing.
func fenceOf(text string) string {
	for _, c := range [...]byte{'`', '~'} {
		n := 0
		for n < len(text) && text[n] == c {
			n++
		}
		if n >= 3 && (c == '~' || strings.IndexByte(text[n:], '`') < 0) {
			return text[:n]
		}
	}
	return ""
}

// headingLevel returns the level of a heading that its own line marks, or 0.
func headingLevel(text string) int {
	for _, c := range [...]byte{'#', '='} {
		n := 0
		for n < len(text) && text[n] == c {
			n++
		}
		if 0 < n && n <= 6 && n < len(text) && text[n] == ' ' && strings.TrimLeft(text[n:], "# =") != "" {
			return n
		}
	}
	if len(text) > 3 && text[0] == '<' && text[1]|0x20 == 'h' && '1' <= text[2] && text[2] <= '6' {
		return int(text[2] - '0')
	}
	return 0
}

// underlineLevel returns the level of a heading that the next line underlines, or 0.
func underlineLevel(text, next string) int {
	next = strings.TrimSpace(next)
	if len(next) < 3 || strings.Trim(next, next[:1]) != "" || strings.HasPrefix(text, "|") {
		return 0
	}
	// In Markdown, = and - underline a heading and may be shorter. Other underlines may not.
	if next[0] != '=' && next[0] != '-' && len(next) < utf8.RuneCountInString(text) {
		return 0
	}
	return 1 + strings.IndexByte("=-~^\"'*+#:", next[0])
}

func isUnderline(l lines, i int) bool {
	return i < l.len() && underlineLevel("", l.line(i)) > 0
}

// readLogs finds failures, stack traces, and the lines that belong to each record.
func (o *outline) readLogs(l lines) {
	open := false // in a trace
	for i := range l.len() {
		line := l.line(i)
		if hasFailureWord(line) {
			o.kinds[i] |= failure
		}
		if hasSevereWord(line) {
			o.kinds[i] |= severe
		}
		text := strings.TrimSpace(line)
		switch {
		case beginsTrace(text):
			o.kinds[i] |= trace
			open = true
		case open && (o.indent[i] > 0 && !o.is(i, blank) || isFrame(text)):
			o.kinds[i] |= trace
		case open && o.is(i, failure):
			// The last line of a Python trace.
			o.kinds[i] |= trace
			open = false
		case open && o.is(i, blank) && i+1 < l.len() && isFrame(strings.TrimSpace(l.line(i+1))):
			o.kinds[i] |= trace
		case isFrame(text):
			o.kinds[i] |= trace
			open = true
			if i > 0 && !o.is(i-1, blank) {
				o.kinds[i-1] |= trace // the cause precedes the first frame
			}
		default:
			open = false
		}
		if i > 0 && (o.indent[i] > 0 || o.is(i, blank)) {
			o.block[i] = o.blocks
			continue
		}
		o.blocks++
		o.block[i] = o.blocks
	}
	o.blocks++
}

// hasFailureWord reports whether a line has a word for a failure, ignoring case, but not if it says
// that there was no failure.
func hasFailureWord(line string) bool {
	for i := 0; i+5 <= len(line); i++ {
		switch line[i] | 0x20 {
		case 'e', 't':
			for _, word := range failures {
				named := i == 0 || !isLetter(line[i-1]) // not the end of a name, as in NullPointerException: null
				if hasFold(line[i:], word) && !(named && isNone(line[i+len(word):])) {
					return true
				}
			}
		}
	}
	return false
}

var failures = [...]string{"error", "exception", "traceback"}

// isNone reports whether a word for a failure is followed by an empty value, as in "error":null or
// errors=0, and not by a sentence, as in "error: null value in column".
func isNone(rest string) bool {
	rest = strings.TrimLeft(rest, "sS")
	value := strings.TrimLeft(rest, "\"' ")
	if value == "" || value[0] != ':' && value[0] != '=' {
		return false
	}
	sentence := strings.HasPrefix(value, ": ") // perhaps
	value = strings.TrimLeft(value[1:], " ")
	for _, none := range [...]string{"null", "nil", "none", "<nil>", "false", "0", `""`, "''"} {
		if !hasFold(value, none) {
			continue
		}
		after := value[len(none):]
		if after == "" || after[0] == ' ' {
			return !sentence || !beginsWithWord(after)
		}
		if c := after[0]; !isLetter(c) && !isDigit(c) && strings.IndexByte(".-_:", c) < 0 {
			return true
		}
	}
	return false
}

// beginsWithWord reports whether a text begins with a word that is not the name of a field.
func beginsWithWord(text string) bool {
	text = strings.TrimLeft(text, " ")
	word := firstWord(text)
	rest := text[len(word):]
	return word != "" && !strings.HasPrefix(rest, ":") && !strings.HasPrefix(rest, "=")
}

// hasSevereWord reports whether a line has another word for a problem.
func hasSevereWord(line string) bool {
	for i := 0; i < len(line); i++ {
		if !isLetter(line[i]) || i > 0 && isLetter(line[i-1]) {
			continue
		}
		for _, word := range severities[line[i]|0x20-'a'] {
			if hasFold(line[i:], word) {
				return true
			}
		}
	}
	return false
}

// severities are words for problems, by first letter.
var severities = func() (words [26][]string) {
	for word := range strings.FieldsSeq(`warn fatal critical crit panic severe alert emerg fail abort killed kill
		denied refused reject timeout timed
		unreachable unavailable exhausted corrupt invalid oom segfault core deadlock leak dropped lost retry retries`) {
		words[word[0]-'a'] = append(words[word[0]-'a'], word)
	}
	return words
}()

// template returns a line without variable parts: numbers, and words with digits such as ids and
// times.
func template(line string, into []byte) []byte {
	into = into[:0]
	for i := 0; i < len(line); {
		start, digits := i, false
		for i < len(line) && (isLetter(line[i]) || isDigit(line[i])) {
			digits = digits || isDigit(line[i])
			i++
		}
		switch {
		case digits:
			into = append(into, '0')
		case i > start:
			into = append(into, line[start:i]...)
		default:
			into = append(into, line[i])
			i++
		}
	}
	return into
}

func hasFold(text, prefix string) bool {
	return len(text) >= len(prefix) && strings.EqualFold(text[:len(prefix)], prefix)
}

func beginsTrace(text string) bool {
	return strings.HasPrefix(text, "Traceback (most recent call last)") || strings.HasPrefix(text, "panic: ") ||
		strings.HasPrefix(text, "fatal error: ") || strings.HasPrefix(text, "goroutine ") && strings.HasSuffix(text, "]:") ||
		strings.HasPrefix(text, "Exception in thread ") || strings.HasPrefix(text, "Caused by: ") ||
		strings.HasPrefix(text, "thread '") && strings.Contains(text, "panicked at") ||
		strings.HasPrefix(text, "Unhandled exception")
}

// isFrame reports whether a line is a stack frame.
func isFrame(text string) bool {
	switch {
	case strings.HasPrefix(text, "at "):
		return strings.ContainsAny(text, "(:")
	case strings.HasPrefix(text, "File \""):
		return strings.Contains(text, ", line ")
	case strings.HasPrefix(text, "... "):
		return strings.HasSuffix(text, " more")
	case strings.HasPrefix(text, "goroutine "):
		return strings.HasSuffix(text, "]:")
	case strings.HasPrefix(text, "created by "):
		return true
	}
	// Go: main.run(0x1, 0x2) and /src/main.go:12 +0x1d
	return strings.Contains(text, ".go:") && strings.Contains(text, " +0x") ||
		strings.HasSuffix(text, ")") && strings.Contains(text, "(0x")
}
