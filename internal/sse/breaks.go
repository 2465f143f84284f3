package sse

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// breaks are characters at which some clients end lines, against the standard: Python's splitlines
// does so at all of them. A part of a line must not look like a line of its own to such a client.
var breaks = []string{"\v", "\f", "\x1c", "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"}

// escaped replaces them with JSON escapes. A message can contain them only within strings.
var escaped = strings.NewReplacer("\v", `\u000b`, "\f", `\u000c`, "\x1c", `\u001c`, "\x1d", `\u001d`, "\x1e", `\u001e`,
	"\u0085", `\u0085`, "\u2028", `\u2028`, "\u2029", `\u2029`)

// Breaks escapes, in a stream, characters at which only some clients end a line. The zero value is
// ready for use.
type Breaks struct {
	held []byte // possible beginning of such a character
}

// Escape returns the next bytes of the stream: p itself if nothing must be escaped. It holds back an
// incomplete character.
func (b *Breaks) Escape(p []byte) []byte {
	if len(b.held) > 0 {
		p = append(b.held, p...)
		b.held = nil
	}
	if n := begun(p); n > 0 {
		b.held = bytes.Clone(p[len(p)-n:])
		p = p[:len(p)-n]
	}
	hasControl := hasControl(p)
	for _, c := range breaks {
		if (hasControl || len(c) > 1) && bytes.Contains(p, []byte(c)) {
			return []byte(escaped.Replace(string(p)))
		}
	}
	return p
}

// hasControl reports whether p has a control character. A message on one line has none, and this check
// is faster than searching for each of breaks.
func hasControl(p []byte) bool {
	const eachByte = 0x0101010101010101
	below := func(w uint64) uint64 { return (w - ' '*eachByte) &^ w } // sets a high bit for it
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

// begun returns how many bytes at the end of p may be the beginning of such a character.
func begun(p []byte) int {
	switch {
	case bytes.HasSuffix(p, []byte("\xe2\x80")):
		return 2
	case bytes.HasSuffix(p, []byte("\xc2")), bytes.HasSuffix(p, []byte("\xe2")):
		return 1
	}
	return 0
}
