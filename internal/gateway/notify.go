package gateway

import (
	"encoding/hex"

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
	return g.notifier().forgetLists(s)
}

// RefreshLocal is like Refresh, for this replica only.
func (g *Gateway) RefreshLocal(server string) {
	if s := g.servers[server]; s != nil {
		g.notifier().forgetLists(s)
	}
}

// TemplatesChanged notifies clients that the templates of the gateway itself have changed.
func (g *Gateway) TemplatesChanged() {
	g.notifier().announce(func(string) bool { return true }, mcp.Resources)
}

// LoginChanged notifies clients that the login at a server has changed: the clients of one account,
// or all if the login is shared.
func (g *Gateway) LoginChanged(server, account string, shared bool) {
	s := g.servers[server]
	if s == nil {
		return
	}
	g.notifier().refresh(s, func(identity string) bool { return shared || g.Account(identity) == account }, func(l *link) {
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

func (g *Gateway) notifier() notifier { return notifier{g} }

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
