package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"

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
	ids        requestIDs

	session       serverSession
	lists         linkLists
	subscriptions subscriptions
	heldCalls     heldCalls

	endRequest *http.Request // template of the request that ends the session if the client never does
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
	l := &link{client: c, serverName: s.Name, serverID: s.ID, ids: newRequestIDs()}
	l.heldCalls.link = l
	return l
}

// size returns the approximate memory use of a link.
func (l *link) size() int {
	size := 1<<9 + len(l.session.current().Session) + l.lists.size() + l.subscriptions.size()
	if l.endRequest != nil {
		for name, values := range l.endRequest.Header {
			size += fieldSize(name, values)
		}
	}
	return size
}

// ownLists returns the lists that are cached for this client only, nil if it shares the lists of
// its audience.
func (l *link) ownLists() *catalog.Cache {
	if !l.client.isolated.Load() && (!l.session.isUsed() || l.session.current().Session == "") {
		return nil
	}
	return l.lists.get()
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
		own.Changed(notice, l.ids.prefix)
	}
	if !g.profile(l.client, l.serverID).lists.Changed(notice, l.ids.prefix) {
		return
	}
	copied := *m
	copied.Raw = slices.Clone(m.Raw)
	for _, s := range g.streams.followers(l.client.audience, l.serverID) {
		s.work.runAsync(func() { s.deliver(g, l, &copied, "") })
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
		l.lists.listen(lists, n)
	}
	count(1)
	return func() { count(-1) }
}

// open connects to the server, unless the link is open. If the server is known to be unreachable,
// it fails at once and retries in the background. Calls of child processes connect in any case: the
// process may be starting.
func (l *link) open(sc scope) *jsonrpc.Failure {
	if l.session.isOpen() {
		return nil
	}
	s := sc.g.linkServer(l)
	force := l.client.inspection.Timeout() > 0 || s != nil && s.ChildrenOnly && sc.isCall
	if s != nil && !force {
		if failure := s.Unavailable(); failure != nil { // before waiting for a running attempt
			l.session.noteOpened(failure)
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
	if !l.session.beginOpening(sc.ctx) {
		return jsonrpc.Timeout(l.serverName)
	}
	defer l.session.endOpening()
	s := sc.g.linkServer(l)
	switch {
	case l.session.isOpen():
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
	l.session.noteOpened(failure)
	if failure != nil && s.IsUnavailable() && l.client.inspection == nil {
		l.retry(sc, s)
	}
	if failure == nil && l.client.ended.Load() { // the client ended its session in the meantime
		ctx, cancel := context.WithTimeout(context.WithoutCancel(sc.ctx), sc.g.config.JoinTimeout)
		defer cancel()
		l.end(sc.withContext(ctx)) // even if the client has disconnected
		return jsonrpc.UnknownSession()
	}
	return failure
}

// markLost notes that the server no longer knows a session.
func (l *link) markLost(g *Gateway, session string) {
	if l.session.lose(session, g.replicaSync != nil, l.lists.drop) {
		g.profile(l.client, l.serverID).forget()
	}
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

// ignoreResult ignores the result.
var ignoreResult = responseHandler{handle: func(*jsonrpc.Message) *jsonrpc.Failure { return nil }}

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
			unsolicited{scope{ctx: r.Context(), g: g, r: r}, l}.handle(e, &sideRequests)
			return nil
		}
		if answered {
			return nil
		}
		answered = true
		reader.NoteResponse(m)
		switch {
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
	case answered:
		return reader, refusal
	case failure != nil:
		return reader, failure
	case ctx.Err() != nil:
		return reader, jsonrpc.Timeout(l.serverName)
	}
	return reader, reader.Failure(l.serverName).Because(x.UnexpectedResponse())
}

// request sends a request of the gateway in the session and ignores the result.
func (l *link) request(sc scope, method string, params []byte) *jsonrpc.Failure {
	return l.sendRequest(sc, method, params, ignoreResult)
}

// sendRequest sends a request of the gateway in the session. If the server no longer knows the
// session, it tries again in a new one.
func (l *link) sendRequest(sc scope, method string, params []byte, to responseHandler) *jsonrpc.Failure {
	return l.inSession(sc, func(bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		r, session := l.newRequest(sc)
		sent := params
		if session.Era == mcp.Modern {
			sent = mcp.WithMeta(params, l.client.introduction.meta(l.client.logLevel()))
		}
		reader, failure := l.roundTrip(sc.g, r, jsonrpc.RequestAs(l.ids.next(), method, sent), to)
		return reader, session.Session, failure
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
		if !l.session.isInitialized() {
			l.sendInitialized(sc)
		}
		reader, session, failure := try(mayRetry)
		if failure == nil || !mayRetry || !reader.SessionLost() {
			return failure
		}
		l.markLost(sc.g, session)
	}
}

// newRequest returns a request in the current session.
func (l *link) newRequest(sc scope) (*http.Request, linkTicket) {
	r, session := sc.newRequest(l), l.session.current()
	session.setHeaders(r.Header)
	return r, session
}

// send sends a notification or a response to the server.
func (l *link) send(sc scope, body []byte) *jsonrpc.Failure {
	if sc.g.linkServer(l) == nil {
		return jsonrpc.UnknownServer(l.serverName)
	}
	r, _ := l.newRequest(sc)
	var m jsonrpc.Message
	if failure := m.Read(body); failure != nil {
		return failure
	}
	httpbody.Post(r, body)
	reader := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		// Do not answer requests that the server sends here: two such peers could loop forever.
		if e.Message.IsNotification() {
			unsolicited{scope{ctx: r.Context(), g: sc.g, r: r}, l}.handle(e, nil)
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
	session := l.session.end()
	if session.Session == "" || sc.g.linkServer(l) == nil {
		return
	}
	r := sc.newRequest(l)
	session.setHeaders(r.Header)
	httpbody.EmptyAs(r, http.MethodDelete)
	reader := &streamable.Reader{OnMessage: func(*streamable.Event) error { return nil }}
	_ = sc.g.exchange(l, reader, nil).Send(r) // servers need not support DELETE
}

// linkServer returns the server of a link, nil if it no longer exists. Another server may have its
// name.
func (g *Gateway) linkServer(l *link) *upstream.Server { return g.byID[l.serverID] }

// exchange returns an exchange of the gateway itself with the server of a link. The response goes
// to a Reader. m is the message to send; nil for requests without one.
func (g *Gateway) exchange(l *link, to *streamable.Reader, m *jsonrpc.Message) *upstream.Exchange {
	return g.shared.NewExchange(g.linkServer(l), g.callerOf(l.client), to, m, l.client.inspection)
}

// unsolicited handles messages of a server that do not answer a request.
type unsolicited struct {
	scope
	link *link
}

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
		if changed && !s.work.listensTo(u.link.serverID) {
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
