package stdio

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// respond makes a response with a JSON body in pieces, or without a body.
func respond(req *http.Request, status int, body ...[]byte) *http.Response {
	return respondWith(req, status, letter{message: body}, nil)
}

// respondWith makes a response with the message of a letter, which was taken from an inbox if there
// is one. When the body is closed, the letter is done and its block free.
func respondWith(req *http.Request, status int, l letter, inbox *inbox) *http.Response {
	length := l.message.len()
	res := &struct { // is allocated at once
		http.Response
		values [2]string // of headers
		body   body
	}{
		Response: http.Response{
			Status:        statusLine(status),
			StatusCode:    status,
			Proto:         "HTTP/1.1",
			ProtoMajor:    1,
			ProtoMinor:    1,
			Header:        http.Header{},
			Body:          http.NoBody,
			ContentLength: int64(length),
			Request:       req,
		},
		body: body{unread: net.Buffers(l.message), in: l.in, inbox: inbox},
	}
	if length > 0 {
		res.values = [2]string{"application/json", strconv.Itoa(length)}
		res.Header["Content-Type"] = res.values[0:1:1]
		res.Header["Content-Length"] = res.values[1:2:2]
		res.Body = &res.body
	}
	return &res.Response
}

func statusLine(status int) string {
	if status == http.StatusOK {
		return "200 OK"
	}
	return strconv.Itoa(status) + " " + http.StatusText(status)
}

// A body is the message of a letter.
type body struct {
	mu     sync.Mutex
	unread net.Buffers
	in     *block // that the message is in; nil for none
	inbox  *inbox // that it was taken from; nil for none
	closed bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, os.ErrClosed
	}
	return b.unread.Read(p)
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed, b.unread = true, nil
	b.in.free()
	if b.inbox != nil {
		b.inbox.Done()
	}
	return nil
}

// respondStream makes a response with an event stream.
func respondStream(req *http.Request, s *stream) *http.Response {
	res := respond(req, http.StatusOK)
	res.ContentLength = -1
	res.Header["Content-Type"] = []string{"text/event-stream"}
	res.Header["Cache-Control"] = []string{"no-cache"}
	res.Header["X-Accel-Buffering"] = []string{"no"} // nginx would hold events back
	res.Body = s
	return res
}

// A stream is an event stream of the messages in an inbox.
type stream struct {
	request  context.Context
	ctx      context.Context // done when the request is, or the stream is stopped
	inbox    *inbox
	buf      net.Buffers // of an event that has not been read to its end
	question *question   // that the event asks; nil for none
	last     bool        // buf is the end of the stream
	stop     context.CancelFunc
	closed   func() (kept bool) // called once at the end of the response; the client can ask for the rest if it is kept

	events *callEvents // that it sends, of a call whose client can ask for the rest; nil for others
	missed []letter    // that are sent before them
	sent   uint64      // number of the last one
}

func newStream(ctx context.Context, b *inbox, closed func() (kept bool)) *stream {
	own, stop := context.WithCancel(ctx)
	return &stream{request: ctx, ctx: own, inbox: b, stop: stop, closed: sync.OnceValue(closed)}
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.buf) == 0 {
		if s.last {
			return 0, io.EOF
		}
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n, _ := s.buf.Read(p) // io.EOF is the end of the event only
	return n, nil
}

// next waits for the next event.
func (s *stream) next() error {
	if s.ctx.Err() != nil {
		s.inbox.Wake() // the wake-up may have been for the stream that replaces this one
		if err := context.Cause(s.request); err != nil {
			return err
		}
		return io.EOF // it was stopped
	}
	l, ok, last, current := s.take()
	if !current {
		return io.EOF
	}
	if !ok && !last {
		timer := time.NewTimer(streamable.KeepAlive)
		defer timer.Stop()
		select {
		case <-s.inbox.More():
		case <-timer.C:
			s.buf, s.question = net.Buffers{streamable.Comment}, nil
		case <-s.ctx.Done():
		}
		return nil
	}
	s.last = last
	if ok {
		s.load(l)
	}
	return nil
}

// take takes the next message. It reports whether this is still the response to send it in.
func (s *stream) take() (l letter, ok, last, current bool) {
	switch {
	case len(s.missed) > 0:
		l, s.missed = s.missed[0], s.missed[1:]
		return l, true, len(s.missed) == 0 && s.events.isOver(), true
	case s.events != nil:
		return s.events.take(s)
	}
	l, ok, last = s.inbox.Take()
	return l, ok, last, true
}

// load makes a message the next event.
func (s *stream) load(l letter) {
	event := streamable.Event{Type: "message"}
	if s.events != nil {
		s.sent++
		event.ID = s.events.eventID(s.sent)
	}
	s.buf, s.question = event.Buffers(l.message...), l.question
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.stop()
	kept := s.closed()
	s.inbox.Done()
	if q := s.question; q != nil && len(s.buf) > 0 && !kept { // the client has not read all of it
		q.session.refuse(q, "the client has left")
	}
	return nil
}
