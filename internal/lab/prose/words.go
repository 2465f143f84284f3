package main

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed words.txt
var wordList string

// A word is an entry of the list.
type word struct {
	pattern *regexp.Regexp
	text    string
	instead string
}

var words = readWords(wordList)

func readWords(list string) (words []word) {
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		text, instead, _ := strings.Cut(line, "  ")
		pattern := strings.Join(strings.Fields(regexp.QuoteMeta(text)), `[\s/]+`)
		words = append(words, word{regexp.MustCompile(`(?i)\b` + pattern + `\b`), text, strings.TrimSpace(instead)})
	}
	return words
}

// checkWords reports the listed words in a text. The line is that of its beginning. Phrases that end
// with "no" may be followed by "longer".
func checkWords(text string, line int, report func(line int, text string)) {
	for _, w := range words {
		for _, at := range w.pattern.FindAllStringIndex(text, -1) {
			if strings.HasSuffix(w.text, " no") && strings.HasPrefix(strings.TrimSpace(text[at[1]:]), "longer") {
				continue
			}
			report(line+strings.Count(text[:at[0]], "\n"), `"`+w.text+`": write `+w.instead)
		}
	}
}
