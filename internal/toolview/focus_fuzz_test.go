package toolview

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// FuzzFocusTake checks that the server gets all arguments of a call except the one of the gateway.
func FuzzFocusTake(f *testing.F) {
	for _, arguments := range []string{
		`{}`, `{"a":1}`, `{"focus":"x"}`, `{"focus":"x","a":1}`, `{"a":1, "focus" : "x" }`,
		`{"a":1,"f\u006fcus":" x\n","b":[{"focus":"y"}]}`,
		`{"focus":null}`, `{"focus":"x","focus":"y"}`, `{"focus":"x","focus":null,"b":2}`,
		`{"focus":1}`, `{"Focus":"x"}`, `{"a":"focus"}`, `{"focus":"\ud800"}`,
	} {
		f.Add(arguments)
	}
	focus := NewFocus("focus")
	f.Fuzz(func(t *testing.T, arguments string) {
		var want map[string]any
		if json.Unmarshal([]byte(arguments), &want) != nil || want == nil {
			return
		}
		var m jsonrpc.Message
		params := `{"name":"t","arguments":` + arguments + `}`
		if m.Read([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`)) != nil {
			return
		}
		if _, has := want["focus"]; focus.IsGiven(&m) != has {
			t.Fatalf("%s: given = %t", arguments, !has)
		}
		goal, edited, failure := focus.Take(&m)
		if failure != nil {
			if !strings.Contains(failure.Message, "arguments.focus") {
				t.Fatalf("%s: %v", arguments, failure)
			}
			return
		}
		if last, _ := want["focus"].(string); last != "" && goal == "" && strings.TrimSpace(last) != "" {
			t.Fatalf("%s: no goal, want %q", arguments, last)
		}
		delete(want, "focus")
		var got map[string]any
		if err := json.Unmarshal(edited.Literal(jsonrpc.Arguments), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s became %s: %v", arguments, edited.Literal(jsonrpc.Arguments), err)
		}
	})
}

// FuzzFocusAdd checks that the definition of a tool gets one more argument or stays unchanged.
func FuzzFocusAdd(f *testing.F) {
	for _, schema := range []string{
		`{"type":"object"}`, `{}`, `{ }`, `{"properties":{}}`,
		`{"properties":{"a":{}, "b":{}} , "required":["a"]}`, `{"properties":{"focus":{}}}`,
		`{"properties":{"FOCUS":{}}}`, `{"required":["focus"]}`, `{"oneOf":[]}`,
		`true`, `[]`, `{"properties":[]}`, `{"properties":{},"properties":{}}`,
		`{"type":"string"}`, `{"type":"object","$defs":{"a":{"$ref":"#"}}}`,
	} {
		f.Add(schema)
	}
	focus := NewFocus("focus")
	f.Fuzz(func(t *testing.T, schema string) {
		if !json.Valid([]byte(schema)) {
			return
		}
		tool := []byte(`{"name":"t","inputSchema":` + schema + `,"description":"d"}`)
		e, ok := focus.Add(tool)
		if !ok {
			return
		}
		added := jsonspan.Spliced(tool, e)
		var before, after struct{ InputSchema map[string]any }
		if err := json.Unmarshal(added, &after); err != nil {
			t.Fatalf("%s became %s: %v", tool, added, err)
		}
		_ = json.Unmarshal(tool, &before)
		properties, _ := after.InputSchema["properties"].(map[string]any)
		if argument, _ := properties["focus"].(map[string]any); argument["type"] != "string" {
			t.Fatalf("%s became %s", tool, added)
		}
		delete(properties, "focus")
		if before.InputSchema["properties"] == nil {
			delete(after.InputSchema, "properties")
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%s became %s", tool, added)
		}
	})
}
