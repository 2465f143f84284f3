// Package toolschema reads the schemas of the arguments of tools, for people who enter arguments as
// text.
package toolschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// A Schema is the input schema of a tool. The zero Schema is unknown and allows everything.
type Schema struct {
	known  bool
	open   bool // arguments other than properties are allowed
	root   subschema
	budget int // left of searchBudget
}

// A subschema is the part of a JSON schema that determines types.
type subschema struct {
	Type       json.RawMessage            `json:"type"` // a string or an array
	Ref        string                     `json:"$ref"`
	AnyOf      []subschema                `json:"anyOf"`
	OneOf      []subschema                `json:"oneOf"`
	AllOf      []subschema                `json:"allOf"`
	Defs       map[string]subschema       `json:"$defs"`
	OldDefs    map[string]subschema       `json:"definitions"`
	Properties map[string]json.RawMessage `json:"properties"`
	Additional json.RawMessage            `json:"additionalProperties"`
	Patterns   json.RawMessage            `json:"patternProperties"`
}

// Read reads the input schema in the definition of a tool. A schema that cannot be read is unknown.
func Read(definition []byte) (s Schema) {
	var tool struct {
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if json.Unmarshal(definition, &tool) != nil || json.Unmarshal(tool.InputSchema, &s.root) != nil {
		return Schema{}
	}
	s.known, s.budget = true, searchBudget
	s.open = len(s.root.Patterns) > 0 || len(s.root.Additional) > 0 && string(s.root.Additional) != "false" ||
		len(s.root.Properties) == 0 && len(s.root.Additional) == 0
	return s
}

// ReadFocused is Read for the definition of a tool to which the gateway has added an argument.
// original is the definition without it, which decides whether other arguments are allowed.
func ReadFocused(definition, original []byte) Schema {
	s := Read(definition)
	s.open = s.open || Read(original).open
	return s
}

// An Argument is an argument in the schema of a tool.
type Argument struct {
	Name        string
	Types       []string // JSON types; none for any
	Required    bool
	Description string
	Default     json.RawMessage   // nil for none
	Enum        []json.RawMessage // the only values; none for all
}

// ReadArguments returns the arguments in the definition of a tool, in its order. open reports
// whether the tool accepts other arguments as well, which it does if its schema is unknown. original
// is the definition without an argument that the gateway has added.
func ReadArguments(definition, original []byte) (arguments []Argument, open bool) {
	schema := ReadFocused(definition, original)
	if !schema.known {
		return nil, true
	}
	var tool struct {
		InputSchema struct {
			Properties json.RawMessage `json:"properties"`
			Required   []string        `json:"required"`
		} `json:"inputSchema"`
	}
	_ = json.Unmarshal(definition, &tool) // members of other types are ignored
	required, listed := map[string]bool{}, map[string]bool{}
	for _, name := range tool.InputSchema.Required {
		required[name] = true
	}
	for member := range jsonspan.Members(tool.InputSchema.Properties) {
		name := member.Key
		if listed[name] {
			continue
		}
		listed[name] = true
		property, _ := schema.property(name)
		var said struct {
			Description string            `json:"description"`
			Default     json.RawMessage   `json:"default"`
			Enum        []json.RawMessage `json:"enum"`
		}
		_ = json.Unmarshal(schema.root.Properties[name], &said) // true and false are valid schemas
		arguments = append(arguments, Argument{
			Name: name, Types: schema.types(&property), Required: required[name],
			Description: said.Description, Default: said.Default, Enum: said.Enum,
		})
	}
	return arguments, schema.open
}

// property returns the schema of an argument.
func (s *Schema) property(name string) (property subschema, has bool) {
	raw, has := s.root.Properties[name]
	_ = json.Unmarshal(raw, &property) // true and false are valid schemas
	return property, has
}

// Convert converts a text to JSON of the type that the schema requires for an argument.
func (s *Schema) Convert(name, text string) (json.RawMessage, error) {
	property, has := s.property(name)
	if s.known && !has && !s.open {
		return nil, s.unknownArgumentError(name)
	}
	types := s.types(&property)
	if len(types) == 0 || slices.Contains(types, "string") {
		return json.Marshal(text)
	}
	value := bytes.TrimSpace([]byte(text))
	if !json.Valid(value) || !slices.ContainsFunc(types, func(t string) bool { return isOfType(value, t) }) {
		return nil, fmt.Errorf("%s: %q is not of type %s", name, mcp.Shortened(text), strings.Join(types, " or "))
	}
	return value, nil
}

// unknownArgumentError is the error that the tool has no such argument. It lists the arguments.
func (s *Schema) unknownArgumentError(name string) error {
	name = mcp.Shortened(name)
	names := slices.Sorted(maps.Keys(s.root.Properties))
	if len(names) == 0 {
		return fmt.Errorf("unknown argument %q: the tool has no arguments", name)
	}
	if near := words.Nearest(name, names); len(near) > 0 {
		names = append(near, slices.DeleteFunc(names, func(n string) bool { return slices.Contains(near, n) })...)
	}
	return fmt.Errorf("unknown argument %q; the tool has: %s", name, strings.Join(names, ", "))
}

// searchBudget bounds the search for types in the schema of a tool, because references may repeat
// any part of the schema. Each schema in it costs 1 plus the bytes of its own types.
const searchBudget = 50_000

// types returns the types that a schema allows, each once; none for any. It subtracts the cost from
// the budget, and ends when that is used up.
func (s *Schema) types(node *subschema) (types []string) {
	resolved := map[string]bool{}
	var search func(*subschema)
	search = func(node *subschema) {
		if s.budget -= 1 + len(node.Type); s.budget < 0 {
			return
		}
		var one string
		var names []string
		if json.Unmarshal(node.Type, &one) == nil && one != "" {
			names = []string{one}
		} else {
			_ = json.Unmarshal(node.Type, &names) // the type is optional
		}
		for _, name := range names {
			if !slices.Contains(types, name) {
				types = append(types, name)
			}
		}
		if named, ok := s.definition(node.Ref); ok && !resolved[node.Ref] {
			resolved[node.Ref] = true
			search(&named)
		}
		for _, nodes := range [][]subschema{node.AnyOf, node.OneOf, node.AllOf} {
			for i := range nodes {
				search(&nodes[i])
			}
		}
	}
	search(node)
	return types
}

// definition returns the schema of a local reference.
func (s *Schema) definition(ref string) (subschema, bool) {
	if name, ok := strings.CutPrefix(ref, "#/$defs/"); ok {
		node, ok := s.root.Defs[name]
		return node, ok
	}
	name, _ := strings.CutPrefix(ref, "#/definitions/")
	node, ok := s.root.OldDefs[name]
	return node, ok
}

// isOfType reports whether a JSON value has a type of JSON schema.
func isOfType(value []byte, name string) bool {
	switch name {
	case "object":
		return value[0] == '{'
	case "array":
		return value[0] == '['
	case "boolean":
		return value[0] == 't' || value[0] == 'f'
	case "null":
		return value[0] == 'n'
	case "number":
		return value[0] == '-' || '0' <= value[0] && value[0] <= '9'
	case "integer":
		var n float64
		return isOfType(value, "number") && json.Unmarshal(value, &n) == nil && n == float64(int64(n))
	}
	return false
}
