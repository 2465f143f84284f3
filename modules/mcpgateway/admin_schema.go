package mcpgateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// A toolSchema is the input schema of a tool.
type toolSchema struct {
	known      bool // false if the schema cannot be read
	open       bool // arguments other than properties are allowed
	properties map[string]schemaNode
	root       schemaNode
}

// A schemaNode is the part of a JSON schema that determines types.
type schemaNode struct {
	Type       json.RawMessage            `json:"type"` // a string or an array
	Ref        string                     `json:"$ref"`
	AnyOf      []schemaNode               `json:"anyOf"`
	OneOf      []schemaNode               `json:"oneOf"`
	AllOf      []schemaNode               `json:"allOf"`
	Defs       map[string]schemaNode      `json:"$defs"`
	OldDefs    map[string]schemaNode      `json:"definitions"`
	Properties map[string]json.RawMessage `json:"properties"`
	Additional json.RawMessage            `json:"additionalProperties"`
	Patterns   json.RawMessage            `json:"patternProperties"`
}

// readToolSchema reads the input schema in the definition of a tool. A schema that cannot be read
// allows everything.
func readToolSchema(definition []byte) (s toolSchema) {
	var tool struct {
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if json.Unmarshal(definition, &tool) != nil || json.Unmarshal(tool.InputSchema, &s.root) != nil {
		return toolSchema{}
	}
	s.known, s.properties = true, map[string]schemaNode{}
	s.open = len(s.root.Patterns) > 0 || len(s.root.Additional) > 0 && string(s.root.Additional) != "false" ||
		len(s.root.Properties) == 0 && len(s.root.Additional) == 0
	for name, raw := range s.root.Properties {
		var node schemaNode
		_ = json.Unmarshal(raw, &node) // true and false are valid schemas
		s.properties[name] = node
	}
	return s
}

// argument converts a text to JSON of the type that the schema requires.
func (s *toolSchema) argument(name, text string) (json.RawMessage, error) {
	node, has := s.properties[name]
	if s.known && !has && !s.open {
		return nil, s.unknownArgumentError(name)
	}
	types := s.types(&node, 0)
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
func (s *toolSchema) unknownArgumentError(name string) error {
	name = mcp.Shortened(name)
	names := slices.Sorted(maps.Keys(s.properties))
	if len(names) == 0 {
		return fmt.Errorf("unknown argument %q: the tool has no arguments", name)
	}
	if near := words.Nearest(name, names); len(near) > 0 {
		names = append(near, slices.DeleteFunc(names, func(n string) bool { return slices.Contains(near, n) })...)
	}
	return fmt.Errorf("unknown argument %q; the tool has: %s", name, strings.Join(names, ", "))
}

// maxSchemaDepth limits how deep nested schemas are searched for types.
const maxSchemaDepth = 8

// types returns the types that a schema allows; none for any.
func (s *toolSchema) types(node *schemaNode, depth int) (types []string) {
	if depth > maxSchemaDepth {
		return nil
	}
	var one string
	if json.Unmarshal(node.Type, &one) == nil && one != "" {
		types = append(types, one)
	} else {
		_ = json.Unmarshal(node.Type, &types) // the type is optional
	}
	if named, ok := s.definition(node.Ref); ok {
		types = append(types, s.types(&named, depth+1)...)
	}
	for _, nodes := range [][]schemaNode{node.AnyOf, node.OneOf, node.AllOf} {
		for i := range nodes {
			types = append(types, s.types(&nodes[i], depth+1)...)
		}
	}
	return types
}

// definition returns the schema of a local reference.
func (s *toolSchema) definition(ref string) (schemaNode, bool) {
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
