// Package streamable reads and writes MCP's Streamable HTTP transport.
//
// A [Reader] turns the response of a server, one JSON message or a stream of events, into
// messages. A [Session] gives the requests of a client their headers, and a [Position]
// resumes a stream. [Inspect] checks a request to a server, and a [Writer] sends messages to
// a client in either form.
package streamable

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// A Reader is the http.ResponseWriter for the response of a server. It splits the response into
// messages.
type Reader struct {
	// OnMessage is called with each message. Its bytes are valid until the call returns.
	OnMessage func(*Event) error

	// OnLarge returns a writer for a response that is too large to hold, or nil to drop it. The
	// writer validates it: if it is not JSON, Close returns a [jsonspan.Error]. Without OnLarge
	// every message is held.
	OnLarge func(eventID string) io.WriteCloser

	// OnHeader is called with the status of the response. It reports whether to read the body.
	OnHeader func(status int) bool

	// Parse parses a message. Default: [jsonrpc.Message.Read]
	Parse func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure

	// Paths, if set, are those of strings to find in messages. It has no effect with Parse.
	Paths *jsonrpc.Paths

	// Found are the strings at Paths in the current message.
	Found []jsonrpc.FoundString

	// RequestID is the JSON-RPC id of the request. A large response to another id is dropped.
	RequestID []byte

	// Limit is the maximum size of a held message, in bytes. Default: 64 MiB
	Limit int

	// Position, if set, is updated after each event of the stream.
	Position *Position

	header    http.Header
	status    int
	media     httpbody.MediaType
	dropsBody bool // the body is dropped
	resumed   bool // the response continues the stream of another one
	err       error

	events       sse.Scanner
	fields       sse.Fields // of the current event
	message      jsonrpc.Message
	data         []byte
	newLine      bool             // a line of data has ended
	outline      *jsonrpc.Outline // of a large message
	large        io.WriteCloser   // gets the rest of a large response
	skip         bool             // the message is the response to another request
	invalidLarge bool             // a large response was forwarded and turned out to be invalid

	openRequests      atomic.Int32 // open server requests
	lastServerRequest atomic.Int64 // monotonic time of the last server request or response to one; 0 for never
	answered          bool
	hasRequestID      bool // a response with the id of the request came, so the server has read it
	errorCode         int
}

const (
	// MaxHeld is how many bytes of a message are held. Larger responses are forwarded as they
	// arrive.
	MaxHeld = 1 << 20
	// pieceSize is how many bytes of a large response are forwarded at once: each piece takes a
	// chunk of the response, and a system call or two.
	pieceSize = 256 << 10
	// maxRoom is the maximum buffer size for a response before it is known to be large.
	maxRoom = MaxHeld + pieceSize
	// maxMessage is the default of Reader.Limit.
	maxMessage = 64 << 20
)

// Header implements http.ResponseWriter.
func (r *Reader) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

// WriteHeader implements http.ResponseWriter.
func (r *Reader) WriteHeader(status int) {
	if r.status != 0 || status < 200 {
		return
	}
	r.status = status
	if httpbody.Encoding(r.Header()) == "" {
		r.media = httpbody.TypeOf(httpbody.GetHeader(r.Header(), "Content-Type"))
	}
	r.dropsBody = r.OnHeader != nil && !r.OnHeader(status) || r.resumed && !r.continuesStream()
	if length := httpbody.GetHeader(r.Header(), "Content-Length"); length != "" {
		if n, err := strconv.Atoi(length); err == nil && n > 0 {
			r.data = slices.Grow(r.data, min(n, maxRoom))
		}
	}
}

// Write implements http.ResponseWriter.
func (r *Reader) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.dropsBody || r.err != nil {
		return len(p), r.err
	}
	switch r.media {
	case httpbody.EventStream:
		r.events.Each(p, r.part)
	default: // some servers send JSON as text/plain or without a type
		r.addData(p)
	}
	return len(p), r.err
}

// FlushError implements the Flush of http.ResponseController. Messages are delivered as soon as
// they are complete.
func (r *Reader) FlushError() error { return r.err }

// buffers are reused between responses.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Borrow gives r a pooled buffer. The returned function returns the buffer to the pool; after that,
// no bytes of a message are valid.
func (r *Reader) Borrow() (giveBack func()) {
	b := buffers.Get().(*[]byte)
	r.data = (*b)[:0]
	return func() {
		*b = r.data
		if cap(*b) <= 2*MaxHeld {
			buffers.Put(b)
		}
		r.data = nil
	}
}

// ServerRequestTimeout is how long a client, and its user, may take to respond to a server request.
const ServerRequestTimeout = 10 * time.Minute

// Idle returns how long the server has been silent since its last server request got a response. It
// is 0 while one is open, and the largest duration if there was none.
func (r *Reader) Idle() time.Duration {
	last := r.lastServerRequest.Load()
	if last == 0 {
		return math.MaxInt64
	}
	since := Clock() - time.Duration(last)
	if r.openRequests.Load() > 0 && since < ServerRequestTimeout {
		return 0
	}
	return since
}

// Clock is a monotonic clock. It does not jump when the system time is set.
func Clock() time.Duration { return time.Since(started) }

var started = time.Now()

// ServerRequestOpened records a server request.
func (r *Reader) ServerRequestOpened() {
	r.lastServerRequest.Store(int64(Clock()))
	r.openRequests.Add(1)
}

// ServerRequestClosed records that a server request got a response, or needs none anymore.
func (r *Reader) ServerRequestClosed() {
	r.lastServerRequest.Store(int64(Clock()))
	r.openRequests.Add(-1)
}

// HasOpenServerRequests reports whether a server request is open.
func (r *Reader) HasOpenServerRequests() bool { return r.openRequests.Load() > 0 }

// Outcome returns the JSON-RPC error code of the response, 0 for a result, and whether there is a
// response.
func (r *Reader) Outcome() (code int, answered bool) { return r.errorCode, r.answered }

// Status returns the status of the response; 0 before there is one.
func (r *Reader) Status() int { return r.status }

// continuesStream reports whether the response can be the rest of a stream.
func (r *Reader) continuesStream() bool { return r.status == http.StatusOK && r.IsStream() }

// IsStream reports whether the response is an event stream.
func (r *Reader) IsStream() bool { return r.media == httpbody.EventStream }

// part handles the next part of an event stream.
func (r *Reader) part(kind sse.Kind, part []byte) {
	if r.err != nil {
		return
	}
	switch kind {
	case sse.Data:
		if r.newLine {
			r.newLine = false
			r.addData([]byte{'\n'})
		}
		r.addData(part)
	case sse.Frame:
		r.newLine = len(r.data) > 0 || r.large != nil
		r.fields.Read(part)
	case sse.Dispatch:
		if r.Position != nil {
			r.Position.advance(&r.fields, len(r.data) > 0 || r.large != nil || r.skip)
		}
		r.dispatch()
	}
}

// addData handles the next bytes of a message.
func (r *Reader) addData(p []byte) {
	for ; len(p) > pieceSize; p = p[pieceSize:] { // filters write a held message at once
		r.addPiece(p[:pieceSize])
	}
	r.addPiece(p)
}

func (r *Reader) addPiece(p []byte) {
	switch {
	case r.err != nil || r.skip:
	case r.large != nil && len(r.data) == 0 && len(p) >= pieceSize:
		r.forwardPiece(p)
	case r.large != nil:
		r.data = append(r.data, p...)
		if len(r.data) >= pieceSize {
			r.forwardPiece(r.data)
		}
	default:
		if n := len(r.data) + len(p); n > cap(r.data) {
			r.data = slices.Grow(r.data, max(n, min(2*n, maxRoom))-len(r.data))
		}
		r.data = append(r.data, p...)
		if r.OnLarge != nil && len(r.data) > MaxHeld {
			r.startForwarding()
		}
		if len(r.data) > cmp.Or(r.Limit, maxMessage) {
			r.err = errTooLarge
		}
	}
}

// startForwarding starts to forward a message that is too large to hold, if it is the response.
func (r *Reader) startForwarding() {
	if r.outline == nil {
		r.outline = jsonrpc.NewOutline()
	}
	r.outline.Look(r.data[r.outline.Looked():])
	switch {
	case !r.outline.IsResponse():
	case r.RequestID != nil && !r.outline.IsResponseTo(r.RequestID):
		r.skip, r.data = true, r.data[:0]
	default:
		r.hasRequestID = r.outline.Has(jsonrpc.ID)
		if r.large = r.OnLarge(r.fields.ID); r.large == nil {
			r.skip, r.data = true, r.data[:0]
			return
		}
		_, r.err = r.large.Write(r.data)
		r.data = r.data[:0]
	}
}

// forwardPiece forwards a piece of a large response, and clears the buffer.
func (r *Reader) forwardPiece(p []byte) {
	r.outline.Look(p)
	_, r.err = r.large.Write(p)
	r.data = r.data[:0]
}

// LargeHas reports whether the large response that is being forwarded has a field so far.
func (r *Reader) LargeHas(f jsonrpc.Field) bool { return r.outline.Has(f) }

// dispatch delivers a complete message.
func (r *Reader) dispatch() {
	e := Event{ID: r.fields.ID, Retry: r.fields.Retry, Type: r.fields.Type, Data: r.data, Message: &r.message}
	skip := r.skip
	defer func() {
		r.data, r.newLine, r.outline, r.skip = r.data[:0], false, nil, false
		r.fields.Reset()
	}()
	switch {
	case skip, len(e.Data) == 0 && e.ID == "" && e.Retry == "" && r.large == nil:
		return // a comment
	case r.large != nil:
		r.dispatchLarge()
		return
	}
	r.message = jsonrpc.Message{}
	if len(e.Data) > 0 {
		invalid := r.parse() != nil
		if invalid && r.media != httpbody.EventStream {
			r.err = errNoMessage
		}
		if invalid || !r.isMessage() {
			return // later messages of a stream may be valid
		}
	}
	if err := r.OnMessage(&e); r.err == nil {
		r.err = err
	}
}

// isMessage reports whether the object that was parsed is a JSON-RPC message. Servers send other
// ones to keep a stream open and, with an HTTP error, to describe it: often in a member error.
func (r *Reader) isMessage() bool {
	switch m := &r.message; {
	case m.Has(jsonrpc.Method):
		return m.Kind(jsonrpc.Method) == jsonspan.String
	case m.Has(jsonrpc.Error) && m.Kind(jsonrpc.Error) != jsonspan.BeginObject,
		m.Has(jsonrpc.Error) && !m.Has(jsonrpc.ErrorCode) && r.status >= 300:
		return false
	default:
		return m.IsResponse()
	}
}

func (r *Reader) parse() (failure *jsonrpc.Failure) {
	switch {
	case r.Parse != nil:
		return r.Parse(&r.message, r.data)
	case r.Paths != nil:
		r.Found, failure = r.Paths.ReadStrings(&r.message, r.data, r.Found[:0])
		return failure
	}
	return r.message.Read(r.data)
}

// dispatchLarge ends a response that was forwarded as it arrived.
func (r *Reader) dispatchLarge() {
	r.forwardPiece(r.data)
	if r.err != nil {
		return
	}
	r.answered = true
	r.errorCode, _ = r.outline.ErrorCode()
	err := r.large.Close()
	if _, r.invalidLarge = errors.AsType[*jsonspan.Error](err); r.invalidLarge {
		r.err = errNoMessage
		return
	}
	r.large, r.err = nil, err
}

// Close ends the response. It returns the error of reading it, if any.
func (r *Reader) Close() error {
	if !r.IsStream() {
		r.data = bytes.TrimPrefix(r.data, []byte("\ufeff")) // some servers begin with a byte order mark
	}
	if r.err == nil && !r.dropsBody && (len(r.data) > 0 || r.large != nil) {
		// An event without its end counts if its message is complete. Otherwise it comes again when
		// the stream is resumed.
		if r.Position != nil && r.IsStream() && r.large == nil && r.parse() == nil {
			r.Position.advance(&r.fields, true)
		}
		r.dispatch()
	}
	return r.err
}

// IsTruncated reports whether a part of a response was forwarded, and the rest will never come.
func (r *Reader) IsTruncated() bool { return r.large != nil || r.invalidLarge }

// IsResponseTo reports whether a message is the response to the request with this id. An error
// without an id counts: the server could not, or would not, read the request.
func (r *Reader) IsResponseTo(m *jsonrpc.Message, id []byte) bool {
	if !m.IsResponse() {
		return false
	}
	if jsonrpc.SameID(m.Literal(jsonrpc.ID), id) {
		r.hasRequestID = !m.IsUnsupportedVersion() && !(r.status == http.StatusNotFound && m.IsUnknownSession())
		return true
	}
	return m.Has(jsonrpc.Error) && (!m.Has(jsonrpc.ID) || m.Kind(jsonrpc.ID) == jsonspan.Null)
}

// SessionLost reports whether the server does not know the session of the request, or has changed
// its protocol version, and therefore did not execute the request: the status is 404, or 400 with
// some servers, without a response to the request.
func (r *Reader) SessionLost() bool {
	return (r.status == http.StatusNotFound || r.status == http.StatusBadRequest) && !r.hasRequestID
}

// NoteResponse records that m is the response.
func (r *Reader) NoteResponse(m *jsonrpc.Message) {
	r.answered = true
	r.errorCode = m.ErrorNumber()
}

// A readError is an error in the response itself.
type readError string

func (e readError) Error() string { return string(e) }

const (
	errTooLarge  = readError("the message of the MCP server is too large")
	errNoMessage = readError("the MCP server sent something that is not a JSON-RPC message")
)

// Fault returns the failure for an error in the response itself; nil for other errors.
func (r *Reader) Fault(server string) *jsonrpc.Failure {
	if _, own := r.err.(readError); !own {
		return nil
	}
	return r.Failure(server)
}

// Failure returns the failure for a response without a valid JSON-RPC response.
func (r *Reader) Failure(server string) *jsonrpc.Failure {
	switch r.err {
	case errTooLarge:
		return TooLarge(server, cmp.Or(r.Limit, maxMessage))
	case errNoMessage:
		if r.status != http.StatusOK {
			return jsonrpc.HTTPError(server, r.status)
		}
		return jsonrpc.InvalidJSON(server)
	}
	if r.status >= 300 {
		return jsonrpc.HTTPError(server, r.status)
	}
	return jsonrpc.InvalidResponse(server)
}

// TooLarge returns the failure for a message of a server that exceeds a limit.
func TooLarge(server string, limit int) *jsonrpc.Failure {
	failure := jsonrpc.ResponseTooLarge(server)
	failure.Message += fmt.Sprintf(": more than %d MiB", limit>>20)
	return failure
}

// A Session has the headers that all requests to a server in a session share. The zero value is for
// the request that begins a session.
type Session struct {
	Era     mcp.Era
	Version string // protocol version, once negotiated
	ID      string // empty if the server has no sessions
}

// SetHeaders sets the headers of the session on a POST or DELETE, and removes headers of a client
// that must not be passed on. [mcp.SetModern] sets the headers that repeat parts of a message.
func (s Session) SetHeaders(header http.Header) {
	for _, name := range [...]string{"Accept-Encoding", "Content-Encoding", lastEventID, "Upgrade"} {
		delete(header, name)
	}
	if s.Era == mcp.Legacy {
		mcp.ClearModern(header)
	}
	httpbody.SetHeader(header, "Accept", "application/json, text/event-stream")
	for _, own := range [...]struct{ name, value string }{{mcp.VersionHeader, s.Version}, {mcp.SessionHeader, s.ID}} {
		if own.value == "" {
			delete(header, own.name)
		} else {
			httpbody.SetHeader(header, own.name, own.value)
		}
	}
}

// SetGETHeaders sets the headers of the session on a GET. after is the id of the last event, to
// resume a stream; "" for a new one.
func (s Session) SetGETHeaders(header http.Header, after string) {
	s.SetHeaders(header)
	header.Set("Accept", "text/event-stream")
	if after != "" {
		header.Set(lastEventID, after)
	}
}

// Direct sets the URL of r to target, in place as rewrites do, so placeholders for r see it, too.
func Direct(r *http.Request, target *url.URL) {
	r.URL.Path, r.URL.RawPath = target.Path, target.RawPath
	r.URL.RawQuery, r.URL.ForceQuery = target.RawQuery, target.ForceQuery
	r.RequestURI = r.URL.RequestURI()
}

const lastEventID = "Last-Event-Id"

// ReadResponse reads a response to its end. It returns why the response broke off or is invalid.
func (r *Reader) ReadResponse(res *http.Response) error {
	defer res.Body.Close()
	r.header = res.Header
	r.WriteHeader(res.StatusCode)
	if r.dropsBody {
		return nil
	}
	if _, err := io.Copy(r, res.Body); err != nil {
		return err
	}
	return r.Close()
}

// A Position records how far an event stream has been read. It outlives the connections of the
// stream. The zero value is the beginning.
type Position struct {
	ID       string // of the last event with an id
	Attempts int    // attempts to resume the stream since the last new event

	retry time.Duration // pause that the server has asked for
}

// CanResume reports whether the server has sent an event after which the stream can be resumed. p
// may be nil.
func (p *Position) CanResume() bool { return p != nil && p.ID != "" }

// advance records that an event was read. The event is new if its id differs from the last one or,
// without an id, if it has data.
func (p *Position) advance(f *sse.Fields, hasData bool) {
	if f.HasID && f.ID != p.ID || !f.HasID && hasData {
		p.Attempts = 0
	}
	if f.HasID {
		p.ID = f.ID
	}
	if ms, err := strconv.ParseUint(f.Retry, 10, 31); err == nil {
		p.retry = min(time.Duration(ms)*time.Millisecond, maxPause)
	}
}

// maxPause is the longest pause before a stream is resumed.
const maxPause = 30 * time.Second

// reconnect is the pause between attempts to resume a stream.
var reconnect = backoff.Exponential{First: 250 * time.Millisecond, Max: maxPause}

// Wait waits until the stream may be resumed: as long as the server asked, and longer after each
// failed attempt. It reports false if ctx ends first.
func (p *Position) Wait(ctx context.Context) bool {
	if !backoff.Sleep(ctx, p.pause()) {
		return false
	}
	p.Attempts++
	return true
}

func (p *Position) pause() time.Duration { return max(p.retry, reconnect.Pause(p.Attempts)) }

// Retry returns how long the server asked its clients to wait before they resume the stream.
func (p *Position) Retry() time.Duration { return p.retry }

// Resume prepares r for the response that continues the stream of the request. It must be an event
// stream. Callbacks stay the same, and server requests stay open.
func (r *Reader) Resume() {
	r.header, r.status, r.media, r.dropsBody, r.err = nil, 0, httpbody.Other, false, nil
	r.events, r.fields = sse.Scanner{}, sse.Fields{}
	r.data, r.outline, r.newLine, r.skip = r.data[:0], nil, false, false
	r.resumed, r.hasRequestID = true, true // the server has responded with a stream
}
