package prune

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestShortened(t *testing.T) {
	filler := strings.Repeat("lorem ipsum ", 50)
	for _, test := range []struct {
		name, line, goal string
		most             int
		want             string
	}{
		{"a term of the goal in the middle", filler + "the needle" + filler, "find the needle", 20,
			"…um the needlelorem…"},
		{"at the beginning", "Needle " + filler, "needle", 20, "Needle lorem ipsum…"},
		{"at the end", filler + "needle", "needle", 20, "…lorem ipsum needle"},
		{"no term of the goal", filler, "needle", 10, "lorem ip…"},
		{"the rarer term", "a cat " + filler + "a cat " + filler + "a dog " + filler, "cat and dog", 12, "…m a dog lo…"},
		{"two terms close together", "dog " + filler + "a cat and a dog " + filler, "cat and dog", 20,
			"… a cat and a dog l…"},
		{"characters, not bytes", strings.Repeat("日本", 50), "needle", 6, "日本日本…"},
		{"no room", filler, "needle", 1, "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := bestExcerpt(test.line, parseGoal(test.goal), test.most)
			if utf8.RuneCountInString(got) > max(1, test.most) {
				t.Errorf("%q has more than %d characters", got, test.most)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
