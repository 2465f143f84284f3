package prune

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// sampleLines is about how many lines are examined to detect the source.
const sampleLines = 400

// detect returns the most likely source of a text, by the looks of its lines. It samples lines from
// the whole text, except in comments of code and fenced blocks of documents, which may contain
// anything.
func detect(l lines) Source {
	var seen, records, prose, code int
	var end string // end of the open comment or fenced block
	last := map[string]int{
		commentEnd: strings.LastIndex(l.text, commentEnd),
		fenceEnd:   strings.LastIndex(l.text, fenceEnd),
	}
	step := max(1, l.len()/sampleLines)
	for i := range l.len() {
		text := l.line(i)
		text = strings.TrimSpace(text[:min(len(text), maxExamined)])
		if end != "" {
			if strings.Contains(text, end) {
				end = ""
			}
			continue
		}
		end = blockCloser(text)
		if end != "" && last[end] < l.starts[i+1] {
			end = "" // not closed below this line
		}
		if i%step != 0 || text == "" || isPunctuation(text) {
			continue
		}
		seen++
		switch {
		case isRecord(text):
			records++
		case strings.HasPrefix(text, "#") && !l.isHeading(i) || looksCode(text):
			code++
		case looksProse(text):
			prose++
		}
	}
	switch {
	case 3*records > seen:
		return Logs
	case prose > code:
		return Docs
	}
	return Code
}

// Ends of comments and fenced blocks, which detect skips.
const (
	commentEnd = "*/"
	fenceEnd   = "```"
)

// blockCloser returns what ends the comment or fenced block that a line opens, or "".
func blockCloser(text string) string {
	if rest, ok := strings.CutPrefix(text, "/*"); ok && !strings.Contains(rest, commentEnd) {
		return commentEnd
	}
	if strings.HasPrefix(fenceOf(text), fenceEnd) {
		return fenceEnd
	}
	return ""
}

// isHeading reports whether line i is a Markdown heading. It is not indented, and unlike the lines of
// a comment it has no neighbors that begin with #.
func (l lines) isHeading(i int) bool {
	hasHash := func(i int) bool { return 0 <= i && i < l.len() && strings.HasPrefix(l.line(i), "#") }
	return headingLevel(l.line(i)) > 0 && hasHash(i) && !hasHash(i-1) && !hasHash(i+1)
}

// maxExamined is how many bytes of a line are examined.
const maxExamined = 200

// isRecord reports whether a line looks like a log record: it begins with a time or a level, or
// belongs to a stack trace or test output.
func isRecord(text string) bool {
	return hasTime(text) || hasLevel(strings.TrimLeft(text, "[(<{\"'")) || isFrame(text) || isTestOutput(text)
}

// hasTime reports whether a line has a time such as 12:30:59 or a date such as 2006-01-02 near its
// beginning.
func hasTime(text string) bool {
	const near = 60
	text = text[:min(len(text), near)]
	for i := range len(text) {
		for _, form := range [...]string{"00:00:00", "0000-00-00", "0000/00/00"} {
			if hasForm(text[i:], form) {
				return true
			}
		}
	}
	return false
}

// hasForm reports whether text begins with form, in which 0 matches any digit.
func hasForm(text, form string) bool {
	if len(text) < len(form) {
		return false
	}
	for i := range len(form) {
		if form[i] == '0' && !isDigit(text[i]) || form[i] != '0' && form[i] != text[i] {
			return false
		}
	}
	return true
}

// hasLevel reports whether a line begins with a log level or has a level field.
func hasLevel(text string) bool {
	for _, level := range [...]string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "level=", "level\":"} {
		if rest, ok := strings.CutPrefix(text, level); ok && (rest == "" || !isLetter(rest[0]) || level == "WARN") {
			return true
		}
	}
	return strings.Contains(text, " level=") || strings.Contains(text, "\"level\":")
}

// isTestOutput reports whether a line is output of a test runner.
func isTestOutput(text string) bool {
	return hasAnyPrefix(text, "=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- PASS", "--- FAIL", "--- SKIP",
		"ok  \t", "FAIL\t", "PASS:", "FAIL:")
}

func hasAnyPrefix(text string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// codeSigns are common in code and rare in documents.
var codeSigns = [...]string{" = ", " := ", " => ", "->", "::", "();", "self."}

// looksCode reports whether a line looks like code.
func looksCode(text string) bool {
	if isRSTDirective(text) {
		return false
	}
	if strings.IndexByte("{};(\\", text[len(text)-1]) >= 0 || hasAnyPrefix(text, "//", "/*", "return ") {
		return true
	}
	for _, sign := range codeSigns {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return isMember(withoutBullets(text)) || isImport(text) || isDefinition(text) || isDecorator(text)
}

// isMember reports whether a line is a name and a colon, as in YAML, with or without a value.
func isMember(text string) bool {
	name, rest, found := strings.Cut(text, ":")
	return found && name != "" && (rest == "" || rest[0] == ' ') && strings.IndexFunc(name, notInKey) < 0
}

func notInKey(r rune) bool {
	return r >= utf8.RuneSelf || !isNameByte(byte(r)) && strings.IndexByte("_-.", byte(r)) < 0
}

// isRSTDirective reports whether a line is a reStructuredText directive.
func isRSTDirective(text string) bool { return strings.HasPrefix(text, ".. ") }

// looksProse reports whether a line looks like a document: a heading, a list item, or words separated
// by blanks.
func looksProse(text string) bool {
	if headingLevel(text) > 0 || isRSTDirective(text) || withoutBullets(text) != text || text[0] == '|' {
		return true
	}
	letters, blanks := 0, 0
	for i := range len(text) {
		switch c := text[i]; {
		case isLetter(c) || c >= 0x80:
			letters++
		case c == ' ':
			blanks++
		}
	}
	return blanks >= 3 && 100*(letters+blanks) >= 88*len(text)
}
