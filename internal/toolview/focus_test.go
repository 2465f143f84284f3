package toolview

import (
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
