package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A responseReceiver is the response writer for the routes of the server. It notes when the server
// is active, and enforces the size limit on the bytes that the server sends, before the filter and
// the mask. It forwards only headers that clients may get. Headers that were set before the routes
// ran are the operator's, and stay. Trailers are dropped.
type responseReceiver struct {
	http.ResponseWriter
	x      *Exchange
	header http.Header // as the routes see it

	limit         int64 // in bytes; 0 for none
	size          int64 // bytes received
	status        int
	informational int  // informational responses received
	wroteHeader   bool // the status has been received
	abandoned     bool // the response is not accepted, or reverse_proxy canceled the request
	incomplete    bool // the routes have not ended, or failed
	ambiguous     bool // clients could parse the body differently: it is dropped, or the response rejected
	filtered      bool // a filter reads the response
	escapes       bool // escape characters that some readers take for line ends
	breaks        sse.Breaks

	contentType *string // Content-Type of the server, if MCP does not define it
}

// statusClientClosed is the status of reverse_proxy for a canceled request.
const statusClientClosed = 499

// maxInformational is how many informational responses are forwarded.
const maxInformational = 100

// Header returns the headers for the routes.
func (rr *responseReceiver) Header() http.Header {
	switch {
	case rr.header != nil:
	case rr.x.Kind != Aggregate:
		if rr.header = rr.x.Before.Clone(); rr.header == nil {
			rr.header = make(http.Header)
		}
	case rr.wroteHeader: // trailers
		rr.header = make(http.Header)
	default: // the reader has no other headers, so no copy is needed
		rr.header = rr.ResponseWriter.Header()
	}
	return rr.header
}

// WriteHeader forwards the status and headers, if the response is acceptable.
func (rr *responseReceiver) WriteHeader(status int) {
	if status == statusClientClosed && rr.x.ctx.Err() != nil {
		rr.abandoned = true
		if context.Cause(&rr.x.ctx) != ErrTimeout && rr.x.Kind != Aggregate { // else a client still waits
			rr.x.Writer.WriteHeader(status)
		}
		return
	}
	if status < 200 {
		if rr.x.Kind == Aggregate {
			clear(rr.header)
		}
		rr.header = nil // reverse_proxy clears its own, which do not belong to this status
		rr.informational++
		if rr.informational <= maxInformational {
			rr.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if !rr.x.Resumed { // otherwise it only says that there may be more
		rr.x.limits.noteActivity()
	}
	if rr.wroteHeader {
		return
	}
	header := rr.Header()
	rr.x.session.Restore(header)
	rr.wroteHeader, rr.status = true, status
	rr.x.inspection.noteHeader(rr.x, header)
	rr.noteType(header)
	rr.ambiguous = rr.isAmbiguous(header)
	if failure := rr.rejection(status, header); failure != nil {
		rr.x.failure, rr.abandoned = failure, true
		return
	}
	if rr.ambiguous {
		httpbody.DropDescription(header)
		header.Del("Content-Type")
	}
	rr.escapes = rr.readsEvents(header)
	if rr.escapes {
		httpbody.DropDescription(header)
	}
	if rr.x.Kind != Aggregate {
		rr.x.binding().bindSession(header)
	}
	if rr.x.Kind == RPC && (status == http.StatusOK || status == http.StatusForbidden) &&
		httpbody.TypeOf(httpbody.GetHeader(header, "Content-Type")) == httpbody.Other {
		// Some servers send text/plain or no type. The mask must take it for JSON-RPC until it is
		// read.
		header.Set("Content-Type", "application/json")
	}
	rr.passHeader()
	rr.ResponseWriter.WriteHeader(status)
}

// noteType records the Content-Type of a body that MCP does not define.
func (rr *responseReceiver) noteType(header http.Header) {
	if types := header["Content-Type"]; len(types) > 0 && httpbody.TypeOf(types[0]) == httpbody.Other {
		contentType := types[0]
		rr.contentType = &contentType
	}
}

// passHeader copies the headers that the client may get to its response.
func (rr *responseReceiver) passHeader() {
	to := rr.ResponseWriter.Header()
	if rr.x.Kind == Aggregate { // both are the same map
		maps.DeleteFunc(to, func(name string, _ []string) bool { return !rr.passesHeader(name) })
		rr.header = nil
	}
	for name := range rr.x.Before {
		if rr.header[name] == nil { // such as Server, which reverse_proxy removes
			delete(to, name)
		}
	}
	for name, values := range rr.header {
		if rr.passesHeader(name) {
			to[name] = values
		}
	}
	if types := to["Content-Type"]; len(types) > 1 {
		to["Content-Type"] = types[:1] // the one that was read
	}
	if rr.x.isListening {
		// A browser that opens this URL must not treat a page of the server as a page of the
		// gateway.
		to.Set("X-Content-Type-Options", "nosniff")
		to.Set("Content-Security-Policy", "sandbox")
	}
}

// rejection returns why a response is rejected: it is a redirect, or the client could parse the
// body differently than the gateway. A response whose status is enough, such as that of an ended
// session, is accepted without its body.
func (rr *responseReceiver) rejection(status int, header http.Header) *jsonrpc.Failure {
	switch {
	case status/100 == 3:
		return jsonrpc.HTTPError(rr.x.Server.Name, status)
	case status >= 400, status == http.StatusAccepted, status == http.StatusNoContent,
		httpbody.GetHeader(header, "Content-Length") == "0":
		return nil
	case rr.ambiguous:
		return jsonrpc.InvalidResponse(rr.x.Server.Name)
	}
	return nil
}

// isAmbiguous reports whether a client could parse the body differently than the gateway.
func (rr *responseReceiver) isAmbiguous(header http.Header) bool {
	contentType := httpbody.GetHeader(header, "Content-Type")
	switch {
	case rr.x.isListening && httpbody.Encoding(header) != "":
		return true
	case rr.x.isListening, rr.x.Caller.Redactor() != nil, rr.filtered && httpbody.TypeOf(contentType) != httpbody.Other:
		return !httpbody.IsUTF8(contentType)
	}
	return false
}

// readsEvents reports whether the gateway parses the body as an event stream but forwards it
// unchanged. At the aggregate it does not: there [streamable.Writer] writes new events. A client
// that opened a stream may ignore its Content-Type.
func (rr *responseReceiver) readsEvents(header http.Header) bool {
	isEvents := httpbody.TypeOf(httpbody.GetHeader(header, "Content-Type")) == httpbody.EventStream
	return (rr.x.isListening || rr.filtered && isEvents) && rr.x.Kind != Aggregate && httpbody.Encoding(header) == ""
}

// Write forwards the next bytes of the body.
func (rr *responseReceiver) Write(p []byte) (int, error) {
	if !rr.wroteHeader {
		rr.WriteHeader(http.StatusOK)
	}
	if rr.abandoned {
		return 0, errRejected
	}
	if !isKeepAlive(p) {
		rr.x.limits.noteActivity()
	}
	rr.x.Traffic.addReceived(len(p))
	if rr.size += int64(len(p)); rr.limit > 0 && rr.size > rr.limit {
		rr.x.failure = jsonrpc.ResponseTooLarge(rr.x.Server.Name)
		return 0, errResponseLimit
	}
	rr.x.inspection.noteBody(rr.x, p)
	if rr.ambiguous {
		return len(p), nil
	}
	if rr.escapes {
		_, err := rr.ResponseWriter.Write(rr.breaks.Escape(p))
		return len(p), err
	}
	return rr.ResponseWriter.Write(p)
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (rr *responseReceiver) Unwrap() http.ResponseWriter { return rr.ResponseWriter }

// FlushError flushes the underlying writer.
func (rr *responseReceiver) FlushError() error {
	if !rr.wroteHeader {
		rr.WriteHeader(http.StatusOK)
	}
	if rr.abandoned {
		return nil
	}
	return http.NewResponseController(rr.ResponseWriter).Flush()
}

// ReadFrom hides the ReadFrom of the underlying writer from io.Copy.
func (rr *responseReceiver) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{rr}, r)
}

// isKeepAlive reports whether p has only comments and events without data, which servers send to
// keep connections open or to make them resumable. It looks only at the beginning of lines, because
// p may be a part of a large response.
func isKeepAlive(p []byte) (empty bool) {
	for p = bytes.TrimLeft(p, "\r\n"); len(p) > 0; p = bytes.TrimLeft(p, "\r\n") {
		name, _, isField := bytes.Cut(p[:min(len(p), len("event:"))], []byte{':'})
		if !isField {
			return false
		}
		p = p[len(name)+1:]
		switch string(name) {
		case "", "id", "retry", "event":
		case "data":
			if p = bytes.TrimLeft(p, " \t\r"); len(p) > 0 && p[0] != '\n' {
				return false
			}
		default:
			return false
		}
		empty = true
		_, p, _ = bytes.Cut(p, []byte{'\n'})
	}
	return empty
}

var errRejected = errors.New("response of the MCP server rejected")

var errResponseLimit = errors.New("response of the MCP server exceeds response_limit")

// responseHeaders are the headers of a server's response that clients get, in addition to those of
// MCP and of rate limits, see passesHeader. All servers share one origin and one credential, so no
// header may redirect a client, store or clear anything in it, or change what its browser may do
// there.
var responseHeaders = headerSet(
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Digest", "Repr-Digest", "Etag",
	"Last-Modified", "Cache-Control", "Expires", "Age", "Vary", "Via", "Allow", "Retry-After", "X-Accel-Buffering",
	"X-Request-Id", "X-Correlation-Id", "Request-Id", "Traceparent", "Tracestate", "Traceresponse", "Server-Timing",
)

// passesHeader reports whether clients get a header of the server's response.
func (rr *responseReceiver) passesHeader(name string) bool {
	switch {
	case responseHeaders[name], strings.HasPrefix(name, "Mcp-"), strings.HasPrefix(name, "Ratelimit"),
		strings.HasPrefix(name, "X-Ratelimit-"):
		return true
	case name == "Www-Authenticate":
		return rr.x.Server.ForwardAuth // needed to log in there
	}
	return false
}

// Interface guard
var _ io.ReaderFrom = (*responseReceiver)(nil)

// timeLimits are the time limits of an exchange. There is a timeout for the silence of the server,
// except for streams that a client opened to listen.
type timeLimits struct {
	cancel context.CancelCauseFunc // ends the exchange

	timeout      time.Duration
	reply        reply        // knows how long the server waited for the client
	isTotal      bool         // the timeout is for the whole response
	lastActivity atomic.Int64 // when the server's silence began, by streamable.Clock; pauses it asked for do not count

	mu      sync.Mutex  // held while timer is set
	timer   *time.Timer // nil without a timeout
	stopped bool

	stops []func() bool // of the contexts that end a stream
}

// start starts the timeout. If the exchange resumes a stream, earlier silence counts.
func (l *timeLimits) start(timeout time.Duration, reply reply) {
	l.timeout, l.reply = timeout, reply
	left := timeout
	if l.lastActivity.Load() == 0 {
		l.lastActivity.Store(int64(streamable.Clock()))
	} else {
		left = l.idleTimeLeft()
	}
	l.mu.Lock() // expire may run at once, and needs the timer
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(left, l.expire)
}

// expire ends the exchange if the server has been silent for too long.
func (l *timeLimits) expire() {
	left := l.idleTimeLeft()
	if left <= 0 {
		left = l.reply.timeLeft(l.timeout)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped: // cancel may end more than the exchange
	case left > 0:
		l.timer.Reset(left)
	default:
		l.cancel(ErrTimeout)
	}
}

// endWith ends a stream when ctx is done.
func (l *timeLimits) endWith(ctx context.Context) {
	l.stops = append(l.stops, context.AfterFunc(ctx, func() { l.cancel(errEnded) }))
}

// stop stops the limits.
func (l *timeLimits) stop() {
	l.mu.Lock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	for _, stop := range l.stops {
		stop()
	}
}

// hasTimeout reports whether the silence of the server is limited.
func (l *timeLimits) hasTimeout() bool { return l.timer != nil }

// noteActivity records a sign of life of the server.
func (l *timeLimits) noteActivity() {
	if l.hasTimeout() && !l.isTotal {
		l.lastActivity.Store(int64(streamable.Clock()))
	}
}

// idleTimeLeft returns for how much longer the server may be silent.
func (l *timeLimits) idleTimeLeft() time.Duration {
	return l.timeout - streamable.Clock() + time.Duration(l.lastActivity.Load())
}

// limitIdle ends the exchange if the server is silent for left from now on.
func (l *timeLimits) limitIdle(left time.Duration) {
	l.lastActivity.Store(int64(streamable.Clock() - l.timeout + left))
	l.timer.Reset(left)
}

// addPause adds a pause that the server asked for, and returns the time left with it.
func (l *timeLimits) addPause(pause time.Duration) (left time.Duration) {
	l.lastActivity.Add(int64(pause))
	return max(l.idleTimeLeft(), l.reply.timeLeft(l.timeout)+pause)
}

var (
	// ErrTimeout cancels a request at its timeout. The client still waits for a response.
	ErrTimeout = timeoutError{}
	// errEnded cancels a stream that the client still reads.
	errEnded = errors.New("stream ended by the gateway")
)

// timeoutError is a net.Error, so reverse_proxy does not take it for a cancellation by the client.
type timeoutError struct{}

func (timeoutError) Error() string {
	return "no response within the timeout of the server or the response_timeout of the gateway"
}
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
