package words

import (
	"cmp"
	"slices"
	"strings"
)

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
