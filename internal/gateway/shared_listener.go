package gateway

import (
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

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
	if missed := s.req.client.missedChanges(&p.lists); len(missed) > 0 {
		s.runAsync(func() { s.announce(missed...) })
	}
}

// needsListener reports whether the server may have messages for this client only.
func (s *stream) needsListener(server *upstream.Server) bool {
	if s.wants != nil {
		return len(s.wants.serverURIs[server.Name])+len(s.wants.serverTasks[server.Name]) > 0
	}
	l := s.req.client.existingLink(server)
	if l == nil || !l.isOpen() {
		return false
	}
	era, _ := l.state()
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
	if era, _ := l.state(); era != mcp.Modern {
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
