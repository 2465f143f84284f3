package chat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// reference masks a conversation in the plainest way there is: it decodes the
// body, looks at every message again for every question, and encodes the result.
// Its output has the meaning of what is expected, not its bytes. It does not know
// ClearAtLeast, which depends on where things stand in the bytes, and not about
// repeated members.
//
// ok is false for a body that is to be forwarded as it is because of its shape.
func reference(body []byte, p Policy) (out []byte, masked int, broken, ok bool) {
	if p.ClearAtLeast != 0 {
		panic("the reference does not know ClearAtLeast")
	}
	if !json.Valid(body) {
		return body, 0, false, false
	}
	root, isObject := referenceDecode(body).(map[string]any)
	if !isObject {
		return body, 0, false, false
	}
	messages, hasMessages := root["messages"].([]any)
	input, hasInput := root["input"].([]any)
	_, isObject = root["messages"].(map[string]any)
	_, isObject2 := root["input"].(map[string]any)
	if hasMessages == hasInput || isObject || isObject2 {
		return body, 0, false, false
	}
	for _, item := range slices.Concat(messages, input) {
		if _, isObject := item.(map[string]any); !isObject {
			return body, 0, false, false
		}
	}
	var c referenceConversation
	if hasMessages {
		c = referenceMessages(messages)
	} else {
		c = referenceInput(input)
	}

	// The boundary, turn by turn.
	type state struct{ boundary, step int }
	var now, before state
	if p.WindowTurns > 0 {
		n := max(1, p.StepTurns)
		for t := 1; t <= len(c.turns); t++ {
			candidate := max(0, t-p.WindowTurns) / n * n
			if candidate > now.boundary {
				before, now = now, state{candidate, t}
			}
		}
	}
	placeholders := c.choose(p, now.boundary, now.step)

	// Whether this is the request that breaks the provider's prefix.
	if now.step > 0 && now.step == len(c.turns) && !c.answered {
		earlier := c.choose(p, before.boundary, before.step)
		for i, r := range c.results {
			if earlier[i] != placeholders[i] && r.item < c.turns[now.step-1] {
				broken = true
			}
		}
	}

	for i, placeholder := range placeholders {
		c.results[i].mask(placeholder)
	}
	out, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return out, len(placeholders), broken, true
}

// referenceDecode decodes JSON and leaves the spelling of numbers alone.
func referenceDecode(body []byte) any {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

// A referenceConversation is what matters of one, whatever its format. Items are
// messages or items of the input, by their index.
type referenceConversation struct {
	items    int
	turns    []int // the items they begin with
	calls    []referenceCall
	results  []referenceResult
	answered bool // the model has said something after its last turn
}

type referenceCall struct {
	item, turn int
	id, name   string // name is empty if it is not known
}

type referenceResult struct {
	item    int
	id      string // empty if there is none
	holder  map[string]any
	member  string // of holder: what is masked
	block   string // the type of the blocks of a list that can be masked, if any
	isError bool   // it says so itself
}

// referenceMessages reads the formats of chat completions and of Anthropic.
func referenceMessages(messages []any) referenceConversation {
	c := referenceConversation{items: len(messages)}
	for i, m := range messages {
		message := m.(map[string]any)
		blocks, _ := message["content"].([]any)
		switch message["role"] {
		case "assistant":
			c.answered = true
			var calls []referenceCall
			elements, _ := message["tool_calls"].([]any)
			for _, e := range elements {
				if call, isObject := e.(map[string]any); isObject {
					function, _ := call["function"].(map[string]any)
					calls = append(calls, referenceCall{id: referenceText(call["id"]), name: referenceName(function["name"])})
				}
			}
			for _, b := range blocks {
				if block, isObject := b.(map[string]any); isObject && block["type"] == "tool_use" {
					calls = append(calls, referenceCall{id: referenceText(block["id"]), name: referenceName(block["name"])})
				}
			}
			calls = slices.DeleteFunc(calls, func(call referenceCall) bool { return call.id == "" })
			if len(calls) == 0 {
				continue
			}
			c.answered = false
			c.turns = append(c.turns, i)
			for _, call := range calls {
				call.item, call.turn = i, len(c.turns)-1
				c.calls = append(c.calls, call)
			}
		case "tool":
			c.results = append(c.results, referenceResult{
				item: i, id: referenceText(message["tool_call_id"]), holder: message, member: "content",
			})
		case "user":
			for _, b := range blocks {
				if block, isObject := b.(map[string]any); isObject && block["type"] == "tool_result" {
					c.results = append(c.results, referenceResult{
						item: i, id: referenceText(block["tool_use_id"]), holder: block, member: "content",
						block: "text", isError: block["is_error"] == true,
					})
				}
			}
		}
	}
	return c
}

// referenceInput reads the format of responses.
func referenceInput(input []any) referenceConversation {
	c := referenceConversation{items: len(input)}
	open := false
	for i, it := range input {
		item := it.(map[string]any)
		role, hasRole := item["role"].(string)
		id := referenceText(item["call_id"])
		switch {
		case item["type"] == "function_call", item["type"] == "custom_tool_call":
			if id != "" {
				if !open {
					c.turns = append(c.turns, i)
					open = true
				}
				c.calls = append(c.calls, referenceCall{
					item: i, turn: len(c.turns) - 1, id: id, name: referenceName(item["name"]),
				})
			}
			c.answered = !open // a call without an id among others is one of them
		case item["type"] == "function_call_output", item["type"] == "custom_tool_call_output":
			open = false
			c.results = append(c.results, referenceResult{
				item: i, id: id, holder: item, member: "output", block: "input_text",
			})
		case role == "assistant":
			c.answered = true
		case hasRole, strings.HasSuffix(referenceText(item["type"]), "_output"):
			open = false
		}
	}
	return c
}

// referenceName returns the name of a tool, if it is one.
func referenceName(v any) string {
	if name := referenceText(v); len(name) <= 256 {
		return name
	}
	return ""
}

// referenceText returns a string, or nothing if v is none.
func referenceText(v any) string {
	s, _ := v.(string)
	return s
}

// choose returns what masks which results, by their index, with the boundary where
// it was put by the step-th turn.
func (c *referenceConversation) choose(p Policy, boundary, step int) map[int]string {
	placeholders := map[int]string{}
	if step == 0 {
		return placeholders
	}
	end := c.items
	if step < len(c.turns) {
		end = c.turns[step]
	}

	turn := map[string]int{}
	name := map[string]string{}
	for _, call := range c.calls {
		if call.item < end {
			turn[call.id] = call.turn
			if call.name != "" {
				name[call.id] = call.name
			}
		}
	}

	keep := map[string]bool{}
	for id, t := range turn {
		if t >= boundary {
			keep[id] = true
		}
	}
	seen := map[string]int{}
	for _, r := range slices.Backward(c.results) {
		tool, known := name[r.id]
		if r.item >= end || !known {
			continue
		}
		seen[tool]++
		if seen[tool] <= p.KeepLastPerTool {
			keep[r.id] = true
		}
	}

	for i, r := range c.results {
		if _, called := turn[r.id]; r.item >= end || !called || keep[r.id] {
			continue
		}
		tool, known := name[r.id]
		if known && slices.ContainsFunc(p.ExcludeTools, func(pattern string) bool { return mcp.MatchName(pattern, tool) }) {
			continue
		}
		if !known {
			tool = "inconnu"
		}
		texts := r.texts()
		if len(texts) == 0 {
			continue
		}
		template := p.Template.String()
		if template == "" {
			template = referenceTemplate
		}
		if referenceRendered(referenceTemplate, texts[0], r.id, tool) || referenceRendered(template, texts[0], r.id, tool) {
			continue
		}
		if p.KeepErrors == ErrorsOn && (r.isError || slices.ContainsFunc(texts, referenceError)) {
			continue
		}
		chars := 0
		for _, t := range texts {
			chars += utf8.RuneCountInString(t)
		}
		if chars < p.MinChars {
			continue
		}
		placeholders[i] = strings.NewReplacer(
			"{tool_call_id}", r.id, "{tool_name}", tool, "{original_chars}", strconv.Itoa(chars),
		).Replace(template)
	}
	return placeholders
}

// texts returns what the result consists of, or nothing if it cannot be masked.
func (r *referenceResult) texts() []string {
	switch content := r.holder[r.member].(type) {
	case string:
		return []string{content}
	case []any:
		var texts []string
		for _, b := range content {
			block, isObject := b.(map[string]any)
			t, isString := block["text"].(string)
			if r.block == "" || !isObject || block["type"] != r.block || !isString {
				return nil
			}
			texts = append(texts, t)
		}
		return texts
	}
	return nil
}

// mask puts the placeholder in the place of the result.
func (r *referenceResult) mask(placeholder string) {
	blocks, isList := r.holder[r.member].([]any)
	if !isList {
		r.holder[r.member] = placeholder
		return
	}
	for _, b := range blocks {
		b.(map[string]any)["text"] = placeholder
		placeholder = "…"
	}
}

const referenceTemplate = "[Observation masquée: résultat d’outil ancien (tool_call_id={tool_call_id}, outil={tool_name}, chars={original_chars})]"

// referenceRendered reports whether s is the template with some number of
// characters.
func referenceRendered(template, s, id, tool string) bool {
	parts := strings.Split(template, "{original_chars}")
	for i := range parts {
		parts[i] = strings.NewReplacer("{tool_call_id}", id, "{tool_name}", tool).Replace(parts[i])
	}
	return referenceNumbers(s, parts)
}

// referenceNumbers reports whether s is these parts with numbers between them.
func referenceNumbers(s string, parts []string) bool {
	s, fits := strings.CutPrefix(s, parts[0])
	if !fits || len(parts) == 1 {
		return fits && s == ""
	}
	for n := 1; n <= 12 && n <= len(s) && '0' <= s[n-1] && s[n-1] <= '9'; n++ {
		if referenceNumbers(s[n:], parts[1:]) {
			return true
		}
	}
	return false
}

// referenceError reports whether a text looks like an error.
func referenceError(s string) bool {
	lower := strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
	for _, word := range []string{"traceback", "exception", "timeout", "connect_error", "connection refused"} {
		if strings.Contains(lower, word) {
			return true
		}
	}
	for line := range strings.SplitSeq(strings.ReplaceAll(lower, "\r", "\n"), "\n") {
		if strings.HasPrefix(strings.TrimLeft(line, " \t"), "error") {
			return true
		}
	}
	start := strings.TrimLeft(s, " \t\n\r")
	if !strings.HasPrefix(start, "{") && !strings.HasPrefix(start, "[") {
		return false
	}
	if !json.Valid([]byte(s)) {
		return strings.Contains(s, `"error"`)
	}
	object, _ := referenceDecode([]byte(s)).(map[string]any)
	_, hasError := object["error"]
	return hasError || strings.EqualFold(referenceText(object["status"]), "error")
}

// TestReferenceExample pins the reference to examples of T5, T10 and T17.
func TestReferenceExample(t *testing.T) {
	const (
		call1 = `{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"fast_read_file","arguments":"{}"}}]}`
		call2 = `{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function","function":{"name":"fast_read_file","arguments":"{}"}}]}`
	)
	b2 := func(first string) string {
		return `{"messages":[{"role":"system","content":"s"},` + call1 +
			`,{"role":"tool","tool_call_id":"call_1","content":` + strconv.Quote(first) + `},{"role":"user","content":"u"},` + call2 +
			`,{"role":"tool","tool_call_id":"call_2","content":"OK"},{"role":"user","content":"v"}]}`
	}
	long := strings.Repeat("A", 1000)
	const placeholder = "[Observation masquée: résultat d’outil ancien (tool_call_id=call_1, outil=fast_read_file, chars=1000)]"
	for _, test := range []struct {
		name   string
		first  string
		policy Policy
		want   string
		broken bool
	}{
		{"masked", long, Policy{WindowTurns: 1, KeepErrors: ErrorsOn}, placeholder, true},
		{"wide window", long, Policy{WindowTurns: 2}, long, false},
		{"no window", long, Policy{WindowTurns: 0}, long, false},
		{"last two of the tool", long, Policy{WindowTurns: 1, KeepLastPerTool: 2}, long, false},
		{"last of the tool", long, Policy{WindowTurns: 1, KeepLastPerTool: 1}, placeholder, true},
		{"traceback", "Traceback (most recent call last):", Policy{WindowTurns: 1, KeepErrors: ErrorsOn}, "Traceback (most recent call last):", false},
		{"error in JSON", `{"error": null}`, Policy{WindowTurns: 1, KeepErrors: ErrorsOn}, `{"error": null}`, false},
		{"short", long, Policy{WindowTurns: 1, MinChars: 1001}, long, false},
		{"long enough", long, Policy{WindowTurns: 1, MinChars: 1000}, placeholder, true},
		{"excluded", long, Policy{WindowTurns: 1, ExcludeTools: []string{"x", "fast_*"}}, long, false},
		{"between steps", long, Policy{WindowTurns: 1, StepTurns: 2}, long, false},
		{"masked before", placeholder, Policy{WindowTurns: 1}, placeholder, false},
	} {
		out, masked, broken, ok := reference([]byte(b2(test.first)), test.policy)
		if !ok {
			t.Errorf("%s: not ok", test.name)
			continue
		}
		var got, want any = referenceDecode(out), referenceDecode([]byte(b2(test.want)))
		if g, w := referenceEncode(got), referenceEncode(want); g != w {
			t.Errorf("%s: got %s, want %s", test.name, g, w)
		}
		if wantMasked := test.want != test.first; (masked == 1) != wantMasked || broken != test.broken {
			t.Errorf("%s: masked %d, broken %v", test.name, masked, broken)
		}
	}

	orphan := strings.Replace(b2(long), `"tool_call_id":"call_1"`, `"tool_call_id":"call_0"`, 1)
	if _, masked, _, _ := reference([]byte(orphan), Policy{WindowTurns: 1}); masked != 0 {
		t.Error("an orphan was masked")
	}
	answered := strings.Replace(b2(long), `{"role":"user","content":"v"}`, `{"role":"assistant","content":"v"}`, 1)
	if _, masked, broken, _ := reference([]byte(answered), Policy{WindowTurns: 1}); masked != 1 || broken {
		t.Error("what has been answered breaks nothing any more")
	}
	for _, body := range []string{
		``, `{`, `[]`, `{}`, `{"messages":null}`, `{"messages":{}}`, `{"input":"x"}`,
		`{"messages":[],"input":[]}`, `{"messages":[1]}`, `{"input":[{},"x"]}`, `{"messages":[]} x`,
	} {
		if _, _, _, ok := reference([]byte(body), Policy{WindowTurns: 1}); ok {
			t.Errorf("%s is ok", body)
		}
	}
}

// TestReferenceFormats pins the reference in the two other formats.
func TestReferenceFormats(t *testing.T) {
	for _, test := range []struct{ name, body, want string }{
		{
			"anthropic",
			`{"messages":[
				{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"a","name":"f"},{"type":"tool_use","id":"b","name":""}]},
				{"role":"user","content":[
					{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"éé"},{"type":"text","text":"x","cache_control":{}},{"type":"text","text":""}]},
					{"type":"tool_result","tool_use_id":"b","content":"𝄞"},
					{"type":"tool_result","tool_use_id":"b","content":"y","is_error":true},
					{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"y"},{"type":"image"}]},
					{"type":"tool_result","tool_use_id":"b","content":[]}]},
				{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f"}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"z"}]}]}`,
			`{"messages":[
				{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"a","name":"f"},{"type":"tool_use","id":"b","name":""}]},
				{"role":"user","content":[
					{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"a/f/3"},{"type":"text","text":"…","cache_control":{}},{"type":"text","text":"…"}]},
					{"type":"tool_result","tool_use_id":"b","content":"b/inconnu/1"},
					{"type":"tool_result","tool_use_id":"b","content":"y","is_error":true},
					{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"y"},{"type":"image"}]},
					{"type":"tool_result","tool_use_id":"b","content":[]}]},
				{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f"}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"z"}]}]}`,
		},
		{
			"responses",
			`{"input":[
				{"type":"function_call","call_id":"a","name":"f"},{"type":"reasoning"},{"role":"assistant"},{"type":"custom_tool_call","call_id":"b","name":"g"},
				{"type":"function_call_output","call_id":"a","output":"xyz"},
				{"type":"custom_tool_call_output","call_id":"b","output":[{"type":"input_text","text":"x"}]},
				{"type":"function_call_output","call_id":"b","output":[{"type":"text","text":"x"}]},
				{"type":"function_call","call_id":"","name":"g"},
				{"type":"function_call","call_id":"c","name":"f"},
				{"type":"function_call_output","call_id":"c","output":"z"}]}`,
			`{"input":[
				{"type":"function_call","call_id":"a","name":"f"},{"type":"reasoning"},{"role":"assistant"},{"type":"custom_tool_call","call_id":"b","name":"g"},
				{"type":"function_call_output","call_id":"a","output":"a/f/3"},
				{"type":"custom_tool_call_output","call_id":"b","output":[{"type":"input_text","text":"b/g/1"}]},
				{"type":"function_call_output","call_id":"b","output":[{"type":"text","text":"x"}]},
				{"type":"function_call","call_id":"","name":"g"},
				{"type":"function_call","call_id":"c","name":"f"},
				{"type":"function_call_output","call_id":"c","output":"z"}]}`,
		},
	} {
		template := must(ParseTemplate("{tool_call_id}/{tool_name}/{original_chars}"))
		out, masked, broken, ok := reference([]byte(test.body), Policy{WindowTurns: 1, KeepErrors: ErrorsOn, Template: template})
		if !ok || masked != 2 || !broken {
			t.Errorf("%s: masked %d, broken %v, ok %v", test.name, masked, broken, ok)
		}
		if g, w := referenceEncode(referenceDecode(out)), referenceEncode(referenceDecode([]byte(test.want))); g != w {
			t.Errorf("%s: got\n%s, want\n%s", test.name, g, w)
		}
	}
}

// TestReferenceSteps pins where the boundary lies, and that what is behind the step
// stays.
func TestReferenceSteps(t *testing.T) {
	for turns, want := range []int{0, 0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9} {
		var items []string
		for i := range turns {
			id := strconv.Itoa(i)
			items = append(items, `{"role":"assistant","tool_calls":[{"id":"`+id+`"}]}`, `{"role":"tool","tool_call_id":"`+id+`","content":"x"}`)
		}
		// A late result of the first turn belongs to it, but not to the step.
		items = append(items, `{"role":"tool","tool_call_id":"0","content":"late"}`)
		atStep := want > 0 && turns == want+2
		if atStep {
			want++
		}
		_, masked, broken, _ := reference([]byte(`{"messages":[`+strings.Join(items, ",")+`]}`), Policy{WindowTurns: 2, StepTurns: 3})
		if masked != want || broken != atStep {
			t.Errorf("%d turns: %d masked, want %d; broken %v", turns, masked, want, broken)
		}
	}
}

// TestReferenceErrors pins what looks like an error.
func TestReferenceErrors(t *testing.T) {
	for _, s := range generatedErrors {
		if !referenceError(s) {
			t.Errorf("%q is an error", s)
		}
	}
	for _, s := range generatedNearErrors {
		if referenceError(s) {
			t.Errorf("%q is no error", s)
		}
	}
}

func referenceEncode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
