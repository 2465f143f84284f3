package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
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
	key    listenerKey
	stop   context.CancelFunc
	at     streamable.Position
	lastIn string // session of the last event; "" if the client has named the event
	heard  bool   // the server has such a stream

	session     string // in which it has subscribed to resources
	unsubscribe func()

	profile *profile // of the server, which has it as a reader; nil if it is not read for others
	elected bool     // no other client of the audience was listening: all may have missed changes
}

// A listenerKey identifies what a listener reads: all messages of a server or, of a server of
// the modern era, changes of one resource. Each subscription has a listener of its own, so
// that a new one does not interrupt the others.
type listenerKey struct {
	id  string // of the server
	uri string
}

// rejoinPause is the pause before a stream that has ended is opened again.
var rejoinPause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}

// listen reads a stream of a server, and opens it again when it ends.
func (s *stream) listen(ctx context.Context, e *listener, begun func()) {
	for failures := 0; ctx.Err() == nil; failures++ {
		g := s.g.Load()
		server := g.byID(e.key.id)
		if server == nil || !g.rules.Sees(s.visit.caller.Identity, server.Name) {
			return
		}
		began := time.Now()
		again := s.listenOnce(behalf{ctx: ctx, g: g, r: s.visit.request.in(s.ctx)}, server, e, begun)
		begun()
		if !again {
			return
		}
		if time.Since(began) > rejoinPause.Max {
			failures = 0
		}
		if !backoff.Sleep(ctx, max(rejoinPause.Pause(failures), e.at.Retry())) {
			return
		}
	}
}

// listenOnce reads a stream of a server to its end. It reports whether to try again.
func (s *stream) listenOnce(o behalf, server *upstream.Server, e *listener, begun func()) (again bool) {
	l := s.visit.client.link(server)
	late := l.hasFailed()
	if failure := l.open(o); failure != nil {
		return true
	}
	if late {
		s.announceToAll(l, l.kinds()...) // what it has is new to the clients
	}
	l.sendInitialized(o)
	era, can := l.state()
	if e.elected {
		e.elected, begun = false, s.thenCompare(o, server, begun)
	}
	if era == mcp.Modern {
		if s.wants == nil && e.key.uri == "" {
			s.listenToSubscribed(l)
		}
		return s.listenModern(o, l, can, e, begun)
	}
	if e.key.uri != "" {
		return false // the server has its own subscription
	}
	if s.wants != nil {
		if s.wants.at(l.server, can|mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange).nothing() {
			return false
		}
		s.subscribed(o, l, e)
	}
	return s.listenGET(o, l, e, begun)
}

// subscribed subscribes to what the stream listens to, once in each session.
func (s *stream) subscribed(o behalf, l *link, e *listener) {
	if session := l.sessionID(); e.unsubscribe == nil || e.session != session {
		e.session, e.unsubscribe = session, s.subscribe(o, l)
	}
}

// kinds returns the kinds of lists that the server has.
func (l *link) kinds() (has []mcp.ListKind) {
	_, can := l.state()
	for _, k := range [...]mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources} {
		if can&mcp.ListKinds[k].Needs != 0 {
			has = append(has, k)
		}
	}
	return has
}

// listenGET listens to a server of the legacy era. It notes the last event by which the
// stream can be resumed.
func (s *stream) listenGET(o behalf, l *link, to *listener, begun func()) (again bool) {
	v := &s.visit
	r, session, _ := l.prepare(o)
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	resuming := to.at.ID != "" && (to.lastIn == "" || to.lastIn == session)
	if resuming {
		r.Header.Set("Last-Event-Id", to.at.ID)
	}
	heard := false
	var end func()
	h := &streamable.Reader{Position: &to.at}
	h.OnHeader = func(status int) bool {
		if heard = status == http.StatusOK; heard {
			end = l.listen(o.g, catalog.AnnouncedKinds)
		}
		begun()
		return heard
	}
	h.OnMessage = func(e *streamable.Event) error {
		if e.ID != "" {
			to.lastIn = session
		}
		m := e.Message
		if len(e.Data) == 0 || m.IsAnswer() { // no call waits for one here
			return nil
		}
		others := l.unsolicited(o)
		others.note(m)
		if !s.pass(others, m, l.translator(o.g).eventID(listenStream, e.ID)) && m.IsRequest() && !l.held.ask(m) {
			others.refuse(&v.asides, m, "the client cannot be asked "+mcp.Shortened(m.Text(jsonrpc.Method)))
		}
		return nil
	}
	failure := o.g.exchange(l, h, nil).Send(r)
	if heard {
		to.heard = true
		end()
		if o.ctx.Err() == nil {
			o.g.profile(l.client, l.id).forget() // the server may be another one when it is back
		}
		return true
	}
	switch {
	case resuming && h.Status()/100 == 4:
		to.at.ID = "" // the event may be too old
		return s.listenGET(o, l, to, begun)
	case session != "" && (h.Status() == http.StatusNotFound || h.Status() == http.StatusBadRequest):
		// Either the session is lost, which shows when it is used, or the stream, or
		// there never was one.
		_, _ = l.request(o, "ping", nil)
		return to.heard || l.sessionID() != session
	case to.heard:
		return true
	}
	switch h.Status() {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusNotImplemented:
		return failure != nil // there is no such stream
	}
	return true // there may be later: when another one has ended (409), or the server is back
}

// pass gives the client a message. A session has one stream of a server, so a message is for
// all streams of the client that want it.
func (s *stream) pass(u unsolicited, m *jsonrpc.Message, id string) bool {
	if s.wants == nil {
		return s.deliver(u.g, u.link, m, id)
	}
	return u.broadcast(m)
}

// subscribe subscribes to the resources of a server of the legacy era that the
// stream listens to. What it returns undoes that.
func (s *stream) subscribe(o behalf, l *link) (undo func()) {
	_, can := l.state()
	mine := s.wants.at(l.server, can)
	var done []string
	for _, uri := range mine.URIs {
		if _, failure := l.request(o, "resources/subscribe", mcp.URIParams(uri)); failure == nil {
			done = append(done, uri)
		} else {
			o.g.config.Logger.Warn("not subscribed", zap.String("mcp_server", l.server), zap.Error(failure))
		}
	}
	return func() {
		// The client may have left already.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), partingTime)
		defer cancel()
		for _, uri := range done {
			if !l.client.wants(s, l.server, uri) {
				_, _ = l.request(o.within(ctx), "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
	}
}

// listenModern listens to a server of the modern era.
func (s *stream) listenModern(o behalf, l *link, can mcp.Abilities, to *listener, begun func()) (again bool) {
	all := s.wants
	switch uri := to.key.uri; {
	case uri != "":
		all = &interests{of: map[string][]string{l.server: {uri}}}
	case all == nil:
		all = &interests{Tools: true, Prompts: true, Resources: true}
	}
	mine := all.at(l.server, can)
	if to.profile != nil { // other streams of the audience may want to hear of other lists
		mine.Tools, mine.Prompts = can&mcp.ToolsChange != 0, can&mcp.PromptsChange != 0
		mine.Resources = can&mcp.ResourcesChange != 0
	}
	who := o.g.rules.Caller(l.client.identity)
	mine.Tasks = slices.DeleteFunc(slices.Clone(mine.Tasks), func(id string) bool {
		return !o.g.tasks.Has(&who, o.g.of(l), id) // the rules may be others than when the client has asked
	})
	if mine.nothing() {
		return false
	}
	params := slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(mine), []byte("}"))
	params = mcp.WithMeta(params, l.client.meta(""))
	body := jsonrpc.RequestAs(l.nextID(), mcp.MethodListen, params)
	r, _, _ := l.prepare(o)
	var m jsonrpc.Message
	if m.Read(body) != nil {
		return false
	}
	mcp.SetModern(r.Header, &m, mcp.Stateless)
	httpbody.Post(r, body)
	var end func() // nil until the server has agreed
	refused := false
	h := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		m := e.Message
		switch {
		case len(e.Data) == 0:
		case m.IsAnswer():
			refused = m.Has(jsonrpc.Error)
		case m.Is(jsonrpc.Method, "notifications/subscriptions/acknowledged"):
			if end == nil {
				end = l.listen(o.g, mine.kinds())
				s.agreed(o.g, l, m)
				begun()
			}
		default:
			l.unsolicited(o).note(m)
			s.deliver(o.g, l, m, "")
		}
		return nil
	}}
	_ = o.g.exchange(l, h, &m).Send(r)
	if end != nil {
		end()
		if o.ctx.Err() == nil {
			o.g.profile(l.client, l.id).forget()
		}
	}
	return !refused
}

// listen opens a stream of the modern era.
func (v *visit) listen() *jsonrpc.Failure {
	wants := new(interests)
	if v.Message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject ||
		json.Unmarshal(v.Message.Literal(jsonrpc.Notifications), wants) != nil {
		return jsonrpc.InvalidParams("notifications: it is missing, or no object of what to listen to")
	}
	if len(wants.Tasks) > 0 && !mcp.KnowsTasks(v.Message.Literal(jsonrpc.ClientCapabilities)) {
		return jsonrpc.MissingExtension(mcp.TasksExtension)
	}
	size := int64(0)
	for _, name := range slices.Concat(wants.URIs, wants.Tasks) {
		if size += int64(len(name)); len(name) > mcp.LongestURI {
			return jsonrpc.InvalidParams("resourceSubscriptions, taskIds: one has more than 8 KiB")
		}
	}
	if len(wants.URIs)+len(wants.Tasks) > maxSubscriptions || !v.g.subscribing.Take(v.client.owner, size) {
		return jsonrpc.InvalidParams("resourceSubscriptions, taskIds: there are too many")
	}
	var s *stream
	defer func() {
		switch {
		case s == nil:
			v.g.subscribing.Give(v.client.owner, size)
		case !v.IsParked():
			s.close() // which gives it back
		}
	}()
	wants.resolve(v)
	if !v.out.AcceptsStream() {
		return notAcceptable()
	}
	v.KeepID()
	servers, met := v.meet(func() bool { return len(wants.URIs)+len(wants.Tasks) > 0 })
	agreed := interests{of: map[string][]string{}, shown: wants.shown, tasks: map[string][]string{}}
	for i, server := range servers {
		// The gateway itself tells of changes of lists: servers come and go.
		mine := wants.at(server.Name, met[i].abilities()|mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange)
		agreed.Tools = agreed.Tools || mine.Tools
		agreed.Prompts = agreed.Prompts || mine.Prompts
		agreed.Resources = agreed.Resources || mine.Resources
		if len(mine.URIs) > 0 {
			agreed.of[server.Name] = mine.URIs
			for _, uri := range mine.URIs {
				agreed.URIs = append(agreed.URIs, wants.shown[server.Name+"\x00"+uri])
			}
		}
		if len(mine.Tasks) > 0 {
			agreed.tasks[server.Name] = mine.Tasks
			agreed.Tasks = append(agreed.Tasks, mine.Tasks...) // if the server agrees, too
		}
	}
	s = v.newStream(&agreed)
	s.size = size
	if !agreed.nothing() {
		s.await(s.join(func(string) string { return "" }))
	}
	acknowledged := agreed
	acknowledged.Tasks = s.agreedTasks()
	v.out.Event(&streamable.Event{Data: s.tagged(jsonrpc.Notification("notifications/subscriptions/acknowledged",
		slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(acknowledged), []byte("}"))))})
	if !agreed.nothing() {
		if s.park(v.Request) {
			return nil
		}
		s.keepOpen()
	}
	s.answerListen()
	return nil
}

// answerListen answers the request that has opened a stream of the modern era, unless its
// client has left.
func (s *stream) answerListen() {
	if id := s.visit.id; !s.left() {
		s.visit.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(id, slices.Concat(
			[]byte(`{"resultType":"complete","_meta":{"`+mcp.MetaSubscriptionID+`":`), id, []byte("}}")))})
	}
}

// get opens the stream of a session.
func (v *visit) get() *jsonrpc.Failure {
	if !v.out.AcceptsStream() {
		return notAcceptable()
	}
	kind, server, last := "", "", ""
	if bound := v.HTTP.Header.Get("Last-Event-Id"); bound != "" {
		id, ok := v.g.sealer.Claim(bound, eventOfSession, v.client.key)
		if !ok {
			id = bound
		}
		kind, id, _ = strings.Cut(id, "/")
		server, last, _ = strings.Cut(id, "/")
		switch ofCall := strings.HasPrefix(kind, callStream); {
		case ofCall && ok:
			return v.resumeCall(kind, server, last)
		case ofCall:
			return notOfSession()
		case !ok:
			server = "" // to listen is something that can begin anew
		}
	}
	s := v.newStream(nil)
	defer func() {
		if !v.IsParked() {
			s.close()
		}
	}()
	s.follow()
	s.await(s.join(func(name string) string {
		if name == server {
			return last
		}
		return ""
	}))
	v.out.Begin()
	if !s.park(v.Request) {
		s.keepOpen()
	}
	return nil
}
