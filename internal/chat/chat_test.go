package chat

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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

var generated = flag.Uint64("conversations", 150, "number of conversations of each format to generate per test")

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
			now, _, _ := c.fold(&p, &Progress{}, false)
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
