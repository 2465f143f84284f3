package gateway

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A uiName is where a tool names the resource that shows its results to people, as MCP Apps do.
type uiName struct {
	uri        string
	start, end int // of the literal
}

// uiMembers are the members of the _meta of a tool or result that name such a resource: that of
// MCP Apps, the same in earlier drafts, and that of OpenAI's Apps SDK.
var uiMembers = []string{"_meta.ui.resourceUri", "_meta.ui/resourceUri", "_meta.openai/outputTemplate"}

var uiPaths = jsonspan.CompilePaths(uiMembers...)

// appendUINames appends the UI resources that a tool names, which stands at an offset. A tool that
// repeats such a member names none: readers could disagree about which it is.
func appendUINames(to []uiName, tool []byte, offset int) []uiName {
	if !bytes.Contains(tool, []byte(`"_meta"`)) {
		return to
	}
	before := len(to)
	err := uiPaths.Find(tool, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && v.End-v.Start <= longestURI {
			to = append(to, uiName{string(jsonspan.AppendText(nil, v.Body(tool))), offset + v.Start, offset + v.End})
		}
	})
	if err != nil {
		return to[:before]
	}
	return to
}

// sharedUIs are the URIs of UI resources that several servers have. In lists they say which
// server is meant.
type sharedUIs map[string]bool

// sharedUIs returns which UI resources of lists need to say whose they are. It notes which servers
// have none of them: the client knows all of their UI resources by their own URIs.
func (v *visit) sharedUIs(k listKind, all []*listing) sharedUIs {
	if k != tools {
		return nil
	}
	shared := v.g.sharedUIs(all)
	for _, l := range all {
		if s := v.g.servers[l.server]; s != nil && len(l.uis) > 0 && !v.g.transparent() && !shared.areIn(l) {
			v.client.notePlain(s, l.key)
		}
	}
	return shared
}

// sharedUIs returns which UI resources of lists of tools need to say whose they are.
func (g *Gateway) sharedUIs(all []*listing) sharedUIs {
	if g.transparent() || !slices.ContainsFunc(all, func(l *listing) bool { return len(l.uis) > 0 }) {
		return nil
	}
	var shared sharedUIs
	share := func(uri string) {
		if shared == nil {
			shared = sharedUIs{}
		}
		shared[uri] = true
	}
	owner := map[string]string{}
	for _, l := range all {
		for _, ui := range l.uis {
			if first, there := owner[ui.uri]; there && first != l.server {
				share(ui.uri)
			}
			owner[ui.uri] = l.server
			if _, _, err := mcp.ParseURI(ui.uri); err == nil {
				share(ui.uri) // it would be taken for one that says whose it is
			}
		}
	}
	return shared
}

// areIn reports whether a list has one of them.
func (shared sharedUIs) areIn(l *listing) bool { return len(shared.edits(l, 0, len(l.joined))) > 0 }

// edits returns the edits of a part of a list that have it say which server is meant.
func (shared sharedUIs) edits(l *listing, start, end int) (edits []jsonspan.Edit) {
	if len(shared) == 0 {
		return nil
	}
	for _, ui := range l.uis {
		if shared[ui.uri] && start <= ui.start && ui.end <= end {
			shown := jsonrpc.Quote(mcp.UIResourceURI(l.server, ui.uri))
			edits = append(edits, jsonspan.Edit{Start: ui.start - start, End: ui.end - start, New: shown})
		}
	}
	return edits
}

// notePlain notes that the client has got a list of tools with all UI resources by their own URIs.
func (c *client) notePlain(s *Server, key listKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plain == nil {
		c.plain = map[string]listKey{}
	}
	c.plain[s.ID] = key
}

// gavePlain reports whether the client knows a UI resource of a server by its own URI. As long as
// the list is kept in which it was given, a server that has the same URI later does not change that.
func (c *client) gavePlain(g *Gateway, s *Server, uri string) bool {
	c.mu.Lock()
	key := c.plain[s.ID]
	c.mu.Unlock()
	list := g.shelf.get(key)
	return list != nil && list.hasUI(uri)
}
