package chat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A plan states how much of a request was in the previous one, unmasked and as sent. It follows
// from the request alone.
func TestPlanKnowsTheRequestBefore(t *testing.T) {
	long := strings.Repeat("x", 500)
	for _, format := range []struct {
		name, start, tail string
		turn              func(n int) (reply, results []string)
	}{
		{"chat completions", `{"messages":[{"role":"user","content":"u"}`, `],"tools":[{}]}`,
			func(n int) (reply, results []string) {
				return []string{fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":"c%d","function":{"name":"f"}}]}`, n)},
					[]string{fmt.Sprintf(`{"role":"tool","tool_call_id":"c%d","content":"%s"}`, n, long)}
			}},
		{"messages", `{"system":"s","messages":[{"role":"user","content":"u"}`, `]}`, func(n int) (reply, results []string) {
			return []string{fmt.Sprintf(`{"role":"assistant","content":[{"type":"tool_use","id":"c%d","name":"f"}]}`, n)},
				[]string{
					fmt.Sprintf(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c%d","content":"%s"}]}`, n, long),
					`{"role":"user","content":"more"}`,
				}
		}},
		{"responses", `{"input":[{"role":"user","content":"u"}`, `],"stream":true}`, func(n int) (reply, results []string) {
			return []string{
					`{"type":"reasoning","summary":[]}`,
					`{"type":"message","role":"assistant","content":"a"}`,
					fmt.Sprintf(`{"type":"function_call","call_id":"c%d","name":"f"}`, n),
				},
				[]string{fmt.Sprintf(`{"type":"function_call_output","call_id":"c%d","output":"%s"}`, n, long)}
		}},
	} {
		for name, policy := range map[string]Policy{
			"sliding": {WindowTurns: 2}, "stepped": {WindowTurns: 2, StepTurns: 3}, "nothing masked": {},
		} {
			t.Run(format.name+", "+name, func(t *testing.T) {
				var c Conversation
				var before, sentBefore string
				list, breaks := format.start, 0
				for n := range 12 {
					body := list + format.tail
					if err := c.Parse([]byte(body)); err != nil {
						t.Fatal(err)
					}
					plan := c.Mask(&policy)
					sent := string(jsonspan.Spliced([]byte(body), plan.Edits...))
					if plan.Before != len(before) {
						t.Errorf("request %d: want %d bytes of the previous request, got %d", n, len(before), plan.Before)
					}
					shared := len(sentBefore)
					if plan.Broken {
						breaks++
						shared = len(format.tail) - len("]")
						for i := 0; i < len(sent) && sent[i] == sentBefore[i]; i++ {
							shared++
						}
					}
					if plan.Shared != shared {
						t.Errorf("request %d, broken %t: want %d bytes sent before, got %d", n, plan.Broken, shared, plan.Shared)
					}
					before, sentBefore = body, sent
					reply, results := format.turn(n)
					list += "," + strings.Join(append(reply, results...), ",")
				}
				if (breaks > 0) != (policy.WindowTurns > 0) {
					t.Errorf("%d breaks", breaks)
				}
			})
		}
	}
}
