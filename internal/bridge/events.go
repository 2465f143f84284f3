package bridge

import (
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
	broken  bool // a line of the data has ended
	fields  sse.Fields
}

func newEventReader(src io.Reader, at *position) *eventReader {
	return &eventReader{src: src, at: at, buf: make([]byte, 32<<10)}
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
			e.fields.Read(part)
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
	done.message = e.fields.Type == "" || e.fields.Type == "message"
	if e.fields.HasID {
		e.at.id = e.fields.ID
	}
	if ms, err := strconv.ParseUint(e.fields.Retry, 10, 31); err == nil {
		e.at.retry = min(time.Duration(ms)*time.Millisecond, maxPause)
	}
	e.at.count++
	e.current, e.broken = event{}, false
	e.fields.Reset()
	return done
}
