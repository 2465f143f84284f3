package mcp

import (
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
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
	Items     []Item        // in order; none of lists that are not arrays
	Cursor    string        // cursor of the next page
	HasCursor bool          // there is a cursor, which may be empty
	TTL       time.Duration // how long the list is valid; negative if unknown

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
			l.Cursor, l.HasCursor = text(v), v.Kind == jsonspan.String
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

// ListKinds describe the kinds of lists.
var ListKinds = [ListKindCount]struct {
	Method  string    // method that lists
	Member  string    // member of the result
	Needs   Abilities // capability of servers that have the list
	Changes Abilities // capability of servers that announce changes
	Notice  string    // method of that notification
	Target  TargetKind
}{
	Tools:   {"tools/list", "tools", HasTools, ToolsChange, "notifications/tools/list_changed", Tool},
	Prompts: {"prompts/list", "prompts", HasPrompts, PromptsChange, "notifications/prompts/list_changed", Prompt},
	Resources: {
		"resources/list", "resources", HasResources, ResourcesChange, "notifications/resources/list_changed", Resource,
	},
	Templates: {
		"resources/templates/list", "resourceTemplates", HasResources, ResourcesChange,
		"notifications/resources/list_changed", Resource,
	},
	Tasks: {"tasks/list", "tasks", HasTasks, 0, "", Anything},
	// Skills consist of resources.
	Skills: {"skills/list", "skills", HasSkills, 0, "notifications/resources/list_changed", Resource},
}

// ListKindOf returns the kind of list that a method returns.
func ListKindOf(method string) (ListKind, bool) {
	for k := range ListKinds {
		if ListKinds[k].Method == method {
			return ListKind(k), true
		}
	}
	return 0, false
}

// Abilities are the capabilities of a server that decisions depend on.
type Abilities uint16

// Abilities of servers.
const (
	HasTools Abilities = 1 << iota
	HasPrompts
	HasResources
	HasLogging
	HasCompletions
	HasTasks
	CanSubscribe
	ToolsChange
	PromptsChange
	ResourcesChange
	HasSkills
	NotifiesTasks // sends task notifications on request, with the tasks extension
)

var abilityPaths = jsonspan.CompilePaths("tools", "prompts", "resources", "logging", "completions", "tasks",
	"resources.subscribe", "tools.listChanged", "prompts.listChanged", "resources.listChanged",
	`extensions.io\.modelcontextprotocol/skills`, TasksPath)

// AbilitiesOf parses capabilities. An empty object is a capability, too (A4).
func AbilitiesOf(capabilities []byte) (abilities Abilities) {
	_ = abilityPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.BeginObject || v.Kind == jsonspan.True {
			abilities |= 1 << path
		}
	})
	return abilities
}

// LongestURI is the maximum length of a URI that is remembered, in bytes.
const LongestURI = 8 << 10

var errCursor = errors.New("the cursor is not from this list")

// Cursor returns the cursor for the page of a list that begins at offset.
func Cursor(offset int) string {
	text := append([]byte(nil), `{"offset":`...)
	text = strconv.AppendInt(text, int64(offset), 10)
	return base64.RawURLEncoding.EncodeToString(append(text, '}'))
}

var cursorPaths = jsonspan.CompilePaths("offset")

// ParseCursor returns the offset in a cursor. It can be beyond the end of the list, which may have
// become shorter. Any variant of base64 is accepted.
func ParseCursor(cursor string) (offset int, err error) {
	text, err := decodeBase64(cursor)
	if err != nil {
		return 0, errCursor
	}
	var literal []byte
	err = cursorPaths.Find(text, func(_ int, v jsonspan.Value) {
		literal = text[v.Start:v.End]
	})
	if err != nil {
		return 0, errCursor
	}
	// One bit less than an int: no sign.
	n, err := strconv.ParseUint(string(literal), 10, strconv.IntSize-1)
	if err != nil {
		return 0, errCursor
	}
	return int(n), nil
}

// Annotations describe the effects of a tool. They are hints: a server may be wrong, or lie.
type Annotations uint8

// Annotations of tools.
const (
	ReadOnly    Annotations = 1 << iota // changes nothing
	Destructive                         // may change or remove existing data, not only add to it
	Idempotent                          // repeating a call has no further effect
	OpenWorld                           // interacts with the outside world, as a web search does
)

// Unannotated are the defaults of the specification, for a tool without annotations.
const Unannotated = Destructive | OpenWorld

// annotationNames are the names of annotations in rules, and in definitions of tools.
var annotationNames = []struct {
	bit        Annotations
	name, hint string
}{
	{ReadOnly, "read_only", "readOnlyHint"},
	{Destructive, "destructive", "destructiveHint"},
	{Idempotent, "idempotent", "idempotentHint"},
	{OpenWorld, "open_world", "openWorldHint"},
}

// ParseAnnotation returns the annotation with a name in rules.
func ParseAnnotation(name string) (a Annotations, ok bool) {
	for _, known := range annotationNames {
		if known.name == name {
			return known.bit, true
		}
	}
	return 0, false
}

// AnnotationNames returns the names of annotations in rules.
func AnnotationNames() (names []string) {
	for _, a := range annotationNames {
		names = append(names, a.name)
	}
	return names
}

// Hint returns the name of one annotation in definitions of tools.
func (a Annotations) Hint() string {
	for _, known := range annotationNames {
		if known.bit == a {
			return known.hint
		}
	}
	return ""
}

// Hints calls f for each annotation, by its name in definitions of tools.
func (a Annotations) Hints(f func(hint string, on bool)) {
	for _, known := range annotationNames {
		f(known.hint, a&known.bit != 0)
	}
}

// String returns the names of the set annotations.
func (a Annotations) String() string {
	var set []string
	for _, known := range annotationNames {
		if a&known.bit != 0 {
			set = append(set, known.name)
		}
	}
	return strings.Join(set, " ")
}

// ReadAnnotations reads the annotations in the definition of a tool. The defaults of the
// specification apply to those that are missing or not boolean, and to all of them if the
// definition is ambiguous.
func ReadAnnotations(tool []byte) Annotations {
	var object []byte
	for m := range jsonspan.Members(tool) {
		if m.Key != "annotations" {
			continue
		}
		if object != nil {
			return Unannotated
		}
		object = tool[m.Value.Start:m.End]
	}
	a, seen := Unannotated, Annotations(0)
	for m := range jsonspan.Members(object) {
		for _, known := range annotationNames {
			if m.Key != known.hint {
				continue
			}
			if seen&known.bit != 0 {
				return Unannotated
			}
			seen |= known.bit
			switch string(object[m.Value.Start:m.End]) {
			case "true":
				a |= known.bit
			case "false":
				a &^= known.bit
			}
		}
	}
	if a&ReadOnly != 0 {
		a &^= Destructive // has no meaning for tools that change nothing
	}
	return a
}
