package streamable

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A Writer sends messages to a client: one JSON message or, if other messages precede the response,
// an event stream. It is safe for concurrent use.
type Writer struct {
	// OnAnswer, if set, is called with the bytes of the response as they are sent.
	OnAnswer func(part []byte)

	w       http.ResponseWriter
	accepts bool // the client accepts event streams

	mu     sync.Mutex
	begun  bool // the status has been sent
	stream bool
	breaks sse.Breaks // in the stream
	err    error      // writing failed, or the response has ended
}

// NewWriter returns a Writer for the response to a request with this header.
func NewWriter(w http.ResponseWriter, request http.Header) *Writer {
	return &Writer{w: w, accepts: AcceptsStream(request)}
}

// AcceptsStream reports whether Accept names event streams. A client that accepts */* was not made
// for them, and gets JSON.
func AcceptsStream(header http.Header) bool {
	for _, line := range header["Accept"] {
		for accepted := range strings.SplitSeq(line, ",") {
			mediaType, _, _ := strings.Cut(accepted, ";")
			if strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream") {
				return true
			}
		}
	}
	return false
}

// writeTimeout is how long a client may take to read an event. Meanwhile, the server and other
// streams with the same event wait.
const writeTimeout = 30 * time.Second

// AcceptsStream reports whether the client accepts event streams.
func (w *Writer) AcceptsStream() bool { return w.accepts }

// begin starts an event stream if the client accepts one. It reports whether there is one.
func (w *Writer) begin() bool {
	if w.begun || !w.accepts || w.err != nil {
		return w.stream
	}
	w.begun, w.stream = true, true
	header := w.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-transform")
	header.Set("X-Accel-Buffering", "no") // otherwise nginx holds events back
	w.w.WriteHeader(http.StatusOK)
	return true
}

// Begin starts an event stream before there is an event to send, if the client accepts one.
func (w *Writer) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begin() {
		w.flush()
	}
}

// Move continues an event stream with the writer that move returns, unless that is nil.
func (w *Writer) Move(move func(http.ResponseWriter) http.ResponseWriter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stream || w.err != nil {
		return
	}
	if other := move(w.w); other != nil {
		w.w = other
	}
}

// Event sends an event. It reports whether that succeeded.
func (w *Writer) Event(e *Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begin() || w.err != nil {
		return false
	}
	w.writeEvent(e)
	return w.err == nil
}

func (w *Writer) writeEvent(e *Event) {
	for _, piece := range e.Buffers(e.Data) {
		w.writeEscaped(piece)
	}
	w.flush()
}

// writeEscaped writes a part of an event. It escapes characters that some clients take for line
// ends.
func (w *Writer) writeEscaped(p []byte) { w.write(w.breaks.Escape(p)) }

// Answer sends the response: as the whole body, or as an event if others precede it.
func (w *Writer) Answer(status int, e *Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reportResponse(e.Data)
	if w.stream {
		w.writeEvent(e)
		return
	}
	if w.begun || w.err != nil {
		return
	}
	w.begun = true
	header := w.w.Header()
	httpbody.SetHeader(header, "Content-Type", "application/json")
	httpbody.SetHeader(header, "Content-Length", strconv.Itoa(len(e.Data)))
	w.w.WriteHeader(status)
	w.write(e.Data)
}

// Large starts a response of unknown length, as an event if stream is set or others precede it. The
// caller writes and closes it. Nothing else may be sent in between.
func (w *Writer) Large(e *Event, stream bool) io.WriteCloser {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stream && w.begin() || w.stream {
		w.writeEscaped(e.head())
	} else if !w.begun && w.err == nil {
		w.begun = true
		w.w.Header().Set("Content-Type", "application/json")
		w.w.WriteHeader(http.StatusOK)
	}
	return &largeResponse{w}
}

// A largeResponse is a response that is forwarded as it arrives.
type largeResponse struct{ w *Writer }

func (l *largeResponse) Write(p []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.reportResponse(p)
	if l.w.stream {
		l.w.writeEscaped(oneLine(p))
	} else {
		l.w.write(p)
	}
	return len(p), l.w.err
}

func (l *largeResponse) Close() error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.stream {
		l.w.writeEscaped(eventEnd)
	}
	l.w.flush()
	return l.w.err
}

func (w *Writer) reportResponse(part []byte) {
	if w.OnAnswer != nil {
		w.OnAnswer(part)
	}
}

// KeepAlive sends a comment, so proxies do not close a silent stream. It starts the stream if the
// client accepts one.
func (w *Writer) KeepAlive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begin() {
		w.write(Comment)
		w.flush()
	}
}

func (w *Writer) write(p []byte) {
	if w.err != nil {
		return
	}
	if w.stream {
		_ = http.NewResponseController(w.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // where supported
	}
	_, w.err = w.w.Write(p)
}

// flush flushes. It clears the write deadline, because an HTTP/2 stream would end at it even while
// nothing is written.
func (w *Writer) flush() {
	if w.err != nil {
		return
	}
	controller := http.NewResponseController(w.w)
	w.err = controller.Flush()
	if w.err == nil && w.stream {
		_ = controller.SetWriteDeadline(time.Time{})
	}
}

// Flush flushes what was written.
func (w *Writer) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
}

// Close ends the response. Later writes are dropped, because the response writer may belong to
// another request by then.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stream && w.err == nil {
		_ = http.NewResponseController(w.w).SetWriteDeadline(time.Time{})
	}
	w.err = errEnded
}

var errEnded = errors.New("the response has ended")

// IsStreaming reports whether an event stream has started.
func (w *Writer) IsStreaming() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream
}

// Err returns why nothing more can be written: a write failed, or the response has ended.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// An Event is a message in an event stream.
type Event struct {
	ID    string // resumes the stream after this event
	Retry string // milliseconds to wait before resuming
	Type  string // default: "message"
	Data  []byte // empty in an event that only sets ID or Retry

	// Message is Data, parsed. A Writer ignores it.
	Message *jsonrpc.Message
}

// HasMessage reports whether the event carries a message.
func (e *Event) HasMessage() bool {
	return len(e.Data) > 0 && (e.Type == "" || e.Type == "message")
}

// Buffers returns the bytes of the event with data instead of Data. data is one JSON text in any
// number of pieces. It is copied only if it has line breaks, because some clients read only one
// line of data.
func (e *Event) Buffers(data ...[]byte) net.Buffers {
	buffers := append(make(net.Buffers, 0, len(data)+2), e.head())
	for _, piece := range data {
		buffers = append(buffers, oneLine(piece))
	}
	return append(buffers, eventEnd)
}

var eventEnd = []byte("\n\n")

// head returns the lines before the data, and the beginning of the data line.
func (e *Event) head() []byte {
	var head []byte
	if e.ID != "" {
		head = append(append(append(head, "id: "...), e.ID...), '\n')
	}
	if e.Retry != "" {
		head = append(append(append(head, "retry: "...), e.Retry...), '\n')
	}
	if e.Type != "" {
		head = append(append(append(head, "event: "...), e.Type...), '\n')
	}
	return append(head, "data: "...)
}

// oneLine returns a part of a JSON text without line breaks, which occur only between tokens.
func oneLine(p []byte) []byte {
	if bytes.IndexByte(p, '\n') < 0 && bytes.IndexByte(p, '\r') < 0 {
		return p
	}
	return jsonspan.AppendLine(nil, p)
}

// Comment is sent on a silent stream every KeepAlive, because proxies close idle connections.
var Comment = []byte(":\n\n")

// KeepAlive is how long a stream may be silent.
const KeepAlive = 15 * time.Second
