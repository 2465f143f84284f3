package toolpin

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Clean returns a JSON text, such as a page of tools or a server's instructions,
// without the characters that let a model read what a person does not see: controls
// but for line breaks and tabs, what reorders text, what has no width, tags. They go
// from the strings that are a member called description, title or instructions, at
// any depth, raw or escaped. So do lone surrogates and bytes that are not UTF-8,
// which readers take for different things. The joiners U+200C and U+200D stay, as
// scripts and emoji need them. Everything else is kept byte for byte.
//
// If there is nothing to take away, or raw is no JSON, Clean returns raw itself.
func Clean(raw []byte) []byte {
	if at, _ := nextHidden(raw, 0); at < 0 {
		return raw
	}
	// The depth of a text is no reason to let it pass: it takes a byte per level.
	s := jsonspan.Scanner{MaxDepth: math.MaxInt}
	s.Feed(raw)
	s.Finish()
	c := cleaner{raw: raw}
	said := false // the value that follows is what a person is to read
	for {
		k := s.Next()
		start, end := s.Span()
		switch k {
		case jsonspan.Done:
			return c.end()
		case jsonspan.Invalid:
			return raw
		case jsonspan.Key:
			said = isText(raw[start+1 : end-1])
			continue
		case jsonspan.String:
			if said {
				c.clean(int(start+1), int(end-1))
			}
		}
		said = false
	}
}

func isText(key []byte) bool {
	return jsonspan.TextIs(key, "description") || jsonspan.TextIs(key, "title") || jsonspan.TextIs(key, "instructions")
}

// A cleaner copies a text but for some characters.
type cleaner struct {
	raw  []byte
	kept []byte // nil as long as nothing has gone
	read int    // where what is still to be copied begins
}

// clean takes away what is hidden between two places within a string.
func (c *cleaner) clean(start, end int) {
	text := c.raw[:end]
	for at, size := nextHidden(text, start); at >= 0; at, size = nextHidden(text, at+size) {
		if c.kept == nil {
			c.kept = make([]byte, 0, len(c.raw)-size)
		}
		c.kept = append(c.kept, c.raw[c.read:at]...)
		c.read = at + size
	}
}

func (c *cleaner) end() []byte {
	if c.kept == nil {
		return c.raw
	}
	return append(c.kept, c.raw[c.read:]...)
}

// nextHidden returns where the next character at or after i stands that is to go, and
// how many bytes it takes, or -1. It knows nothing of where strings begin and end.
func nextHidden(text []byte, i int) (at, size int) {
	for {
		if i = skipPlain(text, i); i == len(text) {
			return -1, 0
		}
		size, hidden := char(text[i:])
		if hidden {
			return i, size
		}
		i += size
	}
}

// skipPlain returns where the next byte at or after i stands that is no plain
// character: a backslash, DEL or a byte of 0x80 or more.
func skipPlain(text []byte, i int) int {
	const each = 0x0101010101010101
	for ; len(text)-i >= 8; i += 8 {
		w := binary.LittleEndian.Uint64(text[i:])
		// Below the first high bit that is set there is nothing to find. Those above
		// it may be carried over.
		if m := (w | ((w ^ '\\'*each) - each) | ((w ^ 0x7F*each) - each)) & (0x80 * each); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(text) && text[i] < 0x7F && text[i] != '\\' {
		i++
	}
	return i
}

// char returns how many bytes the character takes that text begins with, and whether
// it is one to go.
func char(text []byte) (size int, hidden bool) {
	if text[0] != '\\' {
		r, size := utf8.DecodeRune(text)
		return size, isHidden(r) || r == utf8.RuneError && size == 1
	}
	if len(text) == 1 { // no JSON
		return 1, false
	}
	switch text[1] {
	case 'u':
	case 'b', 'f':
		return 2, true
	default:
		return 2, false
	}
	if size = jsonspan.Advance(text, 1); size < 6 { // no JSON
		return size, false
	}
	var room [utf8.UTFMax]byte
	r, _ := utf8.DecodeRune(jsonspan.AppendText(room[:0], text[:size]))
	surrogate := text[2]|0x20 == 'd'
	return size, isHidden(r) || r == utf8.RuneError && surrogate
}

func isHidden(r rune) bool {
	switch {
	case r < 0x20:
		return r != '\n' && r != '\r' && r != '\t'
	case r < 0x7F:
		return false
	case r <= 0x9F, // DEL and C1
		r == 0xAD,                // soft hyphen
		r == 0x61C,               // Arabic letter mark
		r == 0x180E,              // Mongolian vowel separator
		r == 0x200B,              // zero width space
		r == 0x200E, r == 0x200F, // left-to-right and right-to-left marks
		0x202A <= r && r <= 0x202E,   // embeddings and overrides
		0x2060 <= r && r <= 0x2064,   // word joiner, invisible operators
		0x2066 <= r && r <= 0x2069,   // isolates
		r == 0xFEFF,                  // zero width no-break space
		0xFFF9 <= r && r <= 0xFFFB,   // interlinear annotation
		0xE0000 <= r && r <= 0xE007F, // tags
		0xE0100 <= r && r <= 0xE01EF: // variation selectors supplement
		return true
	}
	return false
}
