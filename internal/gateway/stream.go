package gateway

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A stream is a response that a client has opened to listen: by GET in the legacy
// era, by subscriptions/listen in the modern one.
type stream struct {
	visit *visit
	ctx   context.Context
	end   context.CancelFunc
	wants *interests              // what a client of the modern era listens to; nil for all
	g     atomic.Pointer[Gateway] // whose servers are listened to

	mu       sync.Mutex
	closed   bool
	unfollow func() bool
	ears     map[earKey]*ear
	open     sync.WaitGroup // ears
}

// An ear is what listens to a server.
type ear struct {
	key    earKey
	stop   context.CancelFunc
	last   string // the id of the last event
	lastIn string // the session it was of; none if a client has brought it
	heard  bool   // there is such a stream

	session     string // in which it has subscribed to resources
	unsubscribe func()
}

// An earKey says what an ear listens to: all that a server says or, of a server of the
// modern era, changes of one resource. Each subscription has an ear of its own, so that
// nothing is missed when there is another.
type earKey struct {
	id  string // of the server
	uri string
}

const (
	// keepAlive is after how long a silent stream gets a comment. Proxies close
	// connections on which nothing happens.
	keepAlive = 25 * time.Second
	// joinPause is how long a client that begins to listen waits for the servers.
	// What they say after that reaches it, what they said before may not.
	joinPause = time.Second
	// partingTime is how long a server gets to take note that a client has left.
	partingTime = time.Second
)

// rejoinPause is after how long a server is listened to again that has hung up.
var rejoinPause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}

// The streams that events come in, by whom they can be resumed.
const (
	callStream   = "call"
	listenStream = "listen"
)

// eventOfSession is the scope of the ids of events at the aggregate.
const eventOfSession = "event of a session"

// listening returns the streams by which the client listens.
func (c *client) listening() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.streams))
}

func (v *visit) newStream(wants *interests) *stream {
	s := &stream{visit: v, wants: wants, ears: map[earKey]*ear{}}
	s.ctx, s.end = context.WithCancel(v.r.Context())
	v.g.mu.Lock()
	g := v.g
	for g.left { // while the request was on its way
		if g.place.current == nil {
			s.end()
			break
		}
		g = g.place.current
	}
	s.g.Store(g)
	v.g.streams[s] = true
	v.g.listening.Take(v.client.owner, 0)
	v.g.mu.Unlock()
	if g != v.g {
		s.follow(g)
	}
	v.client.mu.Lock()
	v.client.streams[s] = true
	v.client.mu.Unlock()
	if v.client.ended.Load() {
		s.end() // which nobody else does who has not seen it
	}
	return s
}

// close ends the stream and waits for all that is heard in it.
func (s *stream) close() {
	c, state := s.visit.client, s.visit.g.State
	c.mu.Lock()
	delete(c.streams, s)
	c.mu.Unlock()
	state.mu.Lock()
	if state.streams[s] {
		delete(state.streams, s)
		state.listening.Give(c.owner, 0)
	}
	state.mu.Unlock()
	s.mu.Lock()
	s.closed = true
	if s.unfollow != nil {
		s.unfollow()
	}
	s.mu.Unlock()
	s.end()
	s.open.Wait()
}

// get opens the stream of a session.
func (v *visit) get() *jsonrpc.Failure {
	if !v.out.AcceptsStream() {
		return notAcceptable()
	}
	kind, server, last := "", "", ""
	if bound := v.r.Header.Get("Last-Event-Id"); bound != "" {
		id, ok := v.g.sealer.claim(bound, eventOfSession, v.client.key)
		if !ok {
			id = bound
		}
		kind, id, _ = strings.Cut(id, "/")
		server, last, _ = strings.Cut(id, "/")
		switch {
		case kind == callStream && ok:
			return v.resumeCall(server, last)
		case kind == callStream:
			return notOfSession()
		case !ok:
			server = "" // to listen is something that can begin anew
		}
	}
	s := v.newStream(nil)
	defer s.close()
	s.await(s.join(func(name string) string {
		if name == server {
			return last
		}
		return ""
	}))
	v.out.Begin()
	s.last()
	return nil
}

// notAcceptable refuses a client that listens but takes no event streams.
func notAcceptable() *jsonrpc.Failure {
	failure := jsonrpc.InvalidRequest("Accept: it does not name text/event-stream")
	failure.Status = http.StatusNotAcceptable
	return failure
}

// notOfSession refuses to go on with a stream that a session never had.
func notOfSession() *jsonrpc.Failure {
	return jsonrpc.InvalidRequest("Last-Event-ID: it is none of this session")
}

// resumeCall goes on with the stream of a call, at the one server that has it.
func (v *visit) resumeCall(server, last string) *jsonrpc.Failure {
	owner := v.g.servers[server]
	if owner == nil || !v.sees(owner) {
		return notOfSession()
	}
	v.server = owner
	l := v.client.link(owner)
	if failure := l.open(v.origin()); failure != nil {
		return failure
	}
	v.out.Begin()
	s := &stream{visit: v} // by which nobody listens
	s.hearGET(v.origin(), l, &ear{last: last}, callStream, func() {})
	return nil
}

// last keeps the stream open until its end.
func (s *stream) last() {
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			s.visit.out.KeepAlive()
		}
	}
}

// join listens to all servers. The channel is closed when all have answered, or
// failed to.
func (s *stream) join(last func(server string) string) <-chan struct{} {
	begun := make(chan struct{})
	var first sync.WaitGroup
	for _, server := range s.g.Load().rules.seen(s.visit.caller.identity) {
		first.Add(1)
		s.listenTo(earKey{id: server.ID}, last(server.Name), sync.OnceFunc(first.Done))
	}
	s.open.Go(func() {
		first.Wait()
		close(begun)
	})
	return begun
}

// await waits until the servers listened to have answered, but not for long.
func (s *stream) await(begun <-chan struct{}) {
	timer := time.NewTimer(joinPause)
	defer timer.Stop()
	select {
	case <-begun:
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// move makes the stream one of the servers of another Gateway, and tells the client
// if they are not the same.
func (s *stream) move(from, to *Gateway) {
	s.g.Store(to)
	s.follow(to)
	identity := s.visit.caller.identity
	if from.rules.standing(identity) != to.rules.standing(identity) {
		s.end()
		return
	}
	before, now := from.rules.seen(identity), to.rules.seen(identity)
	another := from.rules.view(identity) != to.rules.view(identity) // what is heard now is what was shown before
	changed := another || len(before) != len(now)
	s.mu.Lock()
	for key, e := range s.ears {
		if server := to.byID(key.id); another || server == nil || !to.rules.sees(identity, server) {
			e.stop()
			delete(s.ears, key)
		}
	}
	s.mu.Unlock()
	for _, server := range now {
		if another || from.byID(server.ID) == nil || !from.rules.sees(identity, server) {
			changed = true
			s.listenTo(earKey{id: server.ID}, "", func() {})
		}
	}
	if changed {
		s.later(func() { s.announce(tools, prompts, resources) })
	}
}

// follow ends the stream when an Gateway does that is not the one it was opened at.
func (s *stream) follow(g *Gateway) {
	if g.config.Exiting == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unfollow != nil {
		s.unfollow()
	}
	if !s.closed {
		s.unfollow = context.AfterFunc(g.config.Exiting, s.end)
	}
}

// later does something of which nobody else waits for the end. Clients may be slow.
func (s *stream) later(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.open.Go(f)
	}
}

// announce tells the client that lists have changed.
func (s *stream) announce(changed ...kind) {
	for _, k := range changed {
		var m jsonrpc.Message
		if m.Read(jsonrpc.Notification(kinds[k].notice, nil)) != nil {
			continue
		}
		switch {
		case s.wants == nil:
			s.visit.out.Event(&streamable.Event{Data: m.Raw})
		case s.wants.want(&m, ""):
			s.visit.out.Event(&streamable.Event{Data: s.tagged(m.Raw)})
		}
	}
}

// listenTo listens to something for as long as the stream lasts.
func (s *stream) listenTo(key earKey, last string, begun func()) {
	ctx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ears[key] != nil {
		begun()
		stop()
		return
	}
	e := &ear{key: key, stop: stop, last: last}
	s.ears[key] = e
	s.open.Go(func() {
		defer begun()
		defer stop()
		s.hear(ctx, e, begun)
		if e.unsubscribe != nil {
			e.unsubscribe()
		}
	})
}

// hear listens to a server, again and again.
func (s *stream) hear(ctx context.Context, e *ear, begun func()) {
	for failures := 0; ctx.Err() == nil; failures++ {
		g := s.g.Load()
		server := g.byID(e.key.id)
		if server == nil || !g.rules.sees(s.visit.caller.identity, server) {
			return
		}
		began := time.Now()
		again := s.hearOnce(origin{ctx, g, s.visit.r}, server, e, begun)
		begun()
		if !again {
			return
		}
		if time.Since(began) > rejoinPause.Max {
			failures = 0
		}
		if !backoff.Sleep(ctx, rejoinPause.Pause(failures)) {
			return
		}
	}
}

// hearOnce listens to a server until it hangs up. It reports whether there is a
// point in trying again.
func (s *stream) hearOnce(o origin, server *Server, e *ear, begun func()) (again bool) {
	l := s.visit.client.link(server)
	late := l.hasFailed()
	if failure := l.open(o); failure != nil {
		return true
	}
	if late {
		s.announce(l.kinds()...) // what it has is new to the client
	}
	l.sendInitialized(o)
	era, can := l.state()
	if era == mcp.Modern {
		if s.wants == nil && e.key.uri == "" {
			for _, uri := range l.subscriptions.all() {
				s.listenTo(earKey{server.ID, uri}, "", func() {})
			}
		}
		return s.hearListen(o, l, can, e.key.uri, begun)
	}
	if e.key.uri != "" {
		return false // which has been told itself
	}
	if s.wants != nil {
		if s.wants.at(l.server, can).nothing() {
			return false
		}
		s.subscribed(o, l, e)
	}
	return s.hearGET(o, l, e, listenStream, begun)
}

// subscribed subscribes to what the stream listens to, once in each session.
func (s *stream) subscribed(o origin, l *link, e *ear) {
	if session := l.sessionID(); e.unsubscribe == nil || e.session != session {
		e.session, e.unsubscribe = session, s.subscribe(o, l)
	}
}

// kinds returns of which kinds the server has something to announce.
func (l *link) kinds() (has []kind) {
	_, can := l.state()
	for _, k := range [...]kind{tools, prompts, resources} {
		if can&kinds[k].needs != 0 {
			has = append(has, k)
		}
	}
	return has
}

// hearGET listens to a server of the legacy era. It notes the last event by which the
// stream can be resumed.
func (s *stream) hearGET(o origin, l *link, ear *ear, kind string, begun func()) (again bool) {
	v := s.visit
	r, session, _ := l.prepare(o)
	emptyBody(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	resuming := ear.last != "" && (ear.lastIn == "" || ear.lastIn == session)
	if resuming {
		r.Header.Set("Last-Event-Id", ear.last)
	}
	var names []name
	h := &streamable.Reader{Parse: func(m *jsonrpc.Message, data []byte) (failure *jsonrpc.Failure) {
		failure, names = readNames(m, data, names)
		return failure
	}}
	heard := false
	h.OnHeader = func(status int) bool {
		if heard = status == http.StatusOK; heard && kind == listenStream {
			l.lists.listen(everyKind, 1)
		}
		begun()
		return heard
	}
	h.OnMessage = func(e *streamable.Event) error {
		if e.ID != "" {
			ear.last, ear.lastIn = e.ID, session
		}
		m, id := e.Message, l.translator(o.g).eventID(kind, e.ID)
		switch {
		case len(e.Data) == 0:
			if kind == callStream && v.client.primed() {
				v.out.Event(&streamable.Event{ID: id, Retry: e.Retry})
			}
		case m.IsAnswer():
			if kind == callStream { // on others nobody waits for one
				v.out.Event(&streamable.Event{ID: id, Data: jsonspan.Spliced(m.Raw, l.translator(o.g).rename(m.Raw, names)...)})
			}
		default:
			others := l.unsolicited(o)
			others.note(m)
			if !s.pass(others, m, id) && m.IsRequest() && !l.held.ask(m) {
				others.refuse(&v.asides, m, "the client cannot be asked "+mcp.Shortened(m.Text(jsonrpc.Method)))
			}
		}
		return nil
	}
	x := o.g.newExchange(l, h, nil)
	x.resumed = kind == callStream
	failure := x.send(r)
	if heard {
		if ear.heard = true; kind == listenStream {
			l.lists.listen(everyKind, -1)
		}
		return true
	}
	switch {
	case resuming && h.Status()/100 == 4:
		ear.last = "" // it may be of another time
		return s.hearGET(o, l, ear, kind, begun)
	case session != "" && (h.Status() == http.StatusNotFound || h.Status() == http.StatusBadRequest):
		// Either the session is lost, which shows when it is used, or the stream, or
		// there never was one.
		_, _ = l.request(o, "ping", nil)
		return ear.heard || l.sessionID() != session
	case ear.heard:
		return true
	}
	switch h.Status() {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented:
		return failure != nil // there is no such stream
	}
	return true // there may be later: when another one has ended (409), or the server is back
}

// pass gives the client what was heard by this stream. Servers let each session
// listen but once; where several of a client do, what one hears is for all.
func (s *stream) pass(u unsolicited, m *jsonrpc.Message, id string) bool {
	if s.wants == nil {
		return s.deliver(u.g, u.link, m, id)
	}
	return u.broadcast(m)
}

// everyKind are all that can change.
var everyKind = []kind{tools, prompts, resources, templates}

// deliver gives the client a message of a server that belongs to no call, if it is
// one that it wants.
func (s *stream) deliver(g *Gateway, l *link, m *jsonrpc.Message, id string) bool {
	v := s.visit
	if m.Is(jsonrpc.Method, mcp.MethodUpdated) {
		if server := g.of(l); server == nil || !g.rules.hears(v.caller.identity, server, m.Text(jsonrpc.URI)) {
			return false
		}
	}
	if s.wants == nil {
		if m.IsRequest() && !v.client.can(m.Text(jsonrpc.Method)) {
			return false
		}
		// A server of the modern era learns a little later that the client has unsubscribed.
		if era, _ := l.state(); era == mcp.Modern && m.Is(jsonrpc.Method, mcp.MethodUpdated) && !l.subscriptions.has(m.Text(jsonrpc.URI)) {
			return false
		}
		return v.out.Event(&streamable.Event{ID: id, Data: l.translator(g).message(m)})
	}
	if !s.wants.want(m, l.server) {
		return false
	}
	raw := s.tagged(l.translator(g).message(m))
	if shown := s.wants.shown[l.server+"\x00"+m.Text(jsonrpc.URI)]; shown != "" {
		var own jsonrpc.Message
		if own.Read(raw) == nil && own.Has(jsonrpc.URI) {
			raw = jsonspan.Spliced(raw, own.Replace(jsonrpc.URI, jsonrpc.Quote(shown)))
		}
	}
	return v.out.Event(&streamable.Event{Data: raw})
}

// tagged returns a message with the id of the listen request it belongs to.
func (s *stream) tagged(raw []byte) []byte {
	var m jsonrpc.Message
	if m.Read(raw) != nil {
		return raw
	}
	id := s.visit.message.Literal(jsonrpc.ID)
	member := slices.Concat([]byte(`"`+mcp.MetaSubscriptionID+`":`), id)
	if m.Has(jsonrpc.SubscriptionID) {
		return jsonspan.Spliced(raw, m.Replace(jsonrpc.SubscriptionID, id))
	}
	return jsonspan.Spliced(raw, m.InsertMeta(member))
}
