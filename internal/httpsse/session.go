package httpsse

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[number]
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
