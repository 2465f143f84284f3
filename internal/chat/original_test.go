package chat

import (
	"fmt"
	"strings"
	"testing"
)

// Conversations whose first turn is masked.
const (
	oneText = `{"messages":[{"role":"assistant","tool_calls":[{"id":"%s","function":{"name":"read"}}]},` +
		`{"role":"tool","tool_call_id":"%[1]s","content":"%s"},{"role":"assistant","tool_calls":[{"id":"last"}]}]}`
	threeTexts = `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"read"}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"%s"},` +
		`{"type":"text","text":""},{"type":"text","text":"%s"}]}]},{"role":"assistant","content":[{"type":"tool_use",` +
		`"id":"last"}]}]}`
)

// Ids depend only on call and text. The test has one as a literal: if a process, machine or
// version produced a different id, the provider would have to process the prompt anew.
func TestOriginals(t *testing.T) {
	p := Policy{WindowTurns: 1, Template: DefaultTemplateWithID}
	seen := map[string]bool{}
	for _, test := range []struct{ name, body, original, id string }{
		{"a text", fmt.Sprintf(oneText, "a", "AAAA"), "AAAA", "obs_0wTdOhzkTe"},
		{"the same text of another call", fmt.Sprintf(oneText, "b", "AAAA"), "AAAA", ""},
		{"another text of the same call", fmt.Sprintf(oneText, "a", "AAAB"), "AAAB", ""},
		{"the same id and text when concatenated", fmt.Sprintf(oneText, "aA", "AAA"), "AAA", ""},
		{"a text with escapes", fmt.Sprintf(oneText, "a", `A\n\u00e9`), `A\n\u00e9`, ""},
		{"several texts", fmt.Sprintf(threeTexts, "AA", `B\"`), `AA\n\nB\"`, ""},
		{"an empty text", fmt.Sprintf(oneText, "a", ""), "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, plan, err := run(t, []byte(test.body), p)
			if err != nil || len(plan.Originals) != 1 || string(plan.Originals[0].Body) != test.original {
				t.Fatalf("%v, originals %q", err, plan.Originals)
			}
			id := plan.Originals[0].ID
			if !strings.Contains(string(out), ", id="+id+`)]"`) || seen[id] {
				t.Errorf("%s in %s", id, out)
			}
			seen[id] = true
			if test.id != "" && id != test.id {
				t.Errorf("id %s, want %s", id, test.id)
			}
			if _, again, _ := run(t, out, Policy{WindowTurns: 1}); again.Results != 0 {
				t.Error("a policy without ids masks it again")
			}
		})
	}
	if _, plan, _ := run(t, fmt.Appendf(nil, oneText, "a", "AAAA"), Policy{WindowTurns: 1}); plan.Results != 1 ||
		plan.Originals != nil {
		t.Errorf("without ids, originals %q", plan.Originals)
	}
}
