package bridge

import (
	"bytes"
	"io"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A position is how far a stream of events has come, and what the server says of
// coming back to it. It outlives the connections that the stream comes over.
type position struct {
	id    string        // of the last event that has one
	retry time.Duration // 0 if the server does not say
	count int           // of events
}

// An event is what a server has sent at once.
type event struct {
	data     []byte
	tooLarge bool // so there is no data
	message  bool // it is of the type that carries messages
}

// An eventReader reads events.
type eventReader struct {
	src     io.Reader
	at      *position
	buf     []byte
	scanner sse.Scanner
	err     error // of src

	current event
	broken  bool   // a line of the data has ended
	field   []byte // as much of a line that is not data as there is
	pending string // the id, until the event is complete
	named   bool   // there is one
}

// maxField is how long the id of an event may be, together with its name.
const maxField = 4 << 10

func newEventReader(src io.Reader, at *position) *eventReader {
	return &eventReader{src: src, at: at, buf: make([]byte, 32<<10), current: event{message: true}}
}

// next returns the next event.
func (e *eventReader) next() (event, error) {
	for {
		kind, part := e.scanner.Next()
		switch kind {
		case sse.More:
			if e.err != nil {
				return event{}, e.err
			}
			var n int
			n, e.err = e.src.Read(e.buf)
			e.scanner.Feed(e.buf[:n])
		case sse.Data:
			e.add(part)
		case sse.Frame:
			e.broken = len(e.current.data) > 0
			e.frame(part)
		case sse.Dispatch:
			return e.dispatch(), nil
		}
	}
}

// add adds to the data of the event.
func (e *eventReader) add(part []byte) {
	if e.current.tooLarge = e.current.tooLarge || len(e.current.data)+len(part) >= maxMessage; e.current.tooLarge {
		e.current.data = nil
		return
	}
	if e.broken {
		e.current.data = append(e.current.data, '\n')
		e.broken = false
	}
	e.current.data = append(e.current.data, part...)
}

// dispatch returns the event that has come to its end.
func (e *eventReader) dispatch() event {
	done := e.current
	e.current, e.broken = event{message: true}, false
	if e.named {
		e.at.id, e.named = e.pending, false
	}
	e.at.count++
	return done
}

// frame takes bytes of lines, without the data in them.
func (e *eventReader) frame(part []byte) {
	for {
		end := bytes.IndexAny(part, "\r\n")
		piece := part
		if end >= 0 {
			piece = part[:end]
		}
		e.field = append(e.field, piece[:min(len(piece), maxField+1-len(e.field))]...)
		if end < 0 {
			return
		}
		if len(e.field) <= maxField {
			e.read(e.field)
		}
		e.field, part = e.field[:0], part[end+1:]
	}
}

// read takes what a line says.
func (e *eventReader) read(field []byte) {
	name, value, _ := bytes.Cut(field, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "id":
		if validHeader(string(value)) {
			e.pending, e.named = string(value), true
		}
	case "event":
		e.current.message = len(value) == 0 || string(value) == "message"
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
			e.at.retry = min(time.Duration(ms)*time.Millisecond, maxPause)
		}
	}
}

// validHeader reports whether a text can be sent back in a header.
func validHeader(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return true
}
