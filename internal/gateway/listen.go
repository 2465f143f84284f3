package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A listener reads a stream of a server for a stream of a client.
type listener struct {
	key         listenerKey
	stop        context.CancelFunc
	position    streamable.Position
	lastSession string // session of the last event; "" if the client sent the event id
	hasOpened   bool   // the server has opened the stream before

	session     string // session with the resource subscriptions
	unsubscribe func()

	profile *profile // profile that counts it as a reader; nil if it is not shared
	elected bool     // the audience had no listener before and may have missed changes
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

// listen reads a stream of a server, and opens it again when it ends. It calls onStarted, possibly
// more than once, when the server has responded or failed.
func (s *stream) listen(ctx context.Context, li *listener, onStarted func()) {
	for failures := 0; ctx.Err() == nil; failures++ {
		g := s.g.Load()
		server := g.byID(li.key.serverID)
		if server == nil || !g.rules.Sees(s.req.caller.Identity, server.Name) {
			return
		}
		began := time.Now()
		again := s.listenOnce(scope{ctx: ctx, g: g, r: s.req.request.withContext(s.ctx)}, server, li, onStarted)
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

// listenOnce reads a stream of a server until it ends. It reports whether to open it again.
func (s *stream) listenOnce(sc scope, server *upstream.Server, li *listener, onStarted func()) (again bool) {
	l := s.req.client.linkTo(server)
	hadFailed := l.session.hasFailed()
	if failure := l.open(sc); failure != nil {
		return true
	}
	if hadFailed {
		s.announceToAll(l, l.kinds()...) // clients have not seen its lists yet
	}
	l.sendInitialized(sc)
	era, can := l.session.state()
	if li.elected {
		li.elected, onStarted = false, s.compareListsAfter(sc, server, onStarted)
	}
	if era == mcp.Modern {
		if s.wants == nil && li.key.uri == "" {
			s.listenToSubscribed(l)
		}
		return s.listenModern(sc, l, can, li, onStarted)
	}
	if li.key.uri != "" {
		return false // legacy servers send updates in the stream of the session
	}
	if s.wants != nil {
		if s.wants.forServer(l.serverName, can|mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange).isEmpty() {
			return false
		}
		s.ensureSubscribed(sc, l, li)
	}
	return s.listenGET(sc, l, li, onStarted)
}

// ensureSubscribed subscribes to the resources of the stream, once per session.
func (s *stream) ensureSubscribed(sc scope, l *link, li *listener) {
	if session := l.session.current().Session; li.unsubscribe == nil || li.session != session {
		li.session, li.unsubscribe = session, s.subscribe(sc, l)
	}
}

// kinds returns the kinds of lists that the server has.
func (l *link) kinds() (has []mcp.ListKind) {
	_, can := l.session.state()
	for _, k := range [...]mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources} {
		if can&mcp.ListKinds[k].Needs != 0 {
			has = append(has, k)
		}
	}
	return has
}

// listenGET reads the GET stream of a legacy server. It notes the last event id for resuming.
func (s *stream) listenGET(sc scope, l *link, li *listener, onStarted func()) (again bool) {
	req := &s.req
	r, session := l.newRequest(sc)
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	resuming := li.position.ID != "" && (li.lastSession == "" || li.lastSession == session.Session)
	if resuming {
		r.Header.Set("Last-Event-Id", li.position.ID)
	}
	open := false
	var end func()
	reader := &streamable.Reader{Position: &li.position}
	reader.OnHeader = func(status int) bool {
		if open = status == http.StatusOK; open {
			end = l.countListener(sc.g, catalog.AnnouncedKinds)
		}
		onStarted()
		return open
	}
	reader.OnMessage = func(e *streamable.Event) error {
		if e.ID != "" {
			li.lastSession = session.Session
		}
		m := e.Message
		if len(e.Data) == 0 || m.IsResponse() { // calls have their own streams
			return nil
		}
		u := unsolicited{sc, l}
		u.note(m)
		delivered := s.deliverMessage(u, m, l.translator(sc.g).eventID(listenStream, e.ID))
		if !delivered && m.IsRequest() && !l.heldCalls.offer(m) {
			u.refuse(&req.sideRequests, m, "the client does not support "+mcp.Shortened(m.Text(jsonrpc.Method)))
		}
		return nil
	}
	failure := sc.g.exchange(l, reader, nil).Send(r)
	if open {
		li.hasOpened = true
		end()
		if sc.ctx.Err() == nil {
			sc.g.profile(l.client, l.serverID).forget() // the server may have changed when it is back
		}
		return true
	}
	switch {
	case resuming && reader.Status()/100 == 4:
		li.position.ID = "" // the event may be too old
		return s.listenGET(sc, l, li, onStarted)
	case session.Session != "" && (reader.Status() == http.StatusNotFound || reader.Status() == http.StatusBadRequest):
		// The server has lost the session or the event, or has no such stream. The ping detects a
		// lost session.
		_, _ = l.request(sc, "ping", nil)
		return li.hasOpened || l.session.current().Session != session.Session
	case li.hasOpened:
		return true
	}
	switch reader.Status() {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		return failure != nil // the server has no such stream
	}
	return true // try again: another stream may have to end first (409), or the server restarts
}

// deliverMessage sends a message to the client. A server has one stream per session, so the message
// goes to all streams of the client that want it.
func (s *stream) deliverMessage(u unsolicited, m *jsonrpc.Message, id string) bool {
	if s.wants == nil {
		return s.deliver(u.g, u.link, m, id)
	}
	return u.broadcast(m)
}

// subscribe subscribes to the resources of the stream at a legacy server. undo unsubscribes.
func (s *stream) subscribe(sc scope, l *link) (undo func()) {
	_, can := l.session.state()
	subset := s.wants.forServer(l.serverName, can)
	var subscribed []string
	for _, uri := range subset.URIs {
		if _, failure := l.request(sc, "resources/subscribe", mcp.URIParams(uri)); failure == nil {
			subscribed = append(subscribed, uri)
		} else {
			sc.g.config.Logger.Warn("resource subscription failed", zap.String("mcp_server", l.serverName), zap.Error(failure))
		}
	}
	return func() {
		// The client may have disconnected.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(sc.ctx), disconnectTimeout)
		defer cancel()
		for _, uri := range subscribed {
			if !l.client.otherStreamWants(s, l.serverName, uri) {
				_, _ = l.request(sc.withContext(ctx), "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
	}
}

// listenModern reads the subscriptions/listen stream of a modern server.
func (s *stream) listenModern(sc scope, l *link, can mcp.Abilities, li *listener, onStarted func()) (again bool) {
	all := s.wants
	switch uri := li.key.uri; {
	case uri != "":
		all = &interests{serverURIs: map[string][]string{l.serverName: {uri}}}
	case all == nil:
		all = &interests{Tools: true, Prompts: true, Resources: true}
	}
	subset := all.forServer(l.serverName, can)
	if li.profile != nil { // other streams of the audience may want other lists
		subset.Tools, subset.Prompts = can&mcp.ToolsChange != 0, can&mcp.PromptsChange != 0
		subset.Resources = can&mcp.ResourcesChange != 0
	}
	caller := sc.g.rules.Caller(l.client.identity)
	subset.Tasks = slices.DeleteFunc(slices.Clone(subset.Tasks), func(id string) bool {
		return !sc.g.tasks.Has(&caller, sc.g.linkServer(l), id) // rules may have changed
	})
	if subset.isEmpty() {
		return false
	}
	params := slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(subset), []byte("}"))
	params = mcp.WithMeta(params, l.client.introduction.meta(""))
	body := jsonrpc.RequestAs(l.ids.next(), mcp.MethodListen, params)
	r, _ := l.newRequest(sc)
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
		case m.Is(jsonrpc.Method, "notifications/subscriptions/acknowledged"):
			if end == nil {
				end = l.countListener(sc.g, subset.kinds())
				s.noteAgreedTasks(sc.g, l, m)
				onStarted()
			}
		default:
			unsolicited{sc, l}.note(m)
			s.deliver(sc.g, l, m, "")
		}
		return nil
	}}
	_ = sc.g.exchange(l, reader, &m).Send(r)
	if end != nil {
		end()
		if sc.ctx.Err() == nil {
			sc.g.profile(l.client, l.serverID).forget()
		}
	}
	return !refused
}

// listen answers subscriptions/listen of a modern client.
func (req *aggregateRequest) listen() *jsonrpc.Failure {
	wants := new(interests)
	if req.Message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject ||
		json.Unmarshal(req.Message.Literal(jsonrpc.Notifications), wants) != nil {
		return jsonrpc.InvalidParams("notifications: missing or not a valid object")
	}
	if len(wants.Tasks) > 0 && !mcp.SupportsTasks(req.Message.Literal(jsonrpc.ClientCapabilities)) {
		return jsonrpc.MissingExtension(mcp.TasksExtension)
	}
	size := int64(0)
	for _, name := range slices.Concat(wants.URIs, wants.Tasks) {
		size += int64(len(name))
		if len(name) > mcp.LongestURI {
			return jsonrpc.InvalidParams("resourceSubscriptions, taskIds: an entry is longer than 8 KiB")
		}
	}
	if len(wants.URIs)+len(wants.Tasks) > maxSubscriptions || !req.g.subscriptionMeter.Take(req.client.owner, size) {
		return jsonrpc.InvalidParams("resourceSubscriptions, taskIds: too many entries")
	}
	var s *stream
	defer func() {
		switch {
		case s == nil:
			req.g.subscriptionMeter.Give(req.client.owner, size)
		case !req.IsParked():
			s.close() // returns the quota, too
		}
	}()
	wants.resolve(req)
	if !req.out.AcceptsStream() {
		return notAcceptable()
	}
	req.KeepID()
	servers, infos := req.serverInfos(func() bool { return len(wants.URIs)+len(wants.Tasks) > 0 })
	agreed := interests{serverURIs: map[string][]string{}, shownURIs: wants.shownURIs, serverTasks: map[string][]string{}}
	for i, server := range servers {
		// The gateway itself sends list-changed notifications, because servers come and go.
		subset := wants.forServer(server.Name, infos[i].abilities()|mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange)
		agreed.Tools = agreed.Tools || subset.Tools
		agreed.Prompts = agreed.Prompts || subset.Prompts
		agreed.Resources = agreed.Resources || subset.Resources
		if len(subset.URIs) > 0 {
			agreed.serverURIs[server.Name] = subset.URIs
			for _, uri := range subset.URIs {
				agreed.URIs = append(agreed.URIs, wants.shownURIs[server.Name+"\x00"+uri])
			}
		}
		if len(subset.Tasks) > 0 {
			agreed.serverTasks[server.Name] = subset.Tasks
			agreed.Tasks = append(agreed.Tasks, subset.Tasks...) // subject to the server's agreement
		}
	}
	s = req.newStream(&agreed)
	s.size = size
	if !agreed.isEmpty() {
		s.waitStarted(s.listenToAll(func(string) string { return "" }))
	}
	acknowledged := agreed
	acknowledged.Tasks = s.agreedTasks()
	params := slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(acknowledged), []byte("}"))
	notification := jsonrpc.Notification("notifications/subscriptions/acknowledged", params)
	req.out.Event(&streamable.Event{Data: s.withSubscriptionID(notification)})
	if !agreed.isEmpty() {
		if s.park(req.Request) {
			return nil
		}
		s.keepOpen()
	}
	s.answerListen()
	return nil
}

// answerListen sends the result of subscriptions/listen, unless the client disconnected.
func (s *stream) answerListen() {
	id := s.req.id
	if !s.hasClientLeft() {
		s.req.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.ResultResponse(id, slices.Concat(
			[]byte(`{"resultType":"complete","_meta":{"`+mcp.MetaSubscriptionID+`":`), id, []byte("}}")))})
	}
}

// get answers GET: it opens the stream of a legacy session.
func (req *aggregateRequest) get() *jsonrpc.Failure {
	if !req.out.AcceptsStream() {
		return notAcceptable()
	}
	kind, server, last := "", "", ""
	if bound := req.HTTP.Header.Get("Last-Event-Id"); bound != "" {
		id, ok := req.g.sealer.Claim(bound, eventOfSession, req.client.key)
		if !ok {
			id = bound
		}
		kind, id, _ = strings.Cut(id, "/")
		server, last, _ = strings.Cut(id, "/")
		switch isCallStream := strings.HasPrefix(kind, callStream); {
		case isCallStream && ok:
			return req.resumeCall(kind, server, last)
		case isCallStream:
			return unknownEventID()
		case !ok:
			server = "" // start a new stream instead of resuming
		}
	}
	s := req.newStream(nil)
	defer func() {
		if !req.IsParked() {
			s.close()
		}
	}()
	s.subscribeToReplicas()
	s.waitStarted(s.listenToAll(func(name string) string {
		if name == server {
			return last
		}
		return ""
	}))
	req.out.Begin()
	if !s.park(req.Request) {
		s.keepOpen()
	}
	return nil
}

// A client with a legacy session needs its own stream of the server, for server requests, log
// messages and resource updates. Other clients only need list-changed notifications. These are the
// same for all of an audience, so one elected stream listens for all. When it ends, another one is
// elected.

// listenToServer starts a listener for a server, if the stream needs its own or is elected. last is
// the id of the last event, if the client resumes a stream of the server.
func (s *stream) listenToServer(server *upstream.Server, last string, onStarted func()) {
	g, c := s.g.Load(), s.req.client
	p := g.profile(c, server.ID)
	li := &listener{key: listenerKey{serverID: server.ID}, profile: p}
	li.position.ID = last
	switch needed := last != "" || s.needsListener(server); {
	case c.isolated.Load(), needed && s.wants != nil: // needs other notifications than the audience
		li.profile = nil
		s.start(li, onStarted)
		return
	case !needed && !s.wantsChanges(p.freshInfo(server)):
	case !p.addReader(needed): // another stream listens
		s.announceMissed(p)
	default:
		li.elected = !needed
		s.announceMissed(p)
		if !s.start(li, onStarted) {
			s.handOver(li)
		}
		return
	}
	if l := c.existingLink(server); l != nil && s.wants == nil {
		s.listenToSubscribed(l)
	}
	onStarted()
}

// announceMissed notifies the client of lists that have changed since it requested them.
func (s *stream) announceMissed(p *profile) {
	if missed := s.req.client.listed.missedChanges(&p.lists); len(missed) > 0 {
		s.runAsync(func() { s.announce(missed...) })
	}
}

// needsListener reports whether the server may have messages for this client only.
func (s *stream) needsListener(server *upstream.Server) bool {
	if s.wants != nil {
		return len(s.wants.serverURIs[server.Name])+len(s.wants.serverTasks[server.Name]) > 0
	}
	l := s.req.client.existingLink(server)
	if l == nil || !l.session.isOpen() {
		return false
	}
	era, _ := l.session.state()
	return era == mcp.Legacy
}

// wantsChanges reports whether the stream wants list-changed notifications and the server may send
// them. info is nil if unknown.
func (s *stream) wantsChanges(info *serverInfo) bool {
	if info != nil && info.can&(mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange) == 0 {
		return false
	}
	return s.wants == nil || s.wants.Tools || s.wants.Prompts || s.wants.Resources
}

// listenToSubscribed starts listeners for the client's subscriptions at a modern server.
func (s *stream) listenToSubscribed(l *link) {
	if era, _ := l.session.state(); era != mcp.Modern {
		return
	}
	for _, uri := range l.subscriptions.all() {
		s.listenTo(listenerKey{l.serverID, uri}, "", func() {})
	}
}

// listensTo reports whether the stream has a listener for a server.
func (s *stream) listensTo(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listeners[listenerKey{serverID: id}] != nil
}

// handOver elects another stream of the audience, if this listener was the last for its server.
func (s *stream) handOver(li *listener) {
	if li.profile == nil || !li.profile.removeReader() {
		return
	}
	for _, other := range s.req.g.followers(s.req.client.audience, li.key.serverID) {
		server := other.g.Load().byID(li.key.serverID)
		if server == nil || !other.wantsChanges(li.profile.lastInfo()) {
			continue
		}
		if !li.profile.addReader(false) {
			return // another stream listens already
		}
		if other.start(&listener{key: li.key, profile: li.profile, elected: true}, func() {}) {
			return
		}
		li.profile.removeReader()
	}
}

// followers returns the streams of an audience that may see a server and have no listener for it.
func (state *State) followers(audience, id string) (followers []*stream) {
	return slices.DeleteFunc(state.streamsSeeing(audience, id), func(s *stream) bool { return s.listensTo(id) })
}

// streamsSeeing returns the streams of an audience that may see a server.
func (state *State) streamsSeeing(audience, id string) (all []*stream) {
	state.mu.Lock()
	defer state.mu.Unlock()
	for s := range state.streams[audience] {
		g := s.g.Load()
		if server := g.byID(id); server == nil || !g.rules.Sees(s.req.caller.Identity, server.Name) {
			continue
		}
		if s.ctx.Err() == nil {
			all = append(all, s)
		}
	}
	return all
}

// announceToAll notifies the client and the followers that lists of a server have changed.
func (s *stream) announceToAll(l *link, changed ...mcp.ListKind) {
	s.announce(changed...)
	for _, other := range s.req.g.followers(l.client.audience, l.serverID) {
		other.runAsync(func() { other.announce(changed...) })
	}
}

// compareListsAfter returns a function that calls onStarted and then compares the lists of a server
// with the last known ones. It notifies clients of changes that happened while no client listened.
func (s *stream) compareListsAfter(sc scope, server *upstream.Server, onStarted func()) func() {
	c := s.req.client
	last := sc.g.profile(c, server.ID).lists.Seen()
	return sync.OnceFunc(func() {
		onStarted()
		s.runAsync(func() {
			for k, key := range last {
				list, _, failure := c.newListQuery(sc, server, k).get()
				if failure == nil && list.Key != key {
					s.announceToAll(c.linkTo(server), k)
				}
			}
		})
	})
}

// listenInStreams makes the streams of the client listen to a new session. It waits until they do,
// at most joinWait: a call may cause server requests in such a stream.
func (l *link) listenInStreams(sc scope) {
	server := sc.g.linkServer(l)
	if server == nil {
		return
	}
	for _, s := range l.client.openStreams() {
		if s.wants != nil || s.listensTo(l.serverID) || !s.g.Load().rules.Sees(l.client.identity, server.Name) {
			continue
		}
		started := make(chan struct{})
		s.listenToServer(server, "", sync.OnceFunc(func() { close(started) }))
		s.waitStarted(started)
	}
}
