package aggregate

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// An outlet is the response to a client: one JSON message, or an event stream once
// something precedes it. It is safe for concurrent use.
type outlet struct {
	w       http.ResponseWriter
	accepts bool // the client takes event streams

	mu     sync.Mutex
	begun  bool // the status has been sent
	stream bool
	err    error // the client cannot be written to
}

// patience is how long a client may take to read an event. Who does not read holds up
// others: the servers, and the streams that hear the same.
const patience = 30 * time.Second

// open begins an event stream, if that has not been done, and reports whether there
// is one.
func (o *outlet) open() bool {
	if o.begun || !o.accepts || o.err != nil {
		return o.stream
	}
	o.begun, o.stream = true, true
	header := o.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-transform")
	header.Set("X-Accel-Buffering", "no") // else nginx in front of us holds events back
	o.w.WriteHeader(http.StatusOK)
	return true
}

// begin begins an event stream before there is anything to send.
func (o *outlet) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open()
	o.flush()
}

// event sends a message as an event. It reports whether that was possible.
func (o *outlet) event(e *outgoing) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open() || o.err != nil {
		return false
	}
	o.write(e.head())
	o.write(oneLine(e.data))
	o.write([]byte("\n\n"))
	o.flush()
	return o.err == nil
}

// An outgoing is an event for a client.
type outgoing struct {
	id, retry string
	data      []byte
}

// head returns what comes before the data.
func (e *outgoing) head() []byte {
	var head []byte
	if e.id != "" {
		head = append(append(append(head, "id: "...), e.id...), '\n')
	}
	if e.retry != "" {
		head = append(append(append(head, "retry: "...), e.retry...), '\n')
	}
	return append(head, "data: "...)
}

// answer sends the answer: as the whole response, or as an event if there are others
// already.
func (o *outlet) answer(status int, e *outgoing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stream {
		o.write(e.head())
		o.write(oneLine(e.data))
		o.write([]byte("\n\n"))
		o.flush()
		return
	}
	if o.begun || o.err != nil {
		return
	}
	o.begun = true
	header := o.w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(e.data)))
	o.w.WriteHeader(status)
	o.write(e.data)
}

// large begins an answer whose length nobody knows yet. The caller writes it, then
// closes it. It has the outlet of a call for its own.
func (o *outlet) large(e *outgoing, stream bool) *largeAnswer {
	o.mu.Lock()
	defer o.mu.Unlock()
	if stream && o.open() || o.stream {
		o.write(e.head())
	} else if !o.begun && o.err == nil {
		o.begun = true
		o.w.Header().Set("Content-Type", "application/json")
		o.w.WriteHeader(http.StatusOK)
	}
	return &largeAnswer{o}
}

// A largeAnswer is an answer that is passed on as it arrives.
type largeAnswer struct{ o *outlet }

func (l *largeAnswer) Write(p []byte) (int, error) {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if l.o.stream {
		p = oneLine(p)
	}
	l.o.write(p)
	return len(p), l.o.err
}

func (l *largeAnswer) Close() error {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if l.o.stream {
		l.o.write([]byte("\n\n"))
	}
	l.o.flush()
	return l.o.err
}

// comment keeps the connection of a silent stream open.
func (o *outlet) comment() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write([]byte(":\n\n"))
	o.flush()
}

func (o *outlet) write(p []byte) {
	if o.err != nil {
		return
	}
	if o.stream {
		_ = http.NewResponseController(o.w).SetWriteDeadline(time.Now().Add(patience)) // where there is such a thing
	}
	_, o.err = o.w.Write(p)
}

// flush sends on what has been written. Deadlines are for writing only: that of an
// HTTP/2 stream ends it also while nobody writes.
func (o *outlet) flush() {
	if o.err != nil {
		return
	}
	controller := http.NewResponseController(o.w)
	if o.err = controller.Flush(); o.err == nil && o.stream {
		_ = controller.SetWriteDeadline(time.Time{})
	}
}

// sent sees to it that the client has what was written.
func (o *outlet) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
}

// close says that the response has ended. Whoever is late to write something finds
// nobody: what is behind w belongs to others then.
func (o *outlet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stream && o.err == nil {
		_ = http.NewResponseController(o.w).SetWriteDeadline(time.Time{})
	}
	o.err = errEnded
}

var errEnded = errors.New("the response has ended")

// streaming reports whether an event stream has begun.
func (o *outlet) streaming() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream
}
