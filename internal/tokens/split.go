package tokens

import (
	"unicode"
	"unicode/utf8"
)

// A class is a set of characters that the splitting rules treat alike.
type class uint8

const (
	upper   class = 1 << iota // Lu, Lt
	lower                     // Ll
	letter                    // Lm, Lo
	mark                      // M
	number                    // N
	space                     // white space other than newlines
	newline                   // \r, \n
	other

	capital = upper | letter | mark // begin a word
	small   = lower | letter | mark // end a word
	symbol  = mark | other
)

// pieceEnd returns the end of the piece that begins at i. It implements the regular
// expression of o200k_base, whose alternatives are tried in this order:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	\p{N}{1,3}
//	 ?[^\s\p{L}\p{N}]+[\r\n/]*
//	\s*[\r\n]+
//	\s+(?!\S)
//	\s+
func pieceEnd(text string, i int) int {
	first, size := classAt(text, i)
	after := i + size
	switch first {
	case upper, lower, letter:
		end, _ := wordEnd(text, i)
		return contractionEnd(text, end)
	case number:
		return digitsEnd(text, after)
	case newline:
		return whiteSpaceEnd(text, i)
	}

	end, hasSmall := wordEnd(text, after)
	if !hasSmall && first == mark { // the mark itself counts as a small letter
		end, _ = wordEnd(text, i)
	}
	if end > after || first == mark {
		return contractionEnd(text, end)
	}

	if first == space {
		if text[i] != ' ' || after == len(text) {
			return whiteSpaceEnd(text, i)
		}
		if second, _ := classAt(text, after); second&symbol == 0 {
			return whiteSpaceEnd(text, i)
		}
	}
	return symbolsEnd(text, after)
}

// wordEnd returns the end of the capitals at i and the small letters after them, and
// whether there are small letters. Some characters are both. Capitals after the last small
// letter belong to the next piece.
func wordEnd(text string, i int) (end int, hasSmall bool) {
	lastSmall := i
	for i < len(text) {
		c, size := classAt(text, i)
		if c&capital == 0 {
			if c == lower {
				return smallsEnd(text, i+size), true
			}
			break
		}
		i += size
		if c&small != 0 {
			lastSmall, hasSmall = i, true
		}
	}
	if hasSmall {
		return lastSmall, true
	}
	return i, false
}

// smallsEnd returns the end of the small letters at i.
func smallsEnd(text string, i int) int {
	for i < len(text) && 'a' <= text[i] && text[i] <= 'z' {
		i++
	}
	for i < len(text) {
		c, size := classAt(text, i)
		if c&small == 0 {
			break
		}
		i += size
	}
	return i
}

// contractionEnd returns the end of 's, 't, 're, 've, 'm, 'll or 'd at i, or i if none
// follows there.
func contractionEnd(text string, i int) int {
	if i+1 >= len(text) || text[i] != '\'' {
		return i
	}
	switch text[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	}
	if i+2 < len(text) {
		second, third := text[i+1], text[i+2]
		switch {
		case second|0x20 == 'r' && third|0x20 == 'e',
			second|0x20 == 'v' && third|0x20 == 'e',
			second|0x20 == 'l' && third|0x20 == 'l',
			text[i+1:i+3] == "ſ": // equals s if case is ignored
			return i + 3
		}
	}
	return i
}

// digitsEnd returns the end of a number whose first digit ends at i. It has at most 3 digits.
func digitsEnd(text string, i int) int {
	for n := 1; n < 3 && i < len(text); n++ {
		c, size := classAt(text, i)
		if c != number {
			break
		}
		i += size
	}
	return i
}

// symbolsEnd returns the end of a run of symbols that continues at i, including the
// newlines and slashes after them.
func symbolsEnd(text string, i int) int {
	for i < len(text) {
		c, size := classAt(text, i)
		if c&symbol == 0 {
			break
		}
		i += size
	}
	for i < len(text) && (text[i] == '\n' || text[i] == '\r' || text[i] == '/') {
		i++
	}
	return i
}

// whiteSpaceEnd returns the end of the white space that begins at i: after its last newline,
// if any, or else before its last character, which belongs to the next piece.
func whiteSpaceEnd(text string, i int) int {
	start, last, afterNewline := i, i, i
	for i < len(text) {
		c, size := classAt(text, i)
		if c&(space|newline) == 0 {
			break
		}
		last = i
		i += size
		if c == newline {
			afterNewline = i
		}
	}
	switch {
	case afterNewline > start:
		return afterNewline
	case i < len(text) && last > start:
		return last
	}
	return i
}

// classAt returns the class and the size of the character at i.
func classAt(text string, i int) (class, int) {
	if c := text[i]; c < utf8.RuneSelf {
		return ascii[c], 1
	}
	return nonASCIIClassAt(text, i)
}

// nonASCIIClassAt is classAt for characters that are not ASCII. Bytes that are not UTF-8
// are symbols.
func nonASCIIClassAt(text string, i int) (class, int) {
	r, size := utf8.DecodeRuneInString(text[i:])
	return classOf(r), size
}

func classOf(r rune) class {
	switch {
	case r < utf8.RuneSelf:
		return ascii[r]
	case 0x3041 <= r && r <= 0x3096, 0x30a1 <= r && r <= 0x30fa, // kana
		0x4e00 <= r && r <= 0x9fff, // Han
		0xac00 <= r && r <= 0xd7a3: // Hangul
		return letter
	case unicode.IsLower(r) && unicode.Is(unicode.Ll, r):
		return lower
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return upper
	case unicode.IsLetter(r):
		return letter
	case unicode.IsMark(r):
		return mark
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

var ascii = [utf8.RuneSelf]class{
	other, other, other, other, other, other, other, other,
	other, space, newline, space, space, newline, other, other,
	other, other, other, other, other, other, other, other,
	other, other, other, other, other, other, other, other,
	space, other, other, other, other, other, other, other,
	other, other, other, other, other, other, other, other,
	number, number, number, number, number, number, number, number,
	number, number, other, other, other, other, other, other,
	other, upper, upper, upper, upper, upper, upper, upper,
	upper, upper, upper, upper, upper, upper, upper, upper,
	upper, upper, upper, upper, upper, upper, upper, upper,
	upper, upper, upper, other, other, other, other, other,
	other, lower, lower, lower, lower, lower, lower, lower,
	lower, lower, lower, lower, lower, lower, lower, lower,
	lower, lower, lower, lower, lower, lower, lower, lower,
	lower, lower, lower, other, other, other, other, other,
}
