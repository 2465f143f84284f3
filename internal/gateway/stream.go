package gateway

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A stream is a response in which a client gets messages of servers: to GET in the legacy era, to
// subscriptions/listen in the modern one.
type stream struct {
	req    streamRequest
	ctx    context.Context
	cancel context.CancelCauseFunc
	wants  *listenRequest          // what a modern client listens to; nil for everything
	g      atomic.Pointer[Gateway] // Gateway whose servers it listens to; changes on reload
	work   streamWork

	detach func() bool                  // stops the stream from ending with its handler; nil if it cannot be parked
	parked atomic.Pointer[parkedStream] // nil unless parked
}

const (
	// joinWait is how long a new stream waits for its servers. Messages that servers send after
	// they answered reach the client; earlier ones may be lost.
	joinWait = time.Second
	// disconnectTimeout is the time limit for telling a server that a client is gone.
	disconnectTimeout = time.Second
)

func (req *aggregateRequest) newStream(wants *listenRequest) *stream {
	streamable.CloseAfter(req.Writer.Header(), req.HTTP)
	s := &stream{req: req.newStreamRequest(), wants: wants}
	s.initContext(req)
	req.g.mu.Lock()
	g := req.g
	for g.removed { // a reload happened during the request
		if g.succession.current == nil {
			s.end()
			break
		}
		g = g.succession.current
	}
	s.g.Store(g)
	g.streams.add(s)
	req.g.mu.Unlock()
	req.client.mu.Lock()
	req.client.streams = slices.Insert(req.client.streams, 0, s)
	req.client.mu.Unlock()
	if req.client.ended.Load() || g.exiting() {
		s.end() // delete, or the hook for the exit, ran before the stream was added
	}
	return s
}

// close ends the stream and waits for its listeners.
func (s *stream) close() {
	c, state := s.req.client, s.req.g.State
	c.mu.Lock()
	c.streams = slices.DeleteFunc(c.streams, func(other *stream) bool { return other == s })
	c.mu.Unlock()
	state.streams.remove(s)
	if s.wants != nil {
		state.subscriptionMeter.Give(c.owner, s.wants.size)
	}
	s.work.close()
	s.end()
	left := s.work.wait()
	s.req.sideRequests.Wait()
	for _, li := range left {
		li.handOver()
	}
}

// keepOpen sends keep-alives until the stream ends.
func (s *stream) keepOpen() {
	defer keepAlive(s.req.out).Stop()
	<-s.ctx.Done()
}

// keepAlive sends comments regularly, until the timer is stopped.
func keepAlive(out *streamable.Writer) (timer *time.Timer) {
	timer = time.AfterFunc(math.MaxInt64, func() { // started by Reset, after timer is set
		out.KeepAlive()
		if out.Err() == nil {
			timer.Reset(streamable.KeepAlive)
		}
	})
	timer.Reset(streamable.KeepAlive)
	return timer
}

// listenToAll starts listeners for all servers and waits until they have responded or failed, at
// most joinWait. If the client resumes the stream of a server, last is the id of its last event.
func (s *stream) listenToAll(resumed, last string) {
	s.join(func(onStarted func()) {
		var waiting atomic.Int64
		waiting.Store(1) // released after the loop
		done := func() {
			if waiting.Add(-1) == 0 {
				onStarted()
			}
		}
		for _, server := range s.g.Load().visibleServers(s.req.caller.Identity) {
			lastID := ""
			if server.Name == resumed {
				lastID = last
			}
			waiting.Add(1)
			s.listenToServer(server, lastID, sync.OnceFunc(done))
		}
		done()
	})
}

// listenAndWait starts a listener and waits until the server has responded, at most joinWait, so
// that the client misses no update after it has subscribed.
func (s *stream) listenAndWait(key listenerKey) {
	s.join(func(onStarted func()) { s.work.start(&listener{stream: s, key: key}, onStarted) })
}

// join calls start and waits until onStarted is called, at most joinWait.
func (s *stream) join(start func(onStarted func())) {
	started := make(chan struct{})
	start(sync.OnceFunc(func() { close(started) }))
	waitToJoin(s.ctx, started)
}

// waitToJoin waits until started is closed, at most joinWait.
func waitToJoin(ctx context.Context, started <-chan struct{}) {
	select {
	case <-started:
		return // avoids ctx.Done, which allocates a channel for as long as a stream lasts
	default:
	}
	timer := time.NewTimer(joinWait)
	defer timer.Stop()
	select {
	case <-started:
	case <-timer.C:
	case <-ctx.Done():
	}
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
	li := &listener{stream: s, key: listenerKey{serverID: server.ID}, profile: p}
	li.position.ID = last
	switch needed := last != "" || s.needsListener(server); {
	case c.isolated.Load(), needed && s.wants != nil: // needs other notifications than the audience
		li.profile = nil
		s.work.start(li, onStarted)
		return
	case !needed && !s.wants.wantsChanges(p.freshInfo(server)):
	case !p.addReader(needed): // another stream listens
		s.announceMissed(p)
	default:
		li.elected = !needed
		s.announceMissed(p)
		if !s.work.start(li, onStarted) {
			li.handOver()
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
		s.announceAsync(missed...)
	}
}

// needsListener reports whether the server may have messages for this client only.
func (s *stream) needsListener(server *upstream.Server) bool {
	if s.wants != nil {
		return len(s.wants.serverURIs[server.Name])+len(s.wants.serverTasks[server.Name]) > 0
	}
	l := s.req.client.existingLink(server)
	return l != nil && l.session.isOpen() && l.session.current().Era == mcp.Legacy
}

// listenToSubscribed starts listeners for the client's subscriptions at a modern server.
func (s *stream) listenToSubscribed(l *link) {
	if l.session.current().Era != mcp.Modern {
		return
	}
	for _, uri := range l.subscriptions.all() {
		s.work.start(&listener{stream: s, key: listenerKey{l.serverID, uri}}, func() {})
	}
}

// move moves the stream to another Gateway. It notifies the client if its servers or its view have
// changed.
func (s *stream) move(from, to *Gateway) {
	s.g.Store(to)
	identity := s.req.caller.Identity
	if from.admissionKey(identity) != to.admissionKey(identity) || to.exiting() {
		s.end()
		return
	}
	before, now := from.visibleServers(identity), to.visibleServers(identity)
	viewChanged := from.viewKey(identity) != to.viewKey(identity) // listeners filter by the old view
	changed := viewChanged || len(before) != len(now)
	stopped := s.work.stopWhere(func(key listenerKey) bool {
		server := to.byID[key.serverID]
		return viewChanged || server == nil || !to.rules.Sees(identity, server.Name)
	})
	for _, li := range stopped {
		li.handOver()
	}
	for _, server := range now {
		if viewChanged || from.byID[server.ID] == nil || !from.rules.Sees(identity, server.Name) {
			changed = true
			s.listenToServer(server, "", func() {})
		}
	}
	if changed {
		s.announceAsync(mcp.Tools, mcp.Prompts, mcp.Resources)
	}
}

// announceAsync is like announce, in a goroutine.
func (s *stream) announceAsync(changed ...mcp.ListKind) {
	s.work.runAsync(func() { s.announce(changed...) })
}

// announce sends list-changed notifications to the client.
func (s *stream) announce(changed ...mcp.ListKind) {
	for _, k := range changed {
		var m jsonrpc.Message
		if m.Read(jsonrpc.Notification(mcp.ListKinds[k].Notice, nil)) != nil {
			continue
		}
		switch {
		case s.wants == nil:
			s.req.out.Event(&streamable.Event{Data: m.Raw})
		case s.wants.wantsMessage(&m, ""):
			s.req.out.Event(&streamable.Event{Data: s.wants.withID(m.Raw)})
		}
	}
}

// deliver sends an unsolicited message of a server to the client, if the client accepts it. It
// reports whether it was sent.
func (s *stream) deliver(g *Gateway, l *link, m *jsonrpc.Message, id string) bool {
	req := &s.req
	if !s.accepts(g, l, m) {
		return false
	}
	if s.wants == nil {
		return req.out.Event(&streamable.Event{ID: id, Data: l.translator(g).message(m)})
	}
	raw := s.wants.withID(l.translator(g).message(m))
	if shown := s.wants.shownURIs[l.serverName+"\x00"+m.Text(jsonrpc.URI)]; shown != "" {
		var own jsonrpc.Message
		if own.Read(raw) == nil && own.Has(jsonrpc.URI) {
			raw = jsonspan.Spliced(raw, own.Replace(jsonrpc.URI, jsonrpc.Quote(shown)))
		}
	}
	return req.out.Event(&streamable.Event{Data: raw})
}

// accepts reports whether the client may get an unsolicited message and wants it.
func (s *stream) accepts(g *Gateway, l *link, m *jsonrpc.Message) bool {
	req := &s.req
	if m.Is(jsonrpc.Method, mcp.MethodUpdated) {
		if server := g.linkServer(l); server == nil || !g.rules.AllowsSubscription(req.caller.Identity, server.Name,
			m.Text(jsonrpc.URI)) {
			return false
		}
	}
	if s.wants != nil {
		return s.wants.wantsMessage(m, l.serverName)
	}
	if m.IsRequest() && !req.client.introduction.supports(m.Text(jsonrpc.Method)) {
		return false
	}
	// Modern servers learn with a delay that the client has unsubscribed.
	return l.session.current().Era != mcp.Modern || !m.Is(jsonrpc.Method, mcp.MethodUpdated) ||
		l.subscriptions.has(m.Text(jsonrpc.URI))
}

// streamWork is what runs for a stream until it closes.
type streamWork struct {
	mu          sync.Mutex
	closed      bool
	listeners   map[listenerKey]*listener
	running     sync.WaitGroup // listeners and functions of runAsync
	unsubscribe func()         // ends the subscription to other replicas; nil if there is none
}

// start starts a listener. It reports false if the stream has it already or is closed.
func (w *streamWork) start(li *listener, onStarted func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.listeners[li.key] != nil {
		onStarted()
		return false
	}
	ctx, stop := context.WithCancel(li.stream.ctx)
	li.stop = stop
	if w.listeners == nil {
		w.listeners = map[listenerKey]*listener{}
	}
	w.listeners[li.key] = li
	w.running.Go(func() { li.run(ctx, onStarted) })
	return true
}

// stop stops the listener with a key.
func (w *streamWork) stop(key listenerKey) {
	w.stopWhere(func(other listenerKey) bool { return other == key })
}

// stopWhere stops the listeners with selected keys, and returns them.
func (w *streamWork) stopWhere(selects func(listenerKey) bool) (stopped []*listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, li := range w.listeners {
		if selects(key) {
			li.stop()
			delete(w.listeners, key)
			stopped = append(stopped, li)
		}
	}
	return stopped
}

// listensTo reports whether there is a listener for a server.
func (w *streamWork) listensTo(serverID string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listeners[listenerKey{serverID: serverID}] != nil
}

// runAsync runs f in a goroutine, because clients may be slow. wait waits for it.
func (w *streamWork) runAsync(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.running.Go(f)
	}
}

// setUnsubscribe sets the function that ends the subscription to other replicas. It calls it at
// once if the stream is closed.
func (w *streamWork) setUnsubscribe(unsubscribe func()) {
	w.mu.Lock()
	closed := w.closed
	if !closed {
		w.unsubscribe = unsubscribe
	}
	w.mu.Unlock()
	if closed {
		unsubscribe()
	}
}

// close prevents new work and ends the subscription to other replicas.
func (w *streamWork) close() {
	w.mu.Lock()
	w.closed = true
	unsubscribe := w.unsubscribe
	w.mu.Unlock()
	if unsubscribe != nil {
		unsubscribe()
	}
}

// wait waits until all work has ended. It returns the listeners that were not stopped.
func (w *streamWork) wait() (left []*listener) {
	w.running.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	left = slices.Collect(maps.Values(w.listeners))
	w.listeners = nil
	return left
}

// openStreams are the streams of all clients. If its lock is held together with State.mu, State.mu
// is locked first. A stream is added, and those of a removed Gateway are collected, under both, so
// that a reload moves every stream.
type openStreams struct {
	meter *quota.Meter

	mu         sync.Mutex
	byAudience map[string]map[*stream]bool // by audience of the client
}

func newOpenStreams() *openStreams {
	return &openStreams{meter: quota.NewMeter(streamsQuota, quota.Limits{}), byAudience: map[string]map[*stream]bool{}}
}

func (all *openStreams) add(s *stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	c := s.req.client
	if all.byAudience[c.audience] == nil {
		all.byAudience[c.audience] = map[*stream]bool{}
	}
	all.byAudience[c.audience][s] = true
	all.meter.Take(c.owner, 0)
}

func (all *openStreams) remove(s *stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	c := s.req.client
	members := all.byAudience[c.audience]
	if !members[s] {
		return
	}
	all.meter.Give(c.owner, 0)
	delete(members, s)
	if len(members) == 0 {
		delete(all.byAudience, c.audience)
	}
}

// of returns the streams of g.
func (all *openStreams) of(g *Gateway) (streams []*stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, members := range all.byAudience {
		for s := range members {
			if s.g.Load() == g {
				streams = append(streams, s)
			}
		}
	}
	return streams
}

// seeing returns the streams of an audience that may see a server.
func (all *openStreams) seeing(audience, serverID string) (streams []*stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for s := range all.byAudience[audience] {
		g := s.g.Load()
		if server := g.byID[serverID]; server == nil || !g.rules.Sees(s.req.caller.Identity, server.Name) {
			continue
		}
		if s.ctx.Err() == nil {
			streams = append(streams, s)
		}
	}
	return streams
}

// followers returns the streams of an audience that may see a server and have no listener for it.
func (all *openStreams) followers(audience, serverID string) []*stream {
	return slices.DeleteFunc(all.seeing(audience, serverID), func(s *stream) bool { return s.work.listensTo(serverID) })
}

// audiences returns the audiences with streams.
func (all *openStreams) audiences() []string {
	all.mu.Lock()
	defer all.mu.Unlock()
	return slices.Collect(maps.Keys(all.byAudience))
}
