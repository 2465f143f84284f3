package toolview

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// newOverrides returns the Overrides of a server.
func newOverrides(t testing.TB, all ...*Override) *Overrides {
	t.Helper()
	s, err := NewOverrides(all)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// itemOf returns a tool that was parsed from a list.
func itemOf(t *testing.T, tool string) *mcp.Item {
	t.Helper()
	var l mcp.List
	if failure := l.Read([]byte(`{"result":{"tools":[` + tool + `]}}`)); failure != nil || len(l.Items) != 1 {
		t.Fatal(failure)
	}
	return &l.Items[0]
}

func TestOverrideDefinesTool(t *testing.T) {
	tool := func(members string) string { return `{"title":"T", "name" : "x"` + members + ` }` }
	schema := func(s string) string { return tool(`,"inputSchema":` + s + `,"_meta":{"root":1}`) }
	hidden := &Override{
		Tool: "x", Fixed: []FixedArgument{{"root", []byte(`"/"`)}}, Hidden: []string{"debug"},
	}
	destructive := &Override{Tool: "x", On: mcp.Destructive}
	closed := &Override{Tool: "x", Off: mcp.OpenWorld}
	for _, test := range []struct {
		name       string
		o          *Override
		tool, want string
	}{
		{"another description", &Override{Tool: "x", Description: `a "b"`},
			tool(`,"description":"é","a":1`),
			tool(`,"a":1,"description":"a \"b\""`)},
		{"a description", &Override{Tool: "x", Description: "d"}, `{"name":"x"}`, `{"name":"x","description":"d"}`},
		{"a description that replaces repeated ones", &Override{Tool: "x", Description: "d"},
			`{"description":"a","name":"x","description":1}`,
			`{"name":"x","description":"d"}`},
		{"another title", &Override{Tool: "x", Title: "U"}, `{"title":"T", "name":"x"}`, `{"name":"x","title":"U"}`},

		{"annotations", destructive, tool(``), tool(`,"annotations":{"readOnlyHint":false,"destructiveHint":true}`)},
		{"annotations among others", destructive,
			tool(`,"annotations":{"title":"a", "readOnlyHint":true,"x":[1]}`),
			tool(`,"annotations":{"title":"a", "x":[1],"readOnlyHint":false,"destructiveHint":true}`)},
		{"annotations that replace repeated ones", closed,
			tool(`,"annotations":{"title":"a"},"annotations":{}`),
			tool(`,"annotations":{"openWorldHint":false}`)},
		{"annotations that replace a string", closed,
			tool(`,"annotations":"a"`),
			tool(`,"annotations":{"openWorldHint":false}`)},
		{"no repeated hints", closed,
			tool(`,"annotations":{"readOnlyHint":true,"idempotentHint":true,"idempotentHint":false}`),
			tool(`,"annotations":{"openWorldHint":false}`)},

		{"without arguments", hidden,
			schema(`{"properties":{"a":{}, "root":{"type":"string"},"debug":{}} ,"required":[ "root", "a" ]}`),
			schema(`{"properties":{"a":{}} ,"required":["a"]}`)},
		{"without all hidden arguments", hidden,
			schema(`{"required":["root"],"properties":{"r\u006fot":{},"Debug":{}}}`),
			schema(`{"required":[],"properties":{}}`)},
		{"without dependent arguments", hidden,
			schema(`{"dependentRequired":{"root":["a"],"a":["debug","b"],"b":["c"]},"dependencies":{"a":{"root":1}}}`),
			schema(`{"dependentRequired":{"a":["b"],"b":["c"]},"dependencies":{"a":{"root":1}}}`)},
		{"with nested properties", hidden,
			schema(`{"properties":{"a":{"properties":{"root":{}},"required":["root"]}},"required":["a"]}`),
			schema(`{"properties":{"a":{"properties":{"root":{}},"required":["root"]}},"required":["a"]}`)},
		{"with a schema that has no properties", hidden,
			schema(`{"properties":[],"required":{}}`),
			schema(`{"properties":[],"required":{}}`)},
		{"with a schema that is true", hidden, schema(`true`), schema(`true`)},
	} {
		t.Run(test.name, func(t *testing.T) {
			newOverrides(t, test.o)
			got := test.o.Define(itemOf(t, test.tool))
			if string(got.Raw) != test.want {
				t.Errorf("got  %s\nwant %s", got.Raw, test.want)
			}
			want := strings.Replace(test.want, `"x"`, `"other"`, 1)
			if renamed := jsonspan.Spliced(got.Raw, got.Rename("other")); string(renamed) != want {
				t.Errorf("renamed: got %s", renamed)
			}
		})
	}
}

// The operator's annotations replace the server's.
func TestOverrideAnnotations(t *testing.T) {
	definitions := []string{
		``, `,"annotations":{}`, `,"annotations":null`, `,"annotations":{"readOnlyHint":true,"destructiveHint":true}`,
		`,"annotations":{"readOnlyHint":true,"readOnlyHint":false}`,
		`,"annotations":{},"annotations":{"readOnlyHint":true}`,
		`,"annotations":{"openWorldHint":1,"openWorldHint":false,"idempotentHint":true}`,
	}
	all := mcp.ReadOnly | mcp.Destructive | mcp.Idempotent | mcp.OpenWorld
	for on := mcp.Annotations(0); on <= all; on++ {
		for off := mcp.Annotations(0); off <= all; off++ {
			if on&off != 0 || on|off == 0 || on&mcp.ReadOnly != 0 && on&mcp.Destructive != 0 {
				continue
			}
			s := newOverrides(t, &Override{Tool: "x", On: on, Off: off})
			for _, definition := range definitions {
				raw := `{"name":"x"` + definition + `}`
				got := s.Annotations("x", []byte(raw))
				if got&on != on || got&off != 0 {
					t.Errorf("%s, on: %s, off: %s: got %s", raw, on, off, got)
				}
				defined := s.Of("x").Define(itemOf(t, raw))
				if shown := mcp.ReadAnnotations(defined.Raw); shown != got {
					t.Errorf("%s, on: %s, off: %s: clients get %s, rules %s", raw, on, off, shown, got)
				}
			}
		}
	}
	s := newOverrides(t, &Override{Tool: "x", On: mcp.ReadOnly})
	other := []byte(`{"annotations":{"idempotentHint":true}}`)
	if got := s.Annotations("y", other); got != mcp.Unannotated|mcp.Idempotent {
		t.Errorf("another tool: %s", got)
	}
}

// callOf returns a tools/call with these members of its params.
func callOf(members string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"y"` + members + `,"_meta":{"root":1}}}`
}

func TestOverrideChangesCall(t *testing.T) {
	fixed := &Override{
		Tool: "x", Name: "y", Hidden: []string{"debug"},
		Fixed: []FixedArgument{{"root", []byte(`"/srv"`)}, {"n", []byte(`{"a":[1.0]}`)}},
	}
	const values = `"root":"/srv","n":{"a":[1.0]}`
	hidden := &Override{Tool: "x", Name: "y", Hidden: []string{"debug", "trace"}}
	for _, test := range []struct {
		name       string
		o          *Override
		call, want string
	}{
		{"rename", &Override{Tool: "x", Name: "y"}, callOf(`,"arguments":[1]`), callOf(`,"arguments":[1]`)},
		{"no arguments", fixed,
			callOf(``),
			strings.Replace(callOf(``), `"name"`, `"arguments":{`+values+`},"name"`, 1)},
		{"null", fixed, callOf(`,"arguments": null`), callOf(`,"arguments": {` + values + `}`)},
		{"empty arguments", fixed, callOf(`,"arguments":{ }`), callOf(`,"arguments":{` + values + ` }`)},
		{"other arguments", fixed,
			callOf(`,"arguments":{ "a":{"root":1} }`),
			callOf(`,"arguments":{ "a":{"root":1},` + values + ` }`)},
		{"fixed arguments in all spellings", fixed,
			callOf(`,"arguments":{"root":"/","a":1,"r\u006fot":[{}],"ROOT":0, "deBug":1,"n":2,"Root\u0000":1}`),
			callOf(`,"arguments":{"a":1,` + values + `}`)},
		{"hidden arguments", hidden, callOf(`,"arguments":{"trace":1,"a":1,"debug":{}}`), callOf(`,"arguments":{"a":1}`)},
		{"hidden arguments and null", hidden, callOf(`,"arguments":null`), callOf(`,"arguments":{}`)},
		{"an array is refused", fixed, callOf(`,"arguments":["root"]`), ""},
		{"a string is refused", hidden, callOf(`,"arguments":"debug"`), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			newOverrides(t, test.o)
			var m jsonrpc.Message
			if failure := m.ReadRequest([]byte(test.call)); failure != nil {
				t.Fatal(failure)
			}
			got, failure := test.o.ToServer(&m)
			if test.want == "" {
				if failure == nil || !strings.Contains(failure.Message, "arguments: not an object") {
					t.Errorf("got %v, %s", failure, got.Raw)
				}
				return
			}
			if want := strings.Replace(test.want, `"y"`, `"x"`, 1); failure != nil || string(got.Raw) != want {
				t.Errorf("got  %s, %v\nwant %s", got.Raw, failure, want)
			}
			if !got.Is(jsonrpc.Name, "x") {
				t.Errorf("got name %s", got.Literal(jsonrpc.Name))
			}
		})
	}
}

func TestOverridesContradict(t *testing.T) {
	for _, test := range []struct {
		name string
		all  []*Override
		want string
	}{
		{"one name for two tools", []*Override{{Tool: "a", Name: "c"}, {Tool: "b", Name: "c"}},
			"tool b: rename: tool a already has the name c"},
		{"the name of another tool", []*Override{{Tool: "a", Name: "b"}, {Tool: "b", Title: "B"}},
			"tool b: rename: tool a already has the name b"},
		{"read-only and destructive", []*Override{{Tool: "a", On: mcp.ReadOnly | mcp.Destructive}},
			"tool a: annotate: read_only and destructive contradict each other"},
		{"fixed and hidden",
			[]*Override{{Tool: "a", Fixed: []FixedArgument{{"x", []byte("1")}}, Hidden: []string{"X"}}},
			"tool a: arguments: X is given twice"},
		{"fixed twice", []*Override{{Tool: "a", Fixed: []FixedArgument{{"x", []byte("1")}, {"X", []byte("1")}}}},
			"tool a: arguments: X is given twice"},
		{"exchanged names", []*Override{{Tool: "a", Name: "b"}, {Tool: "b", Name: "a"}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewOverrides(test.all)
			if test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// FuzzOverrideCall checks that the server gets each fixed argument once, no hidden argument, and
// all others unchanged.
func FuzzOverrideCall(f *testing.F) {
	for _, arguments := range []string{
		`{}`, `{"a":1}`, `{"root":"x"}`, `{"root":"x","a":1}`, `{"a":1, "root" : "x" }`, ` { "debug":1 } `,
		`{"a":1,"r\u006fot":" x\n","b":[{"root":"y"}]}`, `{"root":null,"ROOT":1,"debug":2,"b":2,"debug":3}`,
		`{"a":"root"}`, `{"\ud800":1,"root":"\ud800"}`, `{"a":1,"a":2}`, `{"root\u0000":1}`, `null`, `[]`,
	} {
		f.Add(arguments)
	}
	o := &Override{Tool: "x", Fixed: []FixedArgument{{"root", []byte(`"/srv"`)}}, Hidden: []string{"debug"}}
	newOverrides(f, o)
	is := func(key, name string) bool { return strings.EqualFold(strings.TrimRight(key, "\x00"), name) }
	f.Fuzz(func(t *testing.T, arguments string) {
		var m jsonrpc.Message
		before := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":`
		after := `,"_meta":{}}}`
		failure := m.ReadRequest([]byte(before + arguments + after))
		given := string(m.Literal(jsonrpc.Arguments))
		if failure != nil || strings.TrimSpace(arguments) != given {
			return // not a value, or more than one
		}
		edited, failure := o.ToServer(&m)
		if kind := m.Kind(jsonrpc.Arguments); kind != jsonspan.BeginObject && kind != jsonspan.Null {
			if failure == nil {
				t.Fatalf("%s was accepted", arguments)
			}
			return
		}
		if failure != nil {
			t.Fatalf("%s: %v", arguments, failure)
		}
		at := strings.Index(before+arguments+after, given)
		end := string(m.Raw[at+len(given):])
		if got := string(edited.Raw); !strings.HasPrefix(got, string(m.Raw[:at])) || !strings.HasSuffix(got, end) {
			t.Fatalf("%s became %s", m.Raw, got)
		}
		members := func(object string) (all []string) {
			for m := range jsonspan.Members([]byte(object)) {
				if !is(m.Key, "root") && !is(m.Key, "debug") {
					all = append(all, object[m.Start:m.End])
				}
			}
			return all
		}
		got := string(edited.Literal(jsonrpc.Arguments))
		if !slices.Equal(members(got), members(given)) {
			t.Fatalf("%s became %s", given, got)
		}
		var decoded map[string]any
		if err := json.Unmarshal([]byte(got), &decoded); err != nil || decoded["root"] != "/srv" {
			t.Fatalf("%s became %s: %v", given, got, err)
		}
		n := 0
		for m := range jsonspan.Members([]byte(got)) {
			if is(m.Key, "debug") {
				t.Fatalf("%s became %s", given, got)
			}
			if is(m.Key, "root") {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%s became %s", given, got)
		}
	})
}
