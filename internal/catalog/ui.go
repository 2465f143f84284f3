package catalog

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A UI is the member of a tool with the URI of the resource that shows its results, as in MCP Apps.
type UI struct {
	URI        string
	Start, End int // position of the literal
}

var uiPaths = jsonspan.CompilePaths(mcp.UIMembers...)

// AppendUIs appends the UI resources of a tool at an offset. A tool that repeats such a member has
// none, because readers could disagree about the value.
func AppendUIs(dst []UI, tool []byte, offset int) []UI {
	if !bytes.Contains(tool, []byte(`"_meta"`)) {
		return dst
	}
	before := len(dst)
	err := uiPaths.Find(tool, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && v.End-v.Start <= mcp.LongestURI {
			dst = append(dst, UI{string(jsonspan.AppendText(nil, v.Body(tool))), offset + v.Start, offset + v.End})
		}
	})
	if err != nil {
		return dst[:before]
	}
	return dst
}

// SharedUIs are URIs of UI resources that several servers have. In lists they are replaced with
// URIs that name the server.
type SharedUIs map[string]bool

// AreIn reports whether a list has one of them.
func (shared SharedUIs) AreIn(l *List) bool { return len(shared.edits(l, 0, len(l.Joined))) > 0 }

// edits returns the edits of a part of a list that replace shared URIs.
func (shared SharedUIs) edits(l *List, start, end int) (edits []jsonspan.Edit) {
	if len(shared) == 0 {
		return nil
	}
	for _, ui := range l.UIs {
		if shared[ui.URI] && start <= ui.Start && ui.End <= end {
			shown := jsonrpc.Quote(mcp.UIResourceURI(l.Server, ui.URI))
			edits = append(edits, jsonspan.Edit{Start: ui.Start - start, End: ui.End - start, New: shown})
		}
	}
	return edits
}

// FindSharedUIs returns the UI resources in tool lists whose URIs must name the server: several
// servers have them, or their URIs look like those that name a server.
func FindSharedUIs(all []*List) SharedUIs {
	var shared SharedUIs
	share := func(uri string) {
		if shared == nil {
			shared = SharedUIs{}
		}
		shared[uri] = true
	}
	owner := map[string]string{}
	for _, l := range all {
		for _, ui := range l.UIs {
			if first, there := owner[ui.URI]; there && first != l.Server {
				share(ui.URI)
			}
			owner[ui.URI] = l.Server
			if _, _, err := mcp.ParseURI(ui.URI); err == nil {
				share(ui.URI) // it would be taken for a URI that names a server
			}
		}
	}
	return shared
}

// HasUI reports whether a list of tools has a UI resource.
func (l *List) HasUI(uri string) bool {
	return slices.ContainsFunc(l.UIs, func(ui UI) bool { return ui.URI == uri })
}
