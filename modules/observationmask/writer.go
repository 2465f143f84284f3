package observationmask

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// holdOutput is how much of a masked JSON response is held back. Nobody can use
// half a JSON text, and as long as nothing has been sent, the headers can still
// be right: the length of what is left, and unchanged if nothing was masked.
const holdOutput = 1 << 20

// A responseWriter masks a response as it is written.
type responseWriter struct {
	caddyhttp.ResponseWriterWrapper
	handler *Handler
	request *http.Request
	call    call

	status  int  // 0 until WriteHeader
	sent    bool // the header has been sent on
	state   *maskState
	in      io.Writer                  // takes the body; nil if it passes as it is
	body    *httpbody.Decoder          // in, if the body is encoded
	stream  bool                       // the body is an event stream
	cutting *shortener                 // nil if strings are cut to head and tail only
	masked  atomic.Pointer[mask.Stats] // what has been so far; read by the log, perhaps before the end
}

// maskState is what masking a response takes, kept between responses.
type maskState struct {
	masker mask.Masker
	events sse.Scanner
	out    bytes.Buffer // masked and held back
}

var maskStates = sync.Pool{New: func() any { return new(maskState) }}

// WriteHeader decides what happens to the body.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if 100 <= status && status < 200 && status != http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.status = status
	if !w.begin() {
		w.sent = true
		w.ResponseWriter.WriteHeader(status)
		return
	}
	// The header of a stream goes out at once. So does that of a response with
	// trailers: they will be put into the same map when the body has ended.
	if w.stream || w.Header().Get("Trailer") != "" {
		_ = w.send(true, unknown)
	}
}

// begin prepares to mask the body and reports whether it is to be masked.
func (w *responseWriter) begin() bool {
	header := w.Header()
	media := httpbody.TypeOf(header.Get("Content-Type"))
	w.stream = media == httpbody.EventStream
	switch {
	case media == httpbody.Other,
		w.status == http.StatusSwitchingProtocols, w.status == http.StatusNoContent,
		w.status == http.StatusNotModified, w.status == http.StatusPartialContent:
		return false
	}
	asked := w.call.read()
	if w.handler.exempted(&w.call, &asked) {
		return false
	}
	policy := w.handler.policy
	policy.Reply = w.call.isRPC
	policy.AnyMethod = asked.method == ""
	policy.Save = w.handler.saver(w.request)
	policy.Limit = w.handler.BufferLimit
	if w.cutting != nil {
		policy.Shorten = w.cutting
	}
	encoding := httpbody.Encoding(header)
	if policy.Limit > 0 && encoding == "" {
		if length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
			if length > int64(policy.Limit) {
				return false
			}
			policy.Limit = 0 // it is known to be short enough
		}
	}
	if encoding == "" {
		w.in = maskedBody{w}
	} else if w.body = httpbody.NewDecoder(encoding, maskedBody{w}); w.body != nil {
		w.in = w.body
	} else {
		w.handler.logger.Warn("response not masked: unknown content encoding",
			zap.String("content_encoding", encoding), zap.String("mcp_server", w.call.server))
		return false
	}
	w.state = maskStates.Get().(*maskState)
	w.state.masker.Reset(output{w}, policy)
	w.state.events = sse.Scanner{}
	w.state.out.Reset()
	return true
}

// Write takes the next bytes of the body.
func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.in == nil {
		return w.ResponseWriter.Write(p)
	}
	return w.in.Write(p)
}

// ReadFrom keeps io.Copy from finding the ReadFrom of the writer below, which
// would pass the body by.
func (w *responseWriter) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.in == nil {
		return w.ResponseWriterWrapper.ReadFrom(r)
	}
	return io.Copy(w.in, r)
}

// FlushError sends on what has been masked. A JSON response that is still held
// back stays so.
func (w *responseWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.sent {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// maskedBody takes the body, decoded if it was encoded.
type maskedBody struct{ w *responseWriter }

func (b maskedBody) Write(p []byte) (int, error) {
	w := b.w
	if w.stream {
		return w.writeEvents(p)
	}
	n, err := w.state.masker.Write(p)
	if err == nil && !w.sent && w.state.masker.Verbatim() {
		// Not a JSON text after all. It may be a stream of some other kind.
		err = w.send(w.changed(), unknown)
	}
	return n, err
}

// changed reports whether the body is another than the one that was written, as
// far as it is known.
func (w *responseWriter) changed() bool {
	return w.body != nil || w.state.masker.Stats().Strings > 0
}

// writeEvents masks the data of events, each a JSON text of its own. It sends
// them on as they are complete.
func (w *responseWriter) writeEvents(p []byte) (int, error) {
	masker, events := &w.state.masker, &w.state.events
	complete := false
	events.Feed(p)
	for {
		kind, part := events.Next()
		var err error
		switch kind {
		case sse.More:
			if complete {
				err = w.FlushError()
				w.count()
			}
			return len(p), err
		case sse.Data:
			_, err = masker.Write(part)
		case sse.Frame:
			err = masker.Gap(part)
		case sse.Dispatch:
			err = masker.End()
			complete = true
		}
		if err != nil {
			return 0, err
		}
	}
}

// output takes what has been masked.
type output struct{ w *responseWriter }

func (o output) Write(p []byte) (int, error) {
	w := o.w
	if w.sent {
		return w.ResponseWriter.Write(p)
	}
	if w.state.out.Len()+len(p) <= holdOutput {
		return w.state.out.Write(p)
	}
	// What is still to come may be changed, unless it is known to pass.
	if err := w.send(w.changed() || !w.state.masker.Verbatim(), unknown); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

// unknown is the length of a body that is not yet complete.
const unknown = -1

// send sends the header and what is held back. If the body was changed, what the
// header says of it is put right.
func (w *responseWriter) send(changed bool, length int) error {
	if changed {
		httpbody.DropDescription(w.Header())
		if length != unknown {
			w.Header().Set("Content-Length", strconv.Itoa(length))
		}
	}
	w.sent = true
	w.ResponseWriter.WriteHeader(w.status)
	if w.state.out.Len() == 0 {
		return nil
	}
	_, err := w.ResponseWriter.Write(w.state.out.Bytes())
	w.state.out.Reset()
	return err
}

// finish completes the response. If the client has left, nobody needs to know.
func (w *responseWriter) finish() {
	if w.in == nil {
		return
	}
	if w.body != nil {
		if err := w.body.Close(); err != nil {
			w.handler.logger.Warn("decoding response", zap.Error(err), zap.String("mcp_server", w.call.server))
			panic(http.ErrAbortHandler)
		}
	}
	_ = w.state.masker.End()
	w.count()
	if !w.sent {
		length := w.state.out.Len()
		for name := range w.Header() {
			if strings.HasPrefix(name, http.TrailerPrefix) {
				length = unknown // a body of a stated length has no trailers
			}
		}
		_ = w.send(w.changed(), length)
	}
	w.release()
}

// abort lets out what is held back of a response that broke off, as it arrived.
// The response stays visibly incomplete. After finish it does nothing.
func (w *responseWriter) abort() {
	if w.in == nil {
		return
	}
	if w.body != nil {
		w.body.Stop()
	}
	_ = w.state.masker.Abort()
	w.count()
	if !w.sent {
		_ = w.send(w.changed(), unknown)
	}
	_ = w.FlushError()
	w.release()
}

// release gives back what masking took, and reports what was masked.
func (w *responseWriter) release() {
	if report := requestOf(w.request).Report; report != nil {
		report.Add(&mask.Report{Stats: w.state.masker.Stats()})
	}
	if !w.state.masker.Oversized() && w.state.out.Cap() <= holdOutput {
		w.state.masker.Reset(nil, mask.Policy{})
		maskStates.Put(w.state)
	}
	w.in, w.state = nil, nil
}

// count adds what was masked since the last time to the metrics.
func (w *responseWriter) count() {
	var before mask.Stats
	if counted := w.masked.Load(); counted != nil {
		before = *counted
	}
	now := w.state.masker.Stats()
	if n := now.Strings - before.Strings; n > 0 {
		maskedStrings.WithLabelValues(w.call.server).Add(float64(n))
		maskedChars.WithLabelValues(w.call.server).Add(float64(now.Chars - before.Chars))
		w.masked.Store(&now)
	}
}

// MarshalLogObject puts what was called and masked into the access log, when it
// is written.
func (w *responseWriter) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if !w.call.known { // else it is logged already
		asked := w.call.read()
		for _, field := range [][2]string{{"mcp_server", w.call.server}, {"mcp_method", asked.method}, {"mcp_tool", asked.name}} {
			if field[1] != "" {
				enc.AddString(field[0], field[1])
			}
		}
	}
	if masked := w.masked.Load(); masked != nil {
		enc.AddInt("mcp_masked_strings", masked.Strings)
		enc.AddInt("mcp_masked_chars", masked.Chars)
	}
	if request := requestOf(w.request); request.Goal != "" {
		enc.AddBool("mcp_focus", true)
	}
	if cutting := w.cutting; cutting != nil && cutting.in.Load() > 0 {
		enc.AddInt64("mcp_focus_chars_in", cutting.in.Load())
		enc.AddInt64("mcp_focus_chars_out", cutting.out.Load())
	}
	return nil
}

// Interface guards
var (
	_ http.ResponseWriter     = (*responseWriter)(nil)
	_ io.ReaderFrom           = (*responseWriter)(nil)
	_ zapcore.ObjectMarshaler = (*responseWriter)(nil)
)
