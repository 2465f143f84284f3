// Package sse scans event streams (text/event-stream) as they arrive. It tells the data of events
// from everything else, so data can be rewritten in place while the rest passes unchanged.
package sse

import "bytes"

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
