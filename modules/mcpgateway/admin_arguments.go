package mcpgateway

import (
	"bytes"
	"encoding/json"
	"slices"
)

// A ToolArgument is an argument in the schema of a tool.
type ToolArgument struct {
	Name        string
	Types       []string // JSON types; none for any
	Required    bool
	Description string
	Default     json.RawMessage   // nil for none
	Enum        []json.RawMessage // the only values; none for all
}

// ReadToolArguments returns the arguments in the definition of a tool, in its order. open reports
// whether the tool accepts other arguments as well, which it does if its definition cannot be read.
func ReadToolArguments(definition []byte) (arguments []ToolArgument, open bool) {
	schema := readToolSchema(definition)
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
	required := map[string]bool{}
	for _, name := range tool.InputSchema.Required {
		required[name] = true
	}
	for _, name := range memberNames(tool.InputSchema.Properties) {
		node := schema.properties[name]
		argument := ToolArgument{Name: name, Required: required[name]}
		for _, t := range schema.types(&node, 0) {
			if !slices.Contains(argument.Types, t) {
				argument.Types = append(argument.Types, t)
			}
		}
		var said struct {
			Description string            `json:"description"`
			Default     json.RawMessage   `json:"default"`
			Enum        []json.RawMessage `json:"enum"`
		}
		_ = json.Unmarshal(schema.root.Properties[name], &said) // true and false are valid schemas
		argument.Description, argument.Default, argument.Enum = said.Description, said.Default, said.Enum
		arguments = append(arguments, argument)
	}
	return arguments, schema.open
}

// memberNames returns the names of the members of an object, in its order.
func memberNames(object json.RawMessage) (names []string) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if begin, _ := decoder.Token(); begin != json.Delim('{') {
		return nil
	}
	known := map[string]bool{}
	for decoder.More() {
		name, _ := decoder.Token()
		text, ok := name.(string)
		var value json.RawMessage
		if !ok || decoder.Decode(&value) != nil {
			break
		}
		if !known[text] {
			known[text] = true
			names = append(names, text)
		}
	}
	return names
}
