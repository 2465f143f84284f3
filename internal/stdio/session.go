package stdio

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
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

	mu                sync.Mutex
	streamInbox       *inbox // messages for its stream
	stream            *stream
	openResponses     int
	lastUsed          time.Time
	ended             bool
	lastServerRequest uint64
	serverRequests    map[uint64]*serverRequest
	subscriptions     map[string]bool // URIs of resources
	level             string          // log level; "" before the client has set one
	bytes             int64           // memory that counts toward the quota

	events     map[uint64]*callEvents     // events of calls by number
	detached   map[*callEvents]detachment // those of calls without a connection
	lastEvents uint64                     // latest number
}

func newSession(p *Pool, name, owner string, initialize *jsonrpc.Message) *session {
	s := &session{
		id:             rand.Text(),
		name:           name,
		pool:           p,
		owner:          owner,
		capabilities:   bytes.Clone(initialize.Literal(jsonrpc.Capabilities)),
		streamInbox:    mailbox.NewUnread[letter](owner, maxStreamInbox),
		serverRequests: map[uint64]*serverRequest{},
		subscriptions:  map[string]bool{},
		events:         map[uint64]*callEvents{},
		detached:       map[*callEvents]detachment{},
	}
	if p.config.Isolation == PerSession {
		s.initializeParams = bytes.Clone(initialize.Literal(jsonrpc.Params))
	}
	s.bytes = int64(len(s.initializeParams) + len(s.capabilities))
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

// An activity is a way in which a session is used.
type activity int

const (
	idle      activity = iota
	listening          // its stream is open, but no call is
	busy
)

// activity returns how the session is used, since when, and how many bytes are kept for it.
func (s *session) activity() (now activity, since time.Time, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.openResponses == 0:
		return idle, s.lastUsed, s.bytes
	case s.openResponses == 1 && s.stream != nil:
		return listening, s.lastUsed, s.bytes
	}
	return busy, s.created, s.bytes
}

// canBeAsked reports whether the client has declared that it supports a server request.
func (s *session) canBeAsked(method string) bool {
	return mcp.AcceptsServerRequest(s.capabilities, method)
}

// maxStreamInbox is how many bytes wait for a client to open its stream.
const maxStreamInbox = 64 << 10

// maxServerRequests is how many server requests a client can have open.
const maxServerRequests = 1_000

// serverRequestTime is how long a server request waits for a client without an open response.
const serverRequestTime = 5 * time.Second

// forwardServerRequest sends a server request to the client, on the stream of a call or of the
// session. If that fails, it is answered locally.
func (s *session) forwardServerRequest(c *child, call *call, m *jsonrpc.Message) {
	s.mu.Lock()
	why := ""
	switch {
	case s.ended:
		why = "the client has left"
	case len(s.serverRequests) == maxServerRequests:
		why = "the client has too many open requests"
	}
	if why != "" {
		s.mu.Unlock()
		c.answerLocally(m.Literal(jsonrpc.ID), m.Text(jsonrpc.Method), jsonrpc.CodeInternalError, why)
		return
	}
	s.lastServerRequest++
	q := &serverRequest{
		session: s, child: c, id: bytes.Clone(m.Literal(jsonrpc.ID)), method: m.Text(jsonrpc.Method),
		number: s.lastServerRequest, progressToken: bytes.Clone(m.Literal(jsonrpc.ProgressToken)), call: call,
	}
	s.serverRequests[q.number] = q
	s.mu.Unlock()

	number := strconv.AppendUint(nil, q.number, 10)
	l := letter{message: replaceFields(m, number, jsonrpc.ID), serverRequest: q}
	if call != nil {
		if !call.inbox.Put(l) {
			s.refuse(q, "the client is not reading its stream, or has left")
		}
		return
	}
	if !s.streamInbox.Put(l) {
		s.refuse(q, "the client is not reading its stream")
		return
	}
	s.refuseUnlessRead(q, serverRequestTime)
}

// refuseUnlessRead refuses a server request outside of calls if, after a while, the client has not
// read it, or has no open response anymore.
func (s *session) refuseUnlessRead(q *serverRequest, while time.Duration) {
	time.AfterFunc(while, func() {
		s.mu.Lock()
		_, open := s.serverRequests[q.number]
		connected, unused := s.openResponses > 0, time.Since(s.lastUsed)
		s.mu.Unlock()
		switch {
		case !open:
		case s.streamInbox.Withdraw(func(l letter) bool { return l.serverRequest == q }):
			s.refuse(q, "the client has no open stream")
		case connected:
			s.refuseUnlessRead(q, serverRequestTime)
		case unused < serverRequestTime:
			s.refuseUnlessRead(q, serverRequestTime-unused)
		default:
			s.refuse(q, "the client has left")
		}
	})
}

// answerServerRequest forwards the client's response to a server request. It reports whether there
// was such a request.
func (s *session) answerServerRequest(ctx context.Context, m *jsonrpc.Message) bool {
	number, err := strconv.ParseUint(string(m.Literal(jsonrpc.ID)), 10, 64)
	if err != nil {
		return false
	}
	s.mu.Lock()
	q := s.serverRequests[number]
	delete(s.serverRequests, number)
	s.mu.Unlock()
	if q == nil {
		return false
	}
	if err := q.child.sendEdited(ctx, m.Raw, m.ReplaceAll(q.id, jsonrpc.ID)); err != nil {
		q.child.answerLocally(q.id, q.method, jsonrpc.CodeInternalError, "the client has left")
	}
	return true
}

// refuse answers a server request with an error, unless it has been answered.
func (s *session) refuse(q *serverRequest, why string) {
	s.mu.Lock()
	_, open := s.serverRequests[q.number]
	delete(s.serverRequests, q.number)
	s.mu.Unlock()
	if open {
		q.child.answerLocally(q.id, q.method, jsonrpc.CodeInternalError, why)
	}
}

// refuseMatching refuses open server requests.
func (s *session) refuseMatching(match func(*serverRequest) bool) {
	s.mu.Lock()
	var refused []*serverRequest
	for _, q := range s.serverRequests {
		if match(q) {
			refused = append(refused, q)
		}
	}
	s.mu.Unlock()
	for _, q := range refused {
		s.refuse(q, "the client has left")
	}
}

// detachServerRequests keeps the server requests on the stream of a call whose response is sent
// now. A server request need not belong to the call whose stream carries it, and the client reads
// it before the response, so it may still answer.
func (s *session) detachServerRequests(call *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.serverRequests {
		if q.call == call {
			q.call = nil
			s.refuseUnlessRead(q, serverRequestTime)
		}
	}
}

// withdrawServerRequest removes a server request that the server has canceled. It returns the
// number that the client knows, and the inbox that the request went to.
func (s *session) withdrawServerRequest(c *child, id []byte) (number uint64, to *inbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.serverRequests {
		if q.child == c && bytes.Equal(q.id, id) {
			delete(s.serverRequests, q.number)
			if q.call != nil {
				return q.number, q.call.inbox
			}
			return q.number, s.streamInbox
		}
	}
	return 0, nil
}

// awaitsProgress reports whether this child has an open request to the client with this progress
// token.
func (s *session) awaitsProgress(c *child, token []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.serverRequests {
		if q.child == c && q.progressToken != nil && bytes.Equal(q.progressToken, token) {
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

func (s *session) isSubscribed(uri string) bool {
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

// subscribe notes that the client subscribes to a resource. It reports whether there is room.
func (s *session) subscribe(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscriptions[uri] {
		return true
	}
	size := int64(len(uri) + subscriptionBytes)
	if s.ended || len(s.subscriptions) == maxSubscriptions || len(uri) > longestURI ||
		!s.pool.sessionMeter.Grow(s.owner, size) {
		return false
	}
	s.bytes += size
	s.subscriptions[uri] = true
	return true
}

// unsubscribe removes a subscription.
func (s *session) unsubscribe(uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.subscriptions[uri] {
		size := int64(len(uri) + subscriptionBytes)
		s.pool.sessionMeter.Grow(s.owner, -size)
		s.bytes -= size
		delete(s.subscriptions, uri)
	}
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

// Sessions have owners: the identity of the client or, without one, its address. No owner can
// end the sessions of another one that has fewer.

// sessionQuota limits sessions with child processes.
var sessionQuota = quota.NewKind("stdio_sessions")

// OwnerKey is the context key of the owner of new sessions, a string.
type OwnerKey struct{}

// WithOwner sets the owner of sessions that a request begins.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, OwnerKey{}, owner)
}

// HasOwner reports whether the context has an owner.
func HasOwner(ctx context.Context) bool { return ctx.Value(OwnerKey{}) != nil }

func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(OwnerKey{}).(string)
	return owner
}

// Limits of the memory for sessions: their initialize requests, capabilities, subscriptions and
// events. In all and per owner.
const (
	maxBytes      = 64 << 20
	maxOwnerBytes = 8 << 20
)

// abandonedTime is how long a session is unused before it counts as abandoned.
const abandonedTime = time.Minute

// A candidate is a session that may be ended to make room for another one.
type candidate struct {
	*session
	activityNow activity
	since       time.Time
	bytes       int64
	usage       *usage
}

// A usage adds up the sessions of an owner. used and idle count sessions or bytes, whichever is
// exhausted.
type usage struct {
	sessions, bytes int64
	used, idle      int64
}

// makeRoom ends a session so that another one can begin, and reports whether it did. Idle
// sessions go first: of the owner with the most, the one that was unused for the longest time.
// Abandoned sessions of owners that have less can go as well, but the only session of an owner
// goes last. Sessions in use are ended if their owner has more than half of all, and sessions
// with just an open stream if it has more than its share.
func (p *Pool) makeRoom(next *session) bool {
	var all []candidate
	owners := map[string]*usage{next.owner: {}}
	p.eachSession(func(s *session) {
		now, since, bytes := s.activity()
		if owners[s.owner] == nil {
			owners[s.owner] = new(usage)
		}
		all = append(all, candidate{s, now, since, bytes, owners[s.owner]})
	})
	limit, weight := int64(p.config.MaxSessions), func(int64) int64 { return 1 }
	if len(all) < p.config.MaxSessions {
		limit, weight = maxBytes, func(bytes int64) int64 { return bytes }
	}
	for _, c := range all {
		c.usage.sessions++
		c.usage.bytes += c.bytes
		c.usage.used += weight(c.bytes)
		if c.activityNow == idle {
			c.usage.idle += weight(c.bytes)
		}
	}
	own := owners[next.owner]
	mine := own.used + weight(next.bytes)
	rank := func(c candidate) int {
		abandoned := time.Since(c.since) > abandonedTime
		more := c.usage.used > mine
		switch {
		case c.usage == own && c.activityNow == idle:
			return 1
		case c.usage == own, own.bytes+next.bytes > maxOwnerBytes:
			return 0
		case c.activityNow == idle && more:
			return 1
		case c.activityNow == idle && abandoned && c.usage.sessions > 1:
			return 2
		case c.activityNow == listening && more &&
			(c.usage.used > limit/2 || abandoned &&
				c.usage.used > limit/int64(len(owners))):
			return 3
		case c.activityNow == idle && abandoned:
			return 4
		case more && c.usage.used > limit/2:
			return 5
		}
		return 0
	}
	all = slices.DeleteFunc(all, func(c candidate) bool { return rank(c) == 0 })
	if len(all) == 0 {
		return false
	}
	last := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.usage.idle, a.usage.idle),
			cmp.Compare(b.usage.used, a.usage.used), a.since.Compare(b.since))
	})
	if last.activityNow == idle {
		p.expire(last.session) // unless it is used again
	} else {
		p.end(last.session)
	}
	return true
}

// How fast an owner can begin sessions with their own child.
const (
	startRate  = 5  // per second
	startBurst = 50 // at once
	startWait  = 10 * time.Second
)

// A startLimiter limits how fast owners begin sessions.
type startLimiter struct {
	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

// wait waits until an owner can begin a session. It reports false if that would take longer
// than maxWait.
func (s *startLimiter) wait(ctx context.Context, owner string, maxWait time.Duration) (bool, error) {
	pause, ok := s.reserve(owner, maxWait)
	if !ok || pause == 0 {
		return ok, nil
	}
	if !backoff.Sleep(ctx, pause) { // the reservation is lost
		return false, context.Cause(ctx)
	}
	return true, nil
}

// reserve returns how long the owner has to wait, if that is at most maxWait. It reads the clock
// under the lock: if time went backwards for a limiter, it would admit too many.
func (s *startLimiter) reserve(owner string, maxWait time.Duration) (pause time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limiter := s.limiter(owner)
	if limiter == nil {
		return 0, false
	}
	now := time.Now()
	reservation := limiter.ReserveN(now, 1)
	pause = reservation.DelayFrom(now)
	if pause > maxWait {
		reservation.CancelAt(now)
		return 0, false
	}
	return pause, true
}

// limiter returns the limiter of an owner, or nil if there are too many owners. The caller
// holds the lock.
func (s *startLimiter) limiter(owner string) *rate.Limiter {
	const maxOwners = 10_000
	limiter := s.limiters[owner]
	if limiter == nil {
		if len(s.limiters) >= maxOwners { // full limiters are as good as new ones
			maps.DeleteFunc(s.limiters, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= startBurst })
		}
		if len(s.limiters) >= maxOwners {
			return nil
		}
		limiter = rate.NewLimiter(startRate, startBurst)
		s.limiters[owner] = limiter
	}
	return limiter
}
