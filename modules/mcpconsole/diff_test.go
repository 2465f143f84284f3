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
		{"the same", `[1]`, `[1]`, " [\n   1\n ]"},
		{"what cannot be seen", `"a"`, "\"a\u200b\u202e\U000e0041é\"", "-\"a\"\n+\"a\\u200b\\u202e\\udb40\\udc41é\""},
		{"no JSON", `<b>`, `{}`, "-<b>\n+{}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			room := diffRoom
			for _, line := range diffJSON(json.RawMessage(tt.before), json.RawMessage(tt.after), &room) {
				lines = append(lines, line.Sign+line.Text)
			}
			if got := strings.Join(lines, "\n"); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// A definition of 64 KiB may have as many lines, and a server any number of definitions.
func TestDiffOfManyLines(t *testing.T) {
	long, room := json.RawMessage("["+strings.Repeat("1,", 690)+"1]"), diffRoom
	for i, want := range []bool{true, true, false} {
		if diff := diffJSON(long, json.RawMessage("["+strings.Repeat("2,", 690)+"1]"), &room); (diff != nil) != want {
			t.Errorf("%d: %d lines, with room for %d", i, len(diff), room)
		}
	}
	if diff := diffJSON(json.RawMessage(`1`), json.RawMessage(`2`), &room); len(diff) != 2 {
		t.Errorf("%d lines of a short one, with room for %d", len(diff), room)
	}
}
