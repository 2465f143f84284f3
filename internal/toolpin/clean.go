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

// Clean returns a message, such as a page of tools or a server's instructions, without the
// characters that a model reads but a person does not see: control characters except line breaks
// and tabs, characters that reorder text, zero-width characters, and tags. It also removes lone
// surrogates and bytes that are not UTF-8, which programs read differently.
//
// It cleans strings in members called description, title or instructions, at any depth, and all
// strings and keys of listed tools, prompts, resources and templates, raw or escaped. The joiners
// U+200C and U+200D and the variation selector U+FE0F stay, because scripts and emoji need them.
// All other bytes stay unchanged. So do the names and URIs of listed items, because clients use
// them in calls; see [IsPlainName].
//
// If there is nothing to remove, or raw is not JSON, Clean returns raw itself.
func Clean(raw []byte) []byte {
	if at, _ := nextHidden(raw, 0); at < 0 {
		return raw
	}
	// Text at any depth must be cleaned. A level costs a byte of memory.
	s := jsonspan.Scanner{MaxDepth: math.MaxInt}
	s.Feed(raw)
	s.Finish()
	c := cleaner{raw: raw}
	var (
		pos      position
		readable bool // the next value is text for a person
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
				pos.batch = 1
			}
		case jsonspan.Key:
			key := raw[start+1 : end-1]
			if isItem := pos.enter(key, s.Depth()); isItem {
				c.clean(int(start+1), int(end-1))
			}
			readable = isText(key)
			continue
		case jsonspan.String:
			if readable || pos.inItem && !pos.isName {
				c.clean(int(start+1), int(end-1))
			}
		}
		readable, pos.isName = false, false
	}
}

// A position tells which part of a message is being read, relative to the list in its result.
type position struct {
	batch    int  // containers around each message
	inResult bool // in the member result
	inItem   bool // in a list of the result
	isName   bool // the next value is the name or URI of an item
}

// enter moves to a member at a depth. It reports whether the member is part of an item.
func (pos *position) enter(key []byte, depth int) (isItem bool) {
	pos.isName = false
	switch depth -= pos.batch; {
	case depth == 1:
		pos.inResult, pos.inItem = jsonspan.TextIs(key, "result"), false
	case depth == 2:
		pos.inItem = pos.inResult && isOneOf(key, "tools", "prompts", "resources", "resourceTemplates")
	case pos.inItem:
		pos.isName = depth == 4 && isOneOf(key, "name", "uri", "uriTemplate")
		return true
	}
	return false
}

func isOneOf(key []byte, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return jsonspan.TextIs(key, name) })
}

// IsPlainName reports whether a person sees all of the name of a tool or prompt, or of the URI of a
// resource: it has no control characters or other invisible ones.
func IsPlainName(name string) bool {
	for _, r := range name {
		if isHidden(r) || unicode.IsControl(r) || r == utf8.RuneError ||
			unicode.In(r, unicode.Join_Control, unicode.Variation_Selector) {
			return false
		}
	}
	return true
}

func isText(key []byte) bool {
	return isOneOf(key, "description", "title", "instructions")
}

// A cleaner copies a text without some of its characters.
type cleaner struct {
	raw  []byte
	out  []byte // nil while nothing has been removed
	next int    // start of the text that was not copied yet
}

// clean removes the hidden characters between two offsets within a string.
func (c *cleaner) clean(start, end int) {
	text := c.raw[:end]
	for at, size := nextHidden(text, start); at >= 0; at, size = nextHidden(text, at+size) {
		if c.out == nil {
			c.out = make([]byte, 0, len(c.raw)-size)
		}
		c.out = append(c.out, c.raw[c.next:at]...)
		c.next = at + size
	}
}

func (c *cleaner) end() []byte {
	if c.out == nil {
		return c.raw
	}
	return append(c.out, c.raw[c.next:]...)
}

// nextHidden returns the offset and size of the next hidden character at or after i, or -1. It
// ignores where strings begin and end.
func nextHidden(text []byte, i int) (at, size int) {
	for {
		i = skipPlain(text, i)
		if i == len(text) {
			return -1, 0
		}
		size, hidden := firstChar(text[i:])
		if hidden {
			return i, size
		}
		i += size
	}
}

// skipPlain returns the offset of the next byte at or after i that is not plain: a backslash, DEL,
// or a byte of 0x80 or more.
func skipPlain(text []byte, i int) int {
	const each = 0x0101010101010101
	for ; len(text)-i >= 8; i += 8 {
		w := binary.LittleEndian.Uint64(text[i:])
		// Only the lowest bit that is set is reliable. Higher ones may be carries.
		if m := (w | ((w ^ '\\'*each) - each) | ((w ^ 0x7F*each) - each)) & (0x80 * each); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(text) && text[i] < 0x7F && text[i] != '\\' {
		i++
	}
	return i
}

// firstChar returns the size of the first character of text, and whether it is hidden.
func firstChar(text []byte) (size int, hidden bool) {
	if text[0] != '\\' {
		r, size := utf8.DecodeRune(text)
		return size, isHidden(r) || r == utf8.RuneError && size == 1
	}
	if len(text) == 1 { // not JSON
		return 1, false
	}
	switch text[1] {
	case 'u':
	case 'b', 'f':
		return 2, true
	default:
		return 2, false
	}
	size = jsonspan.Advance(text, 1)
	if size < 6 { // not JSON
		return size, false
	}
	var buf [utf8.UTFMax]byte
	r, _ := utf8.DecodeRune(jsonspan.AppendText(buf[:0], text[:size]))
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
	case r == 0x200C, r == 0x200D, r == 0xFE0F: // joiners, and the selector for emoji
		return false
	case hiddenPages[r>>14]&(1<<(r>>8&63)) == 0: // most scripts; saves the search
		return false
	}
	return unicode.In(r, hiddenTables...)
}

var hiddenTables = []*unicode.RangeTable{
	unicode.Bidi_Control, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, invisible,
}

// hiddenPages has a bit for each block of 256 characters with one in hiddenTables.
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

// invisible are characters that are not displayed and are not in Unicode's own sets of such
// characters.
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
		{Lo: 0xE0000, Hi: 0xE0FFF, Stride: 1}, // tags, and the range reserved for more
	},
	LatinOffset: 1,
}
