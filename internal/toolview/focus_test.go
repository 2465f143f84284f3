package toolview

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

func TestFocusIsAdded(t *testing.T) {
	const property = `"aim":{"type":"string","description":"` + focusDescription + `"}`
	tool := func(schema string) string { return `{"name":"x","inputSchema":` + schema + ` ,"title":"X"}` }
	for _, test := range []struct{ name, tool, want string }{
		{"with other properties", tool(`{"type":"object","properties":{"a":{}} ,"additionalProperties":false}`),
			tool(`{"type":"object","properties":{"a":{},` + property + `} ,"additionalProperties":false}`)},
		{"as the only one", tool(`{"type":"object","properties":{}}`), tool(`{"type":"object","properties":{` + property +
			`}}`)},
		{"without properties", tool(`{"type":"object","required":[]}`), tool(`{"type":"object","required":[],"properties":{` +
			property + `}}`)},
		{"with an empty schema", tool(`{}`), tool(`{"properties":{` + property + `}}`)},
		{"with a restrictive property", tool(`{"properties":{"a":{"oneOf":[],"aim":1}}}`),
			tool(`{"properties":{"a":{"oneOf":[],"aim":1},` + property + `}}`)},
		{"not with a property of the same name", tool(`{"properties":{"aim":{}}}`), ""},
		{"not with a similar property", tool(`{"properties":{"Aim":{}}}`), ""},
		{"not to a reference", tool(`{"$ref":"#/$defs/a"}`), ""},
		{"not to a choice", tool(`{"type":"object","oneOf":[{}]}`), ""},
		{"not with patternProperties", tool(`{"patternProperties":{"a":{"type":"integer"}}}`), ""},
		{"not with maxProperties", tool(`{"maxProperties":1}`), ""},
		{"not to a type that is not an object", tool(`{"type":["object","null"]}`), ""},
		{"not with invalid properties", tool(`{"properties":[]}`), ""},
		{"not with repeated properties", tool(`{"properties":{},"properties":{}}`), ""},
		{"not without a schema", `{"name":"x"}`, ""},
		{"not to a schema that is true", tool(`true`), ""},
		{"not with two schemas", `{"inputSchema":{},"inputSchema":{}}`, ""},
		{"not to a tool whose results are tasks", `{"name":"x","inputSchema":{},"execution":{"taskSupport":"required"}}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := NewFocus("aim")
			e, ok := f.Add([]byte(test.tool))
			if ok != (test.want != "") {
				t.Fatalf("got %+v, %t", e, ok)
			}
			if !ok {
				return
			}
			got := jsonspan.Spliced([]byte(test.tool), e)
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestFocusIsTaken(t *testing.T) {
	for _, test := range []struct{ name, arguments, goal, want string }{
		{"with other arguments", `{"a":1, "aim":" the\u0020reason ","b":2}`, "the reason", `{"a":1, "b":2}`},
		{"as the only argument", `{"aim":"x"}`, "x", `{}`},
		{"null", `{"aim":null,"a":1}`, "", `{"a":1}`},
		{"spaces", `{"aim":" "}`, "", `{}`},
		{"the last of two", `{"aim":"x","aim":"y"}`, "y", `{}`},
		{"many", `{"aim":"x","aim":"y" , "a":1,"aim":"z","b":2 ,"aim":null, "aim":" w"}`, "w", `{"a":1,"b":2}`},
		{"a long value is truncated", `{"aim":"` + strings.Repeat("é", maxGoal+1) + `"}`, strings.Repeat("é", maxGoal),
			`{}`},
		{"none", `{"a":{"aim":1}}`, "", `{"a":{"aim":1}}`},
		{"a number is refused", `{"aim":1}`, "", ""},
		{"an object is refused", `{"aim":{"a":"b"}}`, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			call := func(arguments string) string {
				return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":` + arguments +
					`,"_meta":{"aim":1}}}`
			}
			var m jsonrpc.Message
			if failure := m.ReadRequest([]byte(call(test.arguments))); failure != nil {
				t.Fatal(failure)
			}
			f := NewFocus("aim")
			if f.IsGiven(&m) == (test.want == test.arguments) {
				t.Error("not recognized as the focus argument")
			}
			goal, edited, failure := f.Take(&m)
			if test.want == "" {
				if failure == nil || !strings.Contains(failure.Message, "arguments.aim") {
					t.Fatalf("%v", failure)
				}
				return
			}
			if failure != nil || goal != test.goal || string(edited.Raw) != call(test.want) {
				t.Errorf("%q, %v, %s", goal, failure, edited.Raw)
			}
			if string(edited.Literal(jsonrpc.Arguments)) != test.want {
				t.Errorf("got arguments %s", edited.Literal(jsonrpc.Arguments))
			}
		})
	}
}

// A call that repeats the argument many times is parsed once.
func TestFocusIsParsedOnce(t *testing.T) {
	take := func(n int) float64 {
		var m jsonrpc.Message
		arguments := strings.Repeat(`"aim":"",`, n) + `"a":1`
		call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{` + arguments + `}}}`
		if failure := m.ReadRequest([]byte(call)); failure != nil {
			t.Fatal(failure)
		}
		return testing.AllocsPerRun(1, func() { _, _, _ = NewFocus("aim").Take(&m) })
	}
	if few, many := take(10), take(1000); many > few+10 {
		t.Errorf("%.0f allocations for 10, %.0f for 1000", few, many)
	}
}

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
