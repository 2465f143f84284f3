package mcpconsole

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDiffJSON(t *testing.T) {
	for _, tt := range []struct{ name, before, after, want string }{
		{"a description", `{"name":"x","description":"old"}`, `{"name":"x","description":"new"}`,
			" {\n   \"name\": \"x\",\n-  \"description\": \"old\"\n+  \"description\": \"new\"\n }"},
		{"no change", `[1]`, `[1]`, " [\n   1\n ]"},
		{"invisible characters", `"a"`, "\"a\u200b\u202e\U000e0041é\"", "-\"a\"\n+\"a\\u200b\\u202e\\udb40\\udc41é\""},
		{"invalid JSON", `<b>`, `{}`, "-<b>\n+{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			room := diffBudget
			for _, line := range diffJSON(json.RawMessage(tt.before), json.RawMessage(tt.after), &room) {
				lines = append(lines, line.Sign+line.Text)
			}
			if got := strings.Join(lines, "\n"); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// The budget limits the lines of all diffs together: a server may change many long definitions.
func TestDiffOfManyLines(t *testing.T) {
	long, room := json.RawMessage("["+strings.Repeat("1,", 690)+"1]"), diffBudget
	for i, want := range []bool{true, true, false} {
		if diff := diffJSON(long, json.RawMessage("["+strings.Repeat("2,", 690)+"1]"), &room); (diff != nil) != want {
			t.Errorf("%d: %d lines with a budget of %d", i, len(diff), room)
		}
	}
	if diff := diffJSON(json.RawMessage(`1`), json.RawMessage(`2`), &room); len(diff) != 2 {
		t.Errorf("a short diff has %d lines with a budget of %d, want 2", len(diff), room)
	}
}
