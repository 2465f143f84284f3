package toolpin

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Clean returns a message, such as a page of tools or a server's instructions,
// without the characters that let a model read what a person does not see: controls
// but for line breaks and tabs, what reorders text, what has no width, tags. They go
// from the strings that are a member called description, title or instructions, at
// any depth, and from all strings and keys of listed tools, prompts, resources and
// templates, raw or escaped. So do lone surrogates and bytes that are not UTF-8,
// which readers take for different things. The joiners U+200C and U+200D stay, as
// scripts and emoji need them, and so does U+FE0F. Everything else is kept byte for byte,
// also the name or URI of what is listed: it would be called by another one. See
// [IsPlainName].
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
	var (
		in   listed
		said bool // the value that follows is what a person is to read
	)
	for {
		k := s.Next()
		start, end := s.Span()
		switch k {
		case jsonspan.Done:
			return c.end()
		case jsonspan.Invalid:
			return raw
		case jsonspan.BeginArray:
			if s.Depth() == 0 {
				in.batch = 1
			}
		case jsonspan.Key:
			key := raw[start+1 : end-1]
			if isItem := in.enter(key, s.Depth()); isItem {
				c.clean(int(start+1), int(end-1))
			}
			said = isText(key)
			continue
		case jsonspan.String:
			if said || in.item && !in.name {
				c.clean(int(start+1), int(end-1))
			}
		}
		said, in.name = false, false
	}
}

// listed is where in the list of a result a text is.
type listed struct {
	batch  int  // containers around each message
	result bool // in the member result
	item   bool // in a list of that
	name   bool // before the name or URI of an item
}

// enter moves to a member inside so many containers. It reports whether that is a part
// of an item.
func (in *listed) enter(key []byte, depth int) (isItem bool) {
	in.name = false
	switch depth -= in.batch; {
	case depth == 1:
		in.result, in.item = jsonspan.TextIs(key, "result"), false
	case depth == 2:
		in.item = in.result && isOneOf(key, "tools", "prompts", "resources", "resourceTemplates")
	case in.item:
		in.name = depth == 4 && isOneOf(key, "name", "uri", "uriTemplate")
		return true
	}
	return false
}

func isOneOf(key []byte, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return jsonspan.TextIs(key, name) })
}

// IsPlainName reports whether a person sees all of the name of a tool or prompt, or of the
// URI of a resource: it has no controls, and nothing else that is not shown.
func IsPlainName(name string) bool {
	for _, r := range name {
		if isHidden(r) || unicode.IsControl(r) || r == utf8.RuneError || unicode.In(r, unicode.Join_Control, unicode.Variation_Selector) {
			return false
		}
	}
	return true
}

func isText(key []byte) bool {
	return isOneOf(key, "description", "title", "instructions")
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
	case r <= 0x9F: // DEL and C1
		return true
	case r == 0x200C, r == 0x200D, r == 0xFE0F: // joiners, and what makes a sign an emoji
		return false
	case hiddenPages[r>>14]&(1<<(r>>8&63)) == 0: // most scripts, which spares the search
		return false
	}
	return unicode.In(r, hiddenTables...)
}

var hiddenTables = []*unicode.RangeTable{unicode.Bidi_Control, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, invisible}

// hiddenPages has a bit for each 256 characters of which some are in hiddenTables.
var hiddenPages = func() (pages [unicode.MaxRune>>14 + 1]uint64) {
	for _, table := range hiddenTables {
		for _, in := range table.R16 {
			for r := rune(in.Lo); r <= rune(in.Hi); r += rune(in.Stride) {
				pages[r>>14] |= 1 << (r >> 8 & 63)
			}
		}
		for _, in := range table.R32 {
			for r := rune(in.Lo); r <= rune(in.Hi); r += rune(in.Stride) {
				pages[r>>14] |= 1 << (r >> 8 & 63)
			}
		}
	}
	return pages
}()

// invisible is what is ignored when text is shown and is in none of Unicode's own sets
// for that.
var invisible = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0xAD, Hi: 0xAD, Stride: 1},     // soft hyphen
		{Lo: 0x180E, Hi: 0x180E, Stride: 1}, // Mongolian vowel separator
		{Lo: 0x200B, Hi: 0x200B, Stride: 1}, // zero width space
		{Lo: 0x2060, Hi: 0x206F, Stride: 1}, // word joiner, invisible operators, deprecated controls
		{Lo: 0xFEFF, Hi: 0xFEFF, Stride: 1}, // zero width no-break space
		{Lo: 0xFFF9, Hi: 0xFFFB, Stride: 1}, // interlinear annotation
	},
	R32: []unicode.Range32{
		{Lo: 0x1BCA0, Hi: 0x1BCA3, Stride: 1}, // shorthand controls
		{Lo: 0x1D173, Hi: 0x1D17A, Stride: 1}, // musical controls
		{Lo: 0xE0000, Hi: 0xE0FFF, Stride: 1}, // tags, and what is kept free beside them
	},
	LatinOffset: 1,
}
