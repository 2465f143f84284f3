package prune

import (
	"math"
	"unicode"
	"unicode/utf8"
)

// EstimateTokens estimates how many tokens a model makes of a text: of words one per
// seven letters begun, of numbers one per three digits, of other symbols some half.
// Characters of scripts that write no spaces are a token each. On code and prose this is
// 5 % off on average, where characters by four are 14 %.
func EstimateTokens(text string) int { return roundTokens(tokenWeight(text)) }

func roundTokens(weight float64) int { return int(math.Round(weight)) }

// tokenWeight is EstimateTokens before it is rounded, so that lines can be added up.
func tokenWeight(text string) float64 {
	var pieces, symbols int
	for i := 0; i < len(text); {
		letters, start := 0, i
		for i < len(text) { // a word, mostly of ASCII
			if c := text[i]; isLetter(c) {
				i++
			} else if c < utf8.RuneSelf {
				break
			} else if r, size := utf8.DecodeRuneInString(text[i:]); !unicode.IsLetter(r) {
				break
			} else if i += size; unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana) {
				pieces += (letters+6)/7 + 1
				letters = 0
				continue
			}
			letters++
		}
		if i > start {
			pieces += (letters + 6) / 7
			continue
		}
		switch c := text[i]; {
		case isDigit(c):
			for i++; i < len(text) && isDigit(text[i]); i++ {
			}
			pieces += (i - start + 2) / 3
		case c == ' ' || '\t' <= c && c <= '\r':
			i++ // goes with what follows
		default:
			_, size := utf8.DecodeRuneInString(text[i:])
			i += size
			symbols++
		}
	}
	return 0.94 * (float64(pieces) + 0.55*float64(symbols))
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
