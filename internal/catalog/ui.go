package catalog

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A UI is where a tool names the resource that shows its results to people, as MCP Apps do.
type UI struct {
	URI        string
	Start, End int // of the literal
}

var uiPaths = jsonspan.CompilePaths(mcp.UIMembers...)

// AppendUIs appends the UI resources that a tool names, which stands at an offset. A tool that
// repeats such a member names none: readers could disagree about which it is.
func AppendUIs(to []UI, tool []byte, offset int) []UI {
	if !bytes.Contains(tool, []byte(`"_meta"`)) {
		return to
	}
	before := len(to)
	err := uiPaths.Find(tool, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && v.End-v.Start <= mcp.LongestURI {
			to = append(to, UI{string(jsonspan.AppendText(nil, v.Body(tool))), offset + v.Start, offset + v.End})
		}
	})
	if err != nil {
		return to[:before]
	}
	return to
}

// SharedUIs are the URIs of UI resources that several servers have. In lists they say which
// server is meant.
type SharedUIs map[string]bool

// AreIn reports whether a list has one of them.
func (shared SharedUIs) AreIn(l *List) bool { return len(shared.edits(l, 0, len(l.Joined))) > 0 }

// edits returns the edits of a part of a list that have it say which server is meant.
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

// FindSharedUIs returns which UI resources of lists of tools need to say whose they are.
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
				share(ui.URI) // it would be taken for one that says whose it is
			}
		}
	}
	return shared
}

// HasUI reports whether a list of tools names a UI resource.
func (l *List) HasUI(uri string) bool {
	return slices.ContainsFunc(l.UIs, func(ui UI) bool { return ui.URI == uri })
}
