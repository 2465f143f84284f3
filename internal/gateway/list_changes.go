package gateway

import (
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Refresh drops the cached lists of a server on all replicas and sends list-changed notifications.
// It returns the number of streams notified by this replica.
func (g *Gateway) Refresh(server string) (notified int) {
	s := g.servers[server]
	if s == nil {
		return 0
	}
	defer g.replicaSync.serverRefreshed(s)
	return g.notify.forgetLists(s)
}

// RefreshLocal is like Refresh, for this replica only.
func (g *Gateway) RefreshLocal(server string) {
	if s := g.servers[server]; s != nil {
		g.notify.forgetLists(s)
	}
}

// TemplatesChanged notifies clients that the templates of the gateway itself have changed.
func (g *Gateway) TemplatesChanged() {
	g.notify.announce(func(string) bool { return true }, mcp.Resources)
}

// LoginChanged notifies clients that the login at a server has changed: the clients of one account,
// or all if the login is shared.
func (g *Gateway) LoginChanged(server, account string, shared bool) {
	s := g.servers[server]
	if s == nil {
		return
	}
	g.notify.refresh(s, func(identity string) bool { return shared || g.Account(identity) == account }, func(l *link) {
		l.markLost(g, l.session.current().Session) // the session may belong to another account
	})
}

// ChildListChanged tells other replicas about a list-changed notification of a child process, for
// sessions without an open stream. It does not block.
func (g *Gateway) ChildListChanged(server, notice string, unread []string) {
	s := g.servers[server]
	if g.replicaSync == nil || s == nil || len(unread) == 0 {
		return
	}
	concerned := setOf(unread)
	var links []*link
	for _, c := range g.clients.all() {
		if l := c.existingLink(s); l != nil && concerned[l.session.current().Session] {
			links = append(links, l)
		}
	}
	if len(links) > 0 {
		g.run(func() { g.replicaSync.listsChanged(notice, links...) })
	}
}

// A notifier tells clients that what they see has changed.
type notifier struct{ g *Gateway }

// forgetLists drops the cached lists of a server and notifies clients.
func (n notifier) forgetLists(s *upstream.Server) (notified int) {
	return n.refresh(s, func(string) bool { return true }, func(l *link) { l.forgetLists(n.g, catalog.EveryKind...) })
}

// refresh drops the cached facts about a server for the identities that concerns selects, calls
// forget for their links, and notifies these clients.
func (n notifier) refresh(s *upstream.Server, concerns func(identity string) bool, forget func(*link)) (notified int) {
	n.g.shared.Retained.ToolsChanged(s)
	n.g.audiences.each(func(a *audience) {
		if concerns(a.identity) {
			a.profile(s.ID).forget()
		}
	})
	for _, c := range n.g.clients.all() {
		if l := c.existingLink(s); l != nil && concerns(c.identity) {
			forget(l)
		}
	}
	sees := func(identity string) bool { return n.g.rules.Sees(identity, s.Name) && concerns(identity) }
	return n.announce(sees, mcp.Tools, mcp.Prompts, mcp.Resources)
}

// announce sends list-changed notifications to the open streams of the selected identities.
func (n notifier) announce(concerns func(identity string) bool, changed ...mcp.ListKind) (notified int) {
	for _, s := range n.g.streams.of(n.g) {
		if concerns(s.req.caller.Identity) {
			s.announceAsync(changed...)
			notified++
		}
	}
	return notified
}

// serverAvailable notifies clients that got responses without the server.
func (n notifier) serverAvailable(s *upstream.Server) {
	if !s.Missing.Swap(false) {
		return
	}
	affected := map[string]bool{}
	n.g.audiences.each(func(a *audience) { affected[a.key] = a.profile(s.ID).noteAvailable() })
	for _, stream := range n.g.streams.of(n.g) {
		if affected[stream.req.client.audience] && n.g.rules.Sees(stream.req.caller.Identity, s.Name) {
			stream.announceAsync(mcp.Tools, mcp.Prompts, mcp.Resources)
		}
	}
}

// listsChanged invalidates lists and notifies clients, as if the server had sent the notification
// to this replica.
func (n notifier) listsChanged(s *upstream.Server, notice string, affected *affectedClients, source string) {
	if notice == mcp.ListKinds[mcp.Tools].Notice {
		n.g.shared.Retained.ToolsChanged(s)
	}
	sessions, audiences := setOf(affected.Sessions), setOf(affected.Audiences)
	for _, c := range n.g.clients.all() {
		l := c.existingLink(s)
		if l == nil {
			continue
		}
		if hash := c.keyHash(); affected.All || sessions[hex.EncodeToString(hash[:])] {
			if own := l.ownLists(); own != nil {
				own.Changed(notice, source)
			}
		}
	}
	var keys []string
	n.g.audiences.each(func(a *audience) {
		if (affected.All || audiences[hex.EncodeToString([]byte(a.key))]) && a.profile(s.ID).lists.Changed(notice, source) {
			keys = append(keys, a.key)
		}
	})
	var m jsonrpc.Message
	if m.Read(jsonrpc.Notification(notice, nil)) != nil {
		return
	}
	for _, audience := range keys {
		listeners := n.g.streams.followers(audience, s.ID)
		if s.ChildrenOnly { // streams of this replica listen to another child process
			listeners = n.g.streams.seeing(audience, s.ID)
		}
		for _, stream := range listeners {
			stream.work.runAsync(func() { stream.deliver(n.g, newLink(stream.req.client, s), &m, "") })
		}
	}
}

// listChanges are the lists that have changed, by server ID and method of the notification.
type listChanges map[string]map[string]*affectedClients

// affectedClients are the clients that a change affects: those that were notified, and their
// audiences.
type affectedClients struct {
	Sessions  []string `json:",omitempty"` // hashes of session ids
	Audiences []string `json:",omitempty"` // keys in hex
	All       bool     `json:",omitempty"` // too many to name
}

const (
	// changesPause is how long changes are collected after the first one was sent.
	changesPause = 20 * time.Millisecond
	// maxAffected limits the sessions and audiences per change.
	maxAffected = 1_000
)

// add adds a change that a server sent to a client.
func (c listChanges) add(server, notice, session, audience string) {
	if c[server] == nil {
		c[server] = map[string]*affectedClients{}
	}
	affected := c[server][notice]
	if affected == nil {
		affected = new(affectedClients)
		c[server][notice] = affected
	}
	if session != "" && !slices.Contains(affected.Sessions, session) {
		affected.Sessions = append(affected.Sessions, session)
	}
	if !slices.Contains(affected.Audiences, audience) {
		affected.Audiences = append(affected.Audiences, audience)
	}
	if affected.All || len(affected.Sessions) > maxAffected || len(affected.Audiences) > maxAffected {
		affected.All = true
		affected.Sessions, affected.Audiences = nil, nil
	}
}

// A listBroadcast tells other replicas about list-changed notifications of servers.
type listBroadcast struct {
	state *State
	bus   *bus

	mu      sync.Mutex
	pending listChanges // changes to send with the next timer
	timer   *time.Timer // sends pending; nil if no change was sent recently
}

// send tells other replicas that a server sent list-changed notifications to the clients of links.
// It sends the first change before it returns, so that clients do not get an outdated list from
// another replica. It collects later ones for changesPause.
func (b *listBroadcast) send(notice string, links []*link) {
	links = slices.DeleteFunc(links, func(l *link) bool { return l.client.inspection != nil })
	if len(links) == 0 {
		return
	}
	sessions := make([]string, len(links))
	for i, l := range links {
		if l.client.hasKey() {
			hash := l.client.keyHash()
			sessions[i] = hex.EncodeToString(hash[:])
		}
	}
	addTo := func(changes listChanges) {
		for i, l := range links {
			changes.add(l.serverID, notice, sessions[i], hex.EncodeToString([]byte(l.client.audience)))
		}
	}
	b.mu.Lock()
	if b.timer != nil {
		if b.pending == nil {
			b.pending = listChanges{}
		}
		addTo(b.pending)
		b.mu.Unlock()
		return
	}
	b.timer = time.AfterFunc(changesPause, b.sendPending)
	b.mu.Unlock()
	first := listChanges{}
	addTo(first)
	b.bus.publish(topicAll, replicaMessage{Lists: first})
}

// sendPending sends the collected changes.
func (b *listBroadcast) sendPending() {
	b.mu.Lock()
	changes := b.pending
	b.pending = nil
	if changes == nil || b.bus.ctx.Err() != nil {
		b.timer = nil
		b.mu.Unlock()
		return
	}
	b.timer.Reset(changesPause)
	b.mu.Unlock()
	b.bus.publish(topicAll, replicaMessage{Lists: changes})
}

// stop stops the timer. The caller has closed the bus.
func (b *listBroadcast) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
}

// receive handles list changes from another replica.
func (b *listBroadcast) receive(from string, all listChanges) {
	for server, changes := range all {
		for notice, affected := range changes {
			for _, g := range b.state.gateways() {
				if s := g.byID[server]; s != nil && affected != nil {
					g.notify.listsChanged(s, notice, affected, "replica "+from)
				}
			}
		}
	}
}

func setOf(all []string) map[string]bool {
	set := make(map[string]bool, len(all))
	for _, one := range all {
		set[one] = true
	}
	return set
}
