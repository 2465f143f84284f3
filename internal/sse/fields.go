package sse

import (
	"bytes"
	"unicode"
)

// Fields are what an event says besides its data. They are read from what a [Scanner]
// gives out as [Frame], from the beginning of the stream on.
type Fields struct {
	ID    string // by which the stream can be resumed after the event
	HasID bool   // an empty one is one, too
	Type  string // message, if it is empty
	Retry string // after how many milliseconds a client shall come back: digits

	line  []byte // that has not ended
	begun bool   // it is not the first of the stream
}

// maxField is how long a field may be, together with its name. Longer ones are none.
const maxField = 4 << 10

// Read takes the next bytes of lines, without the data in them.
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

// Reset makes f ready for another event.
func (f *Fields) Reset() { *f = Fields{line: f.line[:0], begun: f.begun} }

// field takes what a line says. Ids are sent back in headers, so they have no control
// characters.
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
