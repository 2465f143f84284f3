package tokens

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// The expected counts come from the npm package tiktoken 1.0.22, which contains OpenAI's own code.
func TestCount(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"an empty text", "", 0},
		{"a sentence", "The quick brown fox jumps over the lazy dog.", 10},
		{"code", "func main() {\n\tfmt.Println(\"hello\", 12345)\n}\n", 14},
		{"joined words", "parseHTTPResponseCode XMLHttpRequest snake_case_name", 9},
		{"contractions", "I'll we've THEY'RE don't it's he'd I'm 'tis o'clock", 13},
		{"a contraction with a long s", "x'\u017f'street", 5},
		{"numbers in groups of three digits", "1234567 3.14159 ½ ٣٤٥٦", 15},
		{"symbols with slashes and newlines after them", "a != b //\n\n/ https://example.com/a/b", 11},
		{"white space of all kinds", " a  b   \n\n  c\t\td \u00a0\u3000e  ", 12},
		{"white space alone", "   \n \n  ", 3},
		{"capitals after letters without case", "中ABC文DEf ªBC", 8},
		{"marks after letters and alone", "e\u0301te\u0301 \u0301ABC \u0301", 9},
		{"Chinese", "我们在这里讨论如何计算令牌的数量。", 11},
		{"Hindi", "नमस्ते दुनिया", 5},
		{"emoji", "👩\u200d💻 👍🏽 🇩🇪", 12},
		{"the name of a special token", "<|endoftext|>", 7},
		{"a long run of one letter", strings.Repeat("a", 10_000), 1250},
		{"a long run of spaces", strings.Repeat(" ", 10_000), 79},
		{"a long run of a syllable", strings.Repeat("lo", 5_000), 4999},
		{"a long run of ideographs", strings.Repeat("中文", 2_000), 2000},
		{"bytes that are not UTF-8", strings.Repeat("a\xff\xfeb", 300), 601},
		{"many bytes that are not UTF-8 in a piece", strings.Repeat(" "+strings.Repeat("\xf1\xff", 100), 3), 78},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Count(tt.text); got != tt.want {
				t.Errorf("%d tokens, want %d", got, tt.want)
			}
		})
	}
}

// Pieces cover the whole text and all its tokens.
func TestPieces(t *testing.T) {
	const text = "func f() {\n\treturn 1234\n}\n"
	var pieces []string
	var tokens []int
	last := 0
	for offset, n := range Pieces(text) {
		if offset > last {
			pieces = append(pieces, text[last:offset])
		}
		tokens = append(tokens, n)
		last = offset
	}
	pieces = append(pieces, text[last:])
	if want := []string{"func", " f", "()", " {\n", "\treturn", " ", "123", "4", "\n", "}\n"}; !slices.Equal(pieces,
		want) {
		t.Errorf("pieces %q, want %q", pieces, want)
	}
	if want := []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}; !slices.Equal(tokens, want) {
		t.Errorf("tokens %v, want %v", tokens, want)
	}
	for range Pieces(text) {
		break
	}
}

// classOf agrees with the regular expression for every character, including its shortcut ranges.
func TestClasses(t *testing.T) {
	tables := []struct {
		class  class
		tables []*unicode.RangeTable
	}{
		{upper, []*unicode.RangeTable{unicode.Lu, unicode.Lt}},
		{lower, []*unicode.RangeTable{unicode.Ll}},
		{letter, []*unicode.RangeTable{unicode.Lm, unicode.Lo}},
		{mark, []*unicode.RangeTable{unicode.M}},
		{number, []*unicode.RangeTable{unicode.N}},
		{space, []*unicode.RangeTable{unicode.White_Space}},
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		want := other
		for _, table := range tables {
			if unicode.In(r, table.tables...) {
				want = table.class
				break
			}
		}
		if r == '\r' || r == '\n' {
			want = newline
		}
		if got := classOf(r); got != want {
			t.Errorf("%U is of class %b, want %b", r, got, want)
		}
	}
}

// Both merge algorithms give the same number of tokens.
func TestMergesOfOneLength(t *testing.T) {
	const text = " internationalizationofunbelievablystrangeandcounterproductivenesses"
	for start := range len(text) - 2 {
		for end := start + 2; end <= min(len(text), start+maxLinearMerge); end++ {
			m := new(merger)
			m.merge(text[start:end])
			n := 0
			for i := 0; i < end-start; i += m.length(i) {
				n++
			}
			if got := mergeShort(text[start:end]); got != n {
				t.Errorf("%q: %d tokens, with the tree %d", text[start:end], got, n)
			}
		}
	}
}

// The number of tokens does not depend on the window size, even if the first windows are
// too small to be joined.
func TestWindows(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		letters := "etaoinshrdlu"[:1+random.IntN(12)]
		unit := make([]byte, 1+random.IntN(300))
		for i := range unit {
			unit[i] = letters[random.IntN(len(letters))]
		}
		piece := strings.Repeat(string(unit), 1+random.IntN(1500)/len(unit))
		want := mergeByWindows(piece, len(piece))
		for _, size := range []int{32, 48, window} {
			if got := mergeByWindows(piece, size); got != want {
				t.Fatalf("%q: %d tokens with windows of %d, without windows %d", piece, got, size, want)
			}
		}
	}
}

func TestCountAllocatesNothing(t *testing.T) {
	for _, text := range []string{"short text", strings.Repeat("some words, in a text.\n", 100)} {
		Count(text)
		if n := testing.AllocsPerRun(100, func() { Count(text) }); n >= 1 {
			t.Errorf("%v allocations for %.20q", n, text)
		}
	}
}

func FuzzCount(f *testing.F) {
	f.Add("func main() {}\n")
	f.Add(" \n\n  a'll 1234 \xff\xfe 中文 e\u0301")
	f.Add(strings.Repeat("ab", 700))
	f.Add(strings.Repeat("\xff", 700))
	f.Fuzz(func(t *testing.T, text string) {
		sum, last, alone := 0, -1, 0
		for offset, n := range Pieces(text) {
			switch {
			case last < 0 && offset != 0, last >= offset:
				t.Fatalf("a piece begins at %d, after one at %d", offset, last)
			case n < 1:
				t.Fatalf("the piece at %d has %d tokens", offset, n)
			}
			if last >= 0 {
				alone += countPiece(text[last:offset])
			}
			last = offset
			sum += n
		}
		if last >= 0 {
			alone += countPiece(text[last:])
		}
		if n := Count(text); n != sum || n != alone {
			t.Errorf("Count %d, sum of Pieces %d, sum of Count of each piece %d", n, sum, alone)
		}
		if n := Count(string([]rune(text))); n != sum {
			t.Errorf("%d tokens, with U+FFFD %d", sum, n)
		}
		if sum > 3*len(text) || utf8.ValidString(text) && sum > len(text) {
			t.Errorf("%d tokens of %d bytes", sum, len(text))
		}
	})
}
