package mcp

import (
	"slices"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A ListKind is a kind of list.
type ListKind uint8

// Kinds of lists.
const (
	Tools ListKind = iota
	Prompts
	Resources
	Templates // of resources
	Tasks
	Skills
	ListKindCount
)

// A List is a response of a server with items of one list or several, usually one page of them. It
// is parsed in one pass. Items are filtered and renamed with edits of the message, which can be
// combined with edits of its fields.
type List struct {
	jsonrpc.Message
	Items  []Item        // in order; none of lists that are not arrays
	Cursor string        // cursor of the next page; empty for none
	TTL    time.Duration // how long the list is valid; negative if unknown

	lists  [ListKindCount]jsonspan.Value
	folded bool // has a name that equals one of a list except for case
}

// An Item is an item of a list.
type Item struct {
	Kind  ListKind
	Name  string // name, URI, URI template or task id; empty if missing
	Raw   []byte
	Start int // position of Raw in the message

	name struct{ start, end int } // position of the name in the message
}

// listPaths are three paths for each kind of list, and those of the cursor and the TTL.
var listPaths = jsonrpc.CompilePaths(
	"result.tools.*.name", "result.tools.*", "result.tools",
	"result.prompts.*.name", "result.prompts.*", "result.prompts",
	"result.resources.*.uri", "result.resources.*", "result.resources",
	"result.resourceTemplates.*.uriTemplate", "result.resourceTemplates.*", "result.resourceTemplates",
	"result.tasks.*.taskId", "result.tasks.*", "result.tasks",
	"result.skills.*.uri", "result.skills.*", "result.skills",
	"result.nextCursor", "result.ttlMs",
)

const (
	cursorPath = 3 * int(ListKindCount)
	ttlPath    = cursorPath + 1
)

// Read parses a message. A message that repeats a member of a list is refused, like one that
// repeats a field.
func (l *List) Read(data []byte) *jsonrpc.Failure {
	*l = List{Items: l.Items[:0], TTL: -1}
	text := func(v jsonspan.Value) string {
		if v.Kind != jsonspan.String {
			return ""
		}
		var room [64]byte
		return string(jsonspan.AppendText(room[:0], v.Body(data)))
	}
	var name jsonspan.Value
	failure, err := l.ReadWith(data, listPaths, func(path int, v jsonspan.Value) {
		switch kind := ListKind(path / 3); {
		case path == cursorPath:
			l.Cursor = text(v)
		case path == ttlPath:
			if ms, err := strconv.ParseInt(string(data[v.Start:v.End]), 10, 32); err == nil && ms >= 0 {
				l.TTL = time.Duration(ms) * time.Millisecond
			}
		case path%3 == 0:
			name = v
		case path%3 == 1:
			item := Item{Kind: kind, Name: text(name), Raw: data[v.Start:v.End], Start: v.Start}
			if name.Kind == jsonspan.String {
				item.name.start, item.name.end = name.Start, name.End
			}
			l.Items = append(l.Items, item)
			name = jsonspan.Value{}
		default:
			l.lists[kind] = v
			if v.Kind != jsonspan.BeginArray { // its members are not items
				l.Items = slices.DeleteFunc(l.Items, func(item Item) bool { return item.Kind == kind })
			}
		}
	})
	if failure == nil && err == jsonspan.ErrDuplicate {
		failure = jsonrpc.InvalidRequest("the message repeats a member of a list")
	}
	if failure != nil {
		*l = List{Message: jsonrpc.Message{Raw: data}, Items: l.Items[:0], TTL: -1}
	}
	l.folded = err == jsonspan.ErrFolded
	return failure
}

// CheckDecisive is [jsonrpc.Message.CheckDecisive], and also refuses members that equal those of a
// list except for case.
func (l *List) CheckDecisive() *jsonrpc.Failure {
	if l.folded {
		return jsonrpc.InvalidRequest("the message has a member whose name differs from one of a list only in case")
	}
	return l.Message.CheckDecisive()
}

// HasList reports whether the response has a list of this kind, which may be empty.
func (l *List) HasList(kind ListKind) bool { return l.lists[kind].Kind == jsonspan.BeginArray }

// End returns the end of the item in the message.
func (i *Item) End() int { return i.Start + len(i.Raw) }

// HasName reports whether the item has a name that is a string.
func (i *Item) HasName() bool { return i.name.end > 0 }

// Rename returns the edit of the message that renames the item, which must have a name. Moved by
// -Start, it is an edit of Raw.
func (i *Item) Rename(name string) jsonspan.Edit {
	return jsonspan.Edit{Start: i.name.start, End: i.name.end, New: jsonrpc.Quote(name)}
}

// Edited returns a copy of the item with edits of Raw. The item must have a name, and the edits
// must not touch it.
func (i *Item) Edited(edits ...jsonspan.Edit) *Item {
	name := i.name
	name.start -= i.Start
	name.end -= i.Start
	shift := 0
	for _, e := range edits {
		if e.End <= name.start {
			shift += len(e.New) - (e.End - e.Start)
		}
	}
	name.start += shift
	name.end += shift
	return &Item{Kind: i.Kind, Name: i.Name, Raw: jsonspan.Spliced(i.Raw, edits...), name: name}
}

// Filter returns the edits of the message that remove items for which keep returns false, with
// their commas. Lists that are objects become empty.
func (l *List) Filter(keep func(*Item) bool) (edits []jsonspan.Edit) {
	anyKept := false // in the current list
	for i := range l.Items {
		item := &l.Items[i]
		first, last := i == 0 || l.Items[i-1].Kind != item.Kind, i == len(l.Items)-1 || l.Items[i+1].Kind != item.Kind
		anyKept = anyKept && !first
		e := jsonspan.Edit{Start: item.Start, End: item.End()}
		switch {
		case keep(item):
			anyKept = true
			continue
		case anyKept: // remove the comma before it
			e.Start = l.Items[i-1].End()
		case !last: // remove the comma after it
			e.End = l.Items[i+1].Start
		}
		edits = append(edits, e)
	}
	for _, list := range l.lists {
		if list.Kind == jsonspan.BeginObject {
			edits = append(edits, jsonspan.Edit{Start: list.Start, End: list.End, New: []byte("[]")})
		}
	}
	return edits
}
