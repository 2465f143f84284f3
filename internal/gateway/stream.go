package gateway

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A stream is a response in which a client gets messages of servers: to GET in the legacy era, to
// subscriptions/listen in the modern one.
type stream struct {
	req    streamRequest
	ctx    context.Context
	cancel context.CancelCauseFunc
	wants  *interests              // what a modern client listens to; nil for everything
	size   int64                   // bytes counted for subscriptions, if wants is set
	g      atomic.Pointer[Gateway] // Gateway whose servers it listens to; changes on reload

	detach func() bool // stops the stream from ending with its handler; nil if it cannot be parked

	mu          sync.Mutex
	closed      bool
	parked      *parkedStream // nil unless parked
	listeners   map[listenerKey]*listener
	running     sync.WaitGroup // listeners and functions of runAsync
	tasks       []string       // tasks whose updates servers have agreed to send
	unsubscribe func()         // ends the subscription to other replicas; nil if there is none
}

const (
	// joinWait is how long a new stream waits for its servers. Messages that servers send after
	// they answered reach the client; earlier ones may be lost.
	joinWait = time.Second
	// disconnectTimeout is the time limit for telling a server that a client is gone.
	disconnectTimeout = time.Second
)

func (req *aggregateRequest) newStream(wants *interests) *stream {
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
	if req.g.streams[req.client.audience] == nil {
		req.g.streams[req.client.audience] = map[*stream]bool{}
	}
	req.g.streams[req.client.audience][s] = true
	req.g.streamMeter.Take(req.client.owner, 0)
	req.g.mu.Unlock()
	req.client.mu.Lock()
	req.client.streams = slices.Insert(req.client.streams, 0, s)
	req.client.mu.Unlock()
	if req.client.ended.Load() || g.exiting() {
		s.end() // delete or endStreams ran before the stream was added
	}
	return s
}

// close ends the stream and waits for its listeners.
func (s *stream) close() {
	c, state := s.req.client, s.req.g.State
	c.mu.Lock()
	c.streams = slices.DeleteFunc(c.streams, func(other *stream) bool { return other == s })
	c.mu.Unlock()
	state.mu.Lock()
	if audience := state.streams[c.audience]; audience[s] {
		state.streamMeter.Give(c.owner, 0)
		delete(audience, s)
		if len(audience) == 0 {
			delete(state.streams, c.audience)
		}
	}
	state.mu.Unlock()
	if s.wants != nil {
		state.subscriptionMeter.Give(c.owner, s.size)
	}
	s.mu.Lock()
	s.closed = true
	unsubscribe := s.unsubscribe
	s.mu.Unlock()
	if unsubscribe != nil {
		unsubscribe()
	}
	s.end()
	s.running.Wait()
	s.req.sideRequests.Wait()
	s.mu.Lock()
	left := s.listeners
	s.listeners = nil
	s.mu.Unlock()
	for _, li := range left {
		s.handOver(li)
	}
}

// keepOpen sends keep-alives until the stream ends.
func (s *stream) keepOpen() {
	defer s.keepAlive().Stop()
	<-s.ctx.Done()
}

// keepAlive sends comments regularly, until the timer is stopped.
func (s *stream) keepAlive() (timer *time.Timer) {
	out := s.req.out
	timer = time.AfterFunc(math.MaxInt64, func() { // started by Reset, after timer is set
		out.KeepAlive()
		if out.Err() == nil {
			timer.Reset(streamable.KeepAlive)
		}
	})
	timer.Reset(streamable.KeepAlive)
	return timer
}

// listenToAll starts listeners for all servers. The channel is closed when all of them have
// responded or failed.
func (s *stream) listenToAll(last func(server string) string) <-chan struct{} {
	started := make(chan struct{})
	var waiting atomic.Int64
	waiting.Store(1) // released after the loop
	done := func() {
		if waiting.Add(-1) == 0 {
			close(started)
		}
	}
	for _, server := range s.g.Load().visibleServers(s.req.caller.Identity) {
		waiting.Add(1)
		s.listenToServer(server, last(server.Name), sync.OnceFunc(done))
	}
	done()
	return started
}

// waitStarted waits until started is closed, at most joinWait.
func (s *stream) waitStarted(started <-chan struct{}) {
	select {
	case <-started:
		return // avoids s.ctx.Done, which allocates a channel for as long as the stream lasts
	default:
	}
	timer := time.NewTimer(joinWait)
	defer timer.Stop()
	select {
	case <-started:
	case <-timer.C:
	case <-s.ctx.Done():
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
	var stopped []*listener
	s.mu.Lock()
	for key, li := range s.listeners {
		if server := to.byID(key.serverID); viewChanged || server == nil || !to.rules.Sees(identity, server.Name) {
			li.stop()
			delete(s.listeners, key)
			stopped = append(stopped, li)
		}
	}
	s.mu.Unlock()
	for _, li := range stopped {
		s.handOver(li)
	}
	for _, server := range now {
		if viewChanged || from.byID(server.ID) == nil || !from.rules.Sees(identity, server.Name) {
			changed = true
			s.listenToServer(server, "", func() {})
		}
	}
	if changed {
		s.runAsync(func() { s.announce(mcp.Tools, mcp.Prompts, mcp.Resources) })
	}
}

// runAsync runs f in a goroutine, because clients may be slow. close waits for it.
func (s *stream) runAsync(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
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
			s.req.out.Event(&streamable.Event{Data: s.withSubscriptionID(m.Raw)})
		}
	}
}

// listenTo starts a listener, unless the stream has it.
func (s *stream) listenTo(key listenerKey, last string, onStarted func()) {
	s.start(&listener{key: key, position: streamable.Position{ID: last}}, onStarted)
}

// start starts a listener. It reports false if the stream has it already or is closed.
func (s *stream) start(li *listener, onStarted func()) bool {
	ctx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listeners[li.key] != nil {
		onStarted()
		stop()
		return false
	}
	li.stop = stop
	if s.listeners == nil {
		s.listeners = map[listenerKey]*listener{}
	}
	s.listeners[li.key] = li
	s.running.Go(func() {
		defer onStarted()
		defer stop()
		s.listen(ctx, li, onStarted)
		if li.unsubscribe != nil {
			li.unsubscribe()
		}
	})
	return true
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
	raw := s.withSubscriptionID(l.translator(g).message(m))
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
	era, _ := l.session.state()
	return era != mcp.Modern || !m.Is(jsonrpc.Method, mcp.MethodUpdated) || l.subscriptions.has(m.Text(jsonrpc.URI))
}

// noteAgreedTasks notes the tasks in a server's acknowledgement.
func (s *stream) noteAgreedTasks(g *Gateway, l *link, m *jsonrpc.Message) {
	var ids []string
	if s.wants == nil || !m.Has(jsonrpc.TaskIDs) || json.Unmarshal(m.Literal(jsonrpc.TaskIDs), &ids) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		shown := g.names.shown(l.serverName, mcp.Tasks, id)
		if slices.Contains(s.wants.serverTasks[l.serverName], id) && !slices.Contains(s.tasks, shown) {
			s.tasks = append(s.tasks, shown)
		}
	}
}

// agreedTasks returns the tasks whose updates servers have agreed to send.
func (s *stream) agreedTasks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tasks)
}

// withSubscriptionID returns a message with the id of the listen request.
func (s *stream) withSubscriptionID(raw []byte) []byte {
	var m jsonrpc.Message
	if m.Read(raw) != nil {
		return raw
	}
	id := s.req.id
	member := slices.Concat([]byte(`"`+mcp.MetaSubscriptionID+`":`), id)
	if m.Has(jsonrpc.SubscriptionID) {
		return jsonspan.Spliced(raw, m.Replace(jsonrpc.SubscriptionID, id))
	}
	return jsonspan.Spliced(raw, m.InsertMeta(member))
}

func (s *stream) stop(key listenerKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if li := s.listeners[key]; li != nil {
		li.stop()
		delete(s.listeners, key)
	}
}

// interests are what a modern client listens to.
type interests struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"`

	serverURIs  map[string][]string // the servers' URIs of the resources, by server
	shownURIs   map[string]string   // the client's URIs, by server and server's URI
	serverTasks map[string][]string // the servers' ids of the tasks, by server
}

func (i interests) isEmpty() bool {
	return !i.Tools && !i.Prompts && !i.Resources && len(i.URIs) == 0 && len(i.Tasks) == 0
}

// kinds returns the lists whose changes are wanted.
func (i *interests) kinds() (kinds []mcp.ListKind) {
	if i.Tools {
		kinds = append(kinds, mcp.Tools)
	}
	if i.Prompts {
		kinds = append(kinds, mcp.Prompts)
	}
	if i.Resources {
		kinds = append(kinds, mcp.Resources, mcp.Templates)
	}
	return kinds
}

// resolve finds the servers of the resources and tasks. It drops those that the client may not use.
func (i *interests) resolve(req *aggregateRequest) {
	i.serverURIs, i.shownURIs, i.serverTasks = map[string][]string{}, map[string]string{}, map[string][]string{}
	for _, shown := range i.Tasks {
		s, id := req.g.names.task(shown)
		if s != nil && req.g.rules.AllowsUnknown(req.Caller.Identity, s.Name) && req.g.tasks.Has(&req.Caller, s, id) {
			i.serverTasks[s.Name] = append(i.serverTasks[s.Name], id)
		}
	}
	search := ownerSearch{aggregateRequest: req}
	for _, shown := range i.URIs {
		s, uri := req.g.names.resource(shown)
		switch {
		case s != nil:
		case req.g.names.areUnchanged():
			s, uri = req.g.names.only, shown
		default:
			s, _ = search.find(shown)
			uri = shown
		}
		if s == nil || !req.g.rules.AllowsSubscription(req.Caller.Identity, s.Name, uri) {
			continue
		}
		i.serverURIs[s.Name] = append(i.serverURIs[s.Name], uri)
		i.shownURIs[s.Name+"\x00"+uri] = shown
	}
}

// forServer returns the interests that apply to a server with these abilities, with the server's
// URIs.
func (i *interests) forServer(server string, can mcp.Abilities) interests {
	subset := interests{
		Tools:     i.Tools && can&mcp.ToolsChange != 0,
		Prompts:   i.Prompts && can&mcp.PromptsChange != 0,
		Resources: i.Resources && can&mcp.ResourcesChange != 0,
	}
	if can&mcp.CanSubscribe != 0 {
		subset.URIs = i.serverURIs[server]
	}
	if can&mcp.NotifiesTasks != 0 {
		subset.Tasks = i.serverTasks[server]
	}
	return subset
}

// wantsNotice reports whether the client wants a list-changed notification.
func (i *interests) wantsNotice(notice string) bool {
	switch notice {
	case mcp.ListKinds[mcp.Tools].Notice:
		return i.Tools
	case mcp.ListKinds[mcp.Prompts].Notice:
		return i.Prompts
	case mcp.ListKinds[mcp.Resources].Notice:
		return i.Resources
	}
	return false
}

// wantsMessage reports whether the client wants a message of a server.
func (i *interests) wantsMessage(m *jsonrpc.Message, server string) bool {
	switch m.Text(jsonrpc.Method) {
	case mcp.MethodUpdated:
		return slices.Contains(i.serverURIs[server], m.Text(jsonrpc.URI))
	case mcp.MethodTask:
		return slices.Contains(i.serverTasks[server], m.Text(jsonrpc.TaskID))
	}
	return i.wantsNotice(m.Text(jsonrpc.Method))
}
