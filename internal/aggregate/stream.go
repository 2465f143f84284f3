package aggregate

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A stream is a response that a client has opened to listen: by GET in the legacy
// era, by subscriptions/listen in the modern one.
type stream struct {
	turn   *turn
	ctx    context.Context
	end    context.CancelFunc
	wants  *interests // what a client of the modern era listens to; nil for all
	joined sync.WaitGroup

	mu       sync.Mutex
	hearings map[string]context.CancelFunc // by server: ends what is heard of it, to begin anew
}

// interests are what a client of the modern era listens to.
type interests struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

const (
	// keepAlive is after how long a silent stream gets a comment. Proxies close
	// connections on which nothing happens.
	keepAlive = 25 * time.Second
	// joinPause is how long a client that begins to listen waits for the servers.
	// What they say after that reaches it, what they said before may not.
	joinPause = time.Second
	// rejoinPause is after how long a server is listened to again that has hung up.
	rejoinPause, maxRejoinPause = time.Second, 30 * time.Second
)

// The streams that events come in, by whom they can be resumed.
const (
	callStream = "call"
	listening  = "listen"
)

// streamID returns the id of an event of a server for clients: it tells whose it is.
func streamID(kind, server, id string) string {
	if id == "" {
		return ""
	}
	return kind + "/" + server + "/" + id
}

// listening returns the streams by which the client listens.
func (c *client) listening() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.streams))
}

func (t *turn) newStream() *stream {
	s := &stream{turn: t, hearings: map[string]context.CancelFunc{}}
	s.ctx, s.end = context.WithCancel(t.r.Context())
	t.client.mu.Lock()
	t.client.streams[s] = true
	t.client.mu.Unlock()
	return s
}

// close ends the stream and waits for all that is heard in it.
func (s *stream) close() {
	c := s.turn.client
	c.mu.Lock()
	delete(c.streams, s)
	c.mu.Unlock()
	s.end()
	s.joined.Wait()
}

// get opens the stream of a session.
func (t *turn) get() *jsonrpc.Failure {
	if !t.out.accepts {
		failure := jsonrpc.InvalidRequest("Accept: it does not name text/event-stream")
		failure.Status = http.StatusNotAcceptable
		return failure
	}
	kind, server, last := "", "", ""
	if id := t.r.Header.Get("Last-Event-Id"); id != "" {
		kind, id, _ = strings.Cut(id, "/")
		server, last, _ = strings.Cut(id, "/")
	}
	s := t.newStream()
	defer s.close()
	if kind == callStream {
		return s.resumeCall(server, last)
	}
	begun := s.join(func(name string) string {
		if name == server {
			return last
		}
		return ""
	})
	s.await(begun)
	t.out.mu.Lock()
	t.out.open()
	t.out.flush()
	t.out.mu.Unlock()
	s.last()
	return nil
}

// resumeCall goes on with the stream of a call at the one server that has it.
func (s *stream) resumeCall(server, last string) *jsonrpc.Failure {
	t := s.turn
	if t.a.servers[server] == nil {
		return jsonrpc.InvalidRequest("Last-Event-ID: it is none of this server")
	}
	t.result.Server = server
	l := t.client.link(t.a.servers[server])
	if failure := l.open(s.ctx, t.a, t.r); failure != nil {
		return failure
	}
	t.out.mu.Lock()
	t.out.open()
	t.out.flush()
	t.out.mu.Unlock()
	s.hearGET(s.ctx, l, last, callStream, func() {})
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
			s.turn.out.comment()
		}
	}
}

// join listens to all servers. The channel is closed when all have answered, or
// failed to.
func (s *stream) join(last func(server string) string) <-chan struct{} {
	begun := make(chan struct{})
	var first sync.WaitGroup
	for _, server := range s.turn.a.config.Servers {
		first.Add(1)
		s.hear(server, last(server.Name), sync.OnceFunc(first.Done))
	}
	s.joined.Go(func() {
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

// hear listens to a server for as long as the stream lasts.
func (s *stream) hear(server *Server, last string, begun func()) {
	l := s.turn.client.link(server)
	s.joined.Go(func() {
		defer begun()
		pause := rejoinPause
		for s.ctx.Err() == nil {
			ctx, cancel := context.WithCancel(s.ctx)
			s.mu.Lock()
			s.hearings[server.Name] = cancel
			s.mu.Unlock()
			began := time.Now()
			again := s.hearOnce(ctx, l, server, &last, begun)
			restarted := ctx.Err() != nil && s.ctx.Err() == nil
			cancel()
			begun()
			if !again && !restarted {
				return
			}
			if restarted || time.Since(began) > maxRejoinPause {
				pause = rejoinPause
			}
			if !restarted && !sleep(s.ctx, pause) {
				return
			}
			pause = min(2*pause, maxRejoinPause)
		}
	})
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// hearOnce listens to a server until it hangs up. It reports whether there is a
// point in trying again.
func (s *stream) hearOnce(ctx context.Context, l *link, server *Server, last *string, begun func()) (again bool) {
	t := s.turn
	missing := func() bool { ready, _ := l.opened(); return !ready || l.failed() }()
	if failure := l.open(ctx, t.a, t.r); failure != nil {
		return true
	}
	if missing {
		s.arrived(l) // late: what it has is new to the client
	}
	l.greet(ctx, t.a, t.r)
	era, can := l.state()
	if era == mcp.Modern {
		return s.hearListen(ctx, l, server, can, begun)
	}
	if s.wants != nil {
		if s.wants.of(l, t.a, can).nothing() {
			return false
		}
		defer s.subscribe(ctx, l, server)()
	}
	return s.hearGET(ctx, l, *last, listening, begun)
}

// failed reports whether the link could not be opened.
func (l *link) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures > 0 && !l.ready
}

// arrived tells the client that there is more than before.
func (s *stream) arrived(l *link) {
	_, can := l.state()
	for _, k := range [...]kind{tools, prompts, resources} {
		if can&kinds[k].needs != 0 {
			var m jsonrpc.Message
			if m.Read(jsonrpc.Notification(kinds[k].notice, nil)) == nil {
				s.deliver(l, &m, "")
			}
		}
	}
}

// hearGET listens to a server of the legacy era.
func (s *stream) hearGET(ctx context.Context, l *link, last, kind string, begun func()) (again bool) {
	t := s.turn
	r, session, _ := l.prepare(ctx, t.a, t.r)
	setNoBody(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-Id", last)
	}
	h := &Hearing{}
	heard := false
	h.begun = func(status int) bool {
		if heard = status == http.StatusOK; heard {
			l.listened(1)
		}
		begun()
		return heard
	}
	h.each = func(e *event) error {
		m := &e.message
		id := streamID(kind, l.server, e.id)
		switch {
		case len(e.data) == 0:
			t.out.event(&outgoing{id: id, retry: e.retry})
		case m.IsAnswer():
			t.out.event(&outgoing{id: id, data: oneLine(l.rewritten(t.a, m.Raw))})
		default:
			l.noted(m)
			if !s.deliver(l, m, id) && m.IsRequest() {
				l.refuse(t.a, t.r, ctx, &t.asides, m, "the client cannot be asked")
			}
		}
		return nil
	}
	failure := t.a.servers[l.server].Upstream.Send(h, r, new(jsonrpc.Message))
	if heard {
		l.listened(-1)
		return true
	}
	if h.status == http.StatusNotFound && session != "" {
		l.lost(session)
		return true
	}
	return failure != nil || h.status >= 500 // others have no such stream
}

// listened counts the streams by which we would hear of changes.
func (l *link) listened(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hearing += n
	if l.hearing > 0 && n > 0 {
		l.forget() // they may have changed before
	}
}

// deliver gives the client a message of a server that belongs to no call, if it is
// one that it wants.
func (s *stream) deliver(l *link, m *jsonrpc.Message, id string) bool {
	t := s.turn
	if s.wants == nil {
		if m.IsRequest() && !t.client.can(m.Text(jsonrpc.Method)) {
			return false
		}
		return t.out.event(&outgoing{id: id, data: oneLine(l.translated(t.a, m))})
	}
	if !s.wants.want(m, l, t.a) {
		return false
	}
	return t.out.event(&outgoing{data: oneLine(s.tagged(l.translated(t.a, m)))})
}

// tagged returns a message with the id of the listen request it belongs to.
func (s *stream) tagged(raw []byte) []byte {
	var m jsonrpc.Message
	if m.Read(raw) != nil {
		return raw
	}
	id := s.turn.m.Literal(jsonrpc.ID)
	member := slices.Concat([]byte(`"io.modelcontextprotocol/subscriptionId":`), id)
	switch {
	case m.Has(jsonrpc.SubscriptionID):
		return spliced(raw, m.Replace(jsonrpc.SubscriptionID, id))
	case m.Kind(jsonrpc.Meta) == jsonspan.BeginObject:
		at := m.Replace(jsonrpc.Meta, nil)
		return spliced(raw, moved(jsonspan.Insert(m.Literal(jsonrpc.Meta), member), at.Start))
	}
	return spliced(raw, insert(&m, slices.Concat([]byte(`"_meta":{`), member, []byte("}"))))
}

// listen opens a stream of the modern era.
func (t *turn) listen() *jsonrpc.Failure {
	wants := new(interests)
	if t.m.Kind(jsonrpc.Notifications) != jsonspan.BeginObject || json.Unmarshal(t.m.Literal(jsonrpc.Notifications), wants) != nil {
		return jsonrpc.InvalidParams("notifications: it is missing, or no object of what to listen to")
	}
	if !t.out.accepts {
		failure := jsonrpc.InvalidRequest("Accept: it does not name text/event-stream")
		failure.Status = http.StatusNotAcceptable
		return failure
	}
	t.all(func(ctx context.Context, _ *Server, l *link) { _ = l.open(ctx, t.a, t.r) })
	var agreed interests
	for _, server := range t.a.config.Servers {
		l := t.client.link(server)
		_, can := l.state()
		can |= toolsChange | promptsChange | resourcesChange // ours: servers come and go
		agreed.add(wants.of(l, t.a, can))
	}
	agreed.URIs = wants.agreedURIs(t)
	s := t.newStream()
	s.wants = &agreed
	defer s.close()
	if !agreed.nothing() {
		s.await(s.join(func(string) string { return "" }))
	}
	t.out.event(&outgoing{data: s.tagged(jsonrpc.Notification("notifications/subscriptions/acknowledged",
		slices.Concat([]byte(`{"notifications":`), encoded(agreed), []byte("}"))))})
	if !agreed.nothing() {
		s.last()
	}
	if t.r.Context().Err() == nil || t.a.leaving(t.r) {
		t.out.answer(http.StatusOK, &outgoing{data: jsonrpc.Answer(t.m.Literal(jsonrpc.ID), slices.Concat(
			[]byte(`{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":`), t.m.Literal(jsonrpc.ID), []byte("}}")))})
	}
	return nil
}

// leaving reports whether a request has ended by our wish, and its client is still
// there.
func (a *Aggregate) leaving(r *http.Request) bool {
	return a.config.Exiting != nil && a.config.Exiting.Err() != nil
}

func (i interests) nothing() bool {
	return !i.Tools && !i.Prompts && !i.Resources && len(i.URIs) == 0
}

func (i *interests) add(j interests) {
	i.Tools, i.Prompts, i.Resources = i.Tools || j.Tools, i.Prompts || j.Prompts, i.Resources || j.Resources
}

// of returns which of the interests concern a server that can do this, with URIs as
// it has them.
func (i *interests) of(l *link, a *Aggregate, can abilities) interests {
	mine := interests{
		Tools:     i.Tools && can&toolsChange != 0,
		Prompts:   i.Prompts && can&promptsChange != 0,
		Resources: i.Resources && can&resourcesChange != 0,
	}
	if can&canSubscribe == 0 {
		return mine
	}
	for _, shown := range i.URIs {
		if a.transparent() {
			mine.URIs = append(mine.URIs, shown)
		} else if server, uri, err := mcp.ParseURI(shown); err == nil && a.servers[server] == a.servers[l.server] {
			mine.URIs = append(mine.URIs, uri)
		}
	}
	return mine
}

// agreedURIs returns those URIs whose servers can be subscribed to.
func (i *interests) agreedURIs(t *turn) []string {
	return slices.DeleteFunc(slices.Clone(i.URIs), func(shown string) bool {
		one := interests{URIs: []string{shown}}
		return !slices.ContainsFunc(t.a.config.Servers, func(s *Server) bool {
			l := t.client.link(s)
			_, can := l.state()
			mine := one.of(l, t.a, can)
			return len(mine.URIs) > 0
		})
	})
}

// want reports whether a message is one of those that are listened to.
func (i *interests) want(m *jsonrpc.Message, l *link, a *Aggregate) bool {
	switch m.Text(jsonrpc.Method) {
	case kinds[tools].notice:
		return i.Tools
	case kinds[prompts].notice:
		return i.Prompts
	case kinds[resources].notice:
		return i.Resources
	case "notifications/resources/updated":
		mine := i.of(l, a, canSubscribe)
		return slices.Contains(mine.URIs, m.Text(jsonrpc.URI))
	}
	return false
}

// subscribe subscribes to the resources of a server of the legacy era that the
// stream listens to. What it returns undoes that.
func (s *stream) subscribe(ctx context.Context, l *link, server *Server) (undo func()) {
	t := s.turn
	_, can := l.state()
	mine := s.wants.of(l, t.a, can)
	var done []string
	for _, uri := range mine.URIs {
		if _, failure := l.request(ctx, t.a, t.r, "resources/subscribe", uriParams(uri)); failure == nil {
			done = append(done, uri)
		} else {
			t.a.config.Logger.Warn("not subscribed", zap.String("mcp_server", server.Name), zap.Error(failure))
		}
	}
	return func() {
		// The client may have left already.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rejoinPause)
		defer cancel()
		for _, uri := range done {
			if !l.client.wants(s, l, t.a, uri) {
				_, _ = l.request(ctx, t.a, t.r, "resources/unsubscribe", uriParams(uri))
			}
		}
	}
}

// wants reports whether another stream of the client listens to a resource.
func (c *client) wants(except *stream, l *link, a *Aggregate, uri string) bool {
	return slices.ContainsFunc(c.listening(), func(s *stream) bool {
		return s != except && s.wants != nil && slices.Contains(s.wants.of(l, a, canSubscribe).URIs, uri)
	})
}

func uriParams(uri string) []byte {
	return slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte("}"))
}

// hearListen listens to a server of the modern era.
func (s *stream) hearListen(ctx context.Context, l *link, server *Server, can abilities, begun func()) (again bool) {
	t := s.turn
	all := s.wants
	if all == nil {
		all = &interests{true, true, true, t.client.subscribed(l)}
	}
	mine := all.of(l, t.a, can)
	if s.wants == nil {
		mine.URIs = all.URIs
	}
	if mine.nothing() {
		if begun(); s.wants == nil {
			<-ctx.Done() // it may subscribe to something
		}
		return false
	}
	params := withMeta(slices.Concat([]byte(`{"notifications":`), encoded(mine), []byte("}")), t.client.meta(""))
	body := jsonrpc.RequestAs(l.nextID(), mcp.MethodListen, params)
	r, _, _ := l.prepare(ctx, t.a, t.r)
	var m jsonrpc.Message
	if m.Read(body) != nil {
		return false
	}
	mcp.SetModern(r.Header, &m, mcp.Stateless)
	setBody(r, body)
	heard, refused := false, false
	h := &Hearing{each: func(e *event) error {
		m := &e.message
		switch {
		case len(e.data) == 0:
		case m.IsAnswer():
			refused = m.Has(jsonrpc.Error)
		case m.Is(jsonrpc.Method, "notifications/subscriptions/acknowledged"):
			if !heard {
				heard = true
				l.listened(1)
				begun()
			}
		default:
			l.noted(m)
			s.deliver(l, m, "")
		}
		return nil
	}}
	_ = server.Upstream.Send(h, r, &m)
	if heard {
		l.listened(-1)
	}
	return !refused
}

// subscribe notes that the client wants to know of changes of a resource, or does not
// any more (A68).
func (t *turn) subscribe(on bool) *jsonrpc.Failure {
	s, edits, failure := t.owner(jsonrpc.URI)
	if failure != nil {
		return failure
	}
	l := t.client.link(s)
	if failure := l.open(t.r.Context(), t.a, t.r); failure != nil {
		return t.failed(t.r.Context(), failure)
	}
	if era, _ := l.state(); era == mcp.Legacy {
		return t.pass(s, edits)
	}
	t.result.Server = s.Name
	uri := t.m.Text(jsonrpc.URI)
	if !t.a.transparent() {
		_, uri, _ = mcp.ParseURI(uri)
	}
	l.subscribe(uri, on)
	for _, listening := range t.client.listening() {
		listening.restart(s.Name)
	}
	return t.answer([]byte("{}"))
}

// restart listens to a server anew, because what is listened to has changed.
func (s *stream) restart(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.hearings[server]; cancel != nil {
		cancel()
	}
}

// maxSubscriptions is to how many resources of a server a client can subscribe.
const maxSubscriptions = 1_000

// subscribe notes a subscription to a server of the modern era, which has no such
// request.
func (l *link) subscribe(uri string, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, there := slices.BinarySearch(l.subscriptions, uri)
	switch {
	case on && !there && len(l.subscriptions) < maxSubscriptions:
		l.subscriptions = slices.Insert(l.subscriptions, i, uri)
	case !on && there:
		l.subscriptions = slices.Delete(l.subscriptions, i, i+1)
	}
}

// subscribed returns to which resources of a server the client has subscribed.
func (c *client) subscribed(l *link) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.subscriptions)
}
