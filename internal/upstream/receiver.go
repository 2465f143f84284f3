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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A responseReceiver is the response writer for the routes of the server. It enforces the timeout and the size
// limit, on what the server sends and before the filter and the mask. It forwards only headers that
// clients may get. Headers that were set before the routes ran are the operator's, and stay. Trailers
// are dropped.
type responseReceiver struct {
	http.ResponseWriter
	x      *Exchange
	header http.Header // as the routes see it

	timerMu       sync.Mutex  // held while timer is set
	timer         *time.Timer // ends the request; nil for streams without a timeout
	timeout       time.Duration
	lastActivity  atomic.Int64 // last sign of life or request, by streamable.Clock, without pauses the server asked for
	limit         int64        // in bytes; 0 for none
	size          int64        // bytes received
	status        int
	informational int  // informational responses received
	wroteHeader   bool // the status has been received
	abandoned     bool // the response is not accepted, or reverse_proxy canceled the request
	incomplete    bool // the routes have not ended, or failed
	dropsBody     bool // the body is dropped
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
func (a *responseReceiver) Header() http.Header {
	switch {
	case a.header != nil:
	case a.x.Kind != Aggregate:
		if a.header = a.x.Before.Clone(); a.header == nil {
			a.header = make(http.Header)
		}
	case a.wroteHeader: // trailers
		a.header = make(http.Header)
	default: // the reader has no other headers, so no copy is needed
		a.header = a.ResponseWriter.Header()
	}
	return a.header
}

// WriteHeader forwards the status and headers, if the response is acceptable.
func (a *responseReceiver) WriteHeader(status int) {
	if status == statusClientClosed && a.x.ctx.Err() != nil {
		a.abandoned = true
		if context.Cause(&a.x.ctx) != ErrTimeout && a.x.Kind != Aggregate { // else a client still waits
			a.x.Writer.WriteHeader(status)
		}
		return
	}
	if status < 200 {
		if a.x.Kind == Aggregate {
			clear(a.header)
		}
		a.header = nil // reverse_proxy clears its own, which do not belong to this status
		a.informational++
		if a.informational <= maxInformational {
			a.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if !a.x.Resumed { // otherwise it only says that there may be more
		a.noteActivity()
	}
	if a.wroteHeader {
		return
	}
	header := a.Header()
	a.x.session.Restore(header)
	a.wroteHeader, a.status = true, status
	a.x.inspection.noteHeader(a.x, header)
	a.noteType(header)
	if failure := a.rejection(status, header); failure != nil {
		a.x.failure, a.abandoned = failure, true
		return
	}
	a.dropsBody = a.isAmbiguous(header)
	if a.dropsBody {
		httpbody.DropDescription(header)
		header.Del("Content-Type")
	}
	a.escapes = a.readsEvents(header)
	if a.escapes {
		httpbody.DropDescription(header)
	}
	if id := httpbody.GetHeader(header, mcp.SessionHeader); id != "" && a.x.bindsSessions() {
		header.Set(mcp.SessionHeader, a.x.binding().bind(boundSession, id))
	}
	if a.x.Kind == RPC && (status == http.StatusOK || status == http.StatusForbidden) &&
		httpbody.TypeOf(httpbody.GetHeader(header, "Content-Type")) == httpbody.Other {
		// Some servers send text/plain or no type. The mask must take it for JSON-RPC until it is
		// read.
		header.Set("Content-Type", "application/json")
	}
	a.passHeader()
	a.ResponseWriter.WriteHeader(status)
}

// noteType records the Content-Type of a body that MCP does not define.
func (a *responseReceiver) noteType(header http.Header) {
	if types := header["Content-Type"]; len(types) > 0 && httpbody.TypeOf(types[0]) == httpbody.Other {
		contentType := types[0]
		a.contentType = &contentType
	}
}

// passHeader gives the client the headers of the response that it may get.
func (a *responseReceiver) passHeader() {
	to := a.ResponseWriter.Header()
	if a.x.Kind == Aggregate { // both are the same map
		maps.DeleteFunc(to, func(name string, _ []string) bool { return !a.passesHeader(name) })
		a.header = nil
	}
	for name := range a.x.Before {
		if a.header[name] == nil { // such as Server, which reverse_proxy removes
			delete(to, name)
		}
	}
	for name, values := range a.header {
		if a.passesHeader(name) {
			to[name] = values
		}
	}
	if types := to["Content-Type"]; len(types) > 1 {
		to["Content-Type"] = types[:1] // the one that was read
	}
	if a.x.isListening {
		// A browser that opens this URL must not treat a page of the server as a page of the gateway.
		to.Set("X-Content-Type-Options", "nosniff")
		to.Set("Content-Security-Policy", "sandbox")
	}
}

// rejection returns why a response is rejected: it is a redirect, or the client could parse the
// body differently than the gateway. A response whose status is enough, such as that of an ended
// session, is accepted without its body.
func (a *responseReceiver) rejection(status int, header http.Header) *jsonrpc.Failure {
	switch {
	case status/100 == 3:
		return jsonrpc.HTTPError(a.x.Server.Name, status)
	case status >= 400, status == http.StatusAccepted, status == http.StatusNoContent,
		httpbody.GetHeader(header, "Content-Length") == "0":
		return nil
	case a.isAmbiguous(header):
		return jsonrpc.InvalidResponse(a.x.Server.Name)
	}
	return nil
}

// isAmbiguous reports whether a client could parse the body differently than the gateway.
func (a *responseReceiver) isAmbiguous(header http.Header) bool {
	contentType := httpbody.GetHeader(header, "Content-Type")
	switch {
	case a.x.isListening && httpbody.Encoding(header) != "":
		return true
	case a.x.isListening, a.x.Caller.Redactor() != nil, a.filtered && httpbody.TypeOf(contentType) != httpbody.Other:
		return !httpbody.IsUTF8(contentType)
	}
	return false
}

// readsEvents reports whether the gateway parses the body as an event stream but forwards it
// unchanged. At the aggregate it does not: there [streamable.Writer] writes new events. A client that
// opened a stream may ignore its Content-Type.
func (a *responseReceiver) readsEvents(header http.Header) bool {
	isEvents := httpbody.TypeOf(httpbody.GetHeader(header, "Content-Type")) == httpbody.EventStream
	return (a.x.isListening || a.filtered && isEvents) && a.x.Kind != Aggregate && httpbody.Encoding(header) == ""
}

// Write forwards the next bytes of the body.
func (a *responseReceiver) Write(p []byte) (int, error) {
	if !a.wroteHeader {
		a.WriteHeader(http.StatusOK)
	}
	if a.abandoned {
		return 0, errRejected
	}
	if !isKeepAlive(p) {
		a.noteActivity()
	}
	a.x.Traffic.receive(len(p))
	if a.size += int64(len(p)); a.limit > 0 && a.size > a.limit {
		a.x.failure = jsonrpc.ResponseTooLarge(a.x.Server.Name)
		return 0, errResponseLimit
	}
	a.x.inspection.noteBody(a.x, p)
	if a.dropsBody {
		return len(p), nil
	}
	if a.escapes {
		_, err := a.ResponseWriter.Write(a.breaks.Escape(p))
		return len(p), err
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap returns the writer behind a, for http.ResponseController.
func (a *responseReceiver) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// FlushError flushes the writer behind a.
func (a *responseReceiver) FlushError() error {
	if !a.wroteHeader {
		a.WriteHeader(http.StatusOK)
	}
	if a.abandoned {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// ReadFrom hides the ReadFrom of the writer behind a from io.Copy.
func (a *responseReceiver) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{a}, r)
}

// noteActivity records a sign of life of the server. At RPC the timeout is for the whole response.
func (a *responseReceiver) noteActivity() {
	if a.timer != nil && a.x.Kind != RPC {
		a.lastActivity.Store(int64(streamable.Clock()))
	}
}

// idleTimeLeft returns for how much longer the server may be silent.
func (a *responseReceiver) idleTimeLeft() time.Duration {
	return a.timeout - streamable.Clock() + time.Duration(a.lastActivity.Load())
}

// limitIdle ends the request if the server is silent for left from now on.
func (a *responseReceiver) limitIdle(left time.Duration) {
	a.lastActivity.Store(int64(streamable.Clock() - a.timeout + left))
	a.timer.Reset(left)
}

// isKeepAlive reports whether p has only comments and events without data, which servers send to keep
// connections open or to make them resumable. It looks only at the beginning of lines, because p may
// be a part of a large response.
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

// responseHeaders are the headers of a server's response that clients get, in addition to those of MCP
// and of rate limits, see passesHeader. All servers share one origin and one credential, so no header
// may redirect a client, store or clear anything in it, or change what its browser may do there.
var responseHeaders = headerSet(
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Digest", "Repr-Digest", "Etag",
	"Last-Modified", "Cache-Control", "Expires", "Age", "Vary", "Via", "Allow", "Retry-After", "X-Accel-Buffering",
	"X-Request-Id", "X-Correlation-Id", "Request-Id", "Traceparent", "Tracestate", "Traceresponse", "Server-Timing",
)

// passesHeader reports whether clients get a header of the server's response.
func (a *responseReceiver) passesHeader(name string) bool {
	switch {
	case responseHeaders[name], strings.HasPrefix(name, "Mcp-"), strings.HasPrefix(name, "Ratelimit"),
		strings.HasPrefix(name, "X-Ratelimit-"):
		return true
	case name == "Www-Authenticate":
		return a.x.Server.ForwardAuth // needed to log in there
	}
	return false
}

// Interface guards
var (
	_ http.ResponseWriter = (*responseReceiver)(nil)
	_ io.ReaderFrom       = (*responseReceiver)(nil)
)
