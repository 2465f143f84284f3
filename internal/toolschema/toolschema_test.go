package toolschema

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestReadArguments(t *testing.T) {
	for _, tt := range []struct {
		name, definition string
		want             []Argument
		open             bool
	}{
		{"invalid JSON", `{`, nil, true},
		{"no schema", `{"name":"x"}`, nil, true},
		{"an empty schema", `{"inputSchema":{"type":"object"}}`, nil, true},
		{"no arguments", `{"inputSchema":{"type":"object","additionalProperties":false}}`, nil, false},
		{"the order of the schema",
			`{"inputSchema":{"required":["b"],"properties":{"z":{"type":"string"},"b":{"type":"integer","default":3},` +
				`"a":true}}}`, []Argument{
				{Name: "z", Types: []string{"string"}},
				{Name: "b", Types: []string{"integer"}, Required: true, Default: json.RawMessage("3")},
				{Name: "a"},
			}, false},
		{"types behind references, each once",
			`{"inputSchema":{"$defs":{"n":{"type":["number","null"]}},"properties":{"x":{"anyOf":[{"$ref":"#/$defs/n"},` +
				`{"type":"null"}],"description":"d"}}}}`, []Argument{
				{Name: "x", Types: []string{"number", "null"}, Description: "d"},
			}, false},
		{"members of wrong types",
			`{"inputSchema":{"required":"x","additionalProperties":{},"properties":{"x":{"type":5,"description":[1],` +
				`"enum":[1,"a"]},"y":[]}}}`, []Argument{
				{Name: "x", Enum: []json.RawMessage{json.RawMessage("1"), json.RawMessage(`"a"`)}}, {Name: "y"},
			}, true},
		{"properties that are not an object", `{"inputSchema":{"properties":[1]}}`, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, open := ReadArguments([]byte(tt.definition), []byte(tt.definition))
			if !reflect.DeepEqual(got, tt.want) || open != tt.open {
				t.Errorf("got %+v, %v", got, open)
			}
		})
	}
}

// An argument that the gateway adds does not close a schema that lists no others.
func TestReadFocused(t *testing.T) {
	const focused = `{"inputSchema":{"type":"object","properties":{"focus":{"type":"string"}}}}`
	for original, want := range map[string]bool{
		`{"inputSchema":{"type":"object"}}`: true, `{"inputSchema":{"type":"object","properties":{}}}`: true, focused: false,
	} {
		schema := ReadFocused([]byte(focused), []byte(original))
		if _, err := schema.Convert("x", "1"); (err == nil) != want {
			t.Errorf("%s: %v", original, err)
		}
		if arguments, open := ReadArguments([]byte(focused), []byte(original)); len(arguments) != 1 || open != want {
			t.Errorf("%s: got %+v, %t", original, arguments, open)
		}
	}
}

func TestConvert(t *testing.T) {
	schema := Read([]byte(`{"inputSchema":{"type":"object","$defs":{"n":{"type":"number"}},` +
		`"definitions":{"b":{"type":"boolean"}},"properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"$ref":"#/$defs/n"},"b":{"$ref":"#/definitions/b"},"o":{"type":"object"},"a":{"type":"array"},
		"maybe":{"type":["integer","null"]},"either":{"anyOf":[{"type":"boolean"},{"type":"array"}]},"text":{"anyOf":[{"type":"integer"},{"type":"string"}]},
		"any":true,"loop":{"$ref":"#/$defs/loop"}}}}`))
	for _, tt := range []struct{ name, text, want string }{
		{"s", "12", `"12"`}, {"i", "12", "12"}, {"i", " -3 ", "-3"}, {"i", "1e3", "1e3"}, {"n", "1.5", "1.5"},
		{"b", "true", "true"},
		{"o", `{"x":1}`, `{"x":1}`}, {"a", "[1]", "[1]"}, {"maybe", "null", "null"}, {"maybe", "3", "3"},
		{"either", "[]", "[]"},
		{"either", "false", "false"}, {"text", "7", `"7"`}, {"any", "x", `"x"`}, {"loop", "x", `"x"`},
		{"i", "1.5", ""}, {"i", "x", ""}, {"b", "yes", ""}, {"o", "[]", ""}, {"a", "", ""}, {"either", "1", ""},
		{"other", "x", ""},
	} {
		got, err := schema.Convert(tt.name, tt.text)
		if string(got) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s=%s: got %s, %v", tt.name, tt.text, got, err)
		}
	}
	for _, open := range []string{`{}`, `{"type":"object"}`, `{"properties":{"a":{}},"additionalProperties":true}`,
		`{"patternProperties":{"^x":{}}}`, `7`} {
		schema := Read([]byte(`{"inputSchema":` + open + `}`))
		if got, err := schema.Convert("x", "1"); string(got) != `"1"` || err != nil {
			t.Errorf("%s: got %s, %v", open, got, err)
		}
	}
}

// A server determines the schemas of its tools, so a small schema must not keep the gateway busy.
func TestSearchForTypesIsBounded(t *testing.T) {
	loops := Read([]byte(`{"inputSchema":{"properties":{"p":{"$ref":"#/$defs/a"}},"$defs":{"a":{` +
		`"type":"integer","anyOf":[{"$ref":"#/$defs/a"}` + strings.Repeat(`,{"$ref":"#/$defs/a"}`, 9) + `]}}}}`))
	if _, err := loops.Convert("p", "x"); err == nil || err.Error() != `p: "x" is not of type integer` {
		t.Errorf("a schema that refers to itself: %.200v", err)
	}
	shared := Read([]byte(`{"inputSchema":{"properties":{"p":{"$ref":"#/$defs/a"}},"$defs":{"a":{` +
		`"anyOf":[{"type":"integer"}` + strings.Repeat(`,{}`, searchBudget/2) + `]}}}}`))
	property, _ := shared.property("p")
	for i, want := range [][]string{{"integer"}, {"integer"}, nil} {
		if got := shared.types(&property); !slices.Equal(got, want) {
			t.Errorf("search %d in a long schema: got %q, want %q", i, got, want)
		}
	}
}
