package toolview

import (
	"bytes"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Focus is an argument that the gateway adds to tools. With it a client says what it looks for:
// if the result is too large, the mask keeps the parts about that. The server never gets the
// argument.
type Focus struct {
	name     string // name of the argument
	property []byte // member of the properties in a schema
}

// NewFocus returns a Focus with an argument of this name.
func NewFocus(name string) *Focus {
	schema := `{"type":"string","description":"` + focusDescription + `"}`
	return &Focus{name, slices.Concat(jsonrpc.Quote(name), []byte(":"+schema))}
}

// focusDescription describes the argument to models, with every tool.
const focusDescription = "What you look for; a long result is cut to it."

// A toolSchema is the schema of the arguments of a tool.
type toolSchema struct {
	offset     int // of schema in the definition
	schema     []byte
	properties jsonspan.Value // in schema; zero if missing
}

// Add returns the edit that adds the argument to the definition of a tool. It reports false if the
// tool has an argument of this name, or if its schema could refuse the argument.
func (f *Focus) Add(tool []byte) (jsonspan.Edit, bool) {
	s, ok := readToolSchema(tool)
	if !ok || f.hasArgument(&s) {
		return jsonspan.Edit{}, false
	}
	if s.properties.End == 0 {
		e := jsonspan.Append(s.schema, slices.Concat([]byte(`"properties":{`), f.property, []byte("}")))
		return e.Moved(s.offset), true
	}
	e := jsonspan.Append(s.schema[s.properties.Start:s.properties.End], f.property)
	return e.Moved(s.offset + s.properties.Start), true
}

// hasArgument reports whether a tool has an argument of this name, ignoring case.
func (f *Focus) hasArgument(s *toolSchema) bool {
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

// closingKeywords are the keywords with which a schema may refuse an added argument.
var closingKeywords = []string{
	"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "propertyNames",
	"patternProperties", "maxProperties", "dependentSchemas", "dependencies",
}

// readToolSchema parses the definition of a tool. It reports whether an argument can be added.
func readToolSchema(tool []byte) (s toolSchema, ok bool) {
	for m := range jsonspan.Members(tool) {
		switch {
		case m.Key == "execution" && bytes.Contains(tool[m.Value.Start:m.End], []byte(`"required"`)):
			return s, false // the result is that of a task
		case m.Key != "inputSchema":
		case ok || m.Value.Kind != jsonspan.BeginObject:
			return s, false
		default:
			s.offset, s.schema, ok = m.Value.Start, tool[m.Value.Start:m.End], true
		}
	}
	if !ok {
		return s, false
	}
	for m := range jsonspan.Members(s.schema) {
		switch value := s.schema[m.Value.Start:m.End]; {
		case slices.Contains(closingKeywords, m.Key), m.Key == "type" && string(value) != `"object"`:
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

// maxGoal is how many characters of the argument are read. They are compared with each text that is
// cut.
const maxGoal = 1000

// Take removes all copies of the argument from a call. It returns the value, the goal of the
// client.
func (f *Focus) Take(m *jsonrpc.Message) (goal string, edited jsonrpc.Message, failure *jsonrpc.Failure) {
	arguments := m.Literal(jsonrpc.Arguments)
	var removal jsonspan.Removal
	for member := range jsonspan.Members(arguments) {
		removal.Visit(member, member.Key == f.name)
		if member.Key != f.name {
			continue
		}
		switch member.Value.Kind {
		case jsonspan.String:
			body := member.Value.Body(arguments)
			goal = strings.TrimSpace(jsonspan.Text(body[:jsonspan.Advance(body, maxGoal)]))
		case jsonspan.Null:
		default:
			return "", *m, jsonrpc.InvalidParams("arguments." + f.name + ": not a string").WithStatusOK()
		}
	}
	edits := removal.Edits(arguments, nil)
	edited, failure = m.Edited(m.Replace(jsonrpc.Arguments, jsonspan.Spliced(arguments, edits...)))
	return goal, edited, failure
}

// IsGiven reports whether a call has an argument of this name. It may be the server's own.
func (f *Focus) IsGiven(m *jsonrpc.Message) bool {
	if f == nil || !m.Is(jsonrpc.Method, "tools/call") || m.Kind(jsonrpc.Arguments) != jsonspan.BeginObject {
		return false
	}
	arguments := m.Literal(jsonrpc.Arguments)
	if !bytes.Contains(arguments, []byte(f.name)) && !bytes.Contains(arguments, []byte(`\u`)) {
		return false // fast path
	}
	_, ok := jsonspan.Remove(arguments, f.name)
	return ok
}

// RemovedFrom returns the definition of a tool, as clients got it, without the argument.
func (f *Focus) RemovedFrom(tool []byte) []byte {
	for _, added := range [][]byte{append([]byte{','}, f.property...), f.property} {
		if before, after, ok := bytes.Cut(tool, added); ok {
			return append(bytes.Clone(before), after...)
		}
	}
	return tool
}

// Argument returns the name of the argument.
func (f *Focus) Argument() string { return f.name }
