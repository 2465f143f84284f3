// Package catalog caches the lists of servers: tools, prompts, resources, templates and skills.
//
// A [List] is a list of one server as some clients see it. A [Shelf] stores each distinct list
// once. A [Cache] knows which list is the current one, and whether it is still valid.
package catalog

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A List is a list of one kind of a server, as clients see it. It is immutable, and shared by
// clients that see the same.
type List struct {
	Key    Key               // on the shelf; zero if not there
	Server string            // name of the server
	Joined []byte            // items, separated by commas
	Ends   []int             // ends of the items in Joined
	Names  []string          // as clients see them
	Short  map[string]string // names at the server, by shortened name
	Params mcp.ParamHeaders  // of tools
	UIs    []UI              // of tools, in order

	Focused map[string]string // names at the server of tools with a Focus
}

// Empty is an empty list.
var Empty = new(List)

// Item returns an item.
func (l *List) Item(i int) []byte { return l.From(i, i+1, nil) }

// From returns the items from start up to end, separated by commas. URIs of shared UI resources are
// replaced with URIs that name the server.
func (l *List) From(start, end int, shared SharedUIs) []byte {
	if start >= end {
		return nil
	}
	first, last := 0, l.Ends[end-1]
	if start > 0 {
		first = l.Ends[start-1] + 1
	}
	return jsonspan.Spliced(l.Joined[first:last], shared.edits(l, first, last)...)
}

// size returns the approximate memory size of a list, in bytes.
func (l *List) size() int64 {
	size := len(l.Joined) + 8*len(l.Ends)
	for _, name := range l.Names {
		size += 16 + len(name)
	}
	for name, original := range l.Short {
		size += 64 + len(name) + len(original)
	}
	for _, ui := range l.UIs {
		size += 32 + len(ui.URI)
	}
	size += 32 * len(l.Focused)
	return int64(size)
}

// A Freshness says how long a list is valid, and for which clients.
type Freshness struct {
	Until   time.Time // expiry; zero: until it changes
	Private bool
	TTL     time.Duration // as the server sent it
	None    bool          // the server has no such list
}

// Members returns the members of a modern result that say how long it is valid.
func (f Freshness) Members() []byte {
	scope := "public"
	if f.Private {
		scope = "private"
	}
	return fmt.Appendf(nil, `,"ttlMs":%d,"cacheScope":%q`, f.TTL.Milliseconds(), scope)
}

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
