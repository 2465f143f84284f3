package prune

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

func TestLinesWithAWord(t *testing.T) { // P32
	l := split("One two\r\nTWO two\n\nthree\rTwo").lower()
	if got := l.containing("two"); !slices.Equal(got, []int{0, 1, 4}) || l.len() != 5 {
		t.Errorf("lines %v of %d contain it", got, l.len())
	}
	if got := l.containing("four"); got != nil {
		t.Errorf("lines %v contain a word that is not in the text", got)
	}
}

func TestTokensOfLines(t *testing.T) { // P78
	for _, text := range []string{"", "one\n", "a = 1\n\n\n    b = 22222\n", "no end", "\r\n\r\n  x\r", "⟦PRUNÉ⟧\n数据库\n",
		"x\n" + strings.Repeat("\t \n", 300) + "y", strings.Repeat("//\n", 90)} {
		l := split(text)
		total := 0
		for _, n := range l.tokens() {
			total += n
		}
		if want := tokens.Count(text); total != want || len(l.tokens()) != l.len() {
			t.Errorf("%q: the lines are %d tokens, the text %d", text, total, want)
		}
	}
}

func TestLines(t *testing.T) { // P27
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"an empty text has no lines", "", []string{}},
		{"a text without a line end has one line", "a", []string{"a"}},
		{"a line end does not begin another line", "a\n", []string{"a"}},
		{"an empty line is between two line ends", "a\n\n", []string{"a", ""}},
		{"a line end alone is an empty line", "\n", []string{""}},
		{"line feeds", "a\nb\nc", []string{"a", "b", "c"}},
		{"carriage returns with line feeds", "a\r\nb\r\n", []string{"a", "b"}},
		{"carriage returns alone", "a\rb\r", []string{"a", "b"}},
		{"two carriage returns", "\r\r", []string{"", ""}},
		{"a carriage return before one with a line feed", "a\r\r\nb", []string{"a", "", "b"}},
		{"a line feed before a carriage return", "a\n\rb", []string{"a", "", "b"}},
		{"all kinds of line ends", "a\rb\r\nc\nd", []string{"a", "b", "c", "d"}},
		{"form feed, vertical tab and other separators do not end lines", "a\fb\vc\u0085d\u2028e\u2029f\x1cg\x00h",
			[]string{"a\fb\vc\u0085d\u2028e\u2029f\x1cg\x00h"}},
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

// A token that spans many lines is divided among them.
func TestTokensOfBlankLines(t *testing.T) { // P78
	costs := split("x\n" + strings.Repeat("\t \n", 400) + "y\n").tokens()
	total := 0
	for _, n := range costs {
		total += n
	}
	if costs[0] > total/10 {
		t.Errorf("the first line costs %d of %d tokens", costs[0], total)
	}
}
