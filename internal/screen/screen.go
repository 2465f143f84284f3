// Package screen stands between the handlers of an MCP server and whoever reads what
// they write: it holds each message until it is complete, and lets it pass edited.
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
	// ErrTooLarge is met by a message of more bytes than may be held.
	ErrTooLarge = errors.New("the message is too large to be looked at")
	// ErrEncoded is met by a body with a Content-Encoding.
	ErrEncoded = errors.New("the response is encoded and cannot be looked at")

	errClosed = errors.New("the response is complete")
)

// A Writer lets messages through one by one, as edit returns them.
//
// The body of a response that is an event stream is let through event by event. All data
// is given to edit, also what is no message, such as the endpoint of the older transport.
// What else there is in a stream passes as Line returns it, and an event that edit leaves as it is otherwise as it came.
// Every other body is one message, whatever its type says. It is held until Close. Until something is let through, or the
// handlers flush an event stream, the status is held, too: somebody can still answer
// otherwise.
//
// An error stays. After it nothing more is let through, and nothing of the message
// that met it has been. A body with a Content-Encoding is such an error, for it cannot
// be read here. So is a connection that is to be taken over.
//
// Held are at most limit bytes, which count all of an event. Data of several lines is
// put together beside them.
type Writer struct {
	// EventsOnly says that only event streams are looked at. Other bodies pass as they
	// are.
	EventsOnly bool

	// Line edits a line of an event stream that is not data, without its end: a
	// comment, or a field such as id. Without it they pass as they are.
	Line func(line []byte) []byte

	next  http.ResponseWriter
	limit int64
	edit  func(message []byte) ([]byte, error)

	status int // 0 until WriteHeader
	mode   mode
	sent   bool // the header has been sent on
	closed bool
	err    error

	held []byte  // of a body, or of an event
	room *[]byte // of rooms, that held was made of; nil if nothing is held

	events  sse.Scanner
	event   event
	mark    int  // how much of a byte order mark there was, or all of it
	last    byte // of the latest event or comment
	dropped bool // that was left out
}

// A mode is what happens to a body.
type mode uint8

const (
	passes mode = iota
	isNone      // no body is allowed
	isMessage
	isStream
	isEncoded
)

// NewWriter returns a Writer that writes to w. It calls edit for each message, whose
// bytes are good until that returns and must not be changed. A message for which edit
// returns nothing is left out: an event as a whole; the body of a response is then
// empty. Not for concurrent use, as any other ResponseWriter.
func NewWriter(w http.ResponseWriter, limit int64, edit func(message []byte) ([]byte, error)) *Writer {
	return &Writer{next: w, limit: limit, edit: edit}
}

// Header implements [http.ResponseWriter].
func (w *Writer) Header() http.Header { return w.next.Header() }

// Unwrap returns the writer behind w, for what w does not do itself.
func (w *Writer) Unwrap() http.ResponseWriter { return w.next }

// Err returns the error that w has met.
func (w *Writer) Err() error { return w.err }

// WriteHeader decides what happens to the body. Information passes at once.
func (w *Writer) WriteHeader(status int) {
	if w.status != 0 || w.err != nil || w.closed {
		return
	}
	if 100 <= status && status < 200 && status != http.StatusSwitchingProtocols {
		w.next.WriteHeader(status)
		return
	}
	w.status, w.mode = status, w.modeOf(status)
	// Trailers will be put into the same map when the body has ended.
	if w.mode == passes || w.mode == isNone || w.mode != isEncoded && w.Header().Get("Trailer") != "" {
		w.send(w.mode == isMessage || w.mode == isStream)
	}
}

func (w *Writer) modeOf(status int) mode {
	isEvents := httpbody.TypeOf(w.Header().Get("Content-Type")) == httpbody.EventStream
	switch {
	case status == http.StatusSwitchingProtocols, status == http.StatusNoContent, status == http.StatusNotModified:
		return isNone
	case w.EventsOnly && !isEvents:
		return passes
	case httpbody.Encoding(w.Header()) != "":
		return isEncoded
	case isEvents:
		return isStream
	}
	return isMessage
}

// send sends the header. If the body may be another than the one that was announced,
// it does not say anything about it any more.
func (w *Writer) send(changed bool) {
	if w.sent {
		return
	}
	if changed {
		httpbody.DropDescription(w.Header())
	}
	w.sent = true
	w.next.WriteHeader(w.status)
}

// Write takes the next bytes of the body.
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
	case passes:
		w.let(p)
	case isNone:
		return 0, http.ErrBodyNotAllowed
	case isEncoded:
		w.err = ErrEncoded
	case isStream:
		w.writeEvents(p)
	default:
		w.hold(p)
	}
	if w.err != nil {
		w.forget()
		return 0, w.err
	}
	return len(p), nil
}

// ReadFrom keeps io.Copy from finding the ReadFrom of the writer behind w, which would
// pass w by.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// FlushError sends on what has been let through. What is held stays so.
func (w *Writer) FlushError() error {
	if w.err != nil {
		return w.err
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.mode == isStream {
		w.send(true)
	}
	if !w.sent {
		return nil
	}
	return http.NewResponseController(w.next).Flush()
}

// Hijack refuses to give the connection away, as messages would pass w by.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// Close says that the handlers have answered completely. What is held goes out now.
// It returns the error that w has met: that of edit, [ErrTooLarge], [ErrEncoded], or one
// of writing.
func (w *Writer) Close() error {
	if w.closed || w.err != nil || w.status == 0 {
		w.closed = true
		return w.err
	}
	w.closed = true
	switch {
	case len(w.held) == 0:
		w.send(false)
	case w.mode == isStream:
		w.endEvent()
	default:
		w.endMessage()
	}
	w.forget()
	return w.err
}

// hold holds the next bytes of a message.
func (w *Writer) hold(p []byte) {
	if int64(len(w.held))+int64(len(p)) > w.limit {
		w.err = ErrTooLarge
		return
	}
	if w.held == nil {
		w.room = rooms.Get().(*[]byte)
		if w.held = (*w.room)[:0]; w.mode == isMessage {
			w.held = slices.Grow(w.held, w.announced(len(p)))
		}
	}
	if cap(w.held)-len(w.held) < len(p) {
		w.held = slices.Grow(w.held, max(len(w.held), len(p)))
	}
	w.held = append(w.held, p...)
}

// rooms are buffers for messages, which are used again.
var rooms = sync.Pool{New: func() any { return new([]byte) }}

// maxRoom is how many bytes a buffer may have to be used again.
const maxRoom = 16 << 20

// forget drops what is held, and gives its buffer back.
func (w *Writer) forget() {
	if w.room != nil && cap(w.held) <= maxRoom {
		*w.room = w.held
		rooms.Put(w.room)
	}
	w.held, w.room = nil, nil
}

// announced returns how many bytes to make room for when the first have come. Others
// say how many there will be, so it is not much on their word only.
func (w *Writer) announced(first int) int {
	const trust = 1 << 20
	n, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	if err != nil {
		return first
	}
	return int(max(int64(first), min(n, w.limit, trust)))
}

// let lets p through.
func (w *Writer) let(p []byte) {
	if w.err == nil && len(p) > 0 {
		_, w.err = w.next.Write(p)
	}
}

// endMessage lets the message that the body is through.
func (w *Writer) endMessage() {
	edited, err := w.edit(w.held)
	if err != nil {
		w.err = err
		return
	}
	changed := !bytes.Equal(edited, w.held)
	if changed && !w.sent {
		httpbody.DropDescription(w.Header())
		if !w.hasTrailers() {
			w.Header().Set("Content-Length", strconv.Itoa(len(edited)))
		}
	}
	w.send(false)
	w.let(edited)
}

// hasTrailers reports whether there are trailers that were not announced. A body of a
// stated length has none.
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
