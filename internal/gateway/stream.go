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

// A stream is a response that a client has opened to listen: by GET in the legacy
// era, by subscriptions/listen in the modern one.
type stream struct {
	visit  opening
	ctx    context.Context
	cancel context.CancelCauseFunc
	wants  *interests              // what a client of the modern era listens to; nil for all
	size   int64                   // of what it is counted to subscribe to, if wants is set
	g      atomic.Pointer[Gateway] // whose servers are listened to

	detach func() bool // stops it from ending with its handler; nil if it cannot be parked

	mu        sync.Mutex
	closed    bool
	parked    *parkedStream // to be finished when the stream ends; nil if its handler does that
	listeners map[listenerKey]*listener
	open      sync.WaitGroup // listeners
	tasks     []string       // of which servers have agreed to tell
	unfollow  func()         // stops to hear what other replicas have for the client; nil if it does not
}

const (
	// joinPause is how long a client that begins to listen waits for the servers.
	// What they say after that reaches it, what they said before may not.
	joinPause = time.Second
	// partingTime is how long a server gets to take note that a client has left.
	partingTime = time.Second
)

func (v *visit) newStream(wants *interests) *stream {
	streamable.CloseAfter(v.Writer.Header(), v.HTTP)
	s := &stream{visit: v.open(), wants: wants}
	s.live(v)
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
	if v.g.streams[v.client.audience] == nil {
		v.g.streams[v.client.audience] = map[*stream]bool{}
	}
	v.g.streams[v.client.audience][s] = true
	v.g.listening.Take(v.client.owner, 0)
	v.g.mu.Unlock()
	v.client.mu.Lock()
	v.client.streams = slices.Insert(v.client.streams, 0, s)
	v.client.mu.Unlock()
	if v.client.ended.Load() || g.exiting() {
		s.end() // delete, or endStreams, did not see this stream
	}
	return s
}

// close ends the stream and waits for its listeners.
func (s *stream) close() {
	c, state := s.visit.client, s.visit.g.State
	c.mu.Lock()
	c.streams = slices.DeleteFunc(c.streams, func(other *stream) bool { return other == s })
	c.mu.Unlock()
	state.mu.Lock()
	if audience := state.streams[c.audience]; audience[s] {
		state.listening.Give(c.owner, 0)
		if delete(audience, s); len(audience) == 0 {
			delete(state.streams, c.audience)
		}
	}
	state.mu.Unlock()
	if s.wants != nil {
		state.subscribing.Give(c.owner, s.size)
	}
	s.mu.Lock()
	s.closed = true
	unfollow := s.unfollow
	s.mu.Unlock()
	if unfollow != nil {
		unfollow()
	}
	s.end()
	s.open.Wait()
	s.visit.asides.Wait()
	s.mu.Lock()
	left := s.listeners
	s.listeners = nil
	s.mu.Unlock()
	for _, e := range left {
		s.handOver(e)
	}
}

// keepOpen keeps the stream open until its end.
func (s *stream) keepOpen() {
	defer s.keepAlive().Stop()
	<-s.ctx.Done()
}

// keepAlive has comments sent regularly, until the timer is stopped.
func (s *stream) keepAlive() (timer *time.Timer) {
	out := s.visit.out
	timer = time.AfterFunc(math.MaxInt64, func() { // Reset starts it once timer is set
		out.KeepAlive()
		if out.Err() == nil {
			timer.Reset(streamable.KeepAlive)
		}
	})
	timer.Reset(streamable.KeepAlive)
	return timer
}

// join has the client hear of all servers. The channel is closed when those that are listened to have
// answered, or failed to.
func (s *stream) join(last func(server string) string) <-chan struct{} {
	begun := make(chan struct{})
	var waiting atomic.Int64
	waiting.Store(1) // until all are asked
	done := func() {
		if waiting.Add(-1) == 0 {
			close(begun)
		}
	}
	for _, server := range s.g.Load().seen(s.visit.caller.Identity) {
		waiting.Add(1)
		s.attend(server, last(server.Name), sync.OnceFunc(done))
	}
	done()
	return begun
}

// await waits until the servers listened to have answered, but not for long.
func (s *stream) await(begun <-chan struct{}) {
	select {
	case <-begun:
		return // without a channel for the end of the stream, which it would keep
	default:
	}
	timer := time.NewTimer(joinPause)
	defer timer.Stop()
	select {
	case <-begun:
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// move makes the stream one of another Gateway. It tells the client if that has other servers.
func (s *stream) move(from, to *Gateway) {
	s.g.Store(to)
	identity := s.visit.caller.Identity
	if from.standing(identity) != to.standing(identity) || to.exiting() {
		s.end()
		return
	}
	before, now := from.seen(identity), to.seen(identity)
	another := from.view(identity) != to.view(identity) // listeners go by the old view
	changed := another || len(before) != len(now)
	var stopped []*listener
	s.mu.Lock()
	for key, e := range s.listeners {
		if server := to.byID(key.id); another || server == nil || !to.rules.Sees(identity, server.Name) {
			e.stop()
			delete(s.listeners, key)
			stopped = append(stopped, e)
		}
	}
	s.mu.Unlock()
	for _, e := range stopped {
		s.handOver(e)
	}
	for _, server := range now {
		if another || from.byID(server.ID) == nil || !from.rules.Sees(identity, server.Name) {
			changed = true
			s.attend(server, "", func() {})
		}
	}
	if changed {
		s.later(func() { s.announce(mcp.Tools, mcp.Prompts, mcp.Resources) })
	}
}

// later runs f in the background: clients may be slow. close waits for it.
func (s *stream) later(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.open.Go(f)
	}
}

// announce tells the client that lists have changed.
func (s *stream) announce(changed ...mcp.ListKind) {
	for _, k := range changed {
		var m jsonrpc.Message
		if m.Read(jsonrpc.Notification(mcp.ListKinds[k].Notice, nil)) != nil {
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

// listenTo starts a listener, for as long as the stream lasts, unless it is there.
func (s *stream) listenTo(key listenerKey, last string, begun func()) {
	s.start(&listener{key: key, at: streamable.Position{ID: last}}, begun)
}

// start starts a listener, and reports whether it is new.
func (s *stream) start(e *listener, begun func()) bool {
	ctx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listeners[e.key] != nil {
		begun()
		stop()
		return false
	}
	e.stop = stop
	if s.listeners == nil {
		s.listeners = map[listenerKey]*listener{}
	}
	s.listeners[e.key] = e
	s.open.Go(func() {
		defer begun()
		defer stop()
		s.listen(ctx, e, begun)
		if e.unsubscribe != nil {
			e.unsubscribe()
		}
	})
	return true
}

// deliver gives the client a message of a server that belongs to no call, if it is
// one that it wants.
func (s *stream) deliver(g *Gateway, l *link, m *jsonrpc.Message, id string) bool {
	v := &s.visit
	if !s.admits(g, l, m) {
		return false
	}
	if s.wants == nil {
		return v.out.Event(&streamable.Event{ID: id, Data: l.translator(g).message(m)})
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

// admits reports whether the client may have a message of a server that belongs to no call, and wants it.
func (s *stream) admits(g *Gateway, l *link, m *jsonrpc.Message) bool {
	v := &s.visit
	if m.Is(jsonrpc.Method, mcp.MethodUpdated) {
		if server := g.of(l); server == nil || !g.rules.Hears(v.caller.Identity, server.Name, m.Text(jsonrpc.URI)) {
			return false
		}
	}
	if s.wants != nil {
		return s.wants.want(m, l.server)
	}
	if m.IsRequest() && !v.client.can(m.Text(jsonrpc.Method)) {
		return false
	}
	// A server of the modern era learns a little later that the client has unsubscribed.
	era, _ := l.state()
	return era != mcp.Modern || !m.Is(jsonrpc.Method, mcp.MethodUpdated) || l.subscriptions.has(m.Text(jsonrpc.URI))
}

// agreed notes of which tasks a server has agreed to tell.
func (s *stream) agreed(g *Gateway, l *link, m *jsonrpc.Message) {
	var ids []string
	if s.wants == nil || !m.Has(jsonrpc.TaskIDs) || json.Unmarshal(m.Literal(jsonrpc.TaskIDs), &ids) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		shown := g.shown(l.server, mcp.Tasks, id)
		if slices.Contains(s.wants.tasks[l.server], id) && !slices.Contains(s.tasks, shown) {
			s.tasks = append(s.tasks, shown)
		}
	}
}

// agreedTasks returns the tasks of which servers have agreed to tell.
func (s *stream) agreedTasks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tasks)
}

// tagged returns a message with the id of the listen request it belongs to.
func (s *stream) tagged(raw []byte) []byte {
	var m jsonrpc.Message
	if m.Read(raw) != nil {
		return raw
	}
	id := s.visit.id
	member := slices.Concat([]byte(`"`+mcp.MetaSubscriptionID+`":`), id)
	if m.Has(jsonrpc.SubscriptionID) {
		return jsonspan.Spliced(raw, m.Replace(jsonrpc.SubscriptionID, id))
	}
	return jsonspan.Spliced(raw, m.InsertMeta(member))
}

// stop stops a listener.
func (s *stream) stop(key listenerKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.listeners[key]; e != nil {
		e.stop()
		delete(s.listeners, key)
	}
}

// interests are what a client of the modern era listens to.
type interests struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"`

	of    map[string][]string // the URIs that servers know the resources by, by server
	shown map[string]string   // what the client calls them, by server and URI
	tasks map[string][]string // the ids that servers know the tasks by, by server
}

func (i interests) nothing() bool {
	return !i.Tools && !i.Prompts && !i.Resources && len(i.URIs) == 0 && len(i.Tasks) == 0
}

// kinds returns the lists whose changes are wanted.
func (i *interests) kinds() (heard []mcp.ListKind) {
	if i.Tools {
		heard = append(heard, mcp.Tools)
	}
	if i.Prompts {
		heard = append(heard, mcp.Prompts)
	}
	if i.Resources {
		heard = append(heard, mcp.Resources, mcp.Templates)
	}
	return heard
}

// resolve finds the servers of the resources and tasks. It leaves out those that the client may
// not have.
func (i *interests) resolve(v *visit) {
	i.of, i.shown, i.tasks = map[string][]string{}, map[string]string{}, map[string][]string{}
	for _, shown := range i.Tasks {
		s, id := v.g.locateTask(shown)
		if s != nil && v.g.rules.AllowsUnknown(v.Caller.Identity, s.Name) && v.g.tasks.Has(&v.Caller, s, id) {
			i.tasks[s.Name] = append(i.tasks[s.Name], id)
		}
	}
	others := search{visit: v}
	for _, shown := range i.URIs {
		s, uri := v.g.locate(shown)
		switch {
		case s != nil:
		case v.g.transparent():
			s, uri = v.g.config.Servers[0], shown
		default:
			s, _ = others.owner(shown)
			uri = shown
		}
		if s == nil || !v.g.rules.Hears(v.Caller.Identity, s.Name, uri) {
			continue
		}
		i.of[s.Name] = append(i.of[s.Name], uri)
		i.shown[s.Name+"\x00"+uri] = shown
	}
}

// at returns which of the interests concern a server that can do this, with URIs as it
// has them.
func (i *interests) at(server string, can mcp.Abilities) interests {
	mine := interests{
		Tools:     i.Tools && can&mcp.ToolsChange != 0,
		Prompts:   i.Prompts && can&mcp.PromptsChange != 0,
		Resources: i.Resources && can&mcp.ResourcesChange != 0,
	}
	if can&mcp.CanSubscribe != 0 {
		mine.URIs = i.of[server]
	}
	if can&mcp.TellsOfTasks != 0 {
		mine.Tasks = i.tasks[server]
	}
	return mine
}

// wantsNotice reports whether the client wants to know of changes of a list, by the notification that tells of them.
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

// want reports whether the client wants a message of a server.
func (i *interests) want(m *jsonrpc.Message, server string) bool {
	switch m.Text(jsonrpc.Method) {
	case mcp.MethodUpdated:
		return slices.Contains(i.of[server], m.Text(jsonrpc.URI))
	case mcp.MethodTask:
		return slices.Contains(i.tasks[server], m.Text(jsonrpc.TaskID))
	}
	return i.wantsNotice(m.Text(jsonrpc.Method))
}
