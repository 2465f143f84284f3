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

// An arrival is the server's end of an answer: what its routes write to. It keeps
// the time and the limit, which count what the server sends and not what is left
// of it. Of the headers it passes on those that clients may have; those that were there
// before the routes ran are the operator's, and stay. There are no trailers.
type arrival struct {
	http.ResponseWriter
	x      *Exchange
	header http.Header // as the routes see it

	starting sync.Mutex  // held while timer is set
	timer    *time.Timer // ends the request; nil for those that may last
	timeout  time.Duration
	heardAt  atomic.Int64 // by streamable.Clock: when the server was heard last, or asked, without the pauses it wants
	limit    int64        // how many bytes may come; 0 for any number
	size     int64        // how many have
	status   int
	informed int  // how many informational responses have come
	begun    bool // the status has come
	gaveUp   bool // reverse_proxy has, because the request was canceled, or we have
	broken   bool // the routes have not come to their end, or to a bad one
	bodiless bool // the body is dropped
	filtered bool // a filter looks at the response
	escapes  bool // what other readers than the gateway may end lines at
	breaks   sse.Breaks

	contentType *string // as the server says, if it is not one of MCP
}

// statusClientLeft is how reverse_proxy notes that a request was canceled.
const statusClientLeft = 499

// maxInformed is how many informational responses a client gets.
const maxInformed = 100

// Header returns the headers that the routes may change.
func (a *arrival) Header() http.Header {
	switch {
	case a.header != nil:
	case a.x.Kind != Aggregate:
		if a.header = a.x.Before.Clone(); a.header == nil {
			a.header = make(http.Header)
		}
	case a.begun: // these are trailers
		a.header = make(http.Header)
	default: // the reader has no others, so they need no copy
		a.header = a.ResponseWriter.Header()
	}
	return a.header
}

// WriteHeader takes the status.
func (a *arrival) WriteHeader(status int) {
	if status == statusClientLeft && a.x.ctx.Err() != nil {
		// Nobody is there to get it, unless it was us who canceled.
		if a.gaveUp = true; context.Cause(&a.x.ctx) != ErrTimeout && a.x.Kind != Aggregate {
			a.x.Writer.WriteHeader(status)
		}
		return
	}
	if status < 200 {
		if a.x.Kind == Aggregate {
			clear(a.header)
		}
		a.header = nil                               // reverse_proxy clears the ones it has, and they are not for this
		if a.informed++; a.informed <= maxInformed { // of which there may be any number, and which say nothing of the call
			a.ResponseWriter.WriteHeader(status)
		}
		return
	}
	if !a.x.Resumed { // else it says only that there may be more
		a.heard()
	}
	if a.begun {
		return
	}
	header := a.Header()
	a.x.session.Restore(header)
	a.begun, a.status = true, status
	a.x.inspection.noteHeader(a.x, header)
	a.noteType(header)
	if failure := a.unacceptable(status, header); failure != nil {
		a.x.verdict, a.gaveUp = failure, true
		return
	}
	if a.bodiless = a.misread(header); a.bodiless {
		httpbody.DropDescription(header)
		header.Del("Content-Type")
	}
	if a.escapes = a.readsEvents(header); a.escapes {
		httpbody.DropDescription(header)
	}
	if id := httpbody.GetHeader(header, mcp.SessionHeader); id != "" && a.x.bindsSessions() {
		header.Set(mcp.SessionHeader, a.x.binding().bind(sessionOfServer, id))
	}
	if a.x.Kind == RPC && (status == http.StatusOK || status == http.StatusForbidden) &&
		httpbody.TypeOf(httpbody.GetHeader(header, "Content-Type")) == httpbody.Other {
		// Some say text/plain, some nothing. Whether it is JSON-RPC will show, and
		// until then the mask shall take it for that.
		header.Set("Content-Type", "application/json")
	}
	a.passHeader()
	a.ResponseWriter.WriteHeader(status)
}

// noteType notes the type of a body that cannot be an answer.
func (a *arrival) noteType(header http.Header) {
	if types := header["Content-Type"]; len(types) > 0 && httpbody.TypeOf(types[0]) == httpbody.Other {
		contentType := types[0]
		a.contentType = &contentType
	}
}

// passHeader gives the client the headers of the answer that it may have.
func (a *arrival) passHeader() {
	to := a.ResponseWriter.Header()
	if a.x.Kind == Aggregate { // where both are the same
		maps.DeleteFunc(to, func(name string, _ []string) bool { return !a.passesHeader(name) })
		a.header = nil
	}
	for name := range a.x.Before {
		if a.header[name] == nil { // such as Server, which reverse_proxy takes off
			delete(to, name)
		}
	}
	for name, values := range a.header {
		if a.passesHeader(name) {
			to[name] = values
		}
	}
	if types := to["Content-Type"]; len(types) > 1 {
		to["Content-Type"] = types[:1] // which is the one that we have read
	}
	if a.x.listens {
		// A browser that is sent here must not take a page of the server for one of ours.
		to.Set("X-Content-Type-Options", "nosniff")
		to.Set("Content-Security-Policy", "sandbox")
	}
}

// unacceptable says why an answer does not reach the client, whatever is in it: one that
// sends the client elsewhere, or one that the client may read as something else than was
// looked at. Of one that says all by its status, such as that a session has ended, only the
// body does not.
func (a *arrival) unacceptable(status int, header http.Header) *jsonrpc.Failure {
	switch {
	case status/100 == 3:
		return jsonrpc.HTTPError(a.x.Server.Name, status)
	case status >= 400, status == http.StatusAccepted, status == http.StatusNoContent,
		httpbody.GetHeader(header, "Content-Length") == "0":
		return nil
	case a.misread(header):
		return jsonrpc.InvalidResponse(a.x.Server.Name)
	}
	return nil
}

// misread reports whether a client may read a body as something else than is looked at.
func (a *arrival) misread(header http.Header) bool {
	contentType := httpbody.GetHeader(header, "Content-Type")
	switch {
	case a.x.listens && httpbody.Encoding(header) != "":
		return true
	case a.x.listens, a.x.Caller.Redactor() != nil, a.filtered && httpbody.TypeOf(contentType) != httpbody.Other:
		return !httpbody.IsUTF8(contentType)
	}
	return false
}

// readsEvents reports whether a body is looked at as an event stream, and passed on as it
// is. At the aggregate it is taken apart, and [streamable.Writer] writes other events. A
// client that has opened a stream may not look at its type closely.
func (a *arrival) readsEvents(header http.Header) bool {
	isEvents := httpbody.TypeOf(httpbody.GetHeader(header, "Content-Type")) == httpbody.EventStream
	return (a.x.listens || a.filtered && isEvents) && a.x.Kind != Aggregate && httpbody.Encoding(header) == ""
}

// Write takes the next bytes of the body.
func (a *arrival) Write(p []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.gaveUp {
		return 0, errUnacceptable
	}
	if !isEmpty(p) {
		a.heard()
	}
	a.x.Traffic.receive(len(p))
	if a.size += int64(len(p)); a.limit > 0 && a.size > a.limit {
		a.x.verdict = jsonrpc.ResponseTooLarge(a.x.Server.Name)
		return 0, errResponseLimit
	}
	a.x.inspection.noteBody(a.x, p)
	if a.bodiless {
		return len(p), nil
	}
	if a.escapes {
		_, err := a.ResponseWriter.Write(a.breaks.Escape(p))
		return len(p), err
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap returns the writer behind a, for http.ResponseController.
func (a *arrival) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// FlushError sends on what has come.
func (a *arrival) FlushError() error {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.gaveUp {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// ReadFrom keeps io.Copy from finding the ReadFrom of the writer below.
func (a *arrival) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{a}, r)
}

// heard notes that the server is alive. At /rpc the time is for the whole answer.
func (a *arrival) heard() {
	if a.timer != nil && a.x.Kind != RPC {
		a.heardAt.Store(int64(streamable.Clock()))
	}
}

// silence returns for how much longer the server may be silent.
func (a *arrival) silence() time.Duration {
	return a.timeout - streamable.Clock() + time.Duration(a.heardAt.Load())
}

// limitSilence ends the request if the server is silent for a time from now on.
func (a *arrival) limitSilence(left time.Duration) {
	a.heardAt.Store(int64(streamable.Clock() - a.timeout + left))
	a.timer.Reset(left)
}

// isEmpty reports whether this is what servers send into event streams to keep connections
// open, or to have them resumed: comments, and events without data. It says nothing of the
// call. How a line begins tells that, so it does not read through a piece of a large answer.
func isEmpty(p []byte) (empty bool) {
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

var errUnacceptable = errors.New("the answer of the MCP server is not accepted")

var errResponseLimit = errors.New("the answer of the MCP server exceeds response_limit")

// answerHeaders are the headers of a server's answer that clients get, besides those of
// MCP and of rate limits, see passesHeader. All servers are one origin with one
// credential, so nothing is among them by which a server could send a client elsewhere,
// have it keep or forget something, or change what its browser may do there.
var answerHeaders = headerSet(
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Digest", "Repr-Digest", "Etag", "Last-Modified",
	"Cache-Control", "Expires", "Age", "Vary", "Via", "Allow", "Retry-After", "X-Accel-Buffering",
	"X-Request-Id", "X-Correlation-Id", "Request-Id", "Traceparent", "Tracestate", "Traceresponse", "Server-Timing",
)

// passesHeader reports whether clients get a header of the server's answer.
func (a *arrival) passesHeader(name string) bool {
	switch {
	case answerHeaders[name], strings.HasPrefix(name, "Mcp-"), strings.HasPrefix(name, "Ratelimit"), strings.HasPrefix(name, "X-Ratelimit-"):
		return true
	case name == "Www-Authenticate":
		return a.x.Server.ForwardAuth // else its clients cannot log in there
	}
	return false
}

// Interface guards
var (
	_ http.ResponseWriter = (*arrival)(nil)
	_ io.ReaderFrom       = (*arrival)(nil)
)
