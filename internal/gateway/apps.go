package gateway

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// sharedUIs returns which UI resources of lists need to say whose they are. It notes which servers
// have none of them: the client knows all of their UI resources by their own URIs.
func (v *visit) sharedUIs(k mcp.ListKind, all []*catalog.List) catalog.SharedUIs {
	if k != mcp.Tools {
		return nil
	}
	shared := v.g.sharedUIs(all)
	for _, l := range all {
		if s := v.g.servers[l.Server]; s != nil && len(l.UIs) > 0 && !v.g.transparent() && !shared.AreIn(l) {
			v.client.notePlain(s, l.Key)
		}
	}
	return shared
}

// notePlain notes that the client has got a list of tools with all UI resources by their own URIs.
func (c *client) notePlain(s *upstream.Server, key catalog.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plain == nil {
		c.plain = map[string]catalog.Key{}
	}
	c.plain[s.ID] = key
}

// gavePlain reports whether the client knows a UI resource of a server by its own URI. As long as
// the list is kept in which it was given, a server that has the same URI later does not change that.
func (c *client) gavePlain(g *Gateway, s *upstream.Server, uri string) bool {
	c.mu.Lock()
	key := c.plain[s.ID]
	c.mu.Unlock()
	list := g.shelf.Get(key)
	return list != nil && list.HasUI(uri)
}

// sharedUIs returns which UI resources of lists of tools need to say whose they are.
func (g *Gateway) sharedUIs(all []*catalog.List) catalog.SharedUIs {
	if g.transparent() || !slices.ContainsFunc(all, func(l *catalog.List) bool { return len(l.UIs) > 0 }) {
		return nil
	}
	return catalog.FindSharedUIs(all)
}
