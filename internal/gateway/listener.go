package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A listener reads a stream of a server for a stream of a client. When the server's stream ends, it
// reads another one.
type listener struct {
	stream      *stream
	key         listenerKey
	stop        context.CancelFunc
	position    streamable.Position
	lastSession string // session of the last event; "" if the client sent the event id

	session     string // session with the resource subscriptions
	unsubscribe func()

	profile   *profile // profile that counts it as a reader; nil if it is not shared
	elected   bool     // the audience had no listener before and may have missed changes
	hasOpened bool     // the server has opened a stream before
}

// A listenerKey identifies what a listener reads: all messages of a server, or updates of one
// resource of a modern server. Each subscription has its own listener, so that a new one does not
// interrupt the others.
type listenerKey struct {
	serverID string
	uri      string
}

// rejoinPause is the pause before a stream is opened again.
var rejoinPause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}

// run listens until it is stopped, or the server has no such stream.
func (li *listener) run(ctx context.Context, onStarted func()) {
	defer onStarted()
	defer li.stop()
	li.listen(ctx, onStarted)
	if li.unsubscribe != nil {
		li.unsubscribe()
	}
}

// listen reads a stream of the server, and another one when it ends. It calls onStarted, possibly
// more than once, when the server has responded or failed.
func (li *listener) listen(ctx context.Context, onStarted func()) {
	s := li.stream
	for failures := 0; ctx.Err() == nil; failures++ {
		g := s.g.Load()
		server := g.byID[li.key.serverID]
		if server == nil || !g.rules.Sees(s.req.caller.Identity, server.Name) {
			return
		}
		began := time.Now()
		sc := scope{ctx: ctx, g: g, r: s.req.request.withContext(s.ctx)}
		again := (&serverStream{li, sc, s.req.client.linkTo(server), onStarted}).read()
		onStarted()
		if !again {
			return
		}
		if time.Since(began) > rejoinPause.Max {
			failures = 0
		}
		if !backoff.Sleep(ctx, max(rejoinPause.Pause(failures), li.position.Retry())) {
			return
		}
	}
}

// handOver elects another stream of the audience, if this listener was the last for its server.
func (li *listener) handOver() {
	if li.profile == nil || !li.profile.removeReader() {
		return
	}
	req, id := &li.stream.req, li.key.serverID
	for _, other := range req.g.streams.followers(req.client.audience, id) {
		server := other.g.Load().byID[id]
		if server == nil || !other.wants.wantsChanges(li.profile.lastInfo()) {
			continue
		}
		if !li.profile.addReader(false) {
			return // another stream listens already
		}
		successor := &listener{stream: other, key: li.key, profile: li.profile, elected: true}
		if other.work.start(successor, func() {}) {
			return
		}
		li.profile.removeReader()
	}
}

// A serverStream is one stream of a server that a listener reads.
type serverStream struct {
	*listener
	scope
	link      *link
	onStarted func()
}

// read reads the stream until it ends. It reports whether to read another one.
func (ss *serverStream) read() (again bool) {
	l, wants := ss.link, ss.stream.wants
	hadFailed := l.session.hasFailed()
	if failure := l.open(ss.scope); failure != nil {
		return true
	}
	if hadFailed {
		ss.announceToAll(listKinds(l.session.current().Can)...) // clients have not seen its lists yet
	}
	l.sendInitialized(ss.scope)
	session := l.session.current()
	if ss.elected {
		ss.elected, ss.onStarted = false, ss.compareListsAfter(ss.onStarted)
	}
	if session.Era == mcp.Modern {
		if wants == nil && ss.key.uri == "" {
			ss.stream.listenToSubscribed(l)
		}
		return ss.readModern(session.Can)
	}
	if ss.key.uri != "" {
		return false // legacy servers send updates in the stream of the session
	}
	if wants != nil {
		if wants.forServer(l.serverName, session.Can|mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange).isEmpty() {
			return false
		}
		ss.ensureSubscribed()
	}
	return ss.readLegacy()
}

// listKinds returns the kinds of lists that a server with these abilities has.
func listKinds(can mcp.Abilities) (has []mcp.ListKind) {
	for _, k := range [...]mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources} {
		if can&mcp.ListKinds[k].Needs != 0 {
			has = append(has, k)
		}
	}
	return has
}

// announceToAll notifies the client and the followers that lists of the server have changed.
func (ss *serverStream) announceToAll(changed ...mcp.ListKind) {
	ss.stream.announce(changed...)
	for _, other := range ss.g.streams.followers(ss.link.client.audience, ss.link.serverID) {
		other.announceAsync(changed...)
	}
}

// compareListsAfter returns a function that calls onStarted and then compares the lists of the
// server with the last known ones. It notifies clients of changes that happened while no client
// listened.
func (ss *serverStream) compareListsAfter(onStarted func()) func() {
	l := ss.link
	last := ss.g.profile(l.client, l.serverID).lists.Seen()
	return sync.OnceFunc(func() {
		onStarted()
		ss.stream.work.runAsync(func() {
			for k, key := range last {
				list, _, failure := l.client.newListQuery(ss.scope, ss.g.linkServer(l), k).get()
				if failure == nil && list.Key != key {
					ss.announceToAll(k)
				}
			}
		})
	})
}

// ensureSubscribed subscribes to the resources of the client, once per session.
func (ss *serverStream) ensureSubscribed() {
	if session := ss.link.session.current().Session; ss.unsubscribe == nil || ss.session != session {
		ss.session, ss.unsubscribe = session, ss.subscribe()
	}
}

// subscribe subscribes to the resources of the client at a legacy server. undo unsubscribes.
func (ss *serverStream) subscribe() (undo func()) {
	l := ss.link
	var subscribed []string
	for _, uri := range ss.stream.wants.forServer(l.serverName, l.session.current().Can).URIs {
		if failure := l.request(ss.scope, "resources/subscribe", mcp.URIParams(uri)); failure == nil {
			subscribed = append(subscribed, uri)
		} else {
			ss.g.config.Logger.Warn("resource subscription failed", zap.String("mcp_server", l.serverName), zap.Error(failure))
		}
	}
	return func() {
		// The client may have disconnected.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ss.ctx), disconnectTimeout)
		defer cancel()
		for _, uri := range subscribed {
			if !l.client.otherStreamWants(ss.stream, l.serverName, uri) {
				_ = l.request(ss.withContext(ctx), "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
	}
}

// readLegacy reads the GET stream of a legacy server. It notes the last event id for resuming.
func (ss *serverStream) readLegacy() (again bool) {
	l := ss.link
	r, current := l.newRequest(ss.scope)
	session := current.Session
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	resuming := ss.position.ID != "" && (ss.lastSession == "" || ss.lastSession == session)
	if resuming {
		r.Header.Set("Last-Event-Id", ss.position.ID)
	}
	open := false
	var end func()
	reader := &streamable.Reader{Position: &ss.position}
	reader.OnHeader = func(status int) bool {
		if open = status == http.StatusOK; open {
			end = l.countListener(ss.g, catalog.AnnouncedKinds)
		}
		ss.onStarted()
		return open
	}
	reader.OnMessage = func(e *streamable.Event) error {
		if e.ID != "" {
			ss.lastSession = session
		}
		ss.handle(e)
		return nil
	}
	failure := ss.g.exchange(l, reader, nil).Send(r)
	if open {
		ss.hasOpened = true
		ss.ended(end)
		return true
	}
	switch {
	case resuming && reader.Status()/100 == 4:
		ss.position.ID = "" // the event may be too old
		return ss.readLegacy()
	case session != "" && (reader.Status() == http.StatusNotFound || reader.Status() == http.StatusBadRequest):
		// The server has lost the session or the event, or has no such stream. The ping detects a
		// lost session.
		_ = l.request(ss.scope, "ping", nil)
		return ss.hasOpened || l.session.current().Session != session
	case ss.hasOpened:
		return true
	}
	switch reader.Status() {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		return failure != nil // the server has no such stream
	}
	return true // try again: another stream may have to end first (409), or the server restarts
}

// handle handles an event of a legacy server. The server has one stream per session, so all streams
// of a modern client get the message if they want it.
func (ss *serverStream) handle(e *streamable.Event) {
	s, l, m := ss.stream, ss.link, e.Message
	if len(e.Data) == 0 || m.IsResponse() { // calls have their own streams
		return
	}
	u := unsolicited{ss.scope, l}
	u.note(m)
	var delivered bool
	if s.wants == nil {
		delivered = s.deliver(ss.g, l, m, l.translator(ss.g).eventID(listenStream, e.ID))
	} else {
		delivered = u.broadcast(m)
	}
	if !delivered && m.IsRequest() {
		l.heldCalls.offer(u, &s.req.sideRequests, m, "the client does not support "+mcp.Shortened(m.Text(jsonrpc.Method)))
	}
}

// ended notes the end of a stream that the server had opened. end is the result of countListener.
func (ss *serverStream) ended(end func()) {
	end()
	if ss.ctx.Err() == nil {
		ss.g.profile(ss.link.client, ss.link.serverID).forget() // the server may have changed when it is back
	}
}

// readModern reads the subscriptions/listen stream of a modern server.
func (ss *serverStream) readModern(can mcp.Abilities) (again bool) {
	l := ss.link
	subset := ss.subset(can)
	if subset.isEmpty() {
		return false
	}
	params := slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(subset), []byte("}"))
	params = mcp.WithMeta(params, l.client.introduction.meta(""))
	body := jsonrpc.RequestAs(l.ids.next(), mcp.MethodListen, params)
	r, _ := l.newRequest(ss.scope)
	var m jsonrpc.Message
	if m.Read(body) != nil {
		return false
	}
	mcp.SetModern(r.Header, &m, mcp.Stateless)
	httpbody.Post(r, body)
	var end func() // nil until the server acknowledges
	refused := false
	reader := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		m := e.Message
		switch {
		case len(e.Data) == 0:
		case m.IsResponse():
			refused = m.Has(jsonrpc.Error)
		case m.Is(jsonrpc.Method, methodAcknowledged):
			if end == nil {
				end = l.countListener(ss.g, subset.kinds())
				ss.stream.wants.noteAgreedTasks(ss.g, l, m)
				ss.onStarted()
			}
		default:
			unsolicited{ss.scope, l}.note(m)
			ss.stream.deliver(ss.g, l, m, "")
		}
		return nil
	}}
	_ = ss.g.exchange(l, reader, &m).Send(r)
	if end != nil {
		ss.ended(end)
	}
	return !refused
}

// subset returns what to listen to at a modern server with these abilities.
func (ss *serverStream) subset(can mcp.Abilities) interests {
	l := ss.link
	var all interests
	switch uri := ss.key.uri; {
	case uri != "":
		all = interests{serverURIs: map[string][]string{l.serverName: {uri}}}
	case ss.stream.wants == nil:
		all = interests{Tools: true, Prompts: true, Resources: true}
	default:
		all = ss.stream.wants.interests
	}
	subset := all.forServer(l.serverName, can)
	if ss.profile != nil { // other streams of the audience may want other lists
		subset.Tools, subset.Prompts = can&mcp.ToolsChange != 0, can&mcp.PromptsChange != 0
		subset.Resources = can&mcp.ResourcesChange != 0
	}
	caller := ss.g.rules.Caller(l.client.identity)
	subset.Tasks = slices.DeleteFunc(slices.Clone(subset.Tasks), func(id string) bool {
		return !ss.g.tasks.Has(&caller, ss.g.linkServer(l), id) // rules may have changed
	})
	return subset
}
