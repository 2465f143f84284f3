// Package toolview changes how clients see tools, and makes of their calls what servers expect.
//
// An [Override] renames or describes a tool, and sets or hides arguments of it. A [Focus] is an
// argument that is added to tools, for the gateway itself.
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

// An Override changes how clients see a tool of a server, and what the server gets of their calls. Rules, pins,
// metrics and logs know the tool by its own name.
type Override struct {
	Tool        string          // its name at the server
	Name        string          // its name for clients; "" for the same
	Description string          // "" for that of the server
	Title       string          // "" for that of the server
	On, Off     mcp.Annotations // that the tool has, and does not have, whatever the server says

	// Clients do not see these arguments. Names are the same in upper and lower case, as they are to some servers.
	Fixed  []FixedArgument // that the server gets, whatever the client sends
	Hidden []string        // that the server does not get

	hints map[string]bool // On and Off as definitions have them
	fixed []byte          // Fixed as members of an object

	params  atomic.Pointer[mcp.ParamHeaders] // arguments that headers repeat, if known
	listed  atomic.Bool                      // the server has the tool
	missed  atomic.Bool                      // Missing has returned it
	covered atomic.Bool                      // See has returned it
}

// A FixedArgument is an argument with a value that is always the same.
type FixedArgument struct {
	Name  string
	Value []byte // as JSON
}

// Overrides are those of the tools of a server. Those of a server without any are nil.
type Overrides struct {
	all            []*Override
	byTool, byName map[string]*Override // by the name at the server, and for clients
}

// NewOverrides returns the Overrides of a server, or what is wrong with them.
func NewOverrides(all []*Override) (*Overrides, error) {
	if len(all) == 0 {
		return nil, nil
	}
	overrides := &Overrides{all: all, byTool: map[string]*Override{}, byName: map[string]*Override{}}
	for _, o := range all {
		if err := o.settle(); err != nil {
			return nil, fmt.Errorf("tool %s: %w", o.Tool, err)
		}
		if other := overrides.byName[o.Name]; other != nil {
			return nil, fmt.Errorf("tool %s: rename: tool %s has the name %s, too", o.Tool, other.Tool, o.Name)
		}
		overrides.byTool[o.Tool], overrides.byName[o.Name] = o, o
	}
	return overrides, nil
}

// settle prepares the Override to be used, or reports what contradicts itself.
func (o *Override) settle() error {
	if o.Name == "" {
		o.Name = o.Tool
	}
	if o.On&mcp.Destructive != 0 {
		if o.On&mcp.ReadOnly != 0 {
			return fmt.Errorf("annotate: %s and %s contradict each other", mcp.ReadOnly, mcp.Destructive)
		}
		o.Off |= mcp.ReadOnly // else the other says nothing
	}
	o.hints, o.fixed = map[string]bool{}, nil
	for value, annotations := range map[bool]mcp.Annotations{true: o.On, false: o.Off} {
		annotations.Hints(func(hint string, asked bool) {
			if asked {
				o.hints[hint] = value
			}
		})
	}
	var names []string
	take := func(name string) error {
		if slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(other, name) }) {
			return fmt.Errorf("arguments: %s is given twice", name)
		}
		names = append(names, name)
		return nil
	}
	for _, a := range o.Fixed {
		if err := take(a.Name); err != nil {
			return err
		}
		o.fixed = appendMember(o.fixed, a.Name, a.Value)
	}
	for _, name := range o.Hidden {
		if err := take(name); err != nil {
			return err
		}
	}
	return nil
}

// appendMember appends a member to those of an object.
func appendMember(members []byte, name string, value []byte) []byte {
	if len(members) > 0 {
		members = append(members, ',')
	}
	return append(append(append(members, jsonrpc.Quote(name)...), ':'), value...)
}

// Of returns the Override of a tool of the server, nil if there is none.
func (s *Overrides) Of(tool string) *Override {
	if s == nil {
		return nil
	}
	return s.byTool[tool]
}

// Called returns the Override of the tool that clients know by a name, nil if it has none. It reports false if they
// know no tool by it, because the one that had it has another.
func (s *Overrides) Called(name string) (_ *Override, ok bool) {
	if s == nil {
		return nil, true
	}
	if o := s.byName[name]; o != nil {
		return o, true
	}
	return nil, s.byTool[name] == nil
}

// Original returns the name of the tool that clients know by a name.
func (s *Overrides) Original(name string) string {
	if o, _ := s.Called(name); o != nil {
		return o.Tool
	}
	return name
}

// Shown returns the name by which clients know a tool of the server.
func (s *Overrides) Shown(tool string) string {
	if o := s.Of(tool); o != nil {
		return o.Name
	}
	return tool
}

// hiding returns the Override that gives the name of a tool of the server to another one, nil if there is none.
func (s *Overrides) hiding(tool string) *Override {
	if s == nil || s.byTool[tool] != nil {
		return nil
	}
	return s.byName[tool]
}

// replaceMembers returns the edits that take members out of an object, and put others last into it.
func replaceMembers(object []byte, remove func(jsonspan.Member) bool, add []byte) []jsonspan.Edit {
	var removal jsonspan.Removal
	for m := range jsonspan.Members(object) {
		removal.Next(m, remove(m))
	}
	return removal.Edits(object, add)
}

// Define returns a tool as clients see it, but for its name. It notes which arguments are repeated in headers.
func (o *Override) Define(tool *mcp.Item) *mcp.Item {
	edits := o.describe(tool.Raw)
	if o.EditsArguments() {
		params := mcp.ParamHeaders{}
		_ = params.AddTool(tool.Name, tool.Raw) // a tool that cannot be called has none
		o.params.Store(&params)
		for m := range jsonspan.Members(tool.Raw) {
			if m.Key == "inputSchema" && m.Value.Kind == jsonspan.BeginObject {
				edits = appendMoved(edits, m.Value.Start, o.withoutArguments(tool.Raw[m.Value.Start:m.End])...)
			}
		}
	}
	return tool.Edited(edits...)
}

// appendMoved appends edits of a part of a text as those of the whole text.
func appendMoved(edits []jsonspan.Edit, by int, inner ...jsonspan.Edit) []jsonspan.Edit {
	for _, e := range inner {
		edits = append(edits, e.Moved(by))
	}
	return edits
}

// describe returns the edits of a definition that change its description, title and annotations. A member that is
// there twice is there once after that.
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

// annotate returns the edits of annotations. Hints of which one is repeated say nothing, and go.
func (o *Override) annotate(object []byte) []jsonspan.Edit {
	known := map[string]int{} // how often they are there
	mcp.Annotations(0).Hints(func(hint string, _ bool) { known[hint] = 0 })
	repeated := false
	for m := range jsonspan.Members(object) {
		if n, ok := known[m.Key]; ok {
			known[m.Key], repeated = n+1, repeated || n > 0
		}
	}
	var added []byte
	mcp.Annotations(0).Hints(func(hint string, _ bool) {
		if value, asked := o.hints[hint]; asked {
			added = appendMember(added, hint, strconv.AppendBool(nil, value))
		}
	})
	return replaceMembers(object, func(m jsonspan.Member) bool {
		_, isHint := known[m.Key]
		_, asked := o.hints[m.Key]
		return asked || repeated && isHint
	}, added)
}

// EditsArguments reports whether clients do not see all arguments of the tool. There may be no Override.
func (o *Override) EditsArguments() bool { return o != nil && len(o.Fixed)+len(o.Hidden) > 0 }

// HasArgument reports whether an argument is one that clients do not see.
func (o *Override) HasArgument(name string) bool {
	is := func(other string) bool { return sameArgument(other, name) }
	return o != nil && (slices.ContainsFunc(o.Hidden, is) || o.isFixed(name))
}

// isFixed reports whether an argument has a value that is always the same.
func (o *Override) isFixed(name string) bool {
	return slices.ContainsFunc(o.Fixed, func(a FixedArgument) bool { return sameArgument(a.Name, name) })
}

// sameArgument reports whether some server may take a key of a client for an argument: in another case, or with null
// characters at the end.
func sameArgument(argument, key string) bool {
	return strings.EqualFold(argument, strings.TrimRight(key, "\x00"))
}

// WithoutFixed returns the arguments of a call without those that are fixed: they may be secrets. There may be no
// Override.
func (o *Override) WithoutFixed(arguments []byte) []byte {
	if o == nil || len(o.Fixed) == 0 {
		return arguments
	}
	fixed := func(m jsonspan.Member) bool { return o.isFixed(m.Key) }
	return jsonspan.Spliced(arguments, replaceMembers(arguments, fixed, nil)...)
}

// isArgument reports whether a member of an object is for an argument that clients do not see.
func (o *Override) isArgument(m jsonspan.Member) bool { return o.HasArgument(m.Key) }

// withoutArguments returns the edits that take the arguments that clients do not see out of a schema. Those below
// keywords such as anyOf stay: the server gets the same whether a client sends them or not.
func (o *Override) withoutArguments(schema []byte) (edits []jsonspan.Edit) {
	for m := range jsonspan.Members(schema) {
		value := schema[m.Value.Start:m.End]
		switch m.Key {
		case "properties", "dependentRequired", "dependencies":
			if m.Value.Kind != jsonspan.BeginObject {
				continue
			}
			edits = appendMoved(edits, m.Value.Start, replaceMembers(value, o.isArgument, nil)...)
			if m.Key == "properties" {
				continue
			}
			for dependent := range jsonspan.Members(value) {
				if !o.isArgument(dependent) {
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

// withoutNames returns the edit of a list of names that takes those of arguments out that clients do not see.
func (o *Override) withoutNames(list []byte, is jsonspan.Value) []jsonspan.Edit {
	if is.Kind != jsonspan.BeginArray {
		return nil
	}
	var kept [][]byte
	dropped := false
	for name := range jsonspan.Elements(list) {
		if name.Kind == jsonspan.String && o.HasArgument(jsonspan.Text(name.Body(list))) {
			dropped = true
			continue
		}
		kept = append(kept, list[name.Start:name.End])
	}
	if !dropped {
		return nil
	}
	edited := slices.Concat([]byte("["), bytes.Join(kept, []byte(",")), []byte("]"))
	return []jsonspan.Edit{{End: len(list), New: edited}}
}

// ToServer returns a call of the tool as the server gets it. There may be no Override.
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

// arguments returns the edits that give a call the arguments that the server gets.
func (o *Override) arguments(m *jsonrpc.Message) (edits []jsonspan.Edit, _ *jsonrpc.Failure) {
	if !o.EditsArguments() {
		return nil, nil
	}
	object := slices.Concat([]byte("{"), o.fixed, []byte("}"))
	switch m.Kind(jsonrpc.Arguments) {
	case jsonspan.BeginObject:
		for _, e := range replaceMembers(m.Literal(jsonrpc.Arguments), o.isArgument, o.fixed) {
			edits = append(edits, m.Within(jsonrpc.Arguments, e))
		}
	case jsonspan.Null:
		edits = append(edits, m.Replace(jsonrpc.Arguments, object))
	case jsonrpc.Absent:
		edits = append(edits, m.Insert(append([]byte(`"arguments":`), object...)))
	default:
		return nil, jsonrpc.InvalidParams("arguments: not an object").AsAnswer()
	}
	return edits, nil
}

// See notes that the server has listed a tool. It returns the Override that hides it from clients, because it gives its
// name to another tool; nil if none does. That is news the first time.
func (s *Overrides) See(tool string) (by *Override, news bool) {
	if o := s.Of(tool); o != nil {
		o.listed.Store(true)
	}
	by = s.hiding(tool)
	return by, by != nil && by.covered.CompareAndSwap(false, true)
}

// Missing returns the tools with an Override that the server has never listed, after all of a list was read. Each is
// returned once.
func (s *Overrides) Missing() (tools []string) {
	if s == nil {
		return nil
	}
	for _, o := range s.all {
		if !o.listed.Load() && o.missed.CompareAndSwap(false, true) {
			tools = append(tools, o.Tool)
		}
	}
	return tools
}

// SetParams sets the headers of a call that repeat arguments which the client does not see. It reports false if it is
// not known which headers do: the server has not listed the tool yet.
func (o *Override) SetParams(header http.Header, m *jsonrpc.Message) bool {
	params := o.params.Load()
	if params == nil {
		return false
	}
	params.SetOnly(header, m, o.HasArgument)
	return true
}

// NoteUnlisted notes after a list that no header repeats an argument of the tool, unless the list has said so.
func (o *Override) NoteUnlisted() { o.params.CompareAndSwap(nil, new(mcp.ParamHeaders)) }

// Annotations returns those of a tool by its definition at the server.
func (s *Overrides) Annotations(tool string, definition []byte) mcp.Annotations {
	o := s.Of(tool)
	if o == nil || len(o.hints) == 0 {
		return mcp.ReadAnnotations(definition)
	}
	return mcp.ReadAnnotations(jsonspan.Spliced(definition, o.describe(definition)...))
}
