// Package words splits texts and names into search terms, and suggests similar names.
package words

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Terms yields the search terms of a text: the stems of its words, in lower case and
// without stop words.
func Terms(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for word := range Split(text) {
			if !stopWords[word] && !yield(Stem(word)) {
				return
			}
		}
	}
}

var stopWords = func() map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq("a an and are as at be by can for from i if in into is it its " +
		"of on or that " +
		"the this to was which will with you your") {
		set[word] = true
	}
	return set
}()

// maxWordLength is the maximum length of a word in characters. Longer runs are data and
// are split.
const maxWordLength = 100

// Split yields the words of a text in lower case. Names are split where letter case changes
// or digits begin or end: readFile, HTTPServer, base64. The unsplit word follows its parts,
// so that GitHub is found as github, too. In scripts without spaces, each character is a
// word.
func Split(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var word []rune // a run of letters and digits
		flush := func() bool {
			if len(word) == 0 {
				return true
			}
			start := 0
			for i := 1; i < len(word); i++ {
				if splitsBefore(word, i) {
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
			case isWordRune(r):
				if len(word) == maxWordLength && !flush() {
					return
				}
				word = append(word, r)
			case (r == '\'' || r == '’') && len(word) > 0:
				// The apostrophe in user's does not end the word.
			default:
				if !flush() {
					return
				}
			}
		}
		flush()
	}
}

func isWordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsNumber(r) || r >= utf8.RuneSelf && unicode.IsMark(r)
}

// splitsBefore reports whether a name is split before word[i].
func splitsBefore(word []rune, i int) bool {
	previous, r := word[i-1], word[i]
	if unicode.IsNumber(previous) != unicode.IsNumber(r) {
		return true
	}
	if !unicode.IsUpper(r) {
		return false
	}
	// The last capital of a run begins the next word (URLParser), unless the name ends
	// there or only a plural s follows (URLs).
	follows := i+1 < len(word) && unicode.IsLower(word[i+1])
	plural := follows && word[i+1] == 's' && (i+2 == len(word) || !unicode.IsLower(word[i+2]))
	return !unicode.IsUpper(previous) || follows && !plural
}

func lower(word []rune) string { return strings.ToLower(string(word)) }

// Joined returns a name in lower case with only its letters, digits and combining marks.
func Joined(name string) string {
	return strings.Map(func(r rune) rune {
		if isWordRune(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, name)
}

// Stem removes the endings of an English word in lower case, so that all its forms have
// the same stem. It removes endings until none is left, because forms of a word may have
// one ending or two. The stem need not be a word.
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
		// string and feed have no ending; stopped doubles the last letter of stop.
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
	// status, access, analysis, gas and yes are not plurals.
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

// Nearest returns up to three names that are similar to a misspelled name, the most
// similar first.
func Nearest(name string, names []string) (near []string) {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	for _, other := range names {
		limit := max(2, len(name)/3)
		d := Distance(strings.ToLower(name), strings.ToLower(other))
		if strings.Contains(other, name) {
			d = min(d, 1)
		}
		if d <= limit {
			found = append(found, candidate{other, d})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	for _, c := range found[:min(3, len(found))] {
		near = append(near, c.name)
	}
	return near
}

// Closest returns the known word that an unknown word probably stands for, or "". It is
// stricter than Nearest.
func Closest(word string, words []string) (meant string) {
	word = folded(word)
	limit := min(len(word)/3, 2)
	for _, candidate := range words {
		if distance := Distance(word, folded(candidate)); distance <= limit {
			meant, limit = candidate, distance-1
		}
	}
	return meant
}

// DidYouMean returns the suffix " (did you mean …?)" for an error about an unknown word,
// or "" if no word is similar.
func DidYouMean(word string, words []string) string {
	if meant := Closest(word, words); meant != "" {
		return " (did you mean " + meant + "?)"
	}
	return ""
}

// folded returns a word in lower case and without separators, so that maxChars, max-chars
// and max_chars are equal.
func folded(word string) string {
	return strings.NewReplacer("_", "", "-", "", ":", "").Replace(strings.ToLower(word))
}

// Distance returns the edit distance of two texts: how many characters to insert, remove,
// replace, or swap with the next one. It compares at most their first 200 characters.
func Distance(a, b string) int {
	const maxLength = 200
	from, to := []rune(a), []rune(b)
	from, to = from[:min(maxLength, len(from))], to[:min(maxLength, len(to))]
	var previous []int
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range from {
		next := make([]int, len(to)+1)
		next[0] = i + 1
		for j := range to {
			replaced := row[j]
			if from[i] != to[j] {
				replaced++
			}
			next[j+1] = min(replaced, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && from[i] == to[j-1] && from[i-1] == to[j] {
				next[j+1] = min(next[j+1], previous[j-1]+1)
			}
		}
		previous, row = row, next
	}
	return row[len(to)]
}
