package sse

import (
	"bytes"
	"unicode"
)

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
