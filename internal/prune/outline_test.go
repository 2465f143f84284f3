package prune

import (
	"slices"
	"testing"
)

func TestParagraphs(t *testing.T) { // P77
	for _, test := range []struct {
		name   string
		source Source
		text   string
		want   string
	}{
		{"up to a blank line", Docs, "a\nb\n\n \nc\n", "aabbc"},
		{"up to a definition", Code, "x = 1\ndef f():\n    a\ndef g():\n    b\n", "abbcc"},
		{"a comment goes with its definition", Code, "x = 1\n# of f\ndef f():\n    a\n", "aaaa"},
		{"up to a heading", Docs, "a\n# B\nb\n", "abb"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := outlineOf(split(test.text), test.source, never)
			if got := lettered(o.paragraph); got != test.want || o.paragraphs != int(slices.Max([]byte(test.want))-'a')+1 {
				t.Errorf("got %s, %d of them, want %s", got, o.paragraphs, test.want)
			}
		})
	}
}

func TestLooksOfALine(t *testing.T) {
	for _, test := range []struct {
		line   string
		indent int
		kind   kind
	}{
		{"a", 0, 0},
		{"  a", 2, 0},
		{"\ta", 4, 0},
		{" \t a", 6, 0},
		{"", 0, blank},
		{" \u00a0\t", 1, blank},
		{"});", 0, bracket},
		{"  ---", 2, bracket},
		{"_", 0, 0},
		{"é", 0, 0},
		{"0", 0, 0},
	} {
		o := outlineOf(split("first\n"+test.line+"\n"), Logs, never)
		if o.kinds[1] != test.kind || o.indent[1] != test.indent {
			t.Errorf("%q: %b, indented by %d, want %b and %d", test.line, o.kinds[1], o.indent[1], test.kind, test.indent)
		}
	}
}

func never() bool { return false }
