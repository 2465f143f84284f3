// Package words finds the words of texts and names that people look for them by.
package words

import (
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Terms yields what a text is found by: its words, in lower case and without their
// endings, but for those that every text has.
func Terms(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for word := range In(text) {
			if !stop[word] && !yield(Stem(word)) {
				return
			}
		}
	}
}

var stop = func() map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq("a an and are as at be by can for from i if in into is it its of on or that the this to was which will with you your") {
		set[word] = true
	}
	return set
}()

// maxWord is how many characters a word has at most. What is longer is no word but
// data, and would be kept for nothing.
const maxWord = 100

// In yields the words of a text in lower case. Names are divided where case or
// kind changes: readFile, HTTPServer, base64. A word that was divided so is there as
// a whole as well, for nobody looks for GitHub as git and hub. Characters of scripts
// that write no spaces are words of their own.
func In(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var word []rune // a run of letters and digits
		flush := func() bool {
			if len(word) == 0 {
				return true
			}
			start := 0
			for i := 1; i < len(word); i++ {
				if divided(word, i) {
					if !yield(lower(word[start:i])) {
						return false
					}
					start = i
				}
			}
			if start > 0 && !yield(lower(word[start:])) {
				return false
			}
			whole := lower(word)
			word = word[:0]
			return yield(whole)
		}
		for _, r := range text {
			switch {
			case r >= utf8.RuneSelf && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana):
				if !flush() || !yield(string(r)) {
					return
				}
			case inWord(r):
				if len(word) == maxWord && !flush() {
					return
				}
				word = append(word, r)
			case (r == '\'' || r == '’') && len(word) > 0:
				// user's is a word
			default:
				if !flush() {
					return
				}
			}
		}
		flush()
	}
}

func inWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsNumber(r) || r >= utf8.RuneSelf && unicode.IsMark(r)
}

// divided reports whether a name is divided before word[i].
func divided(word []rune, i int) bool {
	before, r := word[i-1], word[i]
	if unicode.IsNumber(before) != unicode.IsNumber(r) {
		return true
	}
	if !unicode.IsUpper(r) {
		return false
	}
	// The last capital of a run begins the next word, unless it ends the name or
	// the plural of an abbreviation: URLParser, but URLs.
	follows := i+1 < len(word) && unicode.IsLower(word[i+1])
	plural := follows && word[i+1] == 's' && (i+2 == len(word) || !unicode.IsLower(word[i+2]))
	return !unicode.IsUpper(before) || follows && !plural
}

func lower(word []rune) string { return strings.ToLower(string(word)) }

// Joined is a name in lower case without anything that is not a letter or a digit.
func Joined(name string) string {
	return strings.Map(func(r rune) rune {
		if inWord(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, name)
}

// Stem takes the endings off an English word, so that its forms have one stem. It
// goes on until there is none left: then a form that has lost one ending and another
// that has lost two meet. What is left need not be a word.
func Stem(word string) string {
	for {
		shorter := withoutEnding(word)
		if shorter == word {
			return word
		}
		word = shorter
	}
}

func withoutEnding(word string) string {
	if len(word) < 3 {
		return word
	}
	for _, c := range []byte(word) {
		if c < 'a' || c > 'z' {
			return word
		}
	}
	without := func(ending string) (rest string, ok bool) {
		rest, ok = strings.CutSuffix(word, ending)
		return rest, ok && len(rest) > 2
	}
	for _, ending := range [...]string{"ies", "ied", "ie"} {
		if rest, ok := without(ending); ok {
			return rest + "y"
		}
	}
	for _, ending := range [...]string{"sses", "ches", "shes", "xes", "zes"} {
		if _, ok := without(ending); ok {
			return word[:len(word)-len("es")]
		}
	}
	for _, ending := range [...]string{"ing", "ed"} {
		// string and feed have no ending; stopped has one letter more than stop.
		rest, ok := without(ending)
		if !ok || !strings.ContainsAny(rest, "aeiouy") || ending == "ed" && strings.HasSuffix(rest, "e") {
			continue
		}
		last := rest[len(rest)-1]
		if len(rest) > 3 && last == rest[len(rest)-2] && !strings.ContainsRune("aeioulsz", rune(last)) {
			rest = rest[:len(rest)-1]
		}
		return rest
	}
	// status, access and analysis are no plurals, and neither are gas and yes.
	exceptions := "sui"
	if len(word) == 3 {
		exceptions = "aeiousy"
	}
	switch last := word[len(word)-1]; {
	case last == 'e' && len(word) > 3:
		return word[:len(word)-1]
	case last == 's' && !strings.ContainsRune(exceptions, rune(word[len(word)-2])):
		return word[:len(word)-1]
	}
	return word
}
