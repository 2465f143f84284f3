// Package park keeps responses open that are silent most of the time.
//
// During a response, net/http keeps the goroutine of its handler with its stack, a goroutine that
// reads, and the buffers of the connection: about 45 KB. A parked response keeps only the
// connection; its handler has returned. On Linux one goroutine watches all parked connections;
// elsewhere each has one, with a small stack.
package park

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"sync"
	"time"
)

// endTime is how long a client may take to read the end of a response.
const endTime = time.Second

// passive are the response writers of Caddy that do not change the body once the header is sent:
// those of access logs and metrics, of idle timeouts, and of the header directive. Other writers
// may change it, so responses behind them are not parked.
var passive = map[string]bool{
	"github.com/caddyserver/caddy/v2/modules/caddyhttp.responseRecorder":              true,
	"github.com/caddyserver/caddy/v2/modules/caddyhttp.IdleTimeoutWriter":             true,
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers.responseWriterWrapper": true,
}

// Prepare reports whether the response to r can be parked: it is HTTP/1.1, and w writes to its
// connection. If so, it tells the client that the connection ends with the response. It must be
// called before the header is sent.
func Prepare(w http.ResponseWriter, r *http.Request) bool {
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if r.ProtoMajor != 1 || r.ProtoMinor < 1 || server == nil || server.WriteTimeout > 0 {
		return false // Caddy flushes responses that exceed the write timeout, parked or not
	}
	if hijackerBehind(w) == nil {
		return false
	}
	w.Header().Set("Connection", "close")
	return true
}

// hijackerBehind returns the writer of net/http behind w; nil if a writer between them may change
// the body.
func hijackerBehind(w http.ResponseWriter) http.Hijacker {
	for {
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			h, _ := w.(http.Hijacker)
			return h
		}
		name := reflect.TypeOf(w)
		if name.Kind() != reflect.Pointer || !passive[name.Elem().PkgPath()+"."+name.Elem().Name()] {
			return nil
		}
		w = wrapper.Unwrap()
	}
}

// buffersResponse reports whether a writer buffers the response.
func buffersResponse(w http.ResponseWriter) bool {
	for {
		if b, ok := w.(interface{ Buffered() bool }); ok && b.Buffered() {
			return true
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = wrapper.Unwrap()
	}
}

// A Response is the rest of a parked response. Only End and Close may be called concurrently with
// other methods.
type Response struct {
	conn    net.Conn
	onLeave func()
	chunk   []byte // written, but not flushed

	key     int32         // key in the poller; 0 if watch runs instead
	watched chan struct{} // closed when watch has ended; nil without watch

	mu    sync.Mutex // guards ended, and the write deadline
	ended bool
}

// Take takes over the connection of a response that Prepare accepted, whose header was sent and
// whose body was flushed. It returns nil if that is not possible; then w can still be used. onLeave
// is called when the client closes the connection, or sends anything: its next request cannot be
// served behind a response that does not end. It must not block.
func Take(w http.ResponseWriter, onLeave func()) *Response {
	h, header := hijackerBehind(w), w.Header()
	if h == nil || buffersResponse(w) || header["Content-Length"] != nil || header["Transfer-Encoding"] != nil {
		return nil // the body is not chunked
	}
	conn, buffered, err := h.Hijack()
	if err != nil {
		return nil
	}
	pipelined := buffered.Reader.Buffered() > 0
	// Placeholders of the request refer to the writer of net/http, which keeps the buffers.
	*buffered.Reader, *buffered.Writer = bufio.Reader{}, bufio.Writer{}
	r := &Response{conn: conn, onLeave: onLeave}
	switch {
	case pipelined:
		onLeave()
	case !poller.add(r):
		r.watched = make(chan struct{})
		go r.watch()
	}
	return r
}

// watch waits until the client closes the connection, or sends anything.
func (r *Response) watch() {
	defer close(r.watched)
	for {
		var b [1]byte
		_, err := r.conn.Read(b[:])
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		_ = r.conn.SetReadDeadline(time.Time{}) // a handler may have set one for the request
	}
	r.clientLeft()
}

// clientLeft calls onLeave, unless the response has ended.
func (r *Response) clientLeft() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.onLeave()
	}
}

// Header returns an empty header, because the header of the response was sent.
func (*Response) Header() http.Header { return http.Header{} }

// WriteHeader does nothing.
func (*Response) WriteHeader(int) {}

// Write appends to the next chunk.
func (r *Response) Write(p []byte) (int, error) {
	r.chunk = append(r.chunk, p...)
	return len(p), nil
}

// FlushError sends the chunk. On a timeout, the client counts as disconnected.
func (r *Response) FlushError() error {
	if len(r.chunk) == 0 {
		return nil
	}
	// One Write, because a connection keeps memory for net.Buffers, and TLS makes a record of each.
	_, err := r.conn.Write(fmt.Appendf(nil, "%x\r\n%s\r\n", len(r.chunk), r.chunk))
	r.chunk = nil
	if err != nil {
		r.clientLeft()
	}
	return err
}

// SetWriteDeadline sets the deadline of FlushError.
func (r *Response) SetWriteDeadline(t time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	return r.conn.SetWriteDeadline(t)
}

// End limits the time for everything that is still to be written. onLeave is not called afterwards.
func (r *Response) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	_ = r.conn.SetWriteDeadline(time.Now().Add(endTime))
}

// Close ends the response and closes the connection.
func (r *Response) Close() {
	r.End()
	_, _ = r.conn.Write([]byte("0\r\n\r\n")) // fails if the client has left
	poller.remove(r)
	_ = r.conn.Close()
	if r.watched != nil {
		<-r.watched
	}
}

// Interface guard
var _ http.ResponseWriter = (*Response)(nil)
