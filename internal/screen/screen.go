// Package screen edits the messages that the handlers of an MCP server write: it holds each message
// until it is complete, edits it, and passes it on.
package screen

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

var (
	// ErrTooLarge reports a message that is longer than the limit.
	ErrTooLarge = errors.New("the message is too large to be inspected")
	// ErrEncoded reports a body with a Content-Encoding.
	ErrEncoded = errors.New("the response is encoded and cannot be inspected")

	errClosed = errors.New("the response is complete")
)

// A Writer passes messages on one by one, as edit returns them.
//
// An event stream is passed on event by event. edit gets all data, even if it is not a message,
// such as the endpoint of the older transport. Lines that are not data pass as Line returns them.
// Any other body is one message, regardless of its Content-Type, and is held until Close. The
// status is held until something is passed on or the handlers flush an event stream, so that the
// caller can still send another response.
//
// Errors are permanent. After an error nothing more is passed on, and nothing of the message that
// caused it has been. A body with a Content-Encoding is an error, because it cannot be read. Hijack
// is not supported.
//
// A Writer holds at most limit bytes, which include all lines of an event. Data of several lines is
// joined in additional memory.
type Writer struct {
	// EventsOnly limits editing to event streams. Other bodies pass unchanged.
	EventsOnly bool

	// Line edits a line of an event stream that is not data, without its end: a comment, or a field
	// such as id. If it is nil, these lines pass unchanged.
	Line func(line []byte) []byte

	next  http.ResponseWriter
	limit int64
	edit  func(message []byte) ([]byte, error)

	status     int // 0 until WriteHeader
	mode       mode
	headerSent bool
	closed     bool
	err        error

	held   []byte  // bytes of a body or an event
	buffer *[]byte // pooled buffer of held; nil if nothing is held

	events      sse.Scanner
	event       event
	bomSeen     int  // bytes of a byte order mark seen; its length after the beginning
	lastByte    byte // last byte of the latest event or comment
	lastDropped bool // the latest event was dropped
}

// A mode is a way to handle a body.
type mode uint8

const (
	passThrough mode = iota
	noBody           // no body is allowed
	singleMessage
	eventStream
	encodedBody
)

// NewWriter returns a Writer that writes to w. It calls edit for each message. edit must not change
// the message, or keep it after it returns. If edit returns nothing, the message is dropped: an
// event as a whole; a body becomes empty. A Writer is not safe for concurrent use.
func NewWriter(w http.ResponseWriter, limit int64, edit func(message []byte) ([]byte, error)) *Writer {
	return &Writer{next: w, limit: limit, edit: edit}
}

// Header implements [http.ResponseWriter].
func (w *Writer) Header() http.Header { return w.next.Header() }

// Unwrap returns the underlying writer.
func (w *Writer) Unwrap() http.ResponseWriter { return w.next }

// Err returns the error of w, or nil.
func (w *Writer) Err() error { return w.err }

// WriteHeader decides how the body is handled. Informational responses pass at once.
func (w *Writer) WriteHeader(status int) {
	if w.status != 0 || w.err != nil || w.closed {
		return
	}
	if 100 <= status && status < 200 && status != http.StatusSwitchingProtocols {
		w.next.WriteHeader(status)
		return
	}
	w.status, w.mode = status, w.modeOf(status)
	// Trailers are put into the same map after the body.
	if w.mode == passThrough || w.mode == noBody || w.mode != encodedBody && w.Header().Get("Trailer") != "" {
		w.sendHeader(w.mode == singleMessage || w.mode == eventStream)
	}
}

func (w *Writer) modeOf(status int) mode {
	isEvents := httpbody.TypeOf(w.Header().Get("Content-Type")) == httpbody.EventStream
	switch {
	case status == http.StatusSwitchingProtocols, status == http.StatusNoContent, status == http.StatusNotModified:
		return noBody
	case w.EventsOnly && !isEvents:
		return passThrough
	case httpbody.Encoding(w.Header()) != "":
		return encodedBody
	case isEvents:
		return eventStream
	}
	return singleMessage
}

// sendHeader sends the header. If the body may change, it first removes the headers that describe
// the body.
func (w *Writer) sendHeader(changed bool) {
	if w.headerSent {
		return
	}
	if changed {
		httpbody.DropDescription(w.Header())
	}
	w.headerSent = true
	w.next.WriteHeader(w.status)
}

// Write handles the next bytes of the body.
func (w *Writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case w.closed:
		return 0, errClosed
	case len(p) == 0:
		return 0, nil
	}
	switch w.mode {
	case passThrough:
		w.forward(p)
	case noBody:
		return 0, http.ErrBodyNotAllowed
	case encodedBody:
		w.err = ErrEncoded
	case eventStream:
		w.writeEvents(p)
	default:
		w.hold(p)
	}
	if w.err != nil {
		w.freeBuffer()
		return 0, w.err
	}
	return len(p), nil
}

// ReadFrom keeps io.Copy from using the ReadFrom of the underlying writer, which would bypass w.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// FlushError flushes what was passed on. It does not affect held messages.
func (w *Writer) FlushError() error {
	if w.err != nil {
		return w.err
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.mode == eventStream {
		w.sendHeader(true)
	}
	if !w.headerSent {
		return nil
	}
	return http.NewResponseController(w.next).Flush()
}

// Hijack is refused, because messages would bypass w.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// Close ends the response, and passes on the held message. It returns the error of w: that of edit,
// [ErrTooLarge], [ErrEncoded], or a write error.
func (w *Writer) Close() error {
	if w.closed || w.err != nil || w.status == 0 {
		w.closed = true
		return w.err
	}
	w.closed = true
	switch {
	case len(w.held) == 0:
		w.sendHeader(false)
	case w.mode == eventStream:
		w.endEvent()
	default:
		w.endMessage()
	}
	w.freeBuffer()
	return w.err
}

// hold holds the next bytes of a message.
func (w *Writer) hold(p []byte) {
	if int64(len(w.held))+int64(len(p)) > w.limit {
		w.err = ErrTooLarge
		return
	}
	if w.held == nil {
		w.buffer = buffers.Get().(*[]byte)
		w.held = (*w.buffer)[:0]
		if w.mode == singleMessage {
			w.held = slices.Grow(w.held, w.expectedSize(len(p)))
		}
	}
	if cap(w.held)-len(w.held) < len(p) {
		w.held = slices.Grow(w.held, max(len(w.held), len(p)))
	}
	w.held = append(w.held, p...)
}

// buffers are reusable buffers for messages.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxBuffer is the maximum size in bytes of a buffer that is reused.
const maxBuffer = 16 << 20

// freeBuffer drops the held bytes and returns their buffer to the pool.
func (w *Writer) freeBuffer() {
	if w.buffer != nil && cap(w.held) <= maxBuffer {
		*w.buffer = w.held
		buffers.Put(w.buffer)
	}
	w.held, w.buffer = nil, nil
}

// expectedSize returns how many bytes to allocate when the first ones arrive. It trusts the
// Content-Length only up to a limit.
func (w *Writer) expectedSize(first int) int {
	const maxTrusted = 1 << 20
	n, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	if err != nil {
		return first
	}
	return int(max(int64(first), min(n, w.limit, maxTrusted)))
}

// forward writes p to the underlying writer, unless an error has occurred.
func (w *Writer) forward(p []byte) {
	if w.err == nil && len(p) > 0 {
		_, w.err = w.next.Write(p)
	}
}

// endMessage edits the body as one message and passes it on.
func (w *Writer) endMessage() {
	edited, err := w.edit(w.held)
	if err != nil {
		w.err = err
		return
	}
	changed := !bytes.Equal(edited, w.held)
	if changed && !w.headerSent {
		httpbody.DropDescription(w.Header())
		if !w.hasTrailers() {
			w.Header().Set("Content-Length", strconv.Itoa(len(edited)))
		}
	}
	w.sendHeader(false)
	w.forward(edited)
}

// hasTrailers reports whether there are unannounced trailers. A body with a Content-Length cannot
// have any.
func (w *Writer) hasTrailers() bool {
	for name := range w.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// Interface guards
var (
	_ http.ResponseWriter = (*Writer)(nil)
	_ http.Hijacker       = (*Writer)(nil)
	_ io.ReaderFrom       = (*Writer)(nil)
	_ io.Closer           = (*Writer)(nil)
)
