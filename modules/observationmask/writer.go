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

// holdOutput is how many bytes of a masked JSON response are held back. Clients cannot use half a
// JSON text anyway, and until the header is sent it can be corrected: it gets a new Content-Length,
// or does not change if nothing was masked.
const holdOutput = 1 << 20

// A responseWriter masks a response as it is written.
type responseWriter struct {
	caddyhttp.ResponseWriterWrapper
	handler *Handler
	request *http.Request
	call    call

	status    int  // 0 until WriteHeader
	sent      bool // the header has been sent
	state     *maskState
	in        io.Writer                  // receives the body; nil if the body passes unchanged
	body      *httpbody.Decoder          // in, if the body is encoded
	stream    bool                       // the body is an event stream
	shortener *shortener                 // nil if strings are only cut to head and tail
	masked    atomic.Pointer[mask.Stats] // so far; read by the log, perhaps before the end
}

// maskState is the state for masking one response, pooled.
type maskState struct {
	masker mask.Masker
	events sse.Scanner
	out    bytes.Buffer // masked output held back
}

var maskStates = sync.Pool{New: func() any { return new(maskState) }}

// WriteHeader decides whether the body is masked.
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
	// Send the header of a stream at once, and also that of a response with trailers, which are added
	// to the same header map after the body.
	if w.stream || w.Header().Get("Trailer") != "" {
		_ = w.send(true, unknown)
	}
}

// begin prepares to mask the body and reports whether it is masked.
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
	if w.handler.isExempt(&w.call, &asked) {
		return false
	}
	policy := w.handler.policy
	policy.IsReply = w.call.isRPC
	policy.AnyMethod = asked.method == ""
	policy.Save = w.handler.saver(w.request)
	policy.Limit = w.handler.BufferLimit
	if w.shortener != nil {
		policy.Shorten = w.shortener
	}
	encoding := httpbody.Encoding(header)
	if policy.Limit > 0 && encoding == "" {
		if length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
			if length > int64(policy.Limit) {
				return false
			}
			policy.Limit = 0 // it is short enough
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

// Write masks and sends the next bytes of the body.
func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.in == nil {
		return w.ResponseWriter.Write(p)
	}
	return w.in.Write(p)
}

// ReadFrom keeps io.Copy from using ReadFrom of the underlying writer, which would bypass the mask.
func (w *responseWriter) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.in == nil {
		return w.ResponseWriterWrapper.ReadFrom(r)
	}
	return io.Copy(w.in, r)
}

// FlushError flushes masked output. It does not send output that is still held back.
func (w *responseWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.sent {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// maskedBody masks the decoded body.
type maskedBody struct{ w *responseWriter }

func (b maskedBody) Write(p []byte) (int, error) {
	w := b.w
	if w.stream {
		return w.writeEvents(p)
	}
	n, err := w.state.masker.Write(p)
	if err == nil && !w.sent && w.state.masker.Verbatim() {
		// Not JSON after all. It may be another kind of stream.
		err = w.send(w.changed(), unknown)
	}
	return n, err
}

// changed reports whether the body differs from the original so far.
func (w *responseWriter) changed() bool {
	return w.body != nil || w.state.masker.Stats().Strings > 0
}

// writeEvents masks the data of events, each a JSON text of its own, and flushes complete events.
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

// output receives masked bytes.
type output struct{ w *responseWriter }

func (o output) Write(p []byte) (int, error) {
	w := o.w
	if w.sent {
		return w.ResponseWriter.Write(p)
	}
	if w.state.out.Len()+len(p) <= holdOutput {
		return w.state.out.Write(p)
	}
	// The rest may be changed, unless the masker passes it verbatim.
	if err := w.send(w.changed() || !w.state.masker.Verbatim(), unknown); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

// unknown is the length of an incomplete body.
const unknown = -1

// send sends the header and the held output. If the body was changed, it corrects the headers that
// describe it.
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

// finish completes the response. Write errors are ignored: the client has gone.
func (w *responseWriter) finish() {
	if w.in == nil {
		return
	}
	if w.body != nil {
		if err := w.body.Close(); err != nil {
			w.handler.logger.Warn("response broken off: its content encoding is invalid",
				zap.Error(err), zap.String("mcp_server", w.call.server))
			panic(http.ErrAbortHandler)
		}
	}
	_ = w.state.masker.End()
	w.count()
	if !w.sent {
		length := w.state.out.Len()
		for name := range w.Header() {
			if strings.HasPrefix(name, http.TrailerPrefix) {
				length = unknown // a body with Content-Length has no trailers
			}
		}
		_ = w.send(w.changed(), length)
	} else if w.changed() {
		httpbody.DropDescription(w.Header()) // these are the trailers now
	}
	w.release()
}

// abort sends the part of a broken-off response that is held back, unmasked. Clients see that the
// response is incomplete. After finish, abort does nothing.
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

// release adds the statistics to the gateway's report, and returns the state to the pool.
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

// count adds what was masked since the last call to the metrics.
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

// MarshalLogObject adds the call and what was masked to the access log.
func (w *responseWriter) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if !w.call.logged { // otherwise it is already logged
		asked := w.call.read()
		for _, field := range [...][2]string{
			{"mcp_server", w.call.server}, {"mcp_method", asked.method}, {"mcp_tool", asked.name},
		} {
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
	if shortener := w.shortener; shortener != nil && shortener.in.Load() > 0 {
		enc.AddInt64("mcp_focus_chars_in", shortener.in.Load())
		enc.AddInt64("mcp_focus_chars_out", shortener.out.Load())
	}
	return nil
}

// Interface guards
var (
	_ http.ResponseWriter     = (*responseWriter)(nil)
	_ io.ReaderFrom           = (*responseWriter)(nil)
	_ zapcore.ObjectMarshaler = (*responseWriter)(nil)
)
