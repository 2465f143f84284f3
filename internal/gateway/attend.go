package gateway

import (
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A session with a server is listened to in a stream of its own: the server can ask the client
// something there, log, and tell of resources. A client without a session only needs to know when lists
// change. That is the same for all of its audience, so one of them listens for the others: it is
// elected when no other does, and when it leaves, another one is.

// attend has the client hear of a server: by a listener, if it needs one of its own or is elected. last
// is the event after which the client resumes a stream of the server.
func (s *stream) attend(server *upstream.Server, last string, begun func()) {
	g, c := s.g.Load(), s.visit.client
	p := g.profile(c, server.ID)
	e := &listener{key: listenerKey{id: server.ID}, profile: p}
	e.at.ID = last
	switch needed := last != "" || s.needsListener(server); {
	case c.apart.Load(), needed && s.wants != nil: // it may not be told the same, or not want to hear of all lists
		e.profile = nil
		s.start(e, begun)
		return
	case !needed && !s.wantsChanges(p.current(server)):
	case !p.addReader(needed): // another one listens
		s.announceMissed(p)
	default:
		e.elected = !needed
		s.announceMissed(p)
		if !s.start(e, begun) {
			s.handOver(e)
		}
		return
	}
	if l := c.linked(server); l != nil && s.wants == nil {
		s.listenToSubscribed(l)
	}
	begun()
}

// announceMissed tells the client of lists that have changed since it has asked for them.
func (s *stream) announceMissed(p *profile) {
	if missed := s.visit.client.missed(&p.lists); len(missed) > 0 {
		s.later(func() { s.announce(missed...) })
	}
}

// needsListener reports whether a server may have something to say to this client alone.
func (s *stream) needsListener(server *upstream.Server) bool {
	if s.wants != nil {
		return len(s.wants.of[server.Name])+len(s.wants.tasks[server.Name]) > 0
	}
	l := s.visit.client.linked(server)
	if l == nil || !l.isOpen() {
		return false
	}
	era, _ := l.state()
	return era == mcp.Legacy
}

// wantsChanges reports whether the client wants to know of changes of lists of a server, which says
// this of itself: nothing, if it is not known.
func (s *stream) wantsChanges(said *about) bool {
	if said != nil && said.can&(mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange) == 0 {
		return false
	}
	return s.wants == nil || s.wants.Tools || s.wants.Prompts || s.wants.Resources
}

// listenToSubscribed listens to the resources of a server of the modern era that the client has
// subscribed to.
func (s *stream) listenToSubscribed(l *link) {
	if era, _ := l.state(); era != mcp.Modern {
		return
	}
	for _, uri := range l.subscriptions.all() {
		s.listenTo(listenerKey{l.id, uri}, "", func() {})
	}
}

// listensTo reports whether the stream has a listener for a server.
func (s *stream) listensTo(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listeners[listenerKey{id: id}] != nil
}

// handOver has another client of the audience listen to a server, if it was the last that did.
func (s *stream) handOver(e *listener) {
	if e.profile == nil || !e.profile.removeReader() {
		return
	}
	for _, other := range s.visit.g.followers(s.visit.client.audience, e.key.id) {
		server := other.g.Load().byID(e.key.id)
		if server == nil || !other.wantsChanges(e.profile.last()) {
			continue
		}
		if !e.profile.addReader(false) {
			return // another one listens already
		}
		if other.start(&listener{key: e.key, profile: e.profile, elected: true}, func() {}) {
			return
		}
		e.profile.removeReader()
	}
}

// followers returns the streams of an audience that have no listener for a server which they may know of.
func (state *State) followers(audience, id string) (followers []*stream) {
	return slices.DeleteFunc(state.listenersOf(audience, id), func(s *stream) bool { return s.listensTo(id) })
}

// listenersOf returns the streams of an audience that may know of a server.
func (state *State) listenersOf(audience, id string) (all []*stream) {
	state.mu.Lock()
	defer state.mu.Unlock()
	for s := range state.streams[audience] {
		g := s.g.Load()
		if server := g.byID(id); server == nil || !g.rules.Sees(s.visit.caller.Identity, server.Name) {
			continue
		}
		if s.ctx.Err() == nil {
			all = append(all, s)
		}
	}
	return all
}

// announceToAll tells the client, and those for which it listens, that lists of a server have changed.
func (s *stream) announceToAll(l *link, changed ...mcp.ListKind) {
	s.announce(changed...)
	for _, other := range s.visit.g.followers(l.client.audience, l.id) {
		other.later(func() { other.announce(changed...) })
	}
}

// thenCompare returns a function that calls begun, and then has the lists of a server compared with the
// last that there were: what has changed while no client listened is announced.
func (s *stream) thenCompare(o behalf, server *upstream.Server, begun func()) func() {
	c := s.visit.client
	last := o.g.profile(c, server.ID).lists.Seen()
	return sync.OnceFunc(func() {
		begun()
		s.later(func() {
			for k, key := range last {
				list, _, failure := c.newListQuery(o, server, k).get()
				if failure == nil && list.Key != key {
					s.announceToAll(c.link(server), k)
				}
			}
		})
	})
}

// attend has the streams of the client listen to a session that has begun, and waits until they do, but
// not for long: a call may make the server ask the client something there.
func (l *link) attend(o behalf) {
	server := o.g.of(l)
	if server == nil {
		return
	}
	for _, s := range l.client.listening() {
		if s.wants != nil || s.listensTo(l.id) || !s.g.Load().rules.Sees(l.client.identity, server.Name) {
			continue
		}
		begun := make(chan struct{})
		s.attend(server, "", sync.OnceFunc(func() { close(begun) }))
		s.await(begun)
	}
}
