package prune

import (
	"errors"
	"math"
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

func TestRecover(t *testing.T) {
	thousand := numbered(1000)
	for _, test := range []struct {
		name, text string
		ranges     []Range
		numbers    bool
		want       string
	}{
		{"P41 all lines", thousand, []Range{{1, 1000}}, false, strings.TrimSuffix(thousand, "\n")},
		{"P42 lines with their numbers", thousand, []Range{{120, 121}}, true, "120│ ligne 120\n121│ ligne 121"},
		{"P42 lines without their numbers", thousand, []Range{{120, 121}}, false, "ligne 120\nligne 121"},
		{"P42 lines with different line ends, joined with line feeds", "a\r\nb\rc\nd", []Range{{1, 4}}, false, "a\nb\nc\nd"},
		{"P43 ranges in the requested order", "a\nb\nc\nd\ne\nf", []Range{{5, 6}, {1, 2}, {5, 5}}, false, "e\nf\na\nb\ne"},
		{"P43 ranges that overlap", "a\nb\nc\nd", []Range{{1, 3}, {2, 4}}, true, "1│ a\n2│ b\n3│ c\n2│ b\n3│ c\n4│ d"},
		{"P43 a range twice", "a\nb", []Range{{2, 2}, {2, 2}}, false, "b\nb"},
		{"P44 an end after the last line", "a\nb\nc\n", []Range{{2, 99999}}, false, "b\nc"},
		{"P44 the largest end", "a\nb", []Range{{2, math.MaxInt}}, true, "2│ b"},
		{"an empty line first", "\n\nc", []Range{{1, 3}}, false, "\n\nc"},
		{"an empty line alone", "a\n\n", []Range{{2, 2}}, true, "2│ "},
		{"an empty line and another", "a\n\n", []Range{{2, 2}, {1, 1}}, false, "\na"},
		{"P34 P53 unchanged bytes", " \xff\u2028é\t\nb", []Range{{1, 1}}, false, " \xff\u2028é\t"},
		{"P39 a marker in the text", "⟦PRUNÉ: prune_id=x lignes 1-2 (2) raison=y⟧\nb", []Range{{1, 1}}, false,
			"⟦PRUNÉ: prune_id=x lignes 1-2 (2) raison=y⟧"},
		{"no ranges", "a\nb", nil, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Recover(test.text, test.ranges, test.numbers); err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestRecoverRefusesInvalidRanges(t *testing.T) { // P46
	for _, test := range []struct {
		name, text string
		ranges     []Range
	}{
		{"begins before the first line", "a\nb", []Range{{0, 1}}},
		{"begins far before the first line", "a\nb", []Range{{math.MinInt, 1}}},
		{"begins after the last line", "a\nb", []Range{{3, 3}}},
		{"begins after a final line end", "a\nb\n", []Range{{3, 3}}},
		{"begins far after the last line", "a\nb", []Range{{math.MaxInt, math.MaxInt}}},
		{"ends before it begins", "a\nb", []Range{{2, 1}}},
		{"ends before the first line", "a\nb", []Range{{1, 0}}},
		{"in a text without lines", "", []Range{{1, 1}}},
		{"after a valid range", "a\nb", []Range{{1, 2}, {2, 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Recover(test.text, test.ranges, false); !errors.Is(err, ErrRange) || got != "" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
