package gateway

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A link is a client's session with one of the servers.
type link struct {
	client *client
	server string // its name
	id     string // its ID
	prefix string // of the ids of our own requests

	subscriptions subscriptions
	held          heldCalls

	mu          sync.Mutex
	opening     chan struct{} // closed when an attempt to connect has ended; nil if there is none
	ready       bool
	failed      bool // the server could not be reached at the last attempt
	initialized bool // the server knows that the client is ready
	behind      bool // it does not know something that the client has asked for at another replica
	attempts    int  // to tell the server that the client is ready
	era         mcp.Era
	version     string
	session     string
	lostSession string // that the server has forgotten, where another replica may have begun another one
	can         mcp.Abilities
	about       *about // nil in a session that was begun elsewhere
	carried     bool   // the session id of the client carries it
	used        bool   // the client has made requests in it
	lists       *catalog.Cache
	listeners   [mcp.ListKindCount]int // streams by which the server can say that its lists have changed
	lastID      uint64
	ender       *http.Request // on behalf of which the session is ended, if the client never does
}

// A behalf is the request of a client on whose behalf the gateway talks to a server.
type behalf struct {
	ctx   context.Context // of what the gateway does, which may end earlier than r, or later
	g     *Gateway
	r     *http.Request
	calls bool // it is a call of the server, which waits for it as for the answer
}

// within returns the same for as long as ctx lasts.
func (o behalf) within(ctx context.Context) behalf {
	o.ctx = ctx
	return o
}

// derive returns a request to the server of a link.
func (o behalf) derive(l *link) *http.Request {
	return o.g.of(l).Routes.Derive(o.ctx, o.r, false)
}

func newLink(c *client, s *upstream.Server) *link {
	l := &link{client: c, server: s.Name, id: s.ID, prefix: strings.Clone(rand.Text()[:8])}
	l.held.link = l
	return l
}

// size returns about how much memory a link takes.
func (l *link) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := 1<<9 + len(l.session) + l.subscriptions.size()
	if l.lists != nil {
		size += 1 << 10
	}
	if l.ender != nil {
		for name, values := range l.ender.Header {
			size += fieldSize(name, values)
		}
	}
	return size
}

// carry returns what it takes to go on with the link elsewhere, and notes that the client has it.
func (l *link) carry() (t linkTicket, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carried = l.ready
	return linkTicket{"", l.era, l.version, l.session, l.can}, l.ready
}

// ticket returns what it takes to go on with the link elsewhere.
func (l *link) ticket() linkTicket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return linkTicket{"", l.era, l.version, l.session, l.can}
}

// lastLost returns the session that the server has forgotten, "" if there was none.
func (l *link) lastLost() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lostSession
}

// sessionID returns the session with the server.
func (l *link) sessionID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// state returns how the server is spoken to.
func (l *link) state() (era mcp.Era, can mcp.Abilities) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.era, l.can
}

// description returns what the server has said of itself.
func (l *link) description() *about {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.about == nil {
		return &about{can: l.can, session: l.session != ""}
	}
	return l.about
}

// use notes that the client makes requests in the session. What it does there may change what the
// server shows in it.
func (l *link) use() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = true
}

// isUsed reports whether the client has made requests in the session.
func (l *link) isUsed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// ownLists returns the lists as the server shows them to the client alone, or in its session, nil if it
// shows them to all clients alike.
func (l *link) ownLists() *catalog.Cache {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.client.apart.Load() && (!l.used || l.session == "") {
		return nil
	}
	if l.lists == nil {
		l.lists = catalog.NewCache(l.listeners)
	}
	return l.lists
}

// listsChanged notes that lists of the server are no longer what they were, as it says by m. It tells
// the clients of the audience that do not hear it themselves.
func (l *link) listsChanged(g *Gateway, m *jsonrpc.Message) {
	notice := m.Text(jsonrpc.Method)
	g.elsewhere.listsChanged(notice, l)
	if s := g.of(l); s != nil && notice == mcp.ListKinds[mcp.Tools].Notice {
		g.shared.State.ToolsChanged(s)
	}
	if own := l.ownLists(); own != nil {
		own.Changed(notice, l.prefix)
	}
	if !g.profile(l.client, l.id).lists.Changed(notice, l.prefix) {
		return
	}
	kept := *m
	kept.Raw = slices.Clone(m.Raw)
	for _, s := range g.followers(l.client.audience, l.id) {
		s.later(func() { s.deliver(g, l, &kept, "") })
	}
}

// forgetLists has lists of the server asked for again.
func (l *link) forgetLists(g *Gateway, lists ...mcp.ListKind) {
	g.profile(l.client, l.id).lists.Forget(lists...)
	if own := l.ownLists(); own != nil {
		own.Forget(lists...)
	}
}

// listen notes that a stream tells of changes of lists, until the function that it returns is
// called.
func (l *link) listen(g *Gateway, lists []mcp.ListKind) (end func()) {
	p, apart := g.profile(l.client, l.id), l.client.apart.Load()
	count := func(n int) {
		if !apart {
			p.lists.Listen(lists, n)
			p.noteHeard(l, n > 0)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range lists {
			l.listeners[k] += n
		}
		if l.lists != nil {
			l.lists.Listen(lists, n)
		}
	}
	count(1)
	return func() { count(-1) }
}

// hasListener reports whether a stream is read in which the server can say something.
func (l *link) hasListener() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listeners[mcp.Tools] > 0
}

// isCarried reports whether the session can go on from the session id of the client.
func (l *link) isCarried() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.carried || l.session == ""
}

// open connects to the server, if that has not been done. A server that could not be reached is tried beside the
// request, except by calls of a child process, which may be starting.
func (l *link) open(o behalf) *jsonrpc.Failure {
	if l.isOpen() {
		return nil
	}
	s := o.g.of(l)
	insists := l.client.inspection.Timeout() > 0 || s != nil && s.ChildrenOnly && o.calls
	if s != nil && !insists {
		if failure := s.Unavailable(); failure != nil { // and not after an attempt that may be under way
			l.noteOpened(failure)
			if l.client.inspection == nil {
				l.retry(o, s)
			}
			return failure
		}
	}
	return l.connect(o, insists)
}

// connect connects to the server, also to one that could not be reached if the caller insists.
func (l *link) connect(o behalf, insists bool) *jsonrpc.Failure {
	if !l.beginOpening(o.ctx) {
		return jsonrpc.Timeout(l.server)
	}
	defer l.endOpening()
	s := o.g.of(l)
	switch {
	case l.isOpen():
		return nil
	case l.client.ended.Load():
		return jsonrpc.UnknownSession()
	case s == nil:
		return jsonrpc.UnknownServer(l.server)
	}
	var failure *jsonrpc.Failure
	if !insists {
		failure = s.Unavailable()
	}
	if failure == nil && !o.g.elsewhere.adopt(o, l, s) {
		if failure = (connecting{o, l, s}).run(); failure == nil {
			o.g.elsewhere.offer(o, l, s)
		}
	}
	l.noteOpened(failure)
	if failure != nil && s.IsOut() && l.client.inspection == nil {
		l.retry(o, s)
	}
	if failure == nil && l.client.ended.Load() { // meanwhile
		l.endSoon(o)
		return jsonrpc.UnknownSession()
	}
	return failure
}

// noteOpened notes how an attempt to connect has ended.
func (l *link) noteOpened(failure *jsonrpc.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready, l.failed = failure == nil, failure != nil
}

// endSoon ends the session with the server, also if the client has left.
func (l *link) endSoon(o behalf) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), o.g.config.JoinTimeout)
	defer cancel()
	l.end(o.within(ctx))
}

// beginOpening waits until no other caller connects, and reports whether this one can, until it calls
// endOpening.
func (l *link) beginOpening(ctx context.Context) bool {
	for {
		l.mu.Lock()
		another := l.opening
		if another == nil {
			l.opening = make(chan struct{})
		}
		l.mu.Unlock()
		if another == nil {
			return true
		}
		select {
		case <-another:
		case <-ctx.Done():
			return false
		}
	}
}

func (l *link) endOpening() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.opening)
	l.opening = nil
}

func (l *link) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

// hasFailed reports whether the server could not be reached at the last attempt.
func (l *link) hasFailed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// lost notes that the server does not know a session anymore, or is another server.
func (l *link) lost(g *Gateway, session string) {
	l.mu.Lock()
	if !l.ready || l.session != session {
		l.mu.Unlock()
		return
	}
	l.ready, l.initialized, l.attempts, l.session = false, false, 0, ""
	l.lists = nil
	if g.elsewhere != nil {
		l.lostSession = session
	}
	l.mu.Unlock()
	g.profile(l.client, l.id).forget()
}

// nextID returns an id of our own. Clients have other ones on the same session, and so
// have other processes that serve it.
func (l *link) nextID() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	return append(strconv.AppendUint([]byte(`"gateway:`+l.prefix+":"), l.lastID, 10), '"')
}

// A response is how the answer to a request of our own is taken.
type response struct {
	// parse reads a message of the server. Default: its Read method
	parse func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure

	// take takes the answer, unless that is an error. Its bytes are valid until it returns.
	take func(*jsonrpc.Message) *jsonrpc.Failure
}

// resultInto returns a response whose result goes to a variable.
func resultInto(result *[]byte) response {
	return response{take: func(m *jsonrpc.Message) *jsonrpc.Failure {
		*result = slices.Clone(m.Literal(jsonrpc.Result))
		return nil
	}}
}

// roundTrip has the server answer a request of our own.
func (l *link) roundTrip(g *Gateway, r *http.Request, body []byte, to response) (
	h *streamable.Reader, failure *jsonrpc.Failure,
) {
	var asked jsonrpc.Message
	if failure := asked.Read(body); failure != nil {
		return new(streamable.Reader), failure
	}
	if r.Header.Get(mcp.VersionHeader) == mcp.Stateless {
		mcp.SetModern(r.Header, &asked, mcp.Stateless)
	}
	httpbody.Post(r, body)
	h = &streamable.Reader{Limit: maxListing, Parse: to.parse}
	if r.Header.Get(mcp.VersionHeader) != mcp.Stateless && !asked.Is(jsonrpc.Method, "initialize") {
		h.Position = new(streamable.Position)
	}
	answered := false
	var refusal *jsonrpc.Failure
	var asides upstream.Asides
	defer asides.Wait()
	h.OnMessage = func(e *streamable.Event) error {
		m := e.Message
		if !h.Answers(m, asked.Literal(jsonrpc.ID)) {
			l.unsolicited(behalf{ctx: r.Context(), g: g, r: r}).take(e, &asides)
			return nil
		}
		if answered {
			return nil
		}
		answered = true
		h.Settle(m)
		switch {
		case m.Has(jsonrpc.Error) && h.Status() >= 300 && !m.Has(jsonrpc.ErrorCode): // it is an error of OAuth, for example
			refusal = jsonrpc.HTTPError(l.server, h.Status())
		case m.Has(jsonrpc.Error):
			refusal = jsonrpc.ServerError(l.server, m)
		default:
			refusal = to.take(m)
		}
		return nil
	}
	ctx := r.Context()
	x := g.exchange(l, h, &asked)
	x.Own = true
	failure = x.Send(r)
	switch {
	case answered && refusal != nil && refusal.Data.StatusCode != 0:
		return h, refusal.Because(x.WrongAnswer())
	case answered:
		return h, refusal
	case failure != nil:
		return h, failure
	case ctx.Err() != nil:
		return h, jsonrpc.Timeout(l.server)
	}
	return h, h.Failure(l.server).Because(x.WrongAnswer())
}

// request has the server answer a request of our own, in the session there is.
func (l *link) request(o behalf, method string, params []byte) (result []byte, failure *jsonrpc.Failure) {
	failure = l.ask(o, method, params, resultInto(&result))
	return result, failure
}

// ask has the server answer a request of our own, in the session there is, or in another one
// if the server has forgotten that.
func (l *link) ask(o behalf, method string, params []byte, to response) *jsonrpc.Failure {
	return l.inSession(o, func(bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		r, session, era := l.prepare(o)
		sent := params
		if era == mcp.Modern {
			sent = mcp.WithMeta(params, l.client.meta(l.client.logLevel()))
		}
		h, failure := l.roundTrip(o.g, r, jsonrpc.RequestAs(l.nextID(), method, sent), to)
		return h, session, failure
	})
}

// inSession has something tried in a session with the server. If that fails because the
// server has forgotten the session, it is tried once more in another one. again says whether
// it can be.
func (l *link) inSession(
	o behalf, try func(again bool) (h *streamable.Reader, session string, _ *jsonrpc.Failure),
) *jsonrpc.Failure {
	for again := true; ; again = false {
		if failure := l.open(o); failure != nil {
			return failure
		}
		l.sendInitialized(o)
		h, session, failure := try(again)
		if failure == nil || !again || !h.SessionLost() {
			return failure
		}
		l.lost(o.g, session)
	}
}

// prepare returns a request in the session there is.
func (l *link) prepare(o behalf) (r *http.Request, session string, era mcp.Era) {
	r = o.derive(l)
	session, era = l.setSessionHeaders(r)
	return r, session, era
}

// setSessionHeaders makes r a request in the session there is.
func (l *link) setSessionHeaders(r *http.Request) (session string, era mcp.Era) {
	l.mu.Lock()
	era, version, session := l.era, l.version, l.session
	l.mu.Unlock()
	streamable.Session{Era: era, Version: version, ID: session}.Sign(r.Header)
	return session, era
}

// tell sends the server a message that wants no answer.
func (l *link) tell(o behalf, body []byte) *jsonrpc.Failure {
	if o.g.of(l) == nil {
		return jsonrpc.UnknownServer(l.server)
	}
	r, _, _ := l.prepare(o)
	var m jsonrpc.Message
	if failure := m.Read(body); failure != nil {
		return failure
	}
	httpbody.Post(r, body)
	h := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		// What a server says to something that it need not answer is not answered
		// either: two who do so could go on for ever.
		if e.Message.IsNotification() {
			l.unsolicited(behalf{ctx: r.Context(), g: o.g, r: r}).take(e, nil)
		}
		return nil
	}}
	failure := o.g.exchange(l, h, &m).Send(r)
	switch {
	case h.Status()/100 == 2:
		return nil // it has been accepted, whatever else the server has to say
	case failure != nil:
		return failure
	case h.Status() == 0: // the request was canceled
		return jsonrpc.Timeout(l.server)
	case h.Status() >= 300:
		return jsonrpc.HTTPError(l.server, h.Status())
	}
	return nil
}

// end ends the session with the server.
func (l *link) end(o behalf) {
	l.mu.Lock()
	session, version := l.session, l.version
	l.ready, l.session = false, ""
	l.mu.Unlock()
	if session == "" || o.g.of(l) == nil {
		return
	}
	r := o.derive(l)
	streamable.Session{Era: mcp.Legacy, Version: version, ID: session}.Sign(r.Header)
	httpbody.EmptyAs(r, http.MethodDelete)
	h := &streamable.Reader{OnMessage: func(*streamable.Event) error { return nil }}
	_ = o.g.exchange(l, h, nil).Send(r) // it may not care for sessions
}

// of returns the server that a link is to. Another one may have its name by now.
func (g *Gateway) of(l *link) *upstream.Server { return g.ids[l.id] }

// exchange returns an exchange with the server of a link, whose response goes to a Reader. m is the message that is
// posted; nil if none is.
func (g *Gateway) exchange(l *link, to *streamable.Reader, m *jsonrpc.Message) *upstream.Exchange {
	return g.shared.NewExchange(g.of(l), g.callerOf(l.client), to, m, l.client.inspection)
}
