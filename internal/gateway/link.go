package gateway

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A link is a client's session with one server. It may be closed.
type link struct {
	client     *client
	serverName string
	serverID   string
	prefix     string // prefix of the ids of requests of the gateway

	subscriptions subscriptions
	heldCalls     heldCalls

	mu          sync.Mutex
	opening     chan struct{} // closed when the running attempt to connect ends; nil if none runs
	ready       bool
	failed      bool // the last attempt to connect failed
	initialized bool // the server has got notifications/initialized
	unsynced    bool // the server misses requests that the client made at another replica
	attempts    int  // attempts to send notifications/initialized
	era         mcp.Era
	version     string
	session     string
	lostSession string // session that the server no longer knows; another replica may have begun a new one
	can         mcp.Abilities
	info        *serverInfo // nil if another process began the session
	carried     bool        // the client's session id carries the session
	used        bool        // the client has sent requests in the session
	lists       *catalog.Cache
	listeners   [mcp.ListKindCount]int // streams that bring list-changed notifications, by kind
	lastID      uint64
	endRequest  *http.Request // template of the request that ends the session if the client never does
}

// A scope is what it takes to send requests to a server for a client.
type scope struct {
	ctx    context.Context // may end before or after r's context
	g      *Gateway
	r      *http.Request
	isCall bool // for a call: the handshake gets the timeout of the server, not JoinTimeout
}

// withContext returns a copy of the scope with another context.
func (sc scope) withContext(ctx context.Context) scope {
	sc.ctx = ctx
	return sc
}

// newRequest returns a request to the server of a link.
func (sc scope) newRequest(l *link) *http.Request {
	return sc.g.linkServer(l).Routes.Derive(sc.ctx, sc.r, false)
}

func newLink(c *client, s *upstream.Server) *link {
	l := &link{client: c, serverName: s.Name, serverID: s.ID, prefix: strings.Clone(rand.Text()[:8])}
	l.heldCalls.link = l
	return l
}

// size returns the approximate memory use of a link.
func (l *link) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := 1<<9 + len(l.session) + l.subscriptions.size()
	if l.lists != nil {
		size += 1 << 10
	}
	if l.endRequest != nil {
		for name, values := range l.endRequest.Header {
			size += fieldSize(name, values)
		}
	}
	return size
}

// carry returns the ticket of an open link and notes that the client's session id carries it.
func (l *link) carry() (t linkTicket, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carried = l.ready
	return linkTicket{"", l.era, l.version, l.session, l.can}, l.ready
}

// ticket returns what another process needs to continue the session.
func (l *link) ticket() linkTicket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return linkTicket{"", l.era, l.version, l.session, l.can}
}

// lastLost returns the session that the server no longer knows, "" if there is none.
func (l *link) lastLost() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lostSession
}

// sessionID returns the id of the session with the server, "" if there is none.
func (l *link) sessionID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// state returns the era and the abilities of the server.
func (l *link) state() (era mcp.Era, can mcp.Abilities) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.era, l.can
}

// serverInfo returns the server's description of itself.
func (l *link) serverInfo() *serverInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.info == nil {
		return &serverInfo{can: l.can, hasSession: l.session != ""}
	}
	return l.info
}

// markUsed notes that the client sends requests in the session. From then on, the server may show
// it other lists than other clients.
func (l *link) markUsed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = true
}

// isUsed reports whether the client has sent requests in the session.
func (l *link) isUsed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// ownLists returns the lists that are cached for this client only, nil if it shares the lists of
// its audience.
func (l *link) ownLists() *catalog.Cache {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.client.isolated.Load() && (!l.used || l.session == "") {
		return nil
	}
	if l.lists == nil {
		l.lists = catalog.NewCache(l.listeners)
	}
	return l.lists
}

// listsChanged handles a list-changed notification. It invalidates cached lists and notifies
// clients of the audience that do not listen to the server themselves.
func (l *link) listsChanged(g *Gateway, m *jsonrpc.Message) {
	notice := m.Text(jsonrpc.Method)
	g.replicaSync.listsChanged(notice, l)
	if s := g.linkServer(l); s != nil && notice == mcp.ListKinds[mcp.Tools].Notice {
		g.shared.Retained.ToolsChanged(s)
	}
	if own := l.ownLists(); own != nil {
		own.Changed(notice, l.prefix)
	}
	if !g.profile(l.client, l.serverID).lists.Changed(notice, l.prefix) {
		return
	}
	copied := *m
	copied.Raw = slices.Clone(m.Raw)
	for _, s := range g.followers(l.client.audience, l.serverID) {
		s.runAsync(func() { s.deliver(g, l, &copied, "") })
	}
}

// forgetLists drops cached lists of the server.
func (l *link) forgetLists(g *Gateway, lists ...mcp.ListKind) {
	g.profile(l.client, l.serverID).lists.Forget(lists...)
	if own := l.ownLists(); own != nil {
		own.Forget(lists...)
	}
}

// countListener counts a stream that brings list-changed notifications, until end is called.
func (l *link) countListener(g *Gateway, lists []mcp.ListKind) (end func()) {
	p, isolated := g.profile(l.client, l.serverID), l.client.isolated.Load()
	count := func(n int) {
		if !isolated {
			p.lists.Listen(lists, n)
			p.noteListening(l, n > 0)
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

// hasListener reports whether a stream of the server is being read.
func (l *link) hasListener() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listeners[mcp.Tools] > 0
}

// isCarried reports whether the client's session id is enough to continue the session.
func (l *link) isCarried() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.carried || l.session == ""
}

// open connects to the server, unless the link is open. If the server is known to be unreachable,
// it fails at once and retries in the background. Calls of child processes connect in any case: the
// process may be starting.
func (l *link) open(sc scope) *jsonrpc.Failure {
	if l.isOpen() {
		return nil
	}
	s := sc.g.linkServer(l)
	force := l.client.inspection.Timeout() > 0 || s != nil && s.ChildrenOnly && sc.isCall
	if s != nil && !force {
		if failure := s.Unavailable(); failure != nil { // before waiting for a running attempt
			l.noteOpened(failure)
			if l.client.inspection == nil {
				l.retry(sc, s)
			}
			return failure
		}
	}
	return l.connect(sc, force)
}

// connect connects to the server. With force, it does so even if the server is known to be
// unreachable.
func (l *link) connect(sc scope, force bool) *jsonrpc.Failure {
	if !l.beginOpening(sc.ctx) {
		return jsonrpc.Timeout(l.serverName)
	}
	defer l.endOpening()
	s := sc.g.linkServer(l)
	switch {
	case l.isOpen():
		return nil
	case l.client.ended.Load():
		return jsonrpc.UnknownSession()
	case s == nil:
		return jsonrpc.UnknownServer(l.serverName)
	}
	var failure *jsonrpc.Failure
	if !force {
		failure = s.Unavailable()
	}
	attempt := connectAttempt{sc, l, s}
	if failure == nil && !attempt.resumeShared() {
		if failure = attempt.run(); failure == nil {
			attempt.shareSession()
		}
	}
	l.noteOpened(failure)
	if failure != nil && s.IsUnavailable() && l.client.inspection == nil {
		l.retry(sc, s)
	}
	if failure == nil && l.client.ended.Load() { // the client ended its session in the meantime
		l.endDetached(sc)
		return jsonrpc.UnknownSession()
	}
	return failure
}

// noteOpened notes the result of an attempt to connect.
func (l *link) noteOpened(failure *jsonrpc.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready, l.failed = failure == nil, failure != nil
}

// endDetached ends the session even if the client has disconnected.
func (l *link) endDetached(sc scope) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sc.ctx), sc.g.config.JoinTimeout)
	defer cancel()
	l.end(sc.withContext(ctx))
}

// beginOpening waits until no other attempt to connect runs. If it reports true, the caller must
// call endOpening.
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

// hasFailed reports whether the last attempt to connect failed.
func (l *link) hasFailed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// markLost notes that the server no longer knows a session.
func (l *link) markLost(g *Gateway, session string) {
	l.mu.Lock()
	if !l.ready || l.session != session {
		l.mu.Unlock()
		return
	}
	l.ready, l.initialized, l.attempts, l.session = false, false, 0, ""
	l.lists = nil
	if g.replicaSync != nil {
		l.lostSession = session
	}
	l.mu.Unlock()
	g.profile(l.client, l.serverID).forget()
}

// nextID returns a new id for a request of the gateway. It differs from the ids of clients, and of
// other processes that use the same session.
func (l *link) nextID() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	return append(strconv.AppendUint([]byte(`"gateway:`+l.prefix+":"), l.lastID, 10), '"')
}

// A responseHandler handles the response to a request of the gateway.
type responseHandler struct {
	// parse reads a message of the server. Default: the Read method of the message.
	parse func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure

	// handle handles the response, unless it is an error. It must not keep the message.
	handle func(*jsonrpc.Message) *jsonrpc.Failure
}

// resultInto returns a handler that stores the result in a variable.
func resultInto(result *[]byte) responseHandler {
	return responseHandler{handle: func(m *jsonrpc.Message) *jsonrpc.Failure {
		*result = slices.Clone(m.Literal(jsonrpc.Result))
		return nil
	}}
}

// roundTrip sends a request of the gateway and waits for the response.
func (l *link) roundTrip(g *Gateway, r *http.Request, body []byte, to responseHandler) (
	reader *streamable.Reader, failure *jsonrpc.Failure,
) {
	var request jsonrpc.Message
	if failure := request.Read(body); failure != nil {
		return new(streamable.Reader), failure
	}
	if r.Header.Get(mcp.VersionHeader) == mcp.Stateless {
		mcp.SetModern(r.Header, &request, mcp.Stateless)
	}
	httpbody.Post(r, body)
	reader = &streamable.Reader{Limit: maxListing, Parse: to.parse}
	if r.Header.Get(mcp.VersionHeader) != mcp.Stateless && !request.Is(jsonrpc.Method, "initialize") {
		reader.Position = new(streamable.Position)
	}
	answered := false
	var refusal *jsonrpc.Failure
	var sideRequests upstream.SideRequests
	defer sideRequests.Wait()
	reader.OnMessage = func(e *streamable.Event) error {
		m := e.Message
		if !reader.IsResponseTo(m, request.Literal(jsonrpc.ID)) {
			l.unsolicited(scope{ctx: r.Context(), g: g, r: r}).handle(e, &sideRequests)
			return nil
		}
		if answered {
			return nil
		}
		answered = true
		reader.NoteResponse(m)
		switch {
		case m.Has(jsonrpc.Error) && reader.Status() >= 300 && !m.Has(jsonrpc.ErrorCode): // an OAuth error, for example
			refusal = jsonrpc.HTTPError(l.serverName, reader.Status())
		case m.Has(jsonrpc.Error):
			refusal = jsonrpc.ServerError(l.serverName, m)
		default:
			refusal = to.handle(m)
		}
		return nil
	}
	ctx := r.Context()
	x := g.exchange(l, reader, &request)
	x.IsOwn = true
	failure = x.Send(r)
	switch {
	case answered && refusal != nil && refusal.Data.StatusCode != 0:
		return reader, refusal.Because(x.UnexpectedResponse())
	case answered:
		return reader, refusal
	case failure != nil:
		return reader, failure
	case ctx.Err() != nil:
		return reader, jsonrpc.Timeout(l.serverName)
	}
	return reader, reader.Failure(l.serverName).Because(x.UnexpectedResponse())
}

// request sends a request of the gateway in the session and returns the result.
func (l *link) request(sc scope, method string, params []byte) (result []byte, failure *jsonrpc.Failure) {
	failure = l.sendRequest(sc, method, params, resultInto(&result))
	return result, failure
}

// sendRequest sends a request of the gateway in the session. If the server no longer knows the
// session, it tries again in a new one.
func (l *link) sendRequest(sc scope, method string, params []byte, to responseHandler) *jsonrpc.Failure {
	return l.inSession(sc, func(bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		r, session, era := l.newRequest(sc)
		sent := params
		if era == mcp.Modern {
			sent = mcp.WithMeta(params, l.client.introduction.meta(l.client.logLevel()))
		}
		reader, failure := l.roundTrip(sc.g, r, jsonrpc.RequestAs(l.nextID(), method, sent), to)
		return reader, session, failure
	})
}

// inSession calls try in an open session. If try fails because the server no longer knows the
// session, inSession calls it once more in a new one. mayRetry is false in that second call.
func (l *link) inSession(
	sc scope, try func(mayRetry bool) (reader *streamable.Reader, session string, _ *jsonrpc.Failure),
) *jsonrpc.Failure {
	for mayRetry := true; ; mayRetry = false {
		if failure := l.open(sc); failure != nil {
			return failure
		}
		l.sendInitialized(sc)
		reader, session, failure := try(mayRetry)
		if failure == nil || !mayRetry || !reader.SessionLost() {
			return failure
		}
		l.markLost(sc.g, session)
	}
}

// newRequest returns a request in the current session.
func (l *link) newRequest(sc scope) (r *http.Request, session string, era mcp.Era) {
	r = sc.newRequest(l)
	session, era = l.setSessionHeaders(r)
	return r, session, era
}

// setSessionHeaders sets the headers of the current session.
func (l *link) setSessionHeaders(r *http.Request) (session string, era mcp.Era) {
	l.mu.Lock()
	era, version, session := l.era, l.version, l.session
	l.mu.Unlock()
	streamable.Session{Era: era, Version: version, ID: session}.SetHeaders(r.Header)
	return session, era
}

// send sends a notification or a response to the server.
func (l *link) send(sc scope, body []byte) *jsonrpc.Failure {
	if sc.g.linkServer(l) == nil {
		return jsonrpc.UnknownServer(l.serverName)
	}
	r, _, _ := l.newRequest(sc)
	var m jsonrpc.Message
	if failure := m.Read(body); failure != nil {
		return failure
	}
	httpbody.Post(r, body)
	reader := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		// Do not answer requests that the server sends here: two such peers could loop forever.
		if e.Message.IsNotification() {
			l.unsolicited(scope{ctx: r.Context(), g: sc.g, r: r}).handle(e, nil)
		}
		return nil
	}}
	failure := sc.g.exchange(l, reader, &m).Send(r)
	switch {
	case reader.Status()/100 == 2:
		return nil // accepted, whatever the body says
	case failure != nil:
		return failure
	case reader.Status() == 0: // canceled
		return jsonrpc.Timeout(l.serverName)
	case reader.Status() >= 300:
		return jsonrpc.HTTPError(l.serverName, reader.Status())
	}
	return nil
}

// end ends the session with the server.
func (l *link) end(sc scope) {
	l.mu.Lock()
	session, version := l.session, l.version
	l.ready, l.session = false, ""
	l.mu.Unlock()
	if session == "" || sc.g.linkServer(l) == nil {
		return
	}
	r := sc.newRequest(l)
	streamable.Session{Era: mcp.Legacy, Version: version, ID: session}.SetHeaders(r.Header)
	httpbody.EmptyAs(r, http.MethodDelete)
	reader := &streamable.Reader{OnMessage: func(*streamable.Event) error { return nil }}
	_ = sc.g.exchange(l, reader, nil).Send(r) // servers need not support DELETE
}

// linkServer returns the server of a link, nil if it no longer exists. Another server may have its
// name.
func (g *Gateway) linkServer(l *link) *upstream.Server { return g.ids[l.serverID] }

// exchange returns an exchange with the server of a link. The response goes to a Reader. m is the
// message to send; nil for requests without one.
func (g *Gateway) exchange(l *link, to *streamable.Reader, m *jsonrpc.Message) *upstream.Exchange {
	return g.shared.NewExchange(g.linkServer(l), g.callerOf(l.client), to, m, l.client.inspection)
}

// unsolicited handles messages of a server that do not answer a request.
type unsolicited struct {
	scope
	link *link
}

func (l *link) unsolicited(sc scope) unsolicited { return unsolicited{sc, l} }

// handle handles a message in the response to a request of the gateway. The client gets it if it
// has a stream.
func (u unsolicited) handle(e *streamable.Event, sideRequests *upstream.SideRequests) {
	m := e.Message
	if len(e.Data) == 0 || m.IsResponse() {
		return
	}
	u.note(m)
	if !u.broadcast(m) && m.IsRequest() {
		u.refuse(sideRequests, m, "the client has no open stream")
	}
}

// note updates the state of the gateway from a message.
func (u unsolicited) note(m *jsonrpc.Message) {
	switch method := m.Text(jsonrpc.Method); {
	case isListChange(m):
		u.link.listsChanged(u.g, m)
	case method == "notifications/cancelled" && m.Has(jsonrpc.RequestID):
		u.link.client.serverRequests.settle(u.link.translator(u.g).id(m.Literal(jsonrpc.RequestID)))
	}
}

// broadcast sends a message to all streams of a modern client that want it, or to one stream of a
// legacy client, which may be at another replica. It reports whether it was sent.
func (u unsolicited) broadcast(m *jsonrpc.Message) (delivered bool) {
	changed := isListChange(m)
	for _, s := range u.link.client.openStreams() {
		if changed && !s.listensTo(u.link.serverID) {
			continue // note has notified these
		}
		if s.g.Load().linkServer(u.link) == nil || !s.deliver(u.g, u.link, m, "") {
			continue
		}
		delivered = true
		if s.wants == nil {
			break
		}
	}
	return delivered || u.sendToReplica(m)
}

// isListChange reports whether a message is a list-changed notification.
func isListChange(m *jsonrpc.Message) bool {
	return strings.HasSuffix(m.Text(jsonrpc.Method), "/list_changed")
}

// refuse answers a server request with an error on behalf of the client. It does not wait: the
// server may not read before it has sent more.
func (u unsolicited) refuse(sideRequests *upstream.SideRequests, m *jsonrpc.Message, why string) {
	refusal := jsonrpc.ErrorResponse(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, why)
	if m.Is(jsonrpc.Method, "ping") {
		refusal = jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte("{}")) // needs no client
	}
	sideRequests.Go(func() {
		if failure := u.link.send(u.scope, refusal); failure != nil {
			u.g.config.Logger.Debug("refusal of a server request not delivered",
				zap.String("mcp_server", u.link.serverName), zap.Error(failure))
		}
	})
}
