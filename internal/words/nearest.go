package words

import (
	"cmp"
	"slices"
	"strings"
)

// Nearest returns the names that are similar to a misspelled one, the nearest first, and at most
// three.
func Nearest(name string, among []string) (near []string) {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	for _, other := range among {
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

// Meant returns the word that an unknown one was probably meant to be, or "". It takes fewer words for similar than
// Nearest does.
func Meant(word string, among []string) (meant string) {
	word = folded(word)
	limit := min(len(word)/3, 2)
	for _, candidate := range among {
		if distance := Distance(word, folded(candidate)); distance <= limit {
			meant, limit = candidate, distance-1
		}
	}
	return meant
}

// DidYouMean returns the end of an error about an unknown word, which names the word that was probably meant. It is
// empty if there is none.
func DidYouMean(word string, among []string) string {
	if meant := Meant(word, among); meant != "" {
		return " (did you mean " + meant + "?)"
	}
	return ""
}

// folded returns a word without the marks in which spellings differ: maxChars, max-chars, max_chars.
func folded(word string) string {
	return strings.NewReplacer("_", "", "-", "", ":", "").Replace(strings.ToLower(word))
}

// Distance returns how many characters to insert, remove, replace or swap with the next make one text
// of another. Long texts are compared by their beginnings.
func Distance(a, b string) int {
	const longest = 200
	from, to := []rune(a), []rune(b)
	from, to = from[:min(longest, len(from))], to[:min(longest, len(to))]
	var before []int
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
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(to)]
}
