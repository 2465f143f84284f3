// Package toolview changes how clients see tools, and rewrites their calls for the servers.
//
// An [Override] renames or describes a tool, and sets or hides some of its arguments. A [Focus] is
// an argument that is added to tools, for the gateway itself.
package toolview

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An Override changes how clients see a tool of a server, and the calls that the server gets.
// Rules, pins, metrics and logs use the server's name of the tool.
type Override struct {
	Tool        string          // name at the server
	Name        string          // name for clients; "" for the same
	Description string          // "" for that of the server
	Title       string          // "" for that of the server
	On, Off     mcp.Annotations // annotations set and unset, whatever the server says

	// Clients do not see these arguments. Case is ignored in their names, as some servers do.
	Fixed  []FixedArgument // sent to the server, whatever the client sends
	Hidden []string        // removed from calls

	hints map[string]bool // On and Off as hints in definitions
	fixed []byte          // Fixed as members of an object

	params          atomic.Pointer[mcp.ParamHeaders] // arguments that headers repeat; nil if unknown
	listed          atomic.Bool                      // the server has the tool
	reportedMissing atomic.Bool                      // returned by Missing
	reportedHidden  atomic.Bool                      // returned by NoteListed
}

// A FixedArgument is an argument with a constant value.
type FixedArgument struct {
	Name  string
	Value []byte // as JSON
}

// Overrides are the overrides of a server's tools. A nil *Overrides has none.
type Overrides struct {
	all            []*Override
	byTool, byName map[string]*Override // by the name at the server, and for clients
}

// NewOverrides returns the overrides of a server; nil if all is empty. It fails if they are
// invalid.
func NewOverrides(all []*Override) (*Overrides, error) {
	if len(all) == 0 {
		return nil, nil
	}
	overrides := &Overrides{all: all, byTool: map[string]*Override{}, byName: map[string]*Override{}}
	for _, o := range all {
		if err := o.prepare(); err != nil {
			return nil, fmt.Errorf("tool %s: %w", o.Tool, err)
		}
		if other := overrides.byName[o.Name]; other != nil {
			return nil, fmt.Errorf("tool %s: rename: tool %s already has the name %s", o.Tool, other.Tool, o.Name)
		}
		overrides.byTool[o.Tool], overrides.byName[o.Name] = o, o
	}
	return overrides, nil
}

// prepare prepares the Override. It fails if the Override contradicts itself.
func (o *Override) prepare() error {
	if o.Name == "" {
		o.Name = o.Tool
	}
	if o.On&mcp.Destructive != 0 {
		if o.On&mcp.ReadOnly != 0 {
			return fmt.Errorf("annotate: %s and %s contradict each other", mcp.ReadOnly, mcp.Destructive)
		}
		o.Off |= mcp.ReadOnly // otherwise Destructive has no meaning
	}
	o.hints, o.fixed = map[string]bool{}, nil
	for value, annotations := range map[bool]mcp.Annotations{true: o.On, false: o.Off} {
		annotations.Hints(func(hint string, set bool) {
			if set {
				o.hints[hint] = value
			}
		})
	}
	var names []string
	add := func(name string) error {
		if slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(other, name) }) {
			return fmt.Errorf("arguments: %s is given twice", name)
		}
		names = append(names, name)
		return nil
	}
	for _, a := range o.Fixed {
		if err := add(a.Name); err != nil {
			return err
		}
		o.fixed = appendMember(o.fixed, a.Name, a.Value)
	}
	for _, name := range o.Hidden {
		if err := add(name); err != nil {
			return err
		}
	}
	return nil
}

// appendMember appends a member to the members of an object.
func appendMember(members []byte, name string, value []byte) []byte {
	if len(members) > 0 {
		members = append(members, ',')
	}
	return append(append(append(members, jsonrpc.Quote(name)...), ':'), value...)
}

// Of returns the Override of a tool, by its name at the server; nil for none.
func (s *Overrides) Of(tool string) *Override {
	if s == nil {
		return nil
	}
	return s.byTool[tool]
}

// ByClientName returns the Override of a tool, by its name for clients; nil for none. It reports
// false if clients see no tool of this name, because the tool was renamed.
func (s *Overrides) ByClientName(name string) (_ *Override, ok bool) {
	if s == nil {
		return nil, true
	}
	if o := s.byName[name]; o != nil {
		return o, true
	}
	return nil, s.byTool[name] == nil
}

// ServerName returns the name of a tool at the server, by its name for clients.
func (s *Overrides) ServerName(name string) string {
	if o, _ := s.ByClientName(name); o != nil {
		return o.Tool
	}
	return name
}

// ClientName returns the name of a tool for clients, by its name at the server.
func (s *Overrides) ClientName(tool string) string {
	if o := s.Of(tool); o != nil {
		return o.Name
	}
	return tool
}

// hiddenBy returns the Override that gives the name of a tool to another tool; nil for none.
func (s *Overrides) hiddenBy(tool string) *Override {
	if s == nil || s.byTool[tool] != nil {
		return nil
	}
	return s.byName[tool]
}

// replaceMembers returns the edits that remove members from an object and append others.
func replaceMembers(object []byte, remove func(jsonspan.Member) bool, add []byte) []jsonspan.Edit {
	var removal jsonspan.Removal
	for m := range jsonspan.Members(object) {
		removal.Visit(m, remove(m))
	}
	return removal.Edits(object, add)
}

// Define returns a tool as clients see it, except for its name. It records which arguments are
// repeated in headers.
func (o *Override) Define(tool *mcp.Item) *mcp.Item {
	edits := o.describe(tool.Raw)
	if o.HidesArguments() {
		params := mcp.ParamHeaders{}
		_ = params.AddTool(tool.Name, tool.Raw) // an invalid tool has none
		o.params.Store(&params)
		for m := range jsonspan.Members(tool.Raw) {
			if m.Key == "inputSchema" && m.Value.Kind == jsonspan.BeginObject {
				edits = appendMoved(edits, m.Value.Start, o.withoutArguments(tool.Raw[m.Value.Start:m.End])...)
			}
		}
	}
	return tool.Edited(edits...)
}

// appendMoved appends edits of a part of a text that begins at offset, as edits of the whole text.
func appendMoved(edits []jsonspan.Edit, offset int, inner ...jsonspan.Edit) []jsonspan.Edit {
	for _, e := range inner {
		edits = append(edits, e.Moved(offset))
	}
	return edits
}

// describe returns the edits of a definition that change its description, title and annotations.
// They remove repeated members.
func (o *Override) describe(tool []byte) []jsonspan.Edit {
	replaced := map[string]bool{}
	var added []byte
	for _, text := range [][2]string{{"description", o.Description}, {"title", o.Title}} {
		if text[1] != "" {
			replaced[text[0]], added = true, appendMember(added, text[0], jsonrpc.Quote(text[1]))
		}
	}
	const annotations = "annotations"
	var object jsonspan.Value
	if len(o.hints) > 0 {
		for m := range jsonspan.Members(tool) {
			if m.Key != annotations {
				continue
			}
			replaced[annotations] = object.End > 0 || m.Value.Kind != jsonspan.BeginObject
			object = m.Value
		}
		if object.End == 0 || replaced[annotations] {
			none := []byte("{}")
			added = appendMember(added, annotations, jsonspan.Spliced(none, o.annotate(none)...))
		}
	}
	edits := replaceMembers(tool, func(m jsonspan.Member) bool { return replaced[m.Key] }, added)
	if object.End > 0 && !replaced[annotations] {
		edits = appendMoved(edits, object.Start, o.annotate(tool[object.Start:object.End])...)
	}
	return edits
}

// annotate returns the edits of an annotations object. If a hint is repeated, all hints are
// removed, because they are ambiguous.
func (o *Override) annotate(object []byte) []jsonspan.Edit {
	known := map[string]int{} // occurrences by hint
	mcp.Annotations(0).Hints(func(hint string, _ bool) { known[hint] = 0 })
	repeated := false
	for m := range jsonspan.Members(object) {
		if n, ok := known[m.Key]; ok {
			known[m.Key], repeated = n+1, repeated || n > 0
		}
	}
	var added []byte
	mcp.Annotations(0).Hints(func(hint string, _ bool) {
		if value, set := o.hints[hint]; set {
			added = appendMember(added, hint, strconv.AppendBool(nil, value))
		}
	})
	return replaceMembers(object, func(m jsonspan.Member) bool {
		_, isHint := known[m.Key]
		_, set := o.hints[m.Key]
		return set || repeated && isHint
	}, added)
}

// HidesArguments reports whether some arguments are hidden from clients. o may be nil.
func (o *Override) HidesArguments() bool { return o != nil && len(o.Fixed)+len(o.Hidden) > 0 }

// HidesArgument reports whether an argument is hidden from clients. o may be nil.
func (o *Override) HidesArgument(name string) bool {
	same := func(other string) bool { return sameArgument(other, name) }
	return o != nil && (slices.ContainsFunc(o.Hidden, same) || o.isFixed(name))
}

// isFixed reports whether an argument has a fixed value.
func (o *Override) isFixed(name string) bool {
	return slices.ContainsFunc(o.Fixed, func(a FixedArgument) bool { return sameArgument(a.Name, name) })
}

// sameArgument reports whether some server may take a key for an argument: in another case, or with
// trailing null characters.
func sameArgument(argument, key string) bool {
	return strings.EqualFold(argument, strings.TrimRight(key, "\x00"))
}

// WithoutFixed returns the arguments of a call without the fixed ones, which may be secrets. o may
// be nil.
func (o *Override) WithoutFixed(arguments []byte) []byte {
	if o == nil || len(o.Fixed) == 0 {
		return arguments
	}
	fixed := func(m jsonspan.Member) bool { return o.isFixed(m.Key) }
	return jsonspan.Spliced(arguments, replaceMembers(arguments, fixed, nil)...)
}

// isHidden reports whether a member of an object is an argument that is hidden from clients.
func (o *Override) isHidden(m jsonspan.Member) bool { return o.HidesArgument(m.Key) }

// withoutArguments returns the edits that remove hidden arguments from a schema. Those below
// keywords such as anyOf stay; the server gets the same whether a client sends them or not.
func (o *Override) withoutArguments(schema []byte) (edits []jsonspan.Edit) {
	for m := range jsonspan.Members(schema) {
		value := schema[m.Value.Start:m.End]
		switch m.Key {
		case "properties", "dependentRequired", "dependencies":
			if m.Value.Kind != jsonspan.BeginObject {
				continue
			}
			edits = appendMoved(edits, m.Value.Start, replaceMembers(value, o.isHidden, nil)...)
			if m.Key == "properties" {
				continue
			}
			for dependent := range jsonspan.Members(value) {
				if !o.isHidden(dependent) {
					needed := o.withoutNames(value[dependent.Value.Start:dependent.End], dependent.Value)
					edits = appendMoved(edits, m.Value.Start+dependent.Value.Start, needed...)
				}
			}
		case "required":
			edits = appendMoved(edits, m.Value.Start, o.withoutNames(value, m.Value)...)
		}
	}
	return edits
}

// withoutNames returns the edit that removes hidden arguments from a list of names.
func (o *Override) withoutNames(list []byte, value jsonspan.Value) []jsonspan.Edit {
	if value.Kind != jsonspan.BeginArray {
		return nil
	}
	var names [][]byte
	dropped := false
	for name := range jsonspan.Elements(list) {
		if name.Kind == jsonspan.String && o.HidesArgument(jsonspan.Text(name.Body(list))) {
			dropped = true
			continue
		}
		names = append(names, list[name.Start:name.End])
	}
	if !dropped {
		return nil
	}
	edited := slices.Concat([]byte("["), bytes.Join(names, []byte(",")), []byte("]"))
	return []jsonspan.Edit{{End: len(list), New: edited}}
}

// ToServer returns a call of the tool as the server gets it. o may be nil.
func (o *Override) ToServer(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	if o == nil {
		return *m, nil
	}
	edits, failure := o.arguments(m)
	if failure != nil {
		return *m, failure
	}
	if !m.Is(jsonrpc.Name, o.Tool) {
		edits = append(edits, m.Replace(jsonrpc.Name, jsonrpc.Quote(o.Tool)))
	}
	if len(edits) == 0 {
		return *m, nil
	}
	return m.Edited(edits...)
}

// arguments returns the edits that give a call the arguments for the server.
func (o *Override) arguments(m *jsonrpc.Message) (edits []jsonspan.Edit, _ *jsonrpc.Failure) {
	if !o.HidesArguments() {
		return nil, nil
	}
	object := slices.Concat([]byte("{"), o.fixed, []byte("}"))
	switch m.Kind(jsonrpc.Arguments) {
	case jsonspan.BeginObject:
		for _, e := range replaceMembers(m.Literal(jsonrpc.Arguments), o.isHidden, o.fixed) {
			edits = append(edits, m.Within(jsonrpc.Arguments, e))
		}
	case jsonspan.Null:
		edits = append(edits, m.Replace(jsonrpc.Arguments, object))
	case jsonrpc.Absent:
		edits = append(edits, m.Insert(append([]byte(`"arguments":`), object...)))
	default:
		return nil, jsonrpc.InvalidParams("arguments: not an object").WithStatusOK()
	}
	return edits, nil
}

// NoteListed records that the server has listed a tool. It returns the Override that hides this
// tool because it gives the name to another tool; nil for none. isNew is true the first time.
func (s *Overrides) NoteListed(tool string) (hiddenBy *Override, isNew bool) {
	if o := s.Of(tool); o != nil {
		o.listed.Store(true)
	}
	hiddenBy = s.hiddenBy(tool)
	return hiddenBy, hiddenBy != nil && hiddenBy.reportedHidden.CompareAndSwap(false, true)
}

// Missing returns the tools with an Override that the server has never listed. It is called after a
// complete list, and returns each tool once.
func (s *Overrides) Missing() (tools []string) {
	if s == nil {
		return nil
	}
	for _, o := range s.all {
		if !o.listed.Load() && o.reportedMissing.CompareAndSwap(false, true) {
			tools = append(tools, o.Tool)
		}
	}
	return tools
}

// SetParams sets the headers of a call that repeat hidden arguments. It reports false if these
// headers are unknown, because the server has not listed the tool yet.
func (o *Override) SetParams(header http.Header, m *jsonrpc.Message) bool {
	params := o.params.Load()
	if params == nil {
		return false
	}
	params.SetOnly(header, m, o.HidesArgument)
	return true
}

// NoteUnlisted records, after a list without the tool, that no header repeats an argument of the
// tool.
func (o *Override) NoteUnlisted() { o.params.CompareAndSwap(nil, new(mcp.ParamHeaders)) }

// Annotations returns the annotations of a tool, by its definition at the server.
func (s *Overrides) Annotations(tool string, definition []byte) mcp.Annotations {
	o := s.Of(tool)
	if o == nil || len(o.hints) == 0 {
		return mcp.ReadAnnotations(definition)
	}
	return mcp.ReadAnnotations(jsonspan.Spliced(definition, o.describe(definition)...))
}
