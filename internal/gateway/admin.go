package gateway

import (
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Refresh has the lists of a server asked for anew, and tells the clients that listen.
// It returns how many of them listen here.
func (g *Gateway) Refresh(server string) (told int) {
	s := g.servers[server]
	if s == nil {
		return 0
	}
	defer g.elsewhere.refreshed(s)
	return g.forgetLists(s)
}

// RefreshHere does so at this replica only.
func (g *Gateway) RefreshHere(server string) {
	if s := g.servers[server]; s != nil {
		g.forgetLists(s)
	}
}

// forgetLists has the lists of a server asked for anew, and tells the clients.
func (g *Gateway) forgetLists(s *upstream.Server) (told int) {
	return g.refresh(s, func(string) bool { return true }, func(l *link) { l.forgetLists(g, catalog.EveryKind...) })
}

// refresh has the server asked again for the clients that it concerns, and has their links forget
// something. It tells the clients.
func (g *Gateway) refresh(s *upstream.Server, concerns func(identity string) bool, forget func(*link)) (told int) {
	g.shared.State.ToolsChanged(s)
	g.audiences.each(func(a *audience) {
		if concerns(a.identity) {
			a.at(s.ID).forget()
		}
	})
	for _, c := range g.clients() {
		if l := c.linked(s); l != nil && concerns(c.identity) {
			forget(l)
		}
	}
	sees := func(identity string) bool { return g.rules.Sees(identity, s.Name) && concerns(identity) }
	return g.announce(sees, mcp.Tools, mcp.Prompts, mcp.Resources)
}

// TemplatesChanged tells the clients that listen that the gateway itself has other
// templates than before.
func (g *Gateway) TemplatesChanged() {
	g.announce(func(string) bool { return true }, mcp.Resources)
}

// announce tells those who listen, and whom it concerns, that lists have changed.
func (g *Gateway) announce(concerns func(identity string) bool, changed ...mcp.ListKind) (told int) {
	g.mu.Lock()
	streams := g.streamsOf(g)
	g.mu.Unlock()
	for _, s := range streams {
		if concerns(s.visit.caller.Identity) {
			s.later(func() { s.announce(changed...) })
			told++
		}
	}
	return told
}

// Sessions returns how many sessions of clients are remembered, by the label of the client in
// metrics and by its name.
func (g *Gateway) Sessions() map[string]map[string]int {
	sessions := map[string]map[string]int{}
	for _, c := range g.clients() {
		if c.ended.Load() {
			continue
		}
		who := g.rules.Caller(c.identity)
		name := access.NameOf(c.identity)
		switch name {
		case "":
			name = access.Anonymous
		case access.OperatorIdentity:
			name = who.Label
		}
		if sessions[who.Label] == nil {
			sessions[who.Label] = map[string]int{}
		}
		sessions[who.Label][name]++
	}
	return sessions
}

// Links returns how many sessions of clients of the aggregate are open with each server, by its name.
func (g *Gateway) Links() map[string]int {
	open := map[string]int{}
	for _, c := range g.clients() {
		for _, l := range c.allLinks() {
			if s := g.of(l); s != nil && l.isOpen() {
				open[s.Name]++
			}
		}
	}
	return open
}

// Original returns a text that was masked for a client by a server, as long as it is kept, without what is redacted for
// the client by now, and how many characters it has.
func (g *Gateway) Original(server, client, handle string) (text string, chars int, ok bool) {
	s := g.servers[server]
	if s == nil || s.Mask == nil {
		return "", 0, false
	}
	body, ok := s.Mask.Kept(client, handle)
	if !ok {
		return "", 0, false
	}
	who := g.rules.Caller(client)
	text = jsonspan.Text(who.Redactor().Body(body))
	return text, utf8.RuneCountInString(text), true
}
