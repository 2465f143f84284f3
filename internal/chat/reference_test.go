package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// reference masks a conversation in the simplest way: it decodes the body, reads all messages
// again for every decision, and encodes the result. Its output has the expected meaning, but
// not the expected bytes. It supports neither ClearAtLeast, which depends on positions in the
// bytes, nor repeated members.
//
// ok is false for a body whose shape requires that it is forwarded unchanged.
func reference(body []byte, p Policy) (out []byte, masked int, broken, ok bool) {
	if p.ClearAtLeast != 0 {
		panic("the reference does not support ClearAtLeast")
	}
	root, c, ok := referenceRead(body)
	if !ok {
		return body, 0, false, false
	}

	now, before := c.boundary(p)
	placeholders := c.choose(p, now.boundary, now.step)

	// The request is broken if it changes the prefix that the provider has cached.
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

// referenceRead reads the conversation in a body. ok is false if the body is not one.
func referenceRead(body []byte) (root map[string]any, c referenceConversation, ok bool) {
	if !json.Valid(body) {
		return nil, c, false
	}
	root, ok = referenceDecode(body).(map[string]any)
	if !ok {
		return nil, c, false
	}
	request, _ := root["request"].(map[string]any)
	var lists []func() referenceConversation
	for _, member := range []struct {
		value any
		read  func(items []any, raw rawItems) referenceConversation
		place []any
	}{
		{root["messages"], referenceMessages, []any{"messages"}},
		{root["input"], referenceInput, []any{"input"}},
		{root["contents"], referenceContents, []any{"contents"}},
		{request["contents"], referenceContents, []any{"request", "contents"}},
	} {
		switch value := member.value.(type) {
		case map[string]any:
			return nil, c, false
		case []any:
			for _, item := range value {
				if _, isObject := item.(map[string]any); !isObject {
					return nil, c, false
				}
			}
			lists = append(lists, func() referenceConversation {
				return member.read(value, sync.OnceValue(func() (items []json.RawMessage) {
					if err := json.Unmarshal(referenceRaw(body, member.place...), &items); err != nil {
						panic(err)
					}
					return items
				}))
			})
		}
	}
	if len(lists) != 1 {
		return nil, c, false
	}
	return root, lists[0](), true
}

// rawItems returns the bytes of the items of a conversation.
type rawItems func() []json.RawMessage

// referenceRaw returns the bytes of the value at a place, a list of keys and indexes.
func referenceRaw(body []byte, place ...any) []byte {
	for _, step := range place {
		var err error
		switch step := step.(type) {
		case string:
			members := map[string]json.RawMessage{}
			err = json.Unmarshal(body, &members)
			body = members[step]
		case int:
			var elements []json.RawMessage
			err = json.Unmarshal(body, &elements)
			body = elements[step]
		}
		if err != nil {
			panic(err)
		}
	}
	return body
}

// A referenceState is the position of the boundary, and the number of turns when it moved there.
type referenceState struct{ boundary, step int }

// boundary returns the state after the last turn, and that before the last move.
func (c *referenceConversation) boundary(p Policy) (now, before referenceState) {
	if p.WindowTurns <= 0 {
		return now, before
	}
	n := max(1, p.StepTurns)
	for t := 1; t <= len(c.turns); t++ {
		candidate := max(0, t-p.WindowTurns) / n * n
		if candidate > now.boundary {
			before, now = now, referenceState{candidate, t}
		}
	}
	return now, before
}

// referenceDecode decodes JSON and keeps the spelling of numbers.
func referenceDecode(body []byte) any {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

// A referenceConversation holds the calls and results of a conversation of any format. Items
// are messages, or items of the input, by their index.
type referenceConversation struct {
	items    int
	turns    []int // by turn: its first item
	calls    []referenceCall
	results  []referenceResult
	answered bool // the model has replied after the last turn
}

type referenceCall struct {
	item, turn int
	id, name   string // name is empty if unknown
	answered   bool   // only for calls without an id
}

type referenceResult struct {
	item    int
	id      string // empty if there is none
	texts   []referenceText
	notText bool // the content is not text
	unknown bool // the kind is unknown
	isError bool // marked as an error
}

// A referenceText is a text of a result, or an object in place of one.
type referenceText struct {
	text   string
	object any // if not nil
	chars  int
	put    func(placeholder string)
}

// stringIn returns the string value of a member of an object.
func stringIn(object map[string]any, key string) referenceText {
	text := object[key].(string)
	return referenceText{text: text, chars: utf8.RuneCountInString(text), put: func(s string) { object[key] = s }}
}

// anyIn returns the value of a member of an object, or nil if it is empty.
func anyIn(object map[string]any, key string, raw func() []byte) []referenceText {
	size := 0
	switch v := object[key].(type) {
	case string:
		return []referenceText{stringIn(object, key)}
	case map[string]any:
		size = len(v)
		for member, only := range v {
			if _, isString := only.(string); isString && size == 1 {
				return []referenceText{stringIn(v, member)}
			}
		}
	case []any:
		size = len(v)
	}
	if size == 0 {
		return nil
	}
	return []referenceText{{object: object[key], chars: utf8.RuneCount(raw()),
		put: func(s string) { object[key] = map[string]any{"output": s} }}}
}

// read reads the content of a result: a string, or a list whose elements part reads.
func (r *referenceResult) read(holder map[string]any, key string,
	part func(i int, part map[string]any) ([]referenceText, bool)) {
	switch content := holder[key].(type) {
	case nil:
	case string:
		r.texts = []referenceText{stringIn(holder, key)}
	case []any:
		for i, e := range content {
			object, _ := e.(map[string]any)
			texts, ok := part(i, object)
			if !ok {
				r.texts, r.notText = nil, true
				return
			}
			r.texts = append(r.texts, texts...)
		}
	default:
		r.notText = true
	}
}

// typed returns a function that reads text parts of a type.
func typed(kind string) func(int, map[string]any) ([]referenceText, bool) {
	return func(_ int, part map[string]any) ([]referenceText, bool) {
		if _, isString := part["text"].(string); part["type"] != kind || !isString {
			return nil, false
		}
		return []referenceText{stringIn(part, "text")}, true
	}
}

// shell reads the output of a shell command.
func shell(_ int, part map[string]any) (texts []referenceText, ok bool) {
	if _, hasType := part["type"].(string); hasType {
		return nil, false
	}
	for _, stream := range []string{"stdout", "stderr"} {
		v, has := part[stream]
		text, isString := v.(string)
		if has && !isString {
			return nil, false
		}
		ok = ok || isString
		if text != "" {
			texts = append(texts, stringIn(part, stream))
		}
	}
	return texts, ok
}

// A referenceMatcher finds the call of each result.
type referenceMatcher struct {
	c           *referenceConversation
	made        map[string]int // number of calls without an id, by tool
	waiting     []*referenceCall
	othersSpoke bool
}

// addCalls records the calls of a message of the model.
func (m *referenceMatcher) addCalls(item int, calls []referenceCall) {
	c := m.c
	c.answered = true
	calls = slices.DeleteFunc(calls, func(call referenceCall) bool { return call.id == "" && call.name == "" })
	if len(calls) == 0 {
		return
	}
	c.answered = false
	c.turns = append(c.turns, item)
	if m.othersSpoke {
		m.waiting, m.othersSpoke = nil, false
	}
	for _, call := range calls {
		call.item, call.turn = item, len(c.turns)-1
		if call.id == "" {
			m.made[call.name]++
			call.id = fmt.Sprintf("%s#%d", call.name, m.made[call.name])
			m.waiting = append(m.waiting, &call)
		}
		c.calls = append(c.calls, call)
	}
}

// addResult records a result. tool is the name of its tool, or nil.
func (m *referenceMatcher) addResult(r referenceResult, tool any) {
	name := referenceString(tool)
	if !slices.ContainsFunc(m.c.calls, func(call referenceCall) bool { return r.id != "" && call.id == r.id }) {
		for _, call := range m.waiting {
			if !call.answered && (name == "" || name == call.name) {
				call.answered = true
				r.id = call.id
				break
			}
		}
	}
	m.c.results = append(m.c.results, r)
}

// referenceMessages reads the formats of chat completions, Ollama, Anthropic and Bedrock.
func referenceMessages(messages []any, raw rawItems) referenceConversation {
	c := referenceConversation{items: len(messages)}
	matcher := referenceMatcher{c: &c, made: map[string]int{}}
	for i, m := range messages {
		message := m.(map[string]any)
		blocks, _ := message["content"].([]any)
		switch message["role"] {
		case "assistant":
			var calls []referenceCall
			elements, _ := message["tool_calls"].([]any)
			for _, e := range elements {
				if call, isObject := e.(map[string]any); isObject {
					function, _ := call["function"].(map[string]any)
					if referenceString(function["name"]) == "" {
						function, _ = call["custom"].(map[string]any)
					}
					calls = append(calls, referenceCall{id: referenceString(call["id"]), name: referenceName(function["name"])})
				}
			}
			for _, b := range blocks {
				block, _ := b.(map[string]any)
				use := block
				if block["type"] != "tool_use" {
					use = referenceMember(block, "toolUse", "toolResult")
				}
				id := referenceString(use["id"])
				if block["type"] != "tool_use" {
					id = referenceString(use["toolUseId"])
				}
				if id != "" {
					calls = append(calls, referenceCall{id: id, name: referenceName(use["name"])})
				}
			}
			matcher.addCalls(i, calls)
			continue
		case "tool":
			r := referenceResult{item: i, id: referenceString(message["tool_call_id"])}
			r.read(message, "content", typed("text"))
			tool := message["tool_name"]
			if referenceString(tool) == "" {
				tool = message["name"]
			}
			matcher.addResult(r, tool)
		case "user":
			for j, b := range blocks {
				block, _ := b.(map[string]any)
				if block["type"] == "tool_result" {
					r := referenceResult{item: i, id: referenceString(block["tool_use_id"]), isError: block["is_error"] == true}
					r.read(block, "content", typed("text"))
					matcher.addResult(r, nil)
				} else if result := referenceMember(block, "toolResult", "toolUse"); result != nil {
					r := referenceResult{item: i, id: referenceString(result["toolUseId"]), isError: result["status"] == "error"}
					r.read(result, "content", func(k int, part map[string]any) ([]referenceText, bool) {
						_, hasText := part["text"]
						_, hasJSON := part["json"]
						_, isString := part["text"].(string)
						switch {
						case isString && !hasJSON:
							return []referenceText{stringIn(part, "text")}, true
						case hasJSON && !hasText:
							return anyIn(part, "json", func() []byte {
								return referenceRaw(raw()[i], "content", j, "toolResult", "content", k, "json")
							}), true
						}
						return nil, false
					})
					matcher.addResult(r, nil)
				}
			}
		}
		matcher.othersSpoke = true
	}
	return c
}

// referenceMember returns the object that a Bedrock block has instead of a type.
func referenceMember(block map[string]any, key, other string) map[string]any {
	_, hasType := block["type"].(string)
	_, hasContent := block["content"]
	_, hasOther := block[other].(map[string]any)
	if hasType || hasContent || hasOther {
		return nil
	}
	member, _ := block[key].(map[string]any)
	return member
}

// referenceSpelling returns which spelling of a key an object has.
func referenceSpelling(object map[string]any, key string) string {
	snake := strings.NewReplacer("C", "_c", "R", "_r").Replace(key)
	if _, ok := object[snake]; ok {
		return snake
	}
	return key
}

// referenceContents reads the format of Gemini.
func referenceContents(contents []any, raw rawItems) referenceConversation {
	c := referenceConversation{items: len(contents)}
	matcher := referenceMatcher{c: &c, made: map[string]int{}}
	for i, m := range contents {
		message := m.(map[string]any)
		parts, _ := message["parts"].([]any)
		var calls []referenceCall
		for j, p := range parts {
			part, _ := p.(map[string]any)
			if call, isObject := part[referenceSpelling(part, "functionCall")].(map[string]any); isObject {
				calls = append(calls, referenceCall{id: referenceString(call["id"]), name: referenceName(call["name"])})
			}
			spelling := referenceSpelling(part, "functionResponse")
			answer, isObject := part[spelling].(map[string]any)
			if !isObject || message["role"] != "user" && message["role"] != "function" {
				continue
			}
			r := referenceResult{item: i, id: referenceString(answer["id"])}
			switch response := answer["response"].(type) {
			case nil:
			case string, map[string]any:
				r.texts = anyIn(answer, "response", func() []byte {
					return referenceRaw(raw()[i], "parts", j, spelling, "response")
				})
				object, isObject := response.(map[string]any)
				r.isError = object["error"] != nil
				media, _ := answer["parts"].([]any)
				more, _ := answer["parts"].(map[string]any)
				if isObject && len(media)+len(more) > 0 {
					r.texts, r.notText = nil, true
				}
			default:
				r.notText = true
			}
			matcher.addResult(r, answer["name"])
		}
		if message["role"] == "model" {
			matcher.addCalls(i, calls)
		} else {
			matcher.othersSpoke = true
		}
	}
	return c
}

// referenceBuiltin maps the item types of built-in tools to the names of the tools.
var referenceBuiltin = map[any]string{
	"local_shell_call": "local_shell", "shell_call": "shell", "apply_patch_call": "apply_patch",
	"computer_call":    "computer",
	"tool_search_call": "tool_search",
}

// referenceInput reads the format of responses.
func referenceInput(input []any, _ rawItems) referenceConversation {
	c := referenceConversation{items: len(input)}
	open := false
	for i, it := range input {
		item := it.(map[string]any)
		role, hasRole := item["role"].(string)
		id := referenceString(item["call_id"])
		kind := referenceString(item["type"])
		if id == "" && strings.HasPrefix(kind, "local_shell_call") {
			id = referenceString(item["id"])
		}
		name := referenceName(item["name"])
		if referenceString(item["name"]) == "" {
			name = referenceBuiltin[kind]
		}
		switch {
		case kind == "function_call", kind == "custom_tool_call", referenceBuiltin[kind] != "":
			if id != "" {
				if !open {
					c.turns = append(c.turns, i)
					open = true
				}
				c.calls = append(c.calls, referenceCall{item: i, turn: len(c.turns) - 1, id: id, name: name})
			}
			c.answered = !open // a call without an id belongs to an open turn
		case slices.Contains(referenceOutputs, kind):
			open = false
			r := referenceResult{item: i, id: id, isError: item["status"] == "failed"}
			output, _ := item["output"].(map[string]any)
			if _, isString := output["content"].(string); isString {
				r.texts = []referenceText{stringIn(output, "content")}
				r.isError = r.isError || output["success"] == false
			} else if kind == "shell_call_output" {
				r.read(item, "output", shell)
				parts, _ := item["output"].([]any)
				for _, p := range parts {
					part, _ := p.(map[string]any)
					outcome, _ := part["outcome"].(map[string]any)
					code, isNumber := outcome["exit_code"].(json.Number)
					r.isError = r.isError || outcome["type"] == "timeout" || isNumber && code != "0"
				}
			} else {
				r.read(item, "output", typed("input_text"))
			}
			c.results = append(c.results, r)
		case strings.HasSuffix(kind, "_output"):
			open = false
			c.results = append(c.results, referenceResult{item: i, unknown: true})
		case role == "assistant":
			c.answered = true
		case hasRole:
			open = false
		}
	}
	return c
}

var referenceOutputs = []string{
	"function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
	"apply_patch_call_output",
	"computer_call_output", "mcp_tool_call_output", "tool_search_output",
}

// referenceName returns a tool name, or "" if v is not a string or is too long.
func referenceName(v any) string {
	if name := referenceString(v); len(name) <= 256 {
		return name
	}
	return ""
}

// referenceString returns v if it is a string, or else "".
func referenceString(v any) string {
	s, _ := v.(string)
	return s
}

// choose returns the placeholders of masked results by their index, for a boundary that was
// set when there were step turns.
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
		if len(r.texts) == 0 {
			continue
		}
		template := p.Template.String()
		if template == "" {
			template = referenceTemplate
		}
		first := r.texts[0]
		if first.object == nil && slices.ContainsFunc([]string{referenceTemplate, DefaultTemplateWithID.String(), template},
			func(template string) bool {
				return referenceRendered(template, first.text, r.id, tool)
			}) {
			continue
		}
		if p.KeepErrors == ErrorsOn && (r.isError || slices.ContainsFunc(r.texts, referenceText.isError)) {
			continue
		}
		chars := 0
		for _, t := range r.texts {
			chars += t.chars
		}
		if chars < p.MinChars {
			continue
		}
		placeholders[i] = strings.NewReplacer(
			"{tool_call_id}", r.id, "{tool_name}", tool, "{original_chars}", strconv.Itoa(chars), "{id}", referenceAnyID,
		).Replace(template)
	}
	return placeholders
}

// referenceUnread counts the old results that cannot be masked.
func referenceUnread(body []byte, p Policy) (n [unreads]int) {
	_, c, ok := referenceRead(body)
	now, _ := c.boundary(p)
	if !ok || now.step == 0 {
		return n
	}
	last := map[string]referenceCall{}
	for _, call := range c.calls {
		if now.step == len(c.turns) || call.item < c.turns[now.step] {
			if call.name == "" {
				call.name = last[call.id].name
			}
			last[call.id] = call
		}
	}
	keep := p
	keep.ExcludeTools, keep.MinChars, keep.KeepErrors = nil, 0, ErrorsOff
	for i, r := range c.results {
		call, called := last[r.id]
		switch {
		case now.step < len(c.turns) && r.item >= c.turns[now.step]:
		case r.unknown && r.item < c.turns[now.boundary]:
			n[UnknownKind]++
		case !called && (len(r.texts) > 0 || r.notText) && !r.unknown && r.item < c.turns[now.boundary]:
			n[NoCall]++
		case called && r.notText && call.turn < now.boundary &&
			!slices.ContainsFunc(p.ExcludeTools, func(pattern string) bool {
				return call.name != "" && mcp.MatchName(pattern, call.name)
			}):
			// KeepLastPerTool applies to it like to a text.
			texted := c
			texted.results = slices.Clone(c.results)
			texted.results[i].texts = []referenceText{{text: "x"}}
			if _, masked := texted.choose(keep, now.boundary, now.step)[i]; masked {
				n[NotText]++
			}
		}
	}
	return n
}

// isError reports whether a text looks like an error.
func (t referenceText) isError() bool {
	switch v := t.object.(type) {
	case map[string]any:
		_, hasError := v["error"]
		if hasError || strings.EqualFold(referenceString(v["status"]), "error") {
			return true
		}
		return slices.ContainsFunc(slices.Collect(maps.Values(v)),
			func(v any) bool { return referenceError(referenceString(v)) })
	case []any:
		return slices.ContainsFunc(v, func(v any) bool { return referenceError(referenceString(v)) })
	}
	return referenceError(t.text)
}

// mask replaces the result with the placeholder.
func (r *referenceResult) mask(placeholder string) {
	for _, t := range r.texts {
		t.put(placeholder)
		placeholder = "…"
	}
}

const referenceTemplate = "[Observation masquée: résultat d’outil ancien (tool_call_id={tool_call_id}, " +
	"outil={tool_name}, chars={original_chars})]"

// referenceAnyID is the id that the reference gives every result.
const referenceAnyID = "obs_0000000000"

// referenceID finds ids of results.
var referenceID = regexp.MustCompile("obs_[0-9A-Za-z]{10}")

// referenceRendered reports whether s is the template with any number of characters and any id.
func referenceRendered(template, s, id, tool string) bool {
	if strings.Contains(template, "{id}") {
		template, s = strings.ReplaceAll(template, "{id}", "\uE000"), referenceID.ReplaceAllString(s, "\uE000")
	}
	parts := strings.Split(template, "{original_chars}")
	for i := range parts {
		parts[i] = strings.NewReplacer("{tool_call_id}", id, "{tool_name}", tool).Replace(parts[i])
	}
	return referenceNumbers(s, parts)
}

// referenceNumbers reports whether s consists of parts with numbers between them.
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
	return hasError || strings.EqualFold(referenceString(object["status"]), "error")
}

// TestReferenceExample checks the reference with examples of T5, T10 and T17.
func TestReferenceExample(t *testing.T) {
	const (
		call1 = `{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",` +
			`"function":{"name":"fast_read_file","arguments":"{}"}}]}`
		call2 = `{"role":"assistant","content":null,"tool_calls":[{"id":"call_2","type":"function",` +
			`"function":{"name":"fast_read_file","arguments":"{}"}}]}`
	)
	b2 := func(first string) string {
		return `{"messages":[{"role":"system","content":"s"},` + call1 +
			`,{"role":"tool","tool_call_id":"call_1","content":` + strconv.Quote(first) + `},{"role":"user","content":"u"},` +
			call2 +
			`,{"role":"tool","tool_call_id":"call_2","content":"OK"},{"role":"user","content":"v"}]}`
	}
	long := strings.Repeat("A", 1000)
	const placeholder = "[Observation masquée: résultat d’outil ancien (tool_call_id=call_1, outil=fast_read_file, " +
		"chars=1000)]"
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
		{"traceback", "Traceback (most recent call last):", Policy{WindowTurns: 1, KeepErrors: ErrorsOn},
			"Traceback (most recent call last):", false},
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
		t.Error("a result without a call was masked")
	}
	answered := strings.Replace(b2(long), `{"role":"user","content":"v"}`, `{"role":"assistant","content":"v"}`, 1)
	if _, masked, broken, _ := reference([]byte(answered), Policy{WindowTurns: 1}); masked != 1 || broken {
		t.Errorf("an answered result: masked %d, broken %t", masked, broken)
	}
	for _, body := range []string{
		``, `{`, `[]`, `{}`, `{"messages":null}`, `{"messages":{}}`, `{"input":"x"}`,
		`{"messages":[],"input":[]}`, `{"messages":[1]}`, `{"input":[{},"x"]}`, `{"messages":[]} x`,
	} {
		if _, _, _, ok := reference([]byte(body), Policy{WindowTurns: 1}); ok {
			t.Errorf("%s was accepted", body)
		}
	}
}

// TestReferenceFormats checks the reference with the formats messages and responses.
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
		out, masked, broken, ok := reference([]byte(test.body), Policy{WindowTurns: 1, KeepErrors: ErrorsOn,
			Template: template})
		if !ok || masked != 2 || !broken {
			t.Errorf("%s: masked %d, broken %v, ok %v", test.name, masked, broken, ok)
		}
		if g, w := referenceEncode(referenceDecode(out)), referenceEncode(referenceDecode([]byte(test.want))); g != w {
			t.Errorf("%s: got\n%s, want\n%s", test.name, g, w)
		}
	}
}

// TestReferenceSteps checks the positions of the boundary, and that results after the step stay.
func TestReferenceSteps(t *testing.T) {
	for turns, want := range []int{0, 0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9} {
		var items []string
		for i := range turns {
			id := strconv.Itoa(i)
			items = append(items, `{"role":"assistant","tool_calls":[{"id":"`+id+`"}]}`, `{"role":"tool","tool_call_id":"`+id+
				`","content":"x"}`)
		}
		// A late result of the first turn is masked only if the last turn is the step.
		items = append(items, `{"role":"tool","tool_call_id":"0","content":"late"}`)
		atStep := want > 0 && turns == want+2
		if atStep {
			want++
		}
		_, masked, broken, _ := reference([]byte(`{"messages":[`+strings.Join(items, ",")+`]}`),
			Policy{WindowTurns: 2, StepTurns: 3})
		if masked != want || broken != atStep {
			t.Errorf("%d turns: %d masked, want %d; broken %v", turns, masked, want, broken)
		}
	}
}

// TestReferenceErrors checks which texts look like errors.
func TestReferenceErrors(t *testing.T) {
	for _, s := range generatedErrors {
		if !referenceError(s) {
			t.Errorf("%q does not look like an error", s)
		}
	}
	for _, s := range generatedNearErrors {
		if referenceError(s) {
			t.Errorf("%q looks like an error", s)
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
