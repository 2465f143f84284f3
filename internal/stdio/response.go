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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// respond returns a response with a JSON body in pieces, or without a body.
func respond(req *http.Request, status int, body ...[]byte) *http.Response {
	return respondWith(req, status, letter{message: body}, nil)
}

// respondWith returns a response with the message of a letter. Closing the body frees the block
// of the letter and, if it was taken from an inbox, marks it as done there.
func respondWith(req *http.Request, status int, l letter, inbox *inbox) *http.Response {
	length := l.message.len()
	res := &struct { // a single allocation
		http.Response
		values [2]string // header values
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
		body: body{unread: net.Buffers(l.message), block: l.block, inbox: inbox},
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

// A body is the body of a response with one message.
type body struct {
	mu     sync.Mutex
	unread net.Buffers
	block  *block // block of the message; nil for none
	inbox  *inbox // inbox that it was taken from; nil for none
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
	b.block.free()
	if b.inbox != nil {
		b.inbox.Done()
	}
	return nil
}

// respondStream returns a response with an event stream.
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
	requestCtx    context.Context
	ctx           context.Context // done when the request is, or the stream is stopped
	inbox         *inbox
	buf           net.Buffers    // rest of the current event
	serverRequest *serverRequest // server request in the current event; nil for none
	last          bool           // buf is the end of the stream
	stop          context.CancelFunc
	onClose       func() (kept bool) // called once at the end; reports whether the client can resume the stream

	events *callEvents // events of a call that the client can resume; nil for others
	replay []letter    // sent before new events
	sent   uint64      // number of the latest event
}

func newStream(ctx context.Context, b *inbox, onClose func() (kept bool)) *stream {
	own, stop := context.WithCancel(ctx)
	return &stream{requestCtx: ctx, ctx: own, inbox: b, stop: stop, onClose: sync.OnceValue(onClose)}
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
		s.inbox.Wake() // the wakeup may have been for the stream that replaces this one
		if err := context.Cause(s.requestCtx); err != nil {
			return err
		}
		return io.EOF // stopped
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
			s.buf, s.serverRequest = net.Buffers{streamable.Comment}, nil
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

// take takes the next message. It reports whether this response is still the current one.
func (s *stream) take() (l letter, ok, last, current bool) {
	switch {
	case len(s.replay) > 0:
		l, s.replay = s.replay[0], s.replay[1:]
		return l, true, len(s.replay) == 0 && s.events.isOver(), true
	case s.events != nil:
		return s.events.take(s)
	}
	l, ok, last = s.inbox.Take()
	return l, ok, last, true
}

// load makes a message the current event.
func (s *stream) load(l letter) {
	event := streamable.Event{Type: "message"}
	if s.events != nil {
		s.sent++
		event.ID = s.events.eventID(s.sent)
	}
	s.buf, s.serverRequest = event.Buffers(l.message...), l.serverRequest
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.stop()
	kept := s.onClose()
	s.inbox.Done()
	if q := s.serverRequest; q != nil && len(s.buf) > 0 && !kept { // the client has not read all of it
		q.refuse("the client has left")
	}
	return nil
}

// A letter is a message to a client.
type letter struct {
	message       frame
	block         *block         // block with most of the message and nothing else; nil for none
	code          int            // code of the JSON-RPC error; 0 for none
	serverRequest *serverRequest // set if the message is a server request
}

// Len implements [mailbox.Letter].
func (l letter) Len() int { return l.message.len() }

// An inbox holds messages of a child until the client's response takes them.
type inbox = mailbox.Box[letter]

func newInbox(owner string, limit int) *inbox { return mailbox.New[letter](owner, limit) }
