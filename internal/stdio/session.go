package stdio

import (
	"bytes"
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A session is the state of an initialized legacy client.
type session struct {
	id               string
	name             string // name of the server
	pool             *Pool
	server           *server // its own server; nil if it shares one
	group            *group  // group that it shares children with; nil if it has its own server
	initializeParams []byte  // params of initialize, for its own server
	capabilities     []byte
	expires          *time.Timer
	owner            string
	created          time.Time

	streamInbox    *inbox // messages for its stream
	serverRequests serverRequests
	events         keptEvents
	subscriptions  subscriptions
	memory         account

	mu            sync.Mutex
	stream        *stream
	openResponses int
	lastUsed      time.Time
	ended         bool
	level         string // log level; "" before the client has set one
}

func newSession(p *Pool, name, owner string, initialize *jsonrpc.Message) *session {
	s := &session{
		id:           rand.Text(),
		name:         name,
		pool:         p,
		owner:        owner,
		created:      time.Now(),
		capabilities: bytes.Clone(initialize.Literal(jsonrpc.Capabilities)),
		streamInbox:  mailbox.NewUnread[letter](owner, maxStreamInbox),
		memory:       account{meter: p.sessions.meter, owner: owner},
	}
	s.lastUsed = s.created
	s.serverRequests = serverRequests{session: s, open: map[uint64]*serverRequest{}}
	s.events = keptEvents{memory: &s.memory, byNumber: map[uint64]*callEvents{}, detached: map[*callEvents]detachment{}}
	s.subscriptions = subscriptions{memory: &s.memory, uris: map[string]bool{}}
	if p.config.Isolation == PerSession {
		s.initializeParams = bytes.Clone(initialize.Literal(jsonrpc.Params))
	}
	s.memory.bytes = int64(len(s.initializeParams) + len(s.capabilities))
	return s
}

// use keeps the session from expiring until release is called. It reports false if the session has
// ended.
func (s *session) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.openResponses++
	return true
}

func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastUsed = time.Now()
	s.openResponses--
}

// presence reports whether the client has an open response, and for how long it has had none.
func (s *session) presence() (connected bool, unused time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.openResponses > 0, time.Since(s.lastUsed)
}

// An activity is a way in which a session is used.
type activity int

const (
	idle      activity = iota
	listening          // its stream is open, but no call is
	busy
)

// activity returns how the session is used, and since when.
func (s *session) activity() (now activity, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.openResponses == 0:
		return idle, s.lastUsed
	case s.openResponses == 1 && s.stream != nil:
		return listening, s.lastUsed
	}
	return busy, s.created
}

// checkExpiry ends a session that was unused for its time to live. It runs when that can be the
// case, because a timer that each request restarts costs more.
func (s *session) checkExpiry() {
	s.mu.Lock()
	left := s.pool.config.SessionTTL
	if s.openResponses == 0 {
		left -= time.Since(s.lastUsed)
	}
	again := left > 0 && !s.ended
	if again {
		s.expires.Reset(left)
	}
	s.mu.Unlock()
	if !again {
		s.expire()
	}
}

// expire ends a session unless it is used.
func (s *session) expire() {
	s.mu.Lock()
	unused := s.openResponses == 0
	s.ended = s.ended || unused
	s.mu.Unlock()
	if unused {
		s.end()
	}
}

// end ends a session with its open requests.
func (s *session) end() {
	s.mu.Lock()
	s.ended = true
	s.expires.Stop()
	s.mu.Unlock()
	size := s.memory.close()
	s.streamInbox.Discard()
	s.serverRequests.close()
	s.events.end()
	uris := s.subscriptions.all()
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions.byID[s.id] == s {
		delete(p.sessions.byID, s.id)
		p.sessions.meter.Give(s.owner, size)
	}
	switch {
	case p.closed: // Close stops all servers
	case s.server != nil:
		p.running.Go(s.server.stop)
	case len(uris) > 0 || s.logLevel() != "":
		p.running.Go(func() { s.releaseShared(uris) })
	}
}

// releaseShared undoes what an ended session has set on shared children: its log level, and
// subscriptions that no other session has.
func (s *session) releaseShared(uris []string) {
	p := s.pool
	ctx, cancel := context.WithTimeout(context.Background(), p.config.StartTimeout)
	defer cancel()
	for _, server := range p.serversNamed(s.name, mcp.Legacy, s.group) {
		c := server.current()
		if c == nil {
			continue
		}
		for _, uri := range uris {
			if !server.clients().isSubscribed(uri) {
				_, _ = c.request(ctx, "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
		c.level.update()
	}
}

// hasServerAt reports whether the session has its own server, at this host.
func (s *session) hasServerAt(host string) bool {
	return s.server != nil && s.server.address.host == host
}

// canBeAsked reports whether the client has declared that it supports a server request.
func (s *session) canBeAsked(method string) bool {
	return mcp.AcceptsServerRequest(s.capabilities, method)
}

// maxStreamInbox is how many bytes wait for a client to open its stream.
const maxStreamInbox = 64 << 10

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

// setStream sets the stream for messages outside of calls. It ends the previous one, which the
// client must have lost.
func (s *session) setStream(st *stream) {
	s.mu.Lock()
	before := s.stream
	s.stream = st
	s.mu.Unlock()
	if before != nil {
		before.stop()
	}
}

// hasStream reports whether the client has the stream for messages outside of calls open.
func (s *session) hasStream() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream != nil
}

// clearStream removes a stream that has ended, unless another one has replaced it.
func (s *session) clearStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == st {
		s.stream = nil
	}
}

// subscriptions are the resources that the client of a session has subscribed to.
type subscriptions struct {
	memory *account

	mu   sync.Mutex
	uris map[string]bool
}

const (
	maxSubscriptions  = 1_000 // of a session
	longestURI        = 8 << 10
	subscriptionBytes = 64 // besides its URI
)

// add adds a resource, and reports whether there is room.
func (s *subscriptions) add(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uris[uri] {
		return true
	}
	if len(s.uris) == maxSubscriptions || len(uri) > longestURI || !s.memory.grow(int64(len(uri)+subscriptionBytes)) {
		return false
	}
	s.uris[uri] = true
	return true
}

// remove removes a resource, unless the session has ended.
func (s *subscriptions) remove(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uris[uri] && s.memory.grow(-int64(len(uri)+subscriptionBytes)) {
		delete(s.uris, uri)
	}
}

// has reports whether the client has subscribed to a resource.
func (s *subscriptions) has(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uris[uri]
}

// all returns the resources.
func (s *subscriptions) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.uris))
}

// A shared child has one log level, and so has each of its clients. The child gets the most
// verbose of them. Each client gets the messages that its own level lets through.

// defaultLevel is the level of clients that have set none, once another client has.
const defaultLevel = "info"

const setLevelMethod = "logging/setLevel"

// setLevel sets the log level of a client of a shared child.
func (rt *roundTrip) setLevel(c *child) (*http.Response, error) {
	id, level := rt.m.Literal(jsonrpc.ID), rt.m.Text(jsonrpc.Level)
	switch {
	case rt.session == nil:
		return respond(rt.req, http.StatusOK, jsonrpc.ErrorResponse(id, jsonrpc.CodeInvalidRequest,
			"several clients share this server: a log level needs a session")), nil
	case !slices.Contains(mcp.LogLevels, level):
		return respond(rt.req, http.StatusOK, jsonrpc.ErrorResponse(id, jsonrpc.CodeInvalidParams,
			"level: must be one of "+strings.Join(mcp.LogLevels, ", "))), nil
	}
	rt.session.setLevel(level)
	answer, err := c.level.sync(rt.req.Context())
	if err != nil {
		return nil, err
	}
	if answer == nil { // the child already has that level
		return respond(rt.req, http.StatusOK, jsonrpc.ResultResponse(id, []byte("{}"))), nil
	}
	return respond(rt.req, http.StatusOK, replaceFields(answer, id, jsonrpc.ID)...), nil
}

// A sharedLevel is the log level of a child, as set for all its clients.
type sharedLevel struct {
	child   *child
	setting chan struct{} // holds a value while the level is being set

	mu    sync.Mutex
	level string // "" before it is set
}

// sync sets the log level of the child to the most verbose one of its clients. It returns
// the response, or nil if the child already has that level.
func (l *sharedLevel) sync(ctx context.Context) (answer *jsonrpc.Message, err error) {
	select {
	case l.setting <- struct{}{}: // one after the other, so that the last one wins
		defer func() { <-l.setting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	level := l.child.server.clients().level()
	if level == "" || level == l.current() {
		return nil, nil
	}
	answer, err = l.child.request(ctx, setLevelMethod, []byte(`{"level":"`+level+`"}`))
	if err == nil && answer.Has(jsonrpc.Result) {
		l.mu.Lock()
		l.level = level
		l.mu.Unlock()
	}
	return answer, err
}

// current returns the log level that was set for all clients.
func (l *sharedLevel) current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.level
}

// update sets the log level again after a restart, or after a client has left.
func (l *sharedLevel) update() {
	s := l.child.server
	if s.owner != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
	defer cancel()
	if _, err := l.sync(ctx); err != nil {
		s.log().Warn("log level not set", zap.Error(err))
	}
}

// passes reports whether a client gets a notification. It does not get log messages that
// are less severe than its level.
func (l *sharedLevel) passes(m *jsonrpc.Message, s *session) bool {
	if l.child.server.owner != nil || m.Text(jsonrpc.Method) != "notifications/message" || l.current() == "" {
		return true
	}
	wanted := defaultLevel
	if s != nil {
		if level := s.logLevel(); level != "" {
			wanted = level
		}
	}
	severity := slices.Index(mcp.LogLevels, m.Text(jsonrpc.Level))
	return severity < 0 || severity >= slices.Index(mcp.LogLevels, wanted)
}
