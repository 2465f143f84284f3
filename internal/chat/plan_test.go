package chat

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// run masks a body and returns the result, which must not be much longer.
func run(t *testing.T, body []byte, p Policy) ([]byte, Plan, error) {
	t.Helper()
	var c Conversation
	if err := c.Parse(body); err != nil {
		return body, Plan{}, err
	}
	plan := c.Mask(&p)
	var out bytes.Buffer
	if err := jsonspan.Splice(&out, body, plan.Edits); err != nil {
		t.Fatal(err)
	}
	if out.Len() > len(body)+MaxGrowth {
		t.Fatalf("%d bytes became %d", len(body), out.Len())
	}
	return out.Bytes(), plan, nil
}

var generated = flag.Uint64("conversations", 80, "number of conversations of each format to generate per test")

// generate runs a test with many conversations and policies.
func generate(t *testing.T, test func(t *testing.T, r *rand.Rand, body []byte, p Policy)) {
	for _, format := range formats {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			for seed := range *generated {
				r := rand.New(rand.NewPCG(seed, 1))
				body, p := conversation(r, format), policy(r)
				test(t, r, body, p)
				if t.Failed() {
					t.Fatalf("seed %d, policy %+v\n%.2000s", seed, p, body)
				}
			}
		})
	}
}

// A conversation is masked as by the reference, and nothing else changes. So messages keep
// their number and order, and calls their ids and arguments.
func TestSameAsReference(t *testing.T) {
	generate(t, func(t *testing.T, _ *rand.Rand, body []byte, p Policy) { compare(t, body, p) })
}

func compare(t *testing.T, body []byte, p Policy) {
	want, results, broken, ok := reference(body, p)
	got, plan, err := run(t, body, p)
	if (err == nil) != ok {
		t.Errorf("%v, want ok %t", err, ok)
		return
	}
	if !ok {
		return
	}
	if plan.Results != results || plan.Broken != broken {
		t.Errorf("%d results masked, broken %t, want %d, %t", plan.Results, plan.Broken, results, broken)
	}
	for _, original := range plan.Originals {
		got = bytes.ReplaceAll(got, []byte(original.ID), []byte(referenceAnyID))
	}
	if !reflect.DeepEqual(referenceDecode(got), referenceDecode(want)) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if unread := referenceUnread(body, p); plan.Unread != unread {
		t.Errorf("unread %v, want %v", plan.Unread, unread)
	}
}

// clearing returns p with a random ClearAtLeast, so that the boundary moves only if it pays.
func clearing(r *rand.Rand, p Policy) Policy {
	p.ClearAtLeast = one(r, []int{0, 1, 10, 50, 200, ClearAuto})
	p.ReadPrice, p.WritePrice, p.MaxLoss = DefaultReadPrice, DefaultWritePrice, 1
	return p
}

// T28: masking a masked conversation by the same policy changes nothing. With ClearAtLeast,
// this requires that placeholders state the original length and are recognized: they are not
// if a later call uses the same id for another tool.
func TestMaskingTwiceIsMaskingOnce(t *testing.T) {
	generate(t, func(t *testing.T, r *rand.Rand, body []byte, p Policy) {
		if p.template().uses[originalChars] > 0 && !renamesCalls(body) {
			p = clearing(r, p)
		}
		once, _, err := run(t, body, p)
		if err != nil {
			return
		}
		twice, plan, err := run(t, once, p)
		if err != nil || plan.Results > 0 || !bytes.Equal(once, twice) {
			t.Errorf("clear at least %d: %d results masked the second time, %v", p.ClearAtLeast, plan.Results, err)
		}
	})
}

// renamesCalls reports whether an id is used for calls of several tools.
func renamesCalls(body []byte) bool {
	var c Conversation
	_ = c.Parse(body)
	tools := map[int32]int32{}
	for _, call := range c.calls {
		if tool, used := tools[call.id]; used && tool != call.tool {
			return true
		}
		tools[call.id] = call.tool
	}
	return false
}

// T34: until the boundary moves, a conversation that grows is sent as the same bytes as before,
// plus the new ones. The boundary moves only with the calls and results of a turn, not with
// messages after them.
func TestPrefixStaysBetweenSteps(t *testing.T) {
	elements := jsonspan.CompilePaths("messages.*", "input.*", "contents.*", "request.contents.*")
	generate(t, func(t *testing.T, r *rand.Rand, body []byte, p Policy) {
		p = clearing(r, p)
		var whole Conversation
		if p.WindowTurns <= 0 || whole.Parse(body) != nil {
			return
		}
		var ends []int
		rest := "]}"
		_ = elements.Find(body, func(path int, v jsonspan.Value) {
			ends = append(ends, v.End)
			if path == 3 {
				rest = "]}}"
			}
		})
		var before []byte
		var was state
		var turns, calls, results int
		for _, end := range ends {
			var c Conversation
			if err := c.Parse(append(body[:end:end], rest...)); err != nil {
				t.Fatal(err)
			}
			out, plan, _ := run(t, c.body, p)
			out = out[:len(out)-len(rest)]
			now, _, _ := masking{&c, &p}.fold(&Progress{}, false)
			if now.boundary > max(len(c.turns)-p.WindowTurns, 0) || now.boundary%max(p.StepTurns, 1) != 0 {
				t.Errorf("after %d turns the boundary is at %d", len(c.turns), now.boundary)
			}
			mayMove := (len(c.calls) > calls || len(c.results) > results) && max(now.step, was.step) == len(c.turns)
			if now != was && !mayMove {
				t.Errorf("after %d turns and %d results the boundary moved from %+v to %+v", len(c.turns), len(c.results), was, now)
			}
			stays := bytes.HasPrefix(out, before)
			if !stays && !mayMove {
				t.Errorf("turn %d, step %d: sent before\n%.2000s\nsent now\n%.2000s", len(c.turns), now.step, before, out)
			}
			if len(c.turns) > turns && stays == plan.Broken {
				t.Errorf("turn %d: broken %t, but sent before\n%.2000s\nsent now\n%.2000s", len(c.turns), plan.Broken, before, out)
			}
			before, was, turns, calls, results = out, now, len(c.turns), len(c.calls), len(c.results)
		}
	})
}

// outline describes a plan without its texts, for failure messages.
func outline(p Plan) string {
	return fmt.Sprintf("%d turns, boundary %d, %d results of %d characters, %d saved, broken %t, "+
		"before %d, shared %d, unread %v, grows %t, %d edits",
		p.Turns, p.Boundary, p.Results, p.Chars, p.Saved, p.Broken, p.Before, p.Shared, p.Unread, p.Grows, len(p.Edits))
}

// Parse refuses a body that is built to use up memory. It accepts one that consists of the
// shortest calls and results.
func TestCrowded(t *testing.T) {
	const n = 50_000
	list := func(before, element, after string) string {
		elements := make([]string, n)
		for i := range elements {
			elements[i] = strings.Replace(element, "?", strconv.Itoa(i), 1)
		}
		return before + strings.Join(elements, ",") + after
	}
	for name, body := range map[string]string{
		"messages":  list(`{"messages":[`, `{"role":"tool"}`, `]}`),
		"blocks":    list(`{"messages":[{"role":"user","content":[`, `{"type":"tool_result"}`, `]}]}`),
		"answers":   list(`{"messages":[{"role":"user","content":[`, `{"toolResult":{}}`, `]}]}`),
		"responses": list(`{"contents":[{"role":"user","parts":[`, `{"functionResponse":{}}`, `]}]}`),
		"items":     list(`{"input":[`, `{"type":"x_output"}`, `]}`),
		"ids":       list(`{"messages":[{"role":"assistant","tool_calls":[`, `{"id":"?"}`, `]}]}`),
	} {
		var c Conversation
		if err := c.Parse([]byte(body)); err != ErrShape {
			t.Errorf("%s: %v", name, err)
		}
		if most := 2 * len(body) * int(unsafe.Sizeof(result{})) / itemSize; c.bytes() > most {
			t.Errorf("%s: %d bytes for %d", name, c.bytes(), len(body))
		}
	}
	for name, body := range map[string]string{
		"chat": list(`{"messages":[`, `{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"tool",`+
			`"tool_call_id":"a"}`, `]}`),
		"messages": list(`{"messages":[`, `{"role":"assistant","content":[{"type":"tool_use","id":"a"}]},{"role":"user",`+
			`"content":[{"type":"tool_result","tool_use_id":"a"}]}`, `]}`),
		"converse": list(`{"messages":[`, `{"role":"assistant","content":[{"toolUse":{"toolUseId":"a"}}]},`+
			`{"role":"user","content":[{"toolResult":{"toolUseId":"a"}}]}`, `]}`),
		"responses": list(`{"input":[`, `{"type":"function_call","call_id":"a"},{"type":"function_call_output",`+
			`"call_id":"a"}`, `]}`),
		"gemini": list(`{"contents":[`, `{"role":"model","parts":[{"functionCall":{"name":"a"}}]},{"role":"user",`+
			`"parts":[{"functionResponse":{"name":"a"}}]}`, `]}`),
	} {
		if err := new(Conversation).Parse([]byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

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

// longConversation returns a conversation of a thousand turns and about size bytes.
func longConversation(size int, line string) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You are an agent."}`)
	for i := range 1000 {
		fmt.Fprintf(&b, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%06d","type":"function",`+
			`"function":{"name":"read_file","arguments":"{\"path\":\"f%d\"}"}}]}`, i, i)
		fmt.Fprintf(&b, `,{"role":"tool","tool_call_id":"call_%06d","content":"`, i)
		for b.Len() < size/1000*(i+1) {
			b.WriteString(line)
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

var benchmarkTexts = []struct{ name, line string }{
	{"log", `2026-11-15T08:04:49.696Z INFO  http request handled method=GET path=/orders/1539 status=200 duration_ms=34\n`},
	{"source", `\tif err := s.store.Put(ctx, key, value); err != nil {\n\t\treturn fmt.Errorf(\"put %s: %w\", key, ` +
		`err)\n\t}\n`},
}

func BenchmarkMask(b *testing.B) {
	for _, size := range []int{400_000, 2_000_000, 20_000_000} {
		for _, text := range benchmarkTexts {
			b.Run(fmt.Sprintf("%s/%d", text.name, size), func(b *testing.B) {
				body := longConversation(size, text.line)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				var c Conversation
				p := Policy{WindowTurns: DefaultWindowTurns, KeepErrors: ErrorsOn}
				for b.Loop() {
					if err := c.Parse(body); err != nil {
						b.Fatal(err)
					}
					plan := c.Mask(&p)
					if plan.Results != 992 {
						b.Fatal(plan.Results)
					}
					_ = jsonspan.Splice(io.Discard, body, plan.Edits)
				}
			})
		}
	}
}

// BenchmarkNextTurn masks a conversation that a memory knows up to its last turn.
func BenchmarkNextTurn(b *testing.B) {
	for _, size := range []int{400_000, 2_000_000, 20_000_000} {
		for _, text := range benchmarkTexts {
			b.Run(fmt.Sprintf("%s/%d", text.name, size), func(b *testing.B) {
				body := longConversation(size, text.line)
				before := slices.Concat(body[:bytes.LastIndex(body, []byte(`,{"role":"assistant"`))], []byte("]}"))
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				m := NewMemory(quota.NewKind("next turn"))
				defer m.Close()
				p := Policy{WindowTurns: DefaultWindowTurns, KeepErrors: ErrorsOn}
				for i := 0; b.Loop(); i++ {
					body, want := body, 992
					if i%2 == 0 {
						body, want = before, 991
					}
					c, err := m.Parse("", body)
					if err != nil {
						b.Fatal(err)
					}
					if n := c.Mask(&p).Results; n != want {
						b.Fatal(n)
					}
					m.Keep("", c, Past{})
				}
			})
		}
	}
}
