package gateway

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Focus is an argument that the gateway adds to tools. By it a client says what it looks for:
// if the result is too large, the mask leaves what bears on that. The server never sees it.
type Focus struct {
	name     string // of the argument
	property []byte // of a schema, that defines it
}

// NewFocus returns a Focus whose argument has a name.
func NewFocus(name string) *Focus {
	schema := `{"type":"string","description":"` + focusDescription + `"}`
	return &Focus{name, slices.Concat(jsonrpc.Quote(name), []byte(":"+schema))}
}

// focusDescription is what models are told of the argument, with every tool.
const focusDescription = "What you look for; a long result is cut to it."

// A toolSchema is what a definition says of the arguments of a tool.
type toolSchema struct {
	at         int // where inputSchema is
	schema     []byte
	properties jsonspan.Value // in schema; zero if it has none
}

// add returns the edit of the definition of a tool that adds the argument. It reports whether the
// tool can have it: not if it has one of this name, or if its schema could refuse it.
func (f *Focus) add(tool []byte) (jsonspan.Edit, bool) {
	s, ok := readToolSchema(tool)
	if !ok || f.isArgument(&s) {
		return jsonspan.Edit{}, false
	}
	if s.properties.End == 0 {
		e := jsonspan.Append(s.schema, slices.Concat([]byte(`"properties":{`), f.property, []byte("}")))
		return e.Moved(s.at), true
	}
	e := jsonspan.Append(s.schema[s.properties.Start:s.properties.End], f.property)
	return e.Moved(s.at + s.properties.Start), true
}

// isArgument reports whether a tool has an argument of this name, or one that is hard to tell from it.
func (f *Focus) isArgument(s *toolSchema) bool {
	for m := range jsonspan.Members(s.schema) {
		isNamed := m.Key == "required" || m.Key == "dependentRequired"
		if isNamed && bytes.Contains(s.schema[m.Value.Start:m.End], jsonrpc.Quote(f.name)) {
			return true
		}
	}
	if s.properties.End > 0 {
		for p := range jsonspan.Members(s.schema[s.properties.Start:s.properties.End]) {
			if strings.EqualFold(p.Key, f.name) {
				return true
			}
		}
	}
	return false
}

// closedBy are the keywords by which a schema may refuse an argument that is added to it.
var closedBy = []string{
	"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "propertyNames",
	"patternProperties", "maxProperties", "dependentSchemas", "dependencies",
}

// readToolSchema reads the definition of a tool. It reports whether an argument can be added.
func readToolSchema(tool []byte) (s toolSchema, ok bool) {
	for m := range jsonspan.Members(tool) {
		switch {
		case m.Key == "execution" && bytes.Contains(tool[m.Value.Start:m.End], []byte(`"required"`)):
			return s, false // the result is that of a task
		case m.Key != "inputSchema":
		case ok || m.Value.Kind != jsonspan.BeginObject:
			return s, false
		default:
			s.at, s.schema, ok = m.Value.Start, tool[m.Value.Start:m.End], true
		}
	}
	if !ok {
		return s, false
	}
	for m := range jsonspan.Members(s.schema) {
		switch value := s.schema[m.Value.Start:m.End]; {
		case slices.Contains(closedBy, m.Key), m.Key == "type" && string(value) != `"object"`:
			return s, false
		case m.Key != "properties":
		case s.properties.End > 0 || m.Value.Kind != jsonspan.BeginObject:
			return s, false
		default:
			s.properties = m.Value
		}
	}
	return s, true
}

// maxGoal is how many characters of what a client looks for are read. All of it is compared with each
// text that is cut.
const maxGoal = 1000

// take takes the argument out of a call, as often as it is there. It returns what the client looks for.
func (f *Focus) take(m *jsonrpc.Message) (goal string, edited jsonrpc.Message, failure *jsonrpc.Failure) {
	arguments := m.Literal(jsonrpc.Arguments)
	var removal jsonspan.Removal
	for member := range jsonspan.Members(arguments) {
		removal.Next(member, member.Key == f.name)
		if member.Key != f.name {
			continue
		}
		switch member.Value.Kind {
		case jsonspan.String:
			body := member.Value.Body(arguments)
			goal = strings.TrimSpace(jsonspan.Text(body[:jsonspan.Advance(body, maxGoal)]))
		case jsonspan.Null:
		default:
			return "", *m, invalid("arguments." + f.name + ": not a string")
		}
	}
	edits := removal.Edits(arguments, nil)
	edited, failure = m.Edited(m.Replace(jsonrpc.Arguments, jsonspan.Spliced(arguments, edits...)))
	return goal, edited, failure
}

// isGiven reports whether a call has an argument of this name, which may be the server's own.
func (f *Focus) isGiven(m *jsonrpc.Message) bool {
	if f == nil || !m.Is(jsonrpc.Method, "tools/call") || m.Kind(jsonrpc.Arguments) != jsonspan.BeginObject {
		return false
	}
	arguments := m.Literal(jsonrpc.Arguments)
	if !bytes.Contains(arguments, []byte(f.name)) && !bytes.Contains(arguments, []byte(`\u`)) {
		return false // without a look at each of them
	}
	_, ok := jsonspan.Remove(arguments, f.name)
	return ok
}

// takeFocus takes what the client looks for out of the call of a tool, if it was the gateway that
// has offered to take it.
func (c *call) takeFocus() *jsonrpc.Failure {
	f := c.server.Focus
	if !f.isGiven(&c.message) {
		return nil
	}
	list := c.toolList()
	if list == nil || list.focused[c.g.shown(c.server.Name, tools, c.server.Overrides.shown(c.name))] == "" {
		return nil
	}
	var failure *jsonrpc.Failure
	c.goal, c.message, failure = f.take(&c.message)
	return failure
}

// addFocus returns the edit of a list for a client at Single that adds the argument to a tool, and
// notes that the tool has it.
func (f *filter) addFocus(item *mcp.Item) []jsonspan.Edit {
	s := f.x.server
	if f.x.kind != Single || item.Kind != tools || !item.HasName() {
		return nil
	}
	e, ok := s.addFocus(item)
	if !ok {
		if s.Focus != nil {
			f.x.g.focused.forget(s.focusedTool(item.Name))
		}
		return nil
	}
	if !f.x.g.focused.note(s.Source, s.focusedTool(item.Name), struct{}{}) {
		return nil
	}
	return []jsonspan.Edit{e.Moved(item.Start)}
}

// addFocus returns the edit of the definition of a tool that adds the argument, if its results
// are masked.
func (s *Server) addFocus(item *mcp.Item) (jsonspan.Edit, bool) {
	if s.Focus == nil || s.Mask.Exempts(mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: item.Name}) {
		return jsonspan.Edit{}, false
	}
	if s.Overrides.of(item.Name).hasArgument(s.Focus.name) {
		return jsonspan.Edit{}, false // the server has its own
	}
	return s.Focus.add(item.Raw)
}

// takeFocus does so at Single, for tools that were in a list.
func (x *exchange) takeFocus(r *http.Request) *jsonrpc.Failure {
	f := x.server.Focus
	if x.kind != Single || !f.isGiven(&x.message) || !x.isFocused(r, x.message.Text(jsonrpc.Name)) {
		return nil
	}
	var failure *jsonrpc.Failure
	x.goal, x.message, failure = f.take(&x.message)
	return failure
}

// isFocused reports whether clients were told that a tool has the argument. Caddy may have started
// anew since then: if no list of the server is known, it asks for one.
func (x *exchange) isFocused(r *http.Request, tool string) bool {
	focused := x.g.focused
	has := func(tool string) bool {
		_, ok := focused.get(x.server.focusedTool(tool))
		return ok
	}
	switch {
	case tool == everyTool:
		return false
	case has(tool):
		return true
	case has(everyTool):
		return false
	}
	list, failure := x.g.newOperator(r, x.caller.identity).listTools(x.server)
	if failure != nil {
		return false // as at Aggregate: the server has the last word
	}
	for _, name := range list.focused {
		focused.note(x.server.Source, x.server.focusedTool(name), struct{}{})
	}
	focused.note(x.server.Source, x.server.focusedTool(everyTool), struct{}{})
	return has(tool)
}

// focusedTool returns a tool as one that clients at Single were told has the argument. Lists pass there
// as they are, and nothing else tells whether an argument is the gateway's.
func (s *Server) focusedTool(tool string) toldTool { return toldTool{s.Source, s.Focus.name, tool} }

// focusTime is how long it is remembered that a tool was in a list.
const focusTime = 24 * time.Hour

var (
	keptFocus   = quota.NewKind("focus_arguments")
	focusLimits = quota.Limits{Entries: 20_000, Bytes: 4 << 20, OwnerEntries: 5_000, OwnerBytes: 1 << 20}
)
