package httpsse

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A session is one event stream of a server, for one client.
type session struct {
	id       string
	using    int // requests in progress; guarded by Pool.mu
	pool     *Pool
	upstream Upstream

	ctx           context.Context // done when the session has ended; its cause is the reason
	end           context.CancelCauseFunc
	opening       *http.Request // request that opened the stream; handlers may have changed its host
	endpoint      *url.URL      // written before endpointKnown is closed
	endpointKnown chan struct{} // closed when the endpoint is known

	mail    *inbox        // messages that belong to no call, for GET streams
	sending chan struct{} // one token for each message that is being sent in the background

	mu     sync.Mutex
	lastID uint64
	calls  map[uint64]*call
}

const (
	maxCalls   = 1_000    // in progress in a session
	maxSending = 16       // messages in the background
	maxUnread  = 16 << 20 // bytes of messages before a response that the client has not read yet
	maxMail    = 64 << 10 // bytes of messages that wait for a GET stream

	requestWait = 5 * time.Second  // how long a server request waits for a GET stream
	sendTimeout = 10 * time.Second // timeout for posting a message
)

// A call is a request that waits for its response.
type call struct {
	number  uint64 // its id for the server
	request *jsonrpc.Message
	mail    *inbox
}

// A letter is a message of a server for the client.
type letter struct {
	message         []byte // nil if the client has canceled the call, or it has failed
	failure         *jsonrpc.Failure
	serverRequestID []byte // id of a server request
}

// Len implements [mailbox.Letter].
func (l letter) Len() int { return len(l.message) }

// An inbox holds messages of a server until a response to the client takes them.
type inbox = mailbox.Box[letter]

func newSession(p *Pool, u Upstream) *session {
	s := &session{
		pool: p, upstream: u, endpointKnown: make(chan struct{}), calls: map[uint64]*call{},
		mail: mailbox.NewUnread[letter](u.Owner, maxMail), sending: make(chan struct{}, maxSending),
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

// read reads the stream of the server to its end, which ends the session.
func (s *session) read() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	s.opening = s.upstream.Request(ctx)
	w := &stream{session: s, header: http.Header{}}
	err := s.upstream.Serve(w, s.opening)
	switch {
	case w.refusal != nil:
		err = w.refusal
	case s.endpoint != nil:
		err = errClosed
	case err == nil:
		err = ErrNotSupported
	}
	s.end(err) // unless it has ended already
}

// failure returns the failure of calls in an ended session.
func (s *session) failure() *jsonrpc.Failure {
	cause := context.Cause(s.ctx)
	if failure, ok := errors.AsType[*jsonrpc.Failure](cause); ok {
		return failure
	}
	failure := jsonrpc.ConnectError(s.upstream.Name, jsonrpc.CauseLost)
	failure.Message += ": " + cause.Error()
	failure.Err = cause
	return failure
}

// receive handles a message of the server. Its bytes never change.
func (s *session) receive(m *jsonrpc.Message) {
	switch {
	case m.Is(jsonrpc.Method, "ping") && m.IsRequest():
		s.sendAsync(jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte("{}")))
	case m.IsRequest():
		s.forwardRequest(m)
	case m.IsNotification():
		s.forwardNotification(m)
	default:
		s.deliverResponse(m)
	}
}

// deliverResponse delivers a response to the call that waits for it, and ends the call.
func (s *session) deliverResponse(m *jsonrpc.Message) {
	if c := s.callByNumber(m.Literal(jsonrpc.ID)); c != nil && m.IsResponse() && s.removeCall(c) {
		id := c.request.Literal(jsonrpc.ID)
		if !c.mail.End(letter{message: jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.ID, id))}) {
			c.mail.End(letter{failure: jsonrpc.TooMuchUnread()})
		}
	}
}

// forwardNotification forwards a notification. It drops the notification if there is no room, and
// progress that the client has not requested.
func (s *session) forwardNotification(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method != "notifications/progress" {
		aboutSession := method == mcp.MethodUpdated || strings.HasSuffix(method, "/list_changed")
		s.recipient(aboutSession).Put(letter{message: m.Raw})
		return
	}
	if c := s.callByNumber(m.Literal(jsonrpc.Progress)); c != nil && c.request.Has(jsonrpc.ProgressToken) {
		token := c.request.Literal(jsonrpc.ProgressToken)
		c.mail.Put(letter{message: jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.Progress, token))})
	}
}

// forwardRequest forwards a server request to the client. If that fails, it responds with an error,
// so the server does not wait.
func (s *session) forwardRequest(m *jsonrpc.Message) {
	inbox, id := s.recipient(false), bytes.Clone(m.Literal(jsonrpc.ID)) // the id outlives the message
	if !inbox.Put(letter{message: m.Raw, serverRequestID: id}) {
		s.refuse(id, "the client is not reading its stream, or has left")
		return
	}
	if inbox == s.mail {
		time.AfterFunc(requestWait, func() {
			isRequest := func(l letter) bool { return l.serverRequestID != nil && bytes.Equal(l.serverRequestID, id) }
			if inbox.Withdraw(isRequest) {
				s.refuse(id, "the client has no open stream")
			}
		})
	}
}

// recipient returns the inbox for a message that does not name its call: that of the only call in
// progress, unless the message is about the whole session. With several calls the right one is
// unknown, so a GET stream is preferred.
func (s *session) recipient(aboutSession bool) *inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	var latest *call
	working := 0
	for _, c := range s.calls {
		if !c.mayGetMessages() {
			continue
		}
		working++
		if latest == nil || c.number > latest.number {
			latest = c
		}
	}
	if latest == nil || (aboutSession || working > 1) && s.mail.HasReaders() {
		return s.mail
	}
	return latest.mail
}

// mayGetMessages reports whether the server may send other messages during a call.
func (c *call) mayGetMessages() bool {
	method := c.request.Text(jsonrpc.Method)
	return method != "ping" && method != "initialize" && !strings.HasSuffix(method, "/list")
}

// addCall adds a call, and gives it an id for the server. It returns nil if there are too many.
func (s *session) addCall(request *jsonrpc.Message) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == maxCalls {
		return nil
	}
	s.lastID++
	c := &call{number: s.lastID, request: request, mail: mailbox.New[letter](s.upstream.Owner, maxUnread)}
	s.calls[c.number] = c
	return c
}

// message returns the request as the server gets it.
func (c *call) message() []byte {
	return jsonspan.Spliced(c.request.Raw, c.request.ReplaceAll(c.id(), jsonrpc.ID, jsonrpc.ProgressToken)...)
}

// id returns the id of the call for the server: a number from 1, because some servers treat 0 as
// missing.
func (c *call) id() []byte { return strconv.AppendUint(nil, c.number, 10) }

// removeCall removes a call. It reports whether the call was still waiting.
func (s *session) removeCall(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.calls[c.number] == c
	delete(s.calls, c.number)
	return waiting
}

// discardCall removes a call and its messages. It reports whether the call was still waiting.
func (s *session) discardCall(c *call) bool {
	waiting := s.removeCall(c)
	for _, l := range c.mail.Discard() {
		if l.serverRequestID != nil {
			s.refuse(l.serverRequestID, "the client has left")
		}
	}
	return waiting
}

// callByNumber returns the call with an id for the server.
func (s *session) callByNumber(id []byte) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[jsonrpc.NumberOf(id)]
}

// callByClientID returns the latest call with an id of the client.
func (s *session) callByClientID(id []byte) (latest *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if jsonrpc.SameID(c.request.Literal(jsonrpc.ID), id) && (latest == nil || c.number > latest.number) {
			latest = c
		}
	}
	return latest
}

// refuse responds to a server request with an error.
func (s *session) refuse(id []byte, reason string) {
	s.sendAsync(jsonrpc.ErrorResponse(id, jsonrpc.CodeMethodNotFound, reason))
}

// cancel notifies the server that the client has canceled a call.
func (s *session) cancel(c *call) {
	params := append(append([]byte(`{"requestId":`), c.id()...), `,"reason":"the client has left"}`...)
	s.sendAsync(jsonrpc.Notification("notifications/cancelled", params))
}

// sendAsync posts a message in the background. Messages over the limit are dropped.
func (s *session) sendAsync(message []byte) {
	select {
	case s.sending <- struct{}{}:
	default:
		return
	}
	if !s.pool.run(func() {
		defer func() { <-s.sending }()
		ctx, cancel := context.WithTimeout(s.ctx, sendTimeout)
		defer cancel()
		r := s.upstream.Request(ctx)
		streamable.Direct(r, s.endpoint)
		httpbody.Post(r, message)
		_ = s.upstream.Serve(&responseRecorder{header: http.Header{}}, r) // best effort
	}) {
		<-s.sending
	}
}

// run runs f in a goroutine, unless the Pool is closed. It reports whether it does so.
func (p *Pool) run(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.running.Go(f)
	}
	return !p.closed
}

// A stream is the http.ResponseWriter for the event stream of a session.
type stream struct {
	session      *session
	header       http.Header
	status       int
	err          error // why reading stopped
	refusal      error // why the response is refused
	refusedBytes int   // bytes of such a response

	events    sse.Scanner
	fields    sse.Fields
	data      []byte // of the current event
	lineEnded bool   // a line of it has ended
}

const (
	// maxMessage is the maximum size of a message, in bytes.
	maxMessage = 64 << 20
	// maxEndpoint is the maximum size of the endpoint event, and of each event before it.
	maxEndpoint = 8 << 10
	// keptBuffer is the largest buffer that is reused for the next message.
	keptBuffer = 64 << 10
	// maxRefusedBody and refusedBodyTime limit how much is read of a response that is not a stream.
	// reverse_proxy would log an error if it was aborted at once.
	maxRefusedBody  = 64 << 10
	refusedBodyTime = time.Second
)

func (w *stream) Header() http.Header { return w.header }

func (w *stream) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status = status
	switch {
	case IsInconclusive(status):
		w.refuse(jsonrpc.HTTPError(w.session.upstream.Name, status))
	case status != http.StatusOK, httpbody.Encoding(w.header) != "",
		httpbody.TypeOf(w.header.Get("Content-Type")) != httpbody.EventStream:
		w.refuse(ErrNotSupported)
	}
}

// refuse ends the session at the end of the response, or after refusedBodyTime.
func (w *stream) refuse(err error) {
	w.refusal = err
	time.AfterFunc(refusedBodyTime, func() { w.session.end(err) })
}

// IsInconclusive reports whether a status says nothing about the transport of a server.
func IsInconclusive(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// Write parses the next bytes of the stream.
func (w *stream) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.refusal != nil {
		w.refusedBytes += len(p)
		if w.refusedBytes > maxRefusedBody {
			w.fail(w.refusal)
		}
		return len(p), w.err
	}
	w.events.Each(p, w.addPart)
	return len(p), w.err
}

// FlushError does nothing: messages are delivered as they come.
func (w *stream) FlushError() error { return w.err }

func (w *stream) fail(err error) {
	if w.err == nil {
		w.err = err
		w.session.end(err)
	}
}

func (w *stream) addPart(kind sse.Kind, part []byte) {
	if w.err != nil {
		return
	}
	switch kind {
	case sse.Data:
		if w.lineEnded && len(w.data) > 0 {
			w.data = append(w.data, '\n')
		}
		w.lineEnded = false
		w.data = append(w.data, part...)
		switch size := len(w.data); {
		case size > maxEndpoint && w.session.endpoint == nil:
			w.fail(ErrNotSupported)
		case size > maxMessage:
			w.fail(streamable.TooLarge(w.session.upstream.Name, maxMessage))
		}
	case sse.Frame:
		w.lineEnded = true
		w.fields.Read(part)
	case sse.Dispatch:
		w.dispatch()
		w.fields.Reset()
		w.data = w.data[:0]
		if cap(w.data) > keptBuffer {
			w.data = nil
		}
	}
}

// dispatch handles an event. The first endpoint event counts; before it there are no messages.
func (w *stream) dispatch() {
	s := w.session
	switch event := (&streamable.Event{Type: w.fields.Type, Data: w.data}); {
	case w.fields.Type == "endpoint" && s.endpoint == nil:
		endpoint, err := s.upstream.resolve(string(bytes.TrimSpace(w.data)), s.opening.Host)
		if err != nil {
			failure := jsonrpc.InvalidResponse(s.upstream.Name)
			failure.Message = err.Error()
			w.fail(failure)
			return
		}
		s.endpoint, s.opening = endpoint, nil
		close(s.endpointKnown)
	case event.HasMessage() && s.endpoint != nil:
		m := new(jsonrpc.Message)
		if m.Read(bytes.Clone(w.data)) == nil { // valid messages may follow an invalid one
			s.receive(m)
		}
	}
}

var (
	errEndpointInvalid = errors.New("the MCP server announced an invalid endpoint URL")
	errEndpointHost    = errors.New("the MCP server announced an endpoint at another host, which is not allowed")
)

// resolve returns the endpoint that a server has announced. host is the host of the request. Only
// the path and the query of the URL are used, and a URL at another host is refused.
func (u *Upstream) resolve(address, host string) (*url.URL, error) {
	ref, err := url.Parse(address)
	if err != nil || address == "" || ref.Opaque != "" || ref.User != nil {
		return nil, errEndpointInvalid
	}
	if ref.Scheme != "" && ref.Scheme != "http" && ref.Scheme != "https" {
		return nil, errEndpointInvalid
	}
	isAt := func(host string) bool { return sameHost(ref, host) }
	if ref.Host != "" && !isAt(host) && !slices.ContainsFunc(u.Hosts, isAt) {
		return nil, errEndpointHost
	}
	endpoint := u.Target.ResolveReference(ref)
	return &url.URL{Path: endpoint.Path, RawPath: endpoint.RawPath, RawQuery: endpoint.RawQuery}, nil
}

// sameHost reports whether a URL is at a host, which may have a port. All local names are equal,
// because servers do not know by which one they are reached.
func sameHost(u *url.URL, host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
	}
	own := u.Port()
	for _, p := range []*string{&own, &port} {
		if *p == "" {
			*p = "80"
			if u.Scheme == "https" {
				*p = "443"
			}
		}
	}
	return own == port && (strings.EqualFold(u.Hostname(), name) || isLocal(u.Hostname()) && isLocal(name))
}

func isLocal(name string) bool {
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}
