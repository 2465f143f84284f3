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
	id    string
	using int // requests in it; guarded by Pool.mu
	pool  *Pool
	up    Upstream

	life     context.Context // done when the session has ended, for the reason that is its cause
	end      context.CancelCauseFunc
	opening  *http.Request // that opened the stream; handlers may have changed its host
	endpoint *url.URL      // written before named is closed
	named    chan struct{} // closed when the endpoint is known

	mail    *inbox        // what belongs to no call, for GET streams
	telling chan struct{} // has a token for each message that is sent besides those of requests

	mu     sync.Mutex
	lastID uint64
	calls  map[uint64]*call
}

const (
	maxCalls   = 1_000    // in flight in a session
	maxTelling = 16       // messages
	maxUnread  = 16 << 20 // bytes of messages before an answer that the client has not read yet
	maxMail    = 64 << 10 // bytes of messages that wait for a GET stream

	questionTime = 5 * time.Second  // for which a question waits for a GET stream
	tellTime     = 10 * time.Second // for a message to be posted
)

// A call is a request that waits for its answer.
type call struct {
	number  uint64 // its id towards the server
	request *jsonrpc.Message
	mail    *inbox
}

// A letter is a message of a server on its way to the client.
type letter struct {
	message  []byte // nil if the client has canceled the call, or it has failed
	failure  *jsonrpc.Failure
	question []byte // its id, if it is a question to the client
}

// Len implements [mailbox.Letter].
func (l letter) Len() int { return len(l.message) }

// An inbox holds what a server has sent until the response to a request of the client takes it.
type inbox = mailbox.Box[letter]

func newSession(p *Pool, u Upstream) *session {
	s := &session{
		pool: p, up: u, named: make(chan struct{}), calls: map[uint64]*call{},
		mail: mailbox.NewUnread[letter](u.Owner, maxMail), telling: make(chan struct{}, maxTelling),
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	return s
}

// read reads the stream of the server to its end, which is that of the session.
func (s *session) read() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	s.opening = s.up.Request(ctx)
	w := &stream{session: s, header: http.Header{}}
	err := s.up.Serve(w, s.opening)
	switch {
	case w.refusal != nil:
		err = w.refusal
	case s.endpoint != nil:
		err = errClosed
	case err == nil:
		err = ErrNotSpoken
	}
	s.end(err) // if nothing else has
}

// failure returns what the end of the session means to a call in it.
func (s *session) failure() *jsonrpc.Failure {
	cause := context.Cause(s.life)
	if failure, ok := errors.AsType[*jsonrpc.Failure](cause); ok {
		return failure
	}
	failure := jsonrpc.ConnectError(s.up.Name, jsonrpc.CauseLost)
	failure.Message += ": " + cause.Error()
	failure.Err = cause
	return failure
}

// receive takes a message of the server, whose bytes never change.
func (s *session) receive(m *jsonrpc.Message) {
	switch {
	case m.Is(jsonrpc.Method, "ping") && m.IsRequest():
		s.tell(jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}")))
	case m.IsRequest():
		s.ask(m)
	case m.IsNotification():
		s.notify(m)
	default:
		s.answer(m)
	}
}

// answer gives an answer to the call that waits for it, and no longer does from here on.
func (s *session) answer(m *jsonrpc.Message) {
	if c := s.numbered(m.Literal(jsonrpc.ID)); c != nil && m.IsAnswer() && s.remove(c) {
		id := c.request.Literal(jsonrpc.ID)
		if !c.mail.End(letter{message: jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.ID, id))}) {
			c.mail.End(letter{failure: jsonrpc.TooMuchUnread()})
		}
	}
}

// notify passes a notification on. One that finds no room is lost, as is progress that was
// not asked for.
func (s *session) notify(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method != "notifications/progress" {
		ofSession := method == mcp.MethodUpdated || strings.HasSuffix(method, "/list_changed")
		s.recipient(ofSession).Put(letter{message: m.Raw})
		return
	}
	if c := s.numbered(m.Literal(jsonrpc.Progress)); c != nil && c.request.Has(jsonrpc.ProgressToken) {
		token := c.request.Literal(jsonrpc.ProgressToken)
		c.mail.Put(letter{message: jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.Progress, token))})
	}
}

// ask puts a question to the client. If it cannot, it answers in its place, so that the server
// does not wait.
func (s *session) ask(m *jsonrpc.Message) {
	to, id := s.recipient(false), bytes.Clone(m.Literal(jsonrpc.ID)) // which outlives the message
	if !to.Put(letter{message: m.Raw, question: id}) {
		s.refuse(id, "the client does not read, or has left")
		return
	}
	if to == s.mail {
		time.AfterFunc(questionTime, func() {
			if to.Withdraw(func(l letter) bool { return l.question != nil && bytes.Equal(l.question, id) }) {
				s.refuse(id, "the client has no stream open on which it could be asked")
			}
		})
	}
}

// recipient returns where a message of the server goes that does not say so: to the only call
// in flight, unless it is about the session as a whole. Of several calls it is not known
// which one is meant, so a GET stream is the better place.
func (s *session) recipient(ofSession bool) *inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	var latest *call
	working := 0
	for _, c := range s.calls {
		if !c.works() {
			continue
		}
		if working++; latest == nil || c.number > latest.number {
			latest = c
		}
	}
	if latest == nil || (ofSession || working > 1) && s.mail.HasReaders() {
		return s.mail
	}
	return latest.mail
}

// works reports whether the server may have something to say or to ask during a call.
func (c *call) works() bool {
	method := c.request.Text(jsonrpc.Method)
	return method != "ping" && method != "initialize" && !strings.HasSuffix(method, "/list")
}

// begin notes a call, and gives it an id towards the server. It returns nil if there are too
// many.
func (s *session) begin(request *jsonrpc.Message) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == maxCalls {
		return nil
	}
	s.lastID++
	c := &call{number: s.lastID, request: request, mail: mailbox.New[letter](s.up.Owner, maxUnread)}
	s.calls[c.number] = c
	return c
}

// message returns the request as the server gets it.
func (c *call) message() []byte {
	return jsonspan.Spliced(c.request.Raw, c.request.ReplaceAll(c.id(), jsonrpc.ID, jsonrpc.ProgressToken)...)
}

// id returns the id of the call towards the server: a number from 1 on, because some servers
// take 0 for none.
func (c *call) id() []byte { return strconv.AppendUint(nil, c.number, 10) }

// remove ends the wait for an answer. It reports whether the call was still waiting.
func (s *session) remove(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.calls[c.number] == c
	delete(s.calls, c.number)
	return waiting
}

// forget takes nothing more for a call. It reports whether the call was still waiting.
func (s *session) forget(c *call) bool {
	waiting := s.remove(c)
	for _, l := range c.mail.Discard() {
		if l.question != nil {
			s.refuse(l.question, "the client has left")
		}
	}
	return waiting
}

// numbered returns the call that the server knows by an id.
func (s *session) numbered(id []byte) *call {
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[number]
}

// called returns the call that the client knows by an id: of several the latest.
func (s *session) called(id []byte) (latest *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if jsonrpc.SameID(c.request.Literal(jsonrpc.ID), id) && (latest == nil || c.number > latest.number) {
			latest = c
		}
	}
	return latest
}

// refuse answers a question in place of the client.
func (s *session) refuse(id []byte, why string) {
	s.tell(jsonrpc.Refusal(id, jsonrpc.CodeMethodNotFound, why))
}

// cancel tells the server that the client does not wait for a call anymore.
func (s *session) cancel(c *call) {
	params := append(append([]byte(`{"requestId":`), c.id()...), `,"reason":"the client has left"}`...)
	s.tell(jsonrpc.Notification("notifications/cancelled", params))
}

// tell posts a message of our own, and does not wait for that. A server that makes us say too
// much at once does not get all of it.
func (s *session) tell(message []byte) {
	select {
	case s.telling <- struct{}{}:
	default:
		return
	}
	if !s.pool.run(func() {
		defer func() { <-s.telling }()
		ctx, cancel := context.WithTimeout(s.life, tellTime)
		defer cancel()
		r := s.up.Request(ctx)
		streamable.Direct(r, s.endpoint)
		httpbody.Post(r, message)
		_ = s.up.Serve(&reply{header: http.Header{}}, r) // it may not care
	}) {
		<-s.telling
	}
}

// run runs f in a goroutine, unless the Pool is closed. It reports whether it does.
func (p *Pool) run(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.running.Go(f)
	}
	return !p.closed
}
