package chat

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// A toolTurn is a turn of one call and its result.
type toolTurn struct{ tool, content string }

func grown(turns []toolTurn) string {
	var messages []string
	for i, turn := range turns {
		messages = append(messages, fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":"call_%02d",`+
			`"function":{"name":%q}}]}`, i, turn.tool))
		messages = append(messages, fmt.Sprintf(`{"role":"tool","tool_call_id":"call_%02d","content":%q}`, i, turn.content))
	}
	return `{"messages":[` + strings.Join(messages, ",") + `]}`
}

// boundaries returns the boundary after each turn.
func boundaries(t *testing.T, turns []toolTurn, p Policy) (after []int) {
	t.Helper()
	for n := range turns {
		_, plan, err := run(t, []byte(grown(turns[:n+1])), p)
		if err != nil {
			t.Fatal(err)
		}
		after = append(after, plan.Boundary)
	}
	return after
}

// T32, T33: the boundary moves by steps, and when a step masks enough.
func TestBoundary(t *testing.T) {
	read := toolTurn{"read", strings.Repeat("x", 400)} // 100 tokens
	tiny := toolTurn{"read", "ok"}
	failed := toolTurn{"read", "error: " + strings.Repeat("x", 400)}
	todo := toolTurn{"todo", strings.Repeat("x", 400)}
	list := func(turns ...toolTurn) []toolTurn { return turns }
	of := func(n int, turn toolTurn) (turns []toolTurn) {
		for range n {
			turns = append(turns, turn)
		}
		return turns
	}
	for _, test := range []struct {
		name  string
		turns []toolTurn
		p     Policy
		want  []int
	}{
		{"slides", of(6, read), Policy{WindowTurns: 2}, []int{0, 0, 1, 2, 3, 4}},
		{"by steps", of(9, read), Policy{WindowTurns: 2, StepTurns: 3}, []int{0, 0, 0, 0, 3, 3, 3, 6, 6}},
		{"by a step as long as the window", of(8, read), Policy{WindowTurns: 4, StepTurns: 4}, []int{0, 0, 0, 0, 0, 0, 0, 4}},
		{"when it pays", of(9, read), Policy{WindowTurns: 2, ClearAtLeast: 250}, []int{0, 0, 0, 0, 3, 3, 3, 6, 6}},
		{"when it pays exactly", of(7, read), Policy{WindowTurns: 2, ClearAtLeast: 200}, []int{0, 0, 0, 2, 2, 4, 4}},
		{"by steps that pay", of(9, read), Policy{WindowTurns: 2, StepTurns: 2, ClearAtLeast: 250},
			[]int{0, 0, 0, 0, 0, 4, 4, 4, 4}},
		{"short results pay nothing", append(of(3, tiny), of(6, read)...), Policy{WindowTurns: 1, ClearAtLeast: 200,
			MinChars: 100}, []int{0, 0, 0, 0, 0, 5, 5, 7, 7}},
		{"errors that are kept pay nothing", append(of(3, failed), of(6, read)...), Policy{WindowTurns: 1, ClearAtLeast: 200,
			KeepErrors: ErrorsOn}, []int{0, 0, 0, 0, 0, 5, 5, 7, 7}},
		{"errors that are not kept pay", of(5, failed), Policy{WindowTurns: 1, ClearAtLeast: 200}, []int{0, 0, 2, 2, 4}},
		{"excluded tools pay nothing", list(todo, todo, todo, read, read, read), Policy{WindowTurns: 1, ClearAtLeast: 200,
			ExcludeTools: []string{"to*"}}, []int{0, 0, 0, 0, 0, 5}},
		{"the last results of a tool pay nothing while they are kept", list(todo, read, read, read, read, todo, read, read),
			Policy{WindowTurns: 1, ClearAtLeast: 200, KeepLastPerTool: 1},
			// The todo of the first turn is kept until the sixth turn.
			[]int{0, 0, 0, 3, 3, 5, 5, 7}},
		{"never, because no step masks enough", of(9, read), Policy{WindowTurns: 2, ClearAtLeast: 1000},
			[]int{0, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := boundaries(t, test.turns, test.p); !reflect.DeepEqual(got, test.want) {
				t.Errorf("boundary after each turn %v, want %v", got, test.want)
			}
		})
	}
}

// T16: objects inside the content of a tool message are not results, whatever they contain.
func TestContentThatIsNotText(t *testing.T) {
	for _, content := range []string{
		`[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:"}}]`,
		`[{"type":"text","text":"x"},{"text":"x"}]`,
		`[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"x"}]}]`,
		`[{"type":"tool_result","tool_use_id":"a","content":"x"}]`,
		`{"type":"text","text":"x","content":{"text":{"type":"text","text":"x"}}}`,
		`null`, `1`, `true`, `[]`, `{}`,
	} {
		body := `{"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a","content":` +
			content +
			`},{"role":"assistant","tool_calls":[{"id":"b"}]}]}`
		if out, _, err := run(t, []byte(body), Policy{WindowTurns: 1}); string(out) != body || err != nil {
			t.Errorf("%s became %s, %v", content, out, err)
		}
	}
}

// Messages after the results of a turn do not move the boundary.
func TestBoundaryStaysWhenPeopleTalk(t *testing.T) {
	p := Policy{WindowTurns: 8, ClearAtLeast: ClearAuto, MinChars: 800, ReadPrice: DefaultReadPrice,
		WritePrice: DefaultWritePrice}
	var turns []toolTurn
	for range 50 {
		turns = append(turns, toolTurn{"read", strings.Repeat("x", 3000)})
		body := grown(turns)
		talk := `,{"role":"assistant","content":"Done."},{"role":"user","content":"` + strings.Repeat("y", 18_000) + `"}]}`
		_, before, _ := run(t, []byte(body), p)
		_, after, _ := run(t, []byte(strings.TrimSuffix(body, "]}")+talk), p)
		if after.Boundary != before.Boundary || after.Results != before.Results || after.Broken {
			t.Fatalf("after %d turns: %+v, then %+v", len(turns), before, after)
		}
	}
}

// A body made of results that are shorter than their placeholders stays unchanged.
// [run] checks that no body becomes much longer.
func TestGrowth(t *testing.T) {
	const n = 5000
	template := must(ParseTemplate("{tool_call_id}{tool_call_id}{tool_name}"))
	chat := func(id, name, content string) string {
		return `{"messages":[{"role":"assistant","tool_calls":[{"id":"` + id + `","function":{"name":"` + name + `"}}]}` +
			strings.Repeat(`,{"role":"tool","tool_call_id":"`+id+`","content":"`+content+`"}`, n) +
			`,{"role":"assistant","tool_calls":[{"id":"b"}]}]}`
	}
	anthropic := func(name, content string) string {
		return `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"` + name +
			`"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}` +
			strings.Repeat(`,{"type":"tool_result","tool_use_id":"a","content":`+content+`}`, n) +
			`]},{"role":"assistant","content":[{"type":"tool_use","id":"b"}]}]}`
	}
	responses := func(name, output string) string {
		return `{"input":[{"type":"function_call","call_id":"a","name":"` + name + `"}` +
			strings.Repeat(`,{"type":"function_call_output","call_id":"a","output":"`+output+`"}`, n) +
			`,{"type":"function_call","call_id":"b"}]}`
	}
	emoji := strings.Repeat(`\ud83d\ude00`, 64)   // 256 bytes
	tooLong := strings.Repeat(`\ud83d\ude00`, 65) // an unknown tool
	long := strings.Repeat("x", 1500)
	texts := func(text string) string {
		return `[` + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"`+text+`"},`, 100), ",") + `]`
	}
	for _, test := range []struct {
		name, body string
		template   Template
		grows      bool
		results    int
	}{
		{"empty results", chat("a", emoji, ""), DefaultTemplate, true, 0},
		{"empty results of an unknown tool", chat("a", tooLong, ""), DefaultTemplate, true, 0},
		{"empty results of Anthropic", anthropic(emoji, `""`), DefaultTemplate, true, 0},
		{"empty outputs", responses(emoji, ""), DefaultTemplate, true, 0},
		{"results of many empty texts", anthropic("read", texts("")), DefaultTemplate, true, 0},
		{"a long id that is repeated", chat(strings.Repeat("i", 1000), "read", "0123456789"), template, true, 0},
		{"results as long as their placeholders", chat("a", "read", strings.Repeat("x", 120)), DefaultTemplate, false, n},
		{"long results", chat("a", emoji, long), DefaultTemplate, false, n},
		{"long results of a tool whose name is too long", chat("a", strings.Repeat("n", 200_000), long), DefaultTemplate,
			false, n},
		{"results of many texts", anthropic("read", texts("0123456789")), DefaultTemplate, false, n + 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, plan, err := run(t, []byte(test.body), Policy{WindowTurns: 1, Template: test.template})
			if err != nil || plan.Results != test.results || plan.Grows != test.grows || plan.Broken == test.grows {
				t.Errorf("%d results masked, %d bytes of %d, grows %t, broken %t, %v", plan.Results, len(out), len(test.body),
					plan.Grows, plan.Broken, err)
			}
		})
	}
}

// T10, T13: the placeholder that replaces a result.
func TestTemplate(t *testing.T) {
	for _, test := range []struct{ template, want string }{
		{"<{tool_call_id}|{tool_name}|{original_chars}>", "<call_00|re\\\"ad|9>"},
		{"{original_chars}{original_chars}", "99"},
		{"quote \" backslash \\ line\nend\ttab\x01", `quote \" backslash \\ line\nend\ttab\u0001`},
		{"nothing at all", "nothing at all"},
		{"{original_chars}0{tool_call_id}", "90call_00"},
		{"not UTF-8: \xff", "not UTF-8: \uFFFD"},
	} {
		template, err := ParseTemplate(test.template)
		if err != nil {
			t.Fatal(err)
		}
		turns := []toolTurn{{`re"ad`, "some text"}, {"read", "x"}}
		out, plan, _ := run(t, []byte(grown(turns)), Policy{WindowTurns: 1, Template: template})
		want := strings.Replace(grown(turns), `"some text"`, `"`+test.want+`"`, 1)
		if string(out) != want {
			t.Errorf("%q: got %s\nwant %s", test.template, out, want)
		}
		if again, plan, _ := run(t, out, Policy{WindowTurns: 1, Template: template}); plan.Results != 0 ||
			string(again) != string(out) {
			t.Errorf("%q: masked again: %s", test.template, again)
		}
		if plan.Results != 1 || plan.Chars != 9 || plan.Saved != 9-len([]rune(unquoted(t, test.want))) {
			t.Errorf("%q: %+v", test.template, plan)
		}
	}
	for _, template := range []string{"", "{foo}", "{", "}", "a { b", "{tool_name", "tool_name}", "{{tool_name}}",
		"{Tool_Name}", "{ tool_name }", "{}"} {
		if _, err := ParseTemplate(template); err == nil {
			t.Errorf("%q was accepted", template)
		}
	}
}

func unquoted(t *testing.T, spelled string) string {
	t.Helper()
	text, ok := referenceDecode([]byte(`"` + spelled + `"`)).(string)
	if !ok {
		t.Fatalf("%s is not a string", spelled)
	}
	return text
}

// Allocations do not grow with the body: only the edits and their texts are allocated.
func TestAllocations(t *testing.T) {
	for _, size := range []int{300_000, 3_000_000} {
		body := longConversation(size, "some line of a log\\n")
		var c Conversation
		p := Policy{WindowTurns: 8, KeepErrors: ErrorsOn}
		if n := testing.AllocsPerRun(5, func() {
			if c.Parse(body) != nil || c.Mask(&p).Results != 992 {
				t.Fatal("not masked")
			}
		}); n > 3 {
			t.Errorf("%v allocations for %d bytes", n, size)
		}
	}
}
