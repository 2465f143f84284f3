package toolsearch

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSummary is the maximum length of a summary in characters.
const maxSummary = 200

// summary returns the first sentence of the first line of a text, up to maxSummary.
func summary(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	for i, r := range line {
		if end := i + utf8.RuneLen(r); r == '。' || strings.ContainsRune(".!?", r) && endsSentence(line[end:]) {
			line = line[:end]
			break
		}
	}
	short := truncate(line, maxSummary)
	if len(short) == len(line) {
		return line
	}
	return truncate(short, maxSummary-1) + "…"
}

// endsSentence reports whether a full stop before rest ends a sentence. Those in "e.g."
// do not.
func endsSentence(rest string) bool {
	next := strings.TrimSpace(rest)
	if next == "" || len(next) == len(rest) {
		return next == ""
	}
	r, _ := utf8.DecodeRuneInString(next)
	return !unicode.IsLower(r)
}

// truncate returns at most the first n characters of a text.
func truncate(text string, n int) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}
