package sse

import (
	"bytes"
	"strings"
)

// Some clients end lines where the standard does not: Python's splitlines does so at each
// of these. What such a client takes for a line of its own must not be a part of one here.
var breaks = []string{"\v", "\f", "\x1c", "\x1d", "\x1e", "\u0085", "\u2028", "\u2029"}

// escaped writes them as JSON does within a string, which is the only place where a
// message can have them.
var escaped = strings.NewReplacer("\v", `\u000b`, "\f", `\u000c`, "\x1c", `\u001c`, "\x1d", `\u001d`, "\x1e", `\u001e`,
	"\u0085", `\u0085`, "\u2028", `\u2028`, "\u2029", `\u2029`)

// Breaks escapes, in a stream, the characters at which only some clients end a line. The
// zero value is ready for use.
type Breaks struct {
	held []byte // that such a character may begin with
}

// Escape returns the next bytes of the stream, which are p itself if nothing in it is to be
// escaped. It holds back a part of a character.
func (b *Breaks) Escape(p []byte) []byte {
	if len(b.held) > 0 {
		p = append(b.held, p...)
		b.held = nil
	}
	if n := begun(p); n > 0 {
		b.held = bytes.Clone(p[len(p)-n:])
		p = p[:len(p)-n]
	}
	for _, c := range breaks {
		if bytes.Contains(p, []byte(c)) {
			return []byte(escaped.Replace(string(p)))
		}
	}
	return p
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
