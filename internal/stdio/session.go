package stdio

import (
	"bytes"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A session is a client of the legacy era that has shaken hands.
type session struct {
	id      string
	name    string // of the server it is with
	pool    *Pool
	server  *server // its own, if it has one
	group   *group  // that it shares children with, if it has none of its own
	hello   []byte  // the params of its initialize request, for its own server
	can     []byte  // its capabilities
	expires *time.Timer
	owner   string
	began   time.Time

	mu            sync.Mutex
	mail          *inbox // what is to go to its stream
	stream        *stream
	using         int // responses that are being written
	lastUsed      time.Time
	ended         bool
	lastQuestion  uint64
	questions     map[uint64]*question
	subscriptions map[string]bool // URIs of resources
	level         string          // of the log messages that it wants, if it has said
	bytes         int64           // that are kept for it

	events     map[uint64]*callEvents     // of its calls, by number
	detached   map[*callEvents]detachment // those whose client is away
	lastEvents uint64                     // number
}

func newSession(p *Pool, name, owner string, hello *jsonrpc.Message) *session {
	s := &session{
		id:            rand.Text(),
		name:          name,
		pool:          p,
		owner:         owner,
		can:           bytes.Clone(hello.Literal(jsonrpc.Capabilities)),
		mail:          mailbox.NewUnread[letter](owner, maxMail),
		questions:     map[uint64]*question{},
		subscriptions: map[string]bool{},
		events:        map[uint64]*callEvents{},
		detached:      map[*callEvents]detachment{},
	}
	if p.config.Isolation == PerSession {
		s.hello = bytes.Clone(hello.Literal(jsonrpc.Params))
	}
	s.bytes = int64(len(s.hello) + len(s.can))
	return s
}

// use keeps the session from expiring until release is called. It reports whether
// there was time left.
func (s *session) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.using++
	return true
}

func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastUsed = time.Now()
	s.using--
}

// An activity is how much a session is used.
type activity int

const (
	idle      activity = iota
	listening          // its stream is open, and no call waits
	busy
)

// activity returns how much the session is used, since when that is all, and how many
// bytes are kept for it.
func (s *session) activity() (now activity, since time.Time, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.using == 0:
		return idle, s.lastUsed, s.bytes
	case s.using == 1 && s.stream != nil:
		return listening, s.lastUsed, s.bytes
	}
	return busy, s.began, s.bytes
}

// canBeAsked reports whether the client has said that it can be asked this.
func (s *session) canBeAsked(method string) bool { return mcp.CanBeAsked(s.can, method) }

// maxMail is how many bytes wait for a client to open its stream.
const maxMail = 64 << 10

// maxQuestions is how many questions a client can have open.
const maxQuestions = 1_000

// questionTime is how long a question waits for a client that has nothing open.
const questionTime = 5 * time.Second

// ask asks the client a question of the server: on the stream of a call, or on its
// own. If it cannot, the question is answered here.
func (s *session) ask(c *child, call *call, m *jsonrpc.Message) {
	s.mu.Lock()
	why := ""
	switch {
	case s.ended:
		why = "the client has left"
	case len(s.questions) == maxQuestions:
		why = "the client has too many questions to answer"
	}
	if why != "" {
		s.mu.Unlock()
		c.answerHere(m.Literal(jsonrpc.ID), m.Text(jsonrpc.Method), jsonrpc.CodeInternalError, why)
		return
	}
	s.lastQuestion++
	q := &question{session: s, child: c, id: bytes.Clone(m.Literal(jsonrpc.ID)), method: m.Text(jsonrpc.Method), number: s.lastQuestion,
		token: bytes.Clone(m.Literal(jsonrpc.ProgressToken)), call: call}
	s.questions[q.number] = q
	s.mu.Unlock()

	number := strconv.AppendUint(nil, q.number, 10)
	l := letter{message: replaced(m, number, jsonrpc.ID), question: q}
	if call != nil {
		if !call.inbox.Put(l) {
			s.refuse(q, "the client does not read, or has left")
		}
		return
	}
	if !s.mail.Put(l) {
		s.refuse(q, "the client does not read")
		return
	}
	s.watch(q, questionTime)
}

// watch refuses a question that belongs to no call if, after a while, the client has
// not taken it, or has nothing open any more that shows that it is there.
func (s *session) watch(q *question, while time.Duration) {
	time.AfterFunc(while, func() {
		s.mu.Lock()
		_, open := s.questions[q.number]
		there, away := s.using > 0, time.Since(s.lastUsed)
		s.mu.Unlock()
		switch {
		case !open:
		case s.mail.Withdraw(func(l letter) bool { return l.question == q }):
			s.refuse(q, "the client has no stream open")
		case there:
			s.watch(q, questionTime)
		case away < questionTime:
			s.watch(q, questionTime-away)
		default:
			s.refuse(q, "the client has left")
		}
	})
}

// answer takes the client's answer to a question and reports whether there was
// such a question.
func (s *session) answer(ctx context.Context, m *jsonrpc.Message) bool {
	number, err := strconv.ParseUint(string(m.Literal(jsonrpc.ID)), 10, 64)
	if err != nil {
		return false
	}
	s.mu.Lock()
	q := s.questions[number]
	delete(s.questions, number)
	s.mu.Unlock()
	if q == nil {
		return false
	}
	if err := q.child.sendEdited(ctx, m.Raw, m.ReplaceAll(q.id, jsonrpc.ID)); err != nil {
		q.child.answerHere(q.id, q.method, jsonrpc.CodeInternalError, "the client has left")
	}
	return true
}

// refuse answers a question in the client's place, unless it has been answered.
func (s *session) refuse(q *question, why string) {
	s.mu.Lock()
	_, open := s.questions[q.number]
	delete(s.questions, q.number)
	s.mu.Unlock()
	if open {
		q.child.answerHere(q.id, q.method, jsonrpc.CodeInternalError, why)
	}
}

// drop refuses the questions that nobody can answer any more.
func (s *session) drop(lost func(*question) bool) {
	s.mu.Lock()
	var refused []*question
	for _, q := range s.questions {
		if lost(q) {
			refused = append(refused, q)
		}
	}
	s.mu.Unlock()
	for _, q := range refused {
		s.refuse(q, "the client has left")
	}
}

// outlive keeps what was asked on the stream of a call that is answered now. Nothing
// says that a question belongs to the call on whose stream it was put, and the
// client, which reads it before the answer, may be about to reply.
func (s *session) outlive(call *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.questions {
		if q.call == call {
			q.call = nil
			s.watch(q, questionTime)
		}
	}
}

// withdrawn returns the number under which the client knows a question that its
// server takes back, and where it was asked.
func (s *session) withdrawn(c *child, id []byte) (number uint64, to *inbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.questions {
		if q.child == c && bytes.Equal(q.id, id) {
			delete(s.questions, q.number)
			if q.call != nil {
				return q.number, q.call.inbox
			}
			return q.number, s.mail
		}
	}
	return 0, nil
}

// awaits reports whether the client has been asked something by this child that it
// reports the progress of with this token.
func (s *session) awaits(c *child, token []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.questions {
		if q.child == c && q.token != nil && bytes.Equal(q.token, token) {
			return true
		}
	}
	return false
}

func (s *session) logLevel() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

func (s *session) setLevel(level string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
}

func (s *session) subscribed(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscriptions[uri]
}

// uris returns the resources that the client has subscribed to.
func (s *session) uris() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.subscriptions))
}

const (
	maxSubscriptions  = 1_000 // of a session
	longestURI        = 8 << 10
	subscriptionBytes = 64 // besides its URI
)

// subscribe notes that the client wants to know of changes to a resource. It reports
// whether there is room for that.
func (s *session) subscribe(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscriptions[uri] {
		return true
	}
	size := int64(len(uri) + subscriptionBytes)
	if s.ended || len(s.subscriptions) == maxSubscriptions || len(uri) > longestURI || !s.pool.kept.Grow(s.owner, size) {
		return false
	}
	s.bytes += size
	s.subscriptions[uri] = true
	return true
}

// unsubscribe notes that the client has given up a subscription.
func (s *session) unsubscribe(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.subscriptions[uri] {
		size := int64(len(uri) + subscriptionBytes)
		s.pool.kept.Grow(s.owner, -size)
		s.bytes -= size
		delete(s.subscriptions, uri)
	}
}

// listen makes a stream the one on which the client hears what belongs to no call.
// The one before ends: its client has lost it.
func (s *session) listen(st *stream) {
	s.mu.Lock()
	before := s.stream
	s.stream = st
	s.mu.Unlock()
	if before != nil {
		before.stop()
	}
}

// isListening reports whether the client has such a stream.
func (s *session) isListening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream != nil
}

// leave is the end of a stream.
func (s *session) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == st {
		s.stream = nil
	}
}
