package prune

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestLines(t *testing.T) { // P27
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"an empty text has none", "", []string{}},
		{"a text without an end of line has one", "a", []string{"a"}},
		{"an end of line begins no other", "a\n", []string{"a"}},
		{"two ends of line make an empty one", "a\n\n", []string{"a", ""}},
		{"an end of line alone is an empty line", "\n", []string{""}},
		{"line feeds", "a\nb\nc", []string{"a", "b", "c"}},
		{"carriage returns with line feeds", "a\r\nb\r\n", []string{"a", "b"}},
		{"carriage returns alone", "a\rb\r", []string{"a", "b"}},
		{"two carriage returns", "\r\r", []string{"", ""}},
		{"a carriage return before one with a line feed", "a\r\r\nb", []string{"a", "", "b"}},
		{"a line feed before a carriage return", "a\n\rb", []string{"a", "", "b"}},
		{"all of them", "a\rb\r\nc\nd", []string{"a", "b", "c", "d"}},
		{"form feed, vertical tab and the like end none", "a\fb\vc\u0085d\u2028e\u2029f\x1cg\x00h", []string{"a\fb\vc\u0085d\u2028e\u2029f\x1cg\x00h"}},
		{"bytes that are not UTF-8", "\xff\n\xc3\r\n\xe2\x80", []string{"\xff", "\xc3", "\xe2\x80"}},
		{"white space stays", " a \n\t\n", []string{" a ", "\t"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Lines(test.text); !slices.Equal(got, test.want) {
				t.Errorf("%q: got %q, want %q", test.text, got, test.want)
			}
		})
	}
}

func TestLinesWithTheirEndsAreTheText(t *testing.T) { // P27, P40
	random := rand.New(rand.NewPCG(27, 0))
	for range 5000 {
		var b strings.Builder
		for range random.IntN(30) {
			b.WriteString(pick(random, []string{"a", "é", "\n", "\r", "\r\n", "\u2028", "\xff", ""}))
		}
		text := b.String()
		l := split(text)
		var whole []string
		for i := range l.len() {
			whole = append(whole, l.whole(i))
			if want := withoutEnd(l.whole(i)); l.line(i) != want {
				t.Fatalf("%q: line %d is %q, want %q", text, i+1, l.line(i), want)
			}
		}
		if !slices.Equal(whole, wholeLines(text)) || strings.Join(whole, "") != text {
			t.Fatalf("%q: got %q", text, whole)
		}
	}
}
