package mcpgateway

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestReadToolArguments(t *testing.T) {
	for _, tt := range []struct {
		name, definition string
		want             []ToolArgument
		open             bool
	}{
		{"invalid JSON", `{`, nil, true},
		{"no schema", `{"name":"x"}`, nil, true},
		{"an empty schema", `{"inputSchema":{"type":"object"}}`, nil, true},
		{"no arguments", `{"inputSchema":{"type":"object","additionalProperties":false}}`, nil, false},
		{"the order of the schema",
			`{"inputSchema":{"required":["b"],"properties":{"z":{"type":"string"},"b":{"type":"integer","default":3},` +
				`"a":true}}}`, []ToolArgument{
				{Name: "z", Types: []string{"string"}},
				{Name: "b", Types: []string{"integer"}, Required: true, Default: json.RawMessage("3")},
				{Name: "a"},
			}, false},
		{"types behind references, each once",
			`{"inputSchema":{"$defs":{"n":{"type":["number","null"]}},"properties":{"x":{"anyOf":[{"$ref":"#/$defs/n"},` +
				`{"type":"null"}],"description":"d"}}}}`, []ToolArgument{
				{Name: "x", Types: []string{"number", "null"}, Description: "d"},
			}, false},
		{"members of wrong types",
			`{"inputSchema":{"required":"x","additionalProperties":{},"properties":{"x":{"type":5,"description":[1],` +
				`"enum":[1,"a"]},"y":[]}}}`, []ToolArgument{
				{Name: "x", Enum: []json.RawMessage{json.RawMessage("1"), json.RawMessage(`"a"`)}}, {Name: "y"},
			}, true},
		{"properties that are not an object", `{"inputSchema":{"properties":[1]}}`, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, open := ReadToolArguments([]byte(tt.definition))
			if !reflect.DeepEqual(got, tt.want) || open != tt.open {
				t.Errorf("got %+v, %v", got, open)
			}
		})
	}
}
