// Package sse scans event streams (text/event-stream) as they arrive. It tells the data of events
// from everything else, so data can be rewritten in place while the rest passes unchanged.
package sse

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode"
)

// Kind is what a [Scanner] found.
type Kind uint8

const (
	// More means that all bytes fed so far are used up.
	More Kind = iota
	// Data is a part of the value of a data field.
	Data
	// Frame is everything else: field names, line ends, comments, other fields. A Frame between two
	// lines of data in one event stands for a line break.
	Frame
	// Dispatch is the end of an event, after its empty line was returned as Frame.
	Dispatch
)

// A Scanner divides a stream into data and framing. It returns all bytes once, in order and
// immediately: nothing is held back, and nothing is copied. The zero value is ready for use.
//
// As in the standard, lines end with LF, CR or CRLF, in any mixture, and one space after the colon
// belongs to the framing. So does a byte order mark at the beginning of the stream.
type Scanner struct {
	buf   []byte
	state state
	name  int  // in state inName: length of the prefix of "data" so far
	cr    bool // the last byte was a CR: an LF now is part of that line end
	bom   int  // bytes of the byte order mark read so far; all of them if there is none
	lf    int  // position of the next LF in buf, or the length of buf; -1 if unknown
}

type state uint8

const (
	inName   state = iota // at the beginning of a line
	inOther               // in a line that is not data
	inPrefix              // after "data:", before the optional space
	inData                // in the value of a data field
	atEnd                 // after the empty line that ends an event
)

const (
	dataField     = "data"
	byteOrderMark = "\xEF\xBB\xBF"
)

// Feed gives s the next bytes of the stream. They must not change until Next returns [More].
func (s *Scanner) Feed(p []byte) { s.buf, s.lf = p, -1 }

// Next returns the next part and its kind.
func (s *Scanner) Next() (Kind, []byte) {
	if s.state == atEnd {
		s.state = inName
		return Dispatch, nil
	}
	if len(s.buf) == 0 {
		return More, nil
	}
	if s.bom < len(byteOrderMark) {
		if s.buf[0] == byteOrderMark[s.bom] {
			s.bom++
			return Frame, s.take(1)
		}
		s.bom = len(byteOrderMark)
	}
	if s.cr {
		s.cr = false
		if s.buf[0] == '\n' {
			return Frame, s.take(1)
		}
	}
	if s.state == inName {
		return s.field()
	}
	if s.state == inPrefix {
		s.state = inData
		if s.buf[0] == ' ' {
			return Frame, s.take(1)
		}
	}
	n := s.lineLen()
	switch {
	case n == 0:
		s.state = inName
		return Frame, s.lineEnd()
	case s.state == inData:
		return Data, s.take(n)
	}
	return Frame, s.take(n)
}

// Each feeds p to s and calls f for all its parts.
func (s *Scanner) Each(p []byte, f func(kind Kind, part []byte)) {
	s.Feed(p)
	for {
		kind, part := s.Next()
		if kind == More {
			return
		}
		f(kind, part)
	}
}

// field scans the name of a field, or the end of an event.
func (s *Scanner) field() (Kind, []byte) {
	n := 0
	for n < len(s.buf) && s.name < len(dataField) && s.buf[n] == dataField[s.name] {
		n++
		s.name++
	}
	if n > 0 {
		return Frame, s.take(n)
	}
	name := s.name
	s.name = 0
	switch {
	case name == len(dataField) && s.buf[0] == ':':
		s.state = inPrefix
		return Frame, s.take(1)
	case name == 0 && (s.buf[0] == '\n' || s.buf[0] == '\r'):
		s.state = atEnd
		return Frame, s.lineEnd()
	}
	s.state = inOther
	return s.Next()
}

// lineEnd takes the line end at the beginning of buf.
func (s *Scanner) lineEnd() []byte {
	if s.buf[0] == '\n' {
		return s.take(1)
	}
	if len(s.buf) == 1 {
		s.cr = true
		return s.take(1)
	}
	if s.buf[1] == '\n' {
		return s.take(2)
	}
	return s.take(1)
}

func (s *Scanner) take(n int) []byte {
	p := s.buf[:n]
	s.buf = s.buf[n:]
	s.lf = max(s.lf-n, -1)
	return p
}

// lineLen returns how many bytes come before the end of the line. It searches for the next LF only
// once, even if lines end with CR.
func (s *Scanner) lineLen() int {
	if s.lf < 0 {
		if s.lf = bytes.IndexByte(s.buf, '\n'); s.lf < 0 {
			s.lf = len(s.buf)
		}
	}
	if n := bytes.IndexByte(s.buf[:s.lf], '\r'); n >= 0 {
		return n
	}
	return s.lf
}

// Fields are the fields of an event except for its data. They are read from all [Frame] parts of a
// [Scanner], from the beginning of the stream on.
type Fields struct {
	ID    string // resumes the stream after the event
	HasID bool   // an empty id counts, too
	Type  string // empty means message
	Retry string // milliseconds until a client reconnects: digits

	line  []byte // incomplete line
	begun bool   // the first line of the stream has been read
}

// maxField is the maximum length of a field with its name. Longer ones are ignored.
const maxField = 4 << 10

// Read parses the next bytes of lines, without the data.
func (f *Fields) Read(frame []byte) {
	for {
		end := bytes.IndexAny(frame, "\r\n")
		piece := frame
		if end >= 0 {
			piece = frame[:end]
		}
		f.line = append(f.line, piece[:min(len(piece), maxField+1-len(f.line))]...)
		if end < 0 {
			return
		}
		if len(f.line) <= maxField {
			f.field()
		}
		f.line, f.begun, frame = f.line[:0], true, frame[end+1:]
	}
}

// Reset prepares f for another event.
func (f *Fields) Reset() { *f = Fields{line: f.line[:0], begun: f.begun} }

// field parses a line. Ids are sent back in headers, so those with control characters are ignored.
func (f *Fields) field() {
	line := f.line
	if !f.begun {
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
	}
	name, value, _ := bytes.Cut(line, []byte{':'})
	value = bytes.TrimPrefix(value, []byte{' '})
	switch string(name) {
	case "id":
		if bytes.IndexFunc(value, unicode.IsControl) < 0 {
			f.ID, f.HasID = string(value), true
		}
	case "event":
		f.Type = string(value)
	case "retry":
		if len(value) > 0 && len(bytes.Trim(value, "0123456789")) == 0 {
			f.Retry = string(value)
		}
	}
}

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
