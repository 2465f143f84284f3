package prune

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// Of each row the pieces and symbols are counted by hand: words have one per seven
// letters begun, numbers one per three digits, other symbols count 0.55, all by 0.94.
func TestEstimateTokens(t *testing.T) { // P78
	for _, test := range []struct {
		name, text      string
		pieces, symbols float64
		want            int
	}{
		{"nothing", "", 0, 0, 0},
		{"white space is free", " \t\r\n\f\v  ", 0, 0, 0},
		{"a short word", "cat", 1, 0, 1},
		{"seven letters", "network", 1, 0, 1},
		{"eight letters", "networks", 2, 0, 2},
		{"fifteen letters", "internationaliz", 3, 0, 3},
		{"words", "the cat sat on the mat", 6, 0, 6},
		{"accents are letters", "prunée", 1, 0, 1},
		{"letters are counted, not bytes", "éééèèèà", 1, 0, 1},
		{"eight letters with accents", "éééèèèàà", 2, 0, 2},
		{"an accent of its own is a symbol", "e\u0301t", 2, 1, 2},
		{"Chinese, whose characters are words", "数据库连接", 5, 0, 5},
		{"Japanese in a word", "aのb", 3, 0, 3},
		{"Cyrillic and Greek", "слово λόγος", 2, 0, 2},
		{"three digits", "404", 1, 0, 1},
		{"four digits", "2026", 2, 0, 2},
		{"digits divide words", "base64encoding", 4, 0, 4},
		{"digits of other scripts are symbols", "١٢٣", 0, 3, 2},
		{"symbols", "{}[]();,", 0, 8, 4},
		{"an emoji is a symbol", "🙂🙂", 0, 2, 1},
		{"a call", "f(x, 12)", 3, 3, 4},
		{"an underscore divides words", "max_prune_ratio", 3, 2, 4},
		{"bytes that are not UTF-8 are symbols", "\xff\xfe", 0, 2, 1},
		{"other space is a symbol", "a\u00a0b\u2028c", 3, 2, 4},
		{"a prefix of a line", "120│ ligne 120", 3, 1, 3},
		{"a marker", "⟦PRUNÉ: prune_id=prn_AAAAAAAAAA lignes 1-10 (10) raison=hors focus⟧", 13, 10, 17},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := EstimateTokens(test.text); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
			want := 0.94 * (test.pieces + 0.55*test.symbols)
			if got := tokenWeight(test.text); math.Abs(got-want) > 1e-9 {
				t.Errorf("got a weight of %v, want %v", got, want)
			}
		})
	}
}

func TestTokensOfLinesAddUp(t *testing.T) { // P78
	random := rand.New(rand.NewPCG(78, 0))
	for range 300 {
		text := randomText(random)
		sum := 0.0
		for _, line := range Lines(text) {
			sum += tokenWeight(line)
		}
		if got := EstimateTokens(text); math.Abs(float64(got)-sum) > 0.5+1e-6*sum {
			t.Fatalf("%s: %d of the text, %v of its lines", excerpt(text), got, sum)
		}
	}
}

func TestTokensOfALongText(t *testing.T) { // P78
	if got := EstimateTokens(strings.Repeat("word ", 1_000_000)); got != 940_000 {
		t.Errorf("got %d, want 940000", got)
	}
}
