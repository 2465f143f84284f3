package gateway

import (
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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
	return g.forgetLists(s)
}

// RefreshLocal is like Refresh, for this replica only.
func (g *Gateway) RefreshLocal(server string) {
	if s := g.servers[server]; s != nil {
		g.forgetLists(s)
	}
}

// forgetLists drops the cached lists of a server and notifies clients.
func (g *Gateway) forgetLists(s *upstream.Server) (notified int) {
	return g.refresh(s, func(string) bool { return true }, func(l *link) { l.forgetLists(g, catalog.EveryKind...) })
}

// refresh drops the cached facts about a server for the identities that concerns selects, calls
// forget for their links, and notifies these clients.
func (g *Gateway) refresh(s *upstream.Server, concerns func(identity string) bool, forget func(*link)) (notified int) {
	g.shared.Retained.ToolsChanged(s)
	g.audiences.each(func(a *audience) {
		if concerns(a.identity) {
			a.profile(s.ID).forget()
		}
	})
	for _, c := range g.clients() {
		if l := c.existingLink(s); l != nil && concerns(c.identity) {
			forget(l)
		}
	}
	sees := func(identity string) bool { return g.rules.Sees(identity, s.Name) && concerns(identity) }
	return g.announce(sees, mcp.Tools, mcp.Prompts, mcp.Resources)
}

// TemplatesChanged notifies clients that the templates of the gateway itself have changed.
func (g *Gateway) TemplatesChanged() {
	g.announce(func(string) bool { return true }, mcp.Resources)
}

// announce sends list-changed notifications to the open streams of the selected identities.
func (g *Gateway) announce(concerns func(identity string) bool, changed ...mcp.ListKind) (notified int) {
	g.mu.Lock()
	streams := g.streamsOf(g)
	g.mu.Unlock()
	for _, s := range streams {
		if concerns(s.req.caller.Identity) {
			s.runAsync(func() { s.announce(changed...) })
			notified++
		}
	}
	return notified
}

// Sessions returns the number of remembered client sessions, by metrics label and client name.
func (g *Gateway) Sessions() map[string]map[string]int {
	sessions := map[string]map[string]int{}
	for _, c := range g.clients() {
		if c.ended.Load() {
			continue
		}
		caller := g.rules.Caller(c.identity)
		name := access.NameOf(c.identity)
		switch name {
		case "":
			name = access.Anonymous
		case access.OperatorIdentity:
			name = caller.Label
		}
		if sessions[caller.Label] == nil {
			sessions[caller.Label] = map[string]int{}
		}
		sessions[caller.Label][name]++
	}
	return sessions
}

// Links returns the number of open sessions with each server, by server name. It counts sessions of
// the aggregate endpoint only.
func (g *Gateway) Links() map[string]int {
	open := map[string]int{}
	for _, c := range g.clients() {
		for _, l := range c.allLinks() {
			if s := g.linkServer(l); s != nil && l.isOpen() {
				open[s.Name]++
			}
		}
	}
	return open
}

// Original returns the original of a text that was masked for a client, and its length in
// characters. Current redaction rules apply. It reports false if the original is unknown or
// expired.
func (g *Gateway) Original(server, client, handle string) (text string, chars int, ok bool) {
	s := g.servers[server]
	if s == nil || s.Mask == nil {
		return "", 0, false
	}
	body, ok := s.Mask.Kept(client, handle)
	if !ok {
		return "", 0, false
	}
	caller := g.rules.Caller(client)
	text = jsonspan.Text(caller.Redactor().Body(body))
	return text, utf8.RuneCountInString(text), true
}
