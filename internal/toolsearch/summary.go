package toolsearch

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSummary is how many characters a summary has at most.
const maxSummary = 200

// summary returns the first sentence of the first line of a text.
func summary(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	for i, r := range line {
		if end := i + utf8.RuneLen(r); r == '。' || strings.ContainsRune(".!?", r) && endsSentence(line[end:]) {
			line = line[:end]
			break
		}
	}
	short := cut(line, maxSummary)
	if len(short) == len(line) {
		return line
	}
	return cut(short, maxSummary-1) + "…"
}

// endsSentence reports whether a full stop before rest ends a sentence: the one in
// e.g. does not.
func endsSentence(rest string) bool {
	next := strings.TrimSpace(rest)
	if next == "" || len(next) == len(rest) {
		return next == ""
	}
	r, _ := utf8.DecodeRuneInString(next)
	return !unicode.IsLower(r)
}

// cut returns the first n characters of a text.
func cut(text string, n int) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}
