package gateway

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// sharedUIs returns the UI resources that several servers have, so that their URIs must name the
// server. For all other servers it notes that the client knows their UI resources by their own
// URIs.
func (req *aggregateRequest) sharedUIs(k mcp.ListKind, all []*catalog.List) catalog.SharedUIs {
	if k != mcp.Tools {
		return nil
	}
	shared := req.g.sharedUIs(all)
	for _, l := range all {
		if s := req.g.servers[l.Server]; s != nil && len(l.UIs) > 0 && !req.g.transparent() && !shared.AreIn(l) {
			req.client.notePlainUIs(s, l.Key)
		}
	}
	return shared
}

// notePlainUIs notes that the client got a tool list in which all UI resources have their own URIs.
func (c *client) notePlainUIs(s *upstream.Server, key catalog.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plainUILists == nil {
		c.plainUILists = map[string]catalog.Key{}
	}
	c.plainUILists[s.ID] = key
}

// knowsPlainUI reports whether the client got a UI resource of a server under its own URI. While
// that list is cached, this holds even if another server starts to use the same URI.
func (c *client) knowsPlainUI(g *Gateway, s *upstream.Server, uri string) bool {
	c.mu.Lock()
	key := c.plainUILists[s.ID]
	c.mu.Unlock()
	list := g.shelf.Get(key)
	return list != nil && list.HasUI(uri)
}

// sharedUIs returns the UI resources that occur in the tool lists of several servers.
func (g *Gateway) sharedUIs(all []*catalog.List) catalog.SharedUIs {
	if g.transparent() || !slices.ContainsFunc(all, func(l *catalog.List) bool { return len(l.UIs) > 0 }) {
		return nil
	}
	return catalog.FindSharedUIs(all)
}
