// Package catalog keeps the lists of what servers have.
//
// A [List] is a list of one server as some clients see it. A [Shelf] keeps each list but once. A
// [Cache] knows which list is the last that there was, and whether it is still good.
package catalog

import (
	"fmt"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A List is what a server has of a kind, as clients see it. It never changes, and
// clients that see the same share one.
type List struct {
	Key    Key               // on the shelf; zero if it is not there
	Server string            // its name
	Joined []byte            // the items, with commas between them
	Ends   []int             // where the items end in Joined
	Names  []string          // as clients see them
	Short  map[string]string // the names, without that of the server, of those that were shortened
	Params mcp.ParamHeaders  // of tools
	UIs    []UI              // of tools, in the order in which they stand

	Focused map[string]string // the original names of tools to which a Focus was added
}

// Empty is the list of a server that has nothing.
var Empty = new(List)

// Item returns an item.
func (l *List) Item(i int) []byte { return l.From(i, i+1, nil) }

// From returns the items from one up to another, with commas between them. URIs of UI resources
// that other servers have, too, say which server is meant.
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

// size returns about how much memory a list takes.
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

// A Freshness says how long and for whom a list is good.
type Freshness struct {
	Until   time.Time // it is to be asked for again then; zero: when it has changed
	Private bool
	TTL     time.Duration // as the server has said
	None    bool          // the server has no such list
}

// Members returns what a result of the modern era says of how long it is good.
func (f Freshness) Members() []byte {
	scope := "public"
	if f.Private {
		scope = "private"
	}
	return fmt.Appendf(nil, `,"ttlMs":%d,"cacheScope":%q`, f.TTL.Milliseconds(), scope)
}
