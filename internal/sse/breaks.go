package sse

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// breaks are characters at which some clients end lines, against the standard. Python's splitlines
// does so at all of them. To such a client, a part of a line would look like a line of its own.
var breaks = []string{"\v", "\f", "\x1c", "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"}

// breakEscaper replaces breaks with JSON escapes, because a JSON message can contain them only in
// strings.
var breakEscaper = strings.NewReplacer(
	"\v", `\u000b`, "\f", `\u000c`, "\x1c", `\u001c`, "\x1d", `\u001d`, "\x1e", `\u001e`,
	"\u0085", `\u0085`, "\u2028", `\u2028`, "\u2029", `\u2029`)

// Breaks escapes the characters of a stream at which some clients end lines, against the standard.
// The zero value is ready for use.
type Breaks struct {
	held []byte // possible first bytes of such a character
}

// Escape returns the next bytes of the stream: p itself if nothing must be escaped. It holds back
// an incomplete character.
func (b *Breaks) Escape(p []byte) []byte {
	if len(b.held) > 0 {
		p = append(b.held, p...)
		b.held = nil
	}
	if n := partialBreak(p); n > 0 {
		b.held = bytes.Clone(p[len(p)-n:])
		p = p[:len(p)-n]
	}
	controls := hasControl(p)
	for _, c := range breaks {
		if (controls || len(c) > 1) && bytes.Contains(p, []byte(c)) {
			return []byte(breakEscaper.Replace(string(p)))
		}
	}
	return p
}

// hasControl reports whether p has a control character. A message on one line has none, and this
// check is faster than a search for each of them.
func hasControl(p []byte) bool {
	const eachByte = 0x0101010101010101
	below := func(w uint64) uint64 { return (w - ' '*eachByte) &^ w } // sets a high bit if a byte is below ' '
	for ; len(p) >= 32; p = p[32:] {
		m := below(binary.LittleEndian.Uint64(p)) | below(binary.LittleEndian.Uint64(p[8:])) |
			below(binary.LittleEndian.Uint64(p[16:])) | below(binary.LittleEndian.Uint64(p[24:]))
		if m&(0x80*eachByte) != 0 {
			return true
		}
	}
	for _, c := range p {
		if c < ' ' {
			return true
		}
	}
	return false
}

// partialBreak returns how many bytes at the end of p may be the beginning of such a character.
func partialBreak(p []byte) int {
	switch {
	case bytes.HasSuffix(p, []byte("\xe2\x80")):
		return 2
	case bytes.HasSuffix(p, []byte("\xc2")), bytes.HasSuffix(p, []byte("\xe2")):
		return 1
	}
	return 0
}
