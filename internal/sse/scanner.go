// Package sse reads event streams (text/event-stream) without taking them apart:
// it tells the data of events from everything around it, byte by byte as they
// arrive, so that data can be rewritten in place and the rest passed on as it
// was.
package sse

import "bytes"

// Kind is what a [Scanner] found.
type Kind uint8

const (
	// More means that the bytes fed so far are used up.
	More Kind = iota
	// Data is a part of the value of a data field.
	Data
	// Frame is everything else: field names, line ends, comments, other fields.
	// Between two lines of the data of one event it stands for a line break.
	Frame
	// Dispatch is the empty line that ends an event, after its bytes have been
	// given out as Frame.
	Dispatch
)

// A Scanner divides a stream into data and framing. All bytes are given out
// once, in order and at once: nothing is held back, and nothing is copied. The
// zero value is ready for use.
//
// As the standard has it, lines end with LF, CR or CRLF, in any mixture, and one
// space after the colon belongs to the framing. So does a byte order mark at the
// beginning of the stream.
type Scanner struct {
	buf   []byte
	state state
	name  int  // in state inName: how much of "data" the line has so far
	cr    bool // the byte before was a CR: an LF now is part of that line end
	bom   int  // how much of a byte order mark there was, or all of it
	lf    int  // where the next LF is in buf, or its length; -1 if not known
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

// Feed gives s the next bytes of the stream, which must stay as they are until
// Next returns [More].
func (s *Scanner) Feed(p []byte) { s.buf, s.lf = p, -1 }

// Next returns what comes next, and its bytes.
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

// Each gives s the next bytes of the stream and calls f for all that is found in
// them.
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

// field reads the name of a field, or the end of an event in its place.
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

// lineEnd takes the line end that the bytes begin with.
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

// lineLen returns how many bytes come before the end of the line. Where the next
// LF is it finds out only once, lest lines that end with CR each look for it.
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
