package chat

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// formats are the formats that conversation generates.
var formats = []string{"chat", "ollama", "anthropic", "bedrock", "responses", "gemini"}

// conversation generates a request in one of the formats. It is valid JSON without repeated
// members. About 3 % of the requests are not conversations.
func conversation(r *rand.Rand, format string) []byte {
	g := &generator{
		Rand:    r,
		format:  format,
		repeats: r.IntN(20) == 0,
		blanks:  []int{0, 0, 5, 40}[r.IntN(4)],
		escapes: []int{0, 3, 20}[r.IntN(3)],
		shuffle: r.IntN(2) == 0,
	}
	return g.write(nil, g.body())
}

// policy generates a policy without ClearAtLeast.
func policy(r *rand.Rand) Policy {
	p := Policy{
		WindowTurns:     r.IntN(7),
		KeepErrors:      Errors(min(r.IntN(3), 1)),
		KeepLastPerTool: max(0, r.IntN(6)-2),
		MinChars:        []int{0, 0, 20, 200}[r.IntN(4)],
		StepTurns:       1 + r.IntN(5),
	}
	for r.IntN(4) == 0 {
		p.ExcludeTools = append(p.ExcludeTools, one(r, []string{"fast_*", "*read*", "exec", "inconnu", "*é", "a*b*c",
			"mcp__*__run", "nothing"}))
	}
	if r.IntN(3) == 0 {
		p.Template = must(ParseTemplate(one(r, generatedTemplates)))
	}
	return p
}

// generatedTemplates are custom templates, for policies and for results that look like
// placeholders. None has a digit next to {original_chars}.
var generatedTemplates = []string{
	"[gone: {tool_call_id}]",
	"{tool_name}/{tool_call_id}: {original_chars} \"chars\" élidés\n\t\\",
	"({original_chars}) {tool_call_id} {tool_call_id}",
	"<{tool_name}> … 🔧",
	"{original_chars}",
	"masked",
	"{id} of {tool_call_id}",
	strings.TrimSuffix(referenceTemplate, ")]") + ", id={id})]",
}

// generatedErrors look like errors. Each matches one rule.
var generatedErrors = []string{
	"Traceback (most recent call last):\n  File \"x.py\", line 1",
	"java.lang.NullPointerException",
	"the request: TIMEOUT after 30s",
	"C:\\timeout",
	"http connect_error",
	"dial tcp: Connection Refused",
	"Error: no such file",
	"error",
	"errors found: 0",
	" \t ERROR 7",
	"\terror",
	"ok\nerror: y",
	"ok\r\n  \tError",
	"ok\rerror",
	"\n\n error",
	"é…\nError",
	`{"error":null}`,
	`{"error":{"code":1,"error":2}}`,
	" \r\n\t{\"a\":[1,2,{\"b\":\"c\"}],\"error\":false}\n",
	`{"status":"error"}`,
	`{"a":{"status":"ok"},"status":"ERROR"}`,
	`{"\u0065rror":1}`,
	`{"s\u0074atus":"\u0045rror"}`,
	`{"a":1e400,"error":12345678901234567890}`,
	`{"a":"error"`,
	`{"error":1} and more`,
	`["error",`,
	`{"a":NaN,"b":"error"}`,
	"{\"a\":\"a\ttab\",\"error\":1}",
	"{\n error: 1 }",
	`[] {"error":1}`,
}

// generatedNearErrors do not look like errors.
var generatedNearErrors = []string{
	"terror",
	"an error occurred",
	"ok\nan Error",
	"\timeout",
	"a\timeout b",
	"\traceback",
	"time out",
	"connection  refused",
	"connect error",
	"exceptio",
	"ok\ferror",
	"ok\berror",
	"ok\verror",
	"ok\u2028error",
	"\u00a0error",
	"ok\n\u00a0error",
	"\ufefferror",
	"\x00error",
	"ok\\nerror",
	"\\nerror",
	"erro\u0301r",
	"\nerr\nor",
	`"error"`,
	`"error": true`,
	`see {"error":1}`,
	`{"data":{"error":1}}`,
	`{"Error":1,"ERROR":2}`,
	`{"errors":[]}`,
	`{" error":1}`,
	`{"Status":"error"}`,
	`{"status":"error "}`,
	`{"status":["error"]}`,
	`{"status":{"status":"error"}}`,
	`{"a":"error"}`,
	`{"a":"\nerror"}`,
	`{"a":"x\nerror: y","status":"ok"}`,
	`["error"]`,
	`[{"error":1},{"status":"error"}]`,
	`{"a":1e400,"b":-0.0E-7}`,
	`{"n":12345678901234567890,"status":"ok"}`,
	`{"a":"terror"`,
	`{"a":"an error"`,
	`{error: 1}`,
	`{'error': 1}`,
	`{"error`,
	`{"\u0065rror":`,
	"{",
	"[1,2,",
	"\u00a0{\"error\":1}",
	"\f{\"error\":1}",
	"\ufeff{\"error\":1}",
	"{}",
	" [ ] ",
}

// Values that write encodes: these types, []any and strings.
type (
	generatedObject []generatedMember
	generatedMember struct {
		key   string
		value any
	}
	generatedLiteral string // written verbatim
)

const generatedNull = generatedLiteral("null")

// generatedAbsent is the value of a member that write omits.
type generatedAbsent struct{}

type generator struct {
	*rand.Rand
	format  string
	repeats bool // reuse ids
	blanks  int  // probability of white space where it is allowed, in percent
	escapes int  // probability of needless escapes in a string, in percent
	shuffle bool // write members in random order

	items []any
	calls []generatedCall
	late  []generatedCall // without a result so far
	next  int
}

type generatedCall struct {
	id   string
	tool string // "inconnu" if the call has no name
	wire [2]any // id and name as written
}

// one returns a random choice.
func one[T any](r *rand.Rand, choices []T) T { return choices[r.IntN(len(choices))] }

// percent returns true with a probability of n percent.
func (g *generator) percent(n int) bool { return g.IntN(100) < n }

// body generates a request.
func (g *generator) body() any {
	turns := g.IntN(31)
	if g.percent(40) {
		turns = g.IntN(9)
	}
	g.addMessages(60)
	for range turns {
		g.addMessages(25)
		g.addTurn()
		g.addMessages(10)
	}
	if g.percent(15) {
		g.addMessage("assistant")
	}

	list, other := "messages", "input"
	switch g.format {
	case "responses":
		list, other = other, list
	case "gemini":
		list = "contents"
	}
	var value any = g.items
	if g.items == nil {
		value = []any{}
	}
	body := generatedObject{{"model", "gpt-" + g.words(1)}}
	if g.percent(3) { // not a conversation
		switch g.IntN(6) {
		case 0:
			return value
		case 1:
			value = one(g.Rand, []any{generatedNull, "text", generatedLiteral("1e400"), generatedObject{{"0", value}}})
		case 2:
			value = generatedAbsent{}
		case 3:
			body = append(body, generatedMember{other, []any{}})
		default:
			at := g.IntN(len(g.items) + 1)
			list := append([]any{}, g.items[:at]...)
			list = append(list, one(g.Rand, []any{generatedNull, "text", generatedLiteral("7"), []any{}}))
			value = append(list, g.items[at:]...)
		}
	} else if g.percent(5) { // ignored, because it is not a list
		body = append(body, generatedMember{other, one(g.Rand, []any{generatedNull, "text", generatedObject{}})})
	}
	if g.format == "gemini" && g.percent(30) { // the format of Code Assist
		return append(body, generatedMember{"request", generatedObject{{list, value}}})
	}
	body = append(body, generatedMember{list, value})
	if g.percent(30) {
		body = append(body, generatedMember{"tools", []any{generatedObject{
			{"type", "function"},
			{"function", generatedObject{
				{"name", g.tool()},
				{"parameters", generatedObject{{"z", g.any(3)}, {"a", g.any(3)}, {"messages", []any{generatedLiteral("1")}}}},
			}},
		}}})
	}
	if g.percent(20) {
		body = append(body, generatedMember{"response_format", generatedObject{{"type", "json_schema"},
			{"json_schema", g.any(4)}}})
	}
	if g.percent(20) {
		body = append(body, generatedMember{"stream", generatedLiteral("true")}, generatedMember{"temperature", g.number()})
	}
	for _, m := range g.vendor() {
		if m.key != list {
			body = append(body, m)
		}
	}
	return body
}

// addMessages adds messages without calls: the first with a probability of percent, each further
// one with half of that of the one before.
func (g *generator) addMessages(percent int) {
	for g.percent(percent) {
		g.addMessage(one(g.Rand, []string{"user", "user", "system", "assistant", "assistant", "developer"}))
		percent /= 2
	}
}

// addMessage adds a message without calls.
func (g *generator) addMessage(role string) {
	if g.format == "gemini" {
		g.addParts(role, []any{generatedObject{{"text", g.words(12)}}})
		return
	}
	m := generatedObject{{"role", role}}
	if g.format == "responses" && g.percent(15) {
		g.items = append(g.items,
			generatedObject{{"type", one(g.Rand, []string{"reasoning", "web_search_call", "item_reference"})},
				{"summary", g.any(2)}})
		return
	}
	switch {
	case g.percent(3):
		m[0].value = one(g.Rand, []any{generatedNull, generatedLiteral("5"), generatedAbsent{}, []any{"user"}})
	case g.format == "responses" && g.percent(50):
		m = append(m, generatedMember{"type", "message"})
	}
	var content any = g.words(12)
	switch {
	case g.percent(25):
		kind := map[bool]string{false: "text", true: "input_text"}[g.format == "responses"]
		content = []any{generatedObject{{"type", kind}, {"text", g.words(8)}}, generatedObject{{"type", "image_url"},
			{"image_url", g.any(2)}}}
	case g.percent(5):
		content = one(g.Rand, []any{generatedNull, generatedAbsent{}, "", []any{}, []any{generatedNull, "x"}})
	}
	m = append(m, generatedMember{"content", content})
	if g.format != "responses" && g.percent(10) { // tool_calls that are not calls, or that a role ignores
		m = append(m, generatedMember{"tool_calls", one(g.Rand, []any{
			generatedNull, []any{}, "x", generatedObject{}, []any{generatedNull, "x", generatedObject{}},
			[]any{generatedObject{{"id", ""}, {"function", generatedObject{{"name", "exec"}}}}},
			[]any{generatedObject{{"id", generatedLiteral("1")}}},
		})})
	}
	g.items = append(g.items, append(m, g.vendor()...))
}

// addTurn adds calls and usually their results.
func (g *generator) addTurn() {
	calls := []generatedCall{g.call()}
	for g.percent(30) && len(calls) < 5 {
		calls = append(calls, g.call())
	}
	var results []generatedCall
	answer := func(c generatedCall) {
		switch {
		case g.percent(4):
			g.late = append(g.late, c)
		case g.percent(2): // not answered
		case g.percent(3):
			results = append(results, c, c)
		default:
			results = append(results, c)
		}
	}

	if g.percent(2) { // a result before its call
		g.addResults([]generatedCall{calls[0]})
	}
	switch g.format {
	case "responses":
		for i, c := range calls {
			if i > 0 && g.percent(10) {
				g.addMessage("assistant")
			}
			if i > 0 && g.percent(10) {
				g.items = append(g.items, generatedObject{{"type", "reasoning"}, {"id", "rs_1"}})
			}
			kind, key := one(g.Rand, []string{"function_call", "custom_tool_call"}), "call_id"
			if g.percent(20) {
				kind = one(g.Rand, []string{"local_shell_call", "shell_call", "apply_patch_call", "computer_call",
					"tool_search_call", "web_search_call"})
			}
			other := "id"
			if kind == "local_shell_call" && g.percent(30) {
				key, other = other, "item"
			}
			g.items = append(g.items, append(generatedObject{
				{"type", kind}, {key, c.wire[0]}, {"name", c.wire[1]}, {other, g.id()},
				{"arguments", `{"path":"a\\b","n":1.0}`},
			}, g.vendor()...))
			if i > 0 && g.percent(5) { // a result between calls, which ends the turn
				g.addResults([]generatedCall{calls[i-1]})
			}
		}
	case "anthropic", "bedrock":
		g.items = append(g.items, g.assistant(nil, calls))
	case "gemini":
		var parts []any
		for _, c := range calls {
			name := one(g.Rand, []string{"functionCall", "function_call"})
			parts = append(parts, generatedObject{{name, append(generatedObject{
				{"id", c.wire[0]}, {"name", c.wire[1]}, {"args", g.any(2)},
			}, g.vendor()...)}, {"thoughtSignature", "x"}})
			if g.percent(10) {
				parts = append(parts, one(g.Rand, []any{
					generatedObject{{"text", "x"}}, generatedNull, "x", []any{}, generatedObject{{"functionCall", "x"}},
					generatedObject{{"functionResponse", generatedObject{{"name", c.wire[1]},
						{"response", "of a model: does not count"}}}},
				}))
			}
		}
		g.addParts("assistant", parts)
	default:
		var blocks []generatedCall
		if g.percent(3) { // calls in both formats
			blocks = append(blocks, generatedCall{id: g.id(), tool: "exec"})
			blocks[0].wire = [2]any{blocks[0].id, "exec"}
			answer(blocks[0])
		}
		g.items = append(g.items, g.assistant(calls, blocks))
	}
	for _, c := range calls {
		answer(c)
	}
	for g.percent(4) { // a result without a call or without an id
		c := generatedCall{id: g.id(), tool: "inconnu"}
		c.wire = [2]any{one(g.Rand, []any{c.id, "", generatedNull, generatedLiteral("3"), generatedAbsent{}, []any{}}),
			g.tool()}
		results = append(results, c)
	}
	for len(g.late) > 0 && g.percent(30) {
		results = append(results, g.late[0])
		g.late = g.late[1:]
	}
	if g.percent(20) {
		g.Shuffle(len(results), func(i, j int) { results[i], results[j] = results[j], results[i] })
	}
	g.addResults(results)
}

// assistant returns a message with calls in tool_calls, and with blocks of type tool_use.
func (g *generator) assistant(calls, blocks []generatedCall) any {
	role := "assistant"
	if g.percent(2) {
		role = one(g.Rand, []string{"user", "Assistant", "tool", "system"}) // calls of these roles are ignored
	}
	m := generatedObject{{"role", role}}
	if len(calls) > 0 {
		var list []any
		for _, c := range calls {
			var function any = generatedObject{{"name", c.wire[1]}, {"arguments", "{\"path\":\"a\\\\b\",\"é\":\"\\u00e9\"}"}}
			if _, absent := c.wire[1].(generatedAbsent); absent && g.percent(50) {
				function = one(g.Rand, []any{generatedNull, generatedAbsent{}, "exec", []any{}})
			}
			call := generatedObject{{"id", c.wire[0]}, {"type", "function"}, {"function", function}}
			if g.percent(20) { // a custom tool has free text as input
				call[1].value, call[2] = "custom", generatedMember{"custom", generatedObject{{"name", c.wire[1]}, {"input", "x"}}}
			} else if g.percent(2) {
				call = append(call, generatedMember{"custom", generatedObject{{"name", "other"}}})
			}
			list = append(list, append(call, g.vendor()...))
			if g.percent(2) {
				list = append(list, one(g.Rand, []any{generatedNull, "x", []any{}}))
			}
		}
		m = append(m, generatedMember{"tool_calls", list})
	}
	if len(blocks) == 0 {
		content := one(g.Rand, []any{generatedNull, "", g.words(10), generatedAbsent{}})
		return append(append(m, generatedMember{"content", content}), g.vendor()...)
	}
	var content []any
	if g.percent(50) {
		content = append(content, generatedObject{{"type", "text"}, {"text", g.words(6)}})
	}
	for _, c := range blocks {
		if g.format == "bedrock" && !g.percent(2) {
			use := append(generatedObject{{"toolUseId", c.wire[0]}, {"name", c.wire[1]}, {"input", g.any(3)}}, g.vendor()...)
			content = append(content, append(generatedObject{{"toolUse", use}}, g.ambiguous("toolResult", "tool_use")...))
			continue
		}
		content = append(content, append(generatedObject{
			{"type", "tool_use"}, {"id", c.wire[0]}, {"name", c.wire[1]}, {"input", g.any(3)},
		}, g.vendor()...))
		if g.percent(3) {
			content = append(content, one(g.Rand, []any{
				generatedNull, "x", generatedObject{},
				generatedObject{{"type", "server_tool_use"}, {"id", "srv"}, {"name", "web_search"}},
				generatedObject{{"type", "tool_result"}, {"tool_use_id", c.wire[0]},
					{"content", "of an assistant: does not count"}},
			}))
		}
	}
	return append(append(m, generatedMember{"content", content}), g.vendor()...)
}

// ambiguous rarely returns a member that makes a Bedrock block something else.
func (g *generator) ambiguous(member, kind string) generatedObject {
	if !g.percent(4) {
		return nil
	}
	return generatedObject{one(g.Rand, generatedObject{
		{member, generatedObject{{"toolUseId", g.id()}}}, {"type", kind}, {"content", []any{}}, {"type", generatedNull},
		{"id", "x"},
	})}
}

// addParts adds a Gemini message.
func (g *generator) addParts(role string, parts []any) {
	var wire any = map[string]string{"assistant": "model", "tool": "function", "user": "user"}[role]
	if wire == "" || g.percent(2) {
		wire = one(g.Rand, []any{"system", "assistant", "tool", generatedNull, generatedAbsent{}})
	}
	var list any = parts
	if g.percent(2) {
		list = one(g.Rand, []any{generatedNull, "x", []any{}, generatedObject{{"0", parts}}})
	}
	g.items = append(g.items, append(generatedObject{{"role", wire}, {"parts", list}}, g.vendor()...))
}

// object returns a value for the formats that allow an object in place of a text.
func (g *generator) object(c generatedCall) any {
	switch n := g.IntN(100); {
	case n < 45:
		return generatedObject{{one(g.Rand, []string{"output", "output", "result", "error", "\""}), g.text(c)}}
	case n < 65:
		return generatedObject{{"output", g.text(c)}, {"exitCode", g.number()},
			{one(g.Rand, []string{"x", "error", "status"}), g.any(2)}}
	case n < 80:
		return g.any(3)
	case n < 85:
		return []any{g.text(c), g.any(1)}
	}
	return one(g.Rand, []any{generatedObject{}, []any{}, generatedNull, g.text(c), generatedLiteral("7"),
		generatedAbsent{}, []any{g.text(c)}})
}

// addResults adds the results of calls.
func (g *generator) addResults(calls []generatedCall) {
	var blocks []any
	flush := func() {
		if blocks == nil {
			return
		}
		if g.format == "gemini" {
			g.addParts(one(g.Rand, []string{"user", "user", "tool"}), blocks)
			blocks = nil
			return
		}
		if g.percent(15) {
			blocks = append(blocks, generatedObject{{"type", "text"}, {"text", g.words(5)}})
		}
		role := "user"
		if g.percent(1) {
			role = "system" // its results are ignored
		}
		g.items = append(g.items, append(generatedObject{{"role", role}, {"content", blocks}}, g.vendor()...))
		blocks = nil
	}
	for _, c := range calls {
		switch {
		case g.format == "responses":
			g.items = append(g.items, append(g.output(c), g.vendor()...))
		case g.format == "gemini":
			answer := append(generatedObject{{"id", c.wire[0]}, {"name", c.wire[1]}, {"response", g.object(c)}}, g.vendor()...)
			if g.percent(5) {
				answer = append(answer, generatedMember{"parts", one(g.Rand, []any{
					[]any{}, []any{generatedObject{{"inlineData", "AAAA"}}}, generatedNull, generatedObject{},
					generatedObject{{"x", "x"}},
				})})
			}
			name := one(g.Rand, []string{"functionResponse", "function_response"})
			blocks = append(blocks, generatedObject{{name, answer}})
			if g.percent(30) {
				flush()
			}
		case g.format == "bedrock" && !g.percent(2):
			var content any = g.content(c)
			if list, isList := content.([]any); isList || g.percent(60) {
				content = append(list, g.bedrock(c)...)
			}
			answer := generatedObject{{"toolUseId", c.wire[0]}, {"content", content}}
			if g.percent(30) {
				answer = append(answer, generatedMember{"status", one(g.Rand, []any{"success", "error", "Error", generatedNull})})
			}
			blocks = append(blocks, append(generatedObject{{"toolResult", append(answer, g.vendor()...)}},
				g.ambiguous("toolUse", "tool_result")...))
			if g.percent(15) {
				flush()
			}
		case g.format == "anthropic" && !g.percent(1), g.percent(1):
			block := generatedObject{{"type", "tool_result"}, {"tool_use_id", c.wire[0]}, {"content", g.content(c)}}
			if g.percent(15) {
				block = append(block, generatedMember{"is_error", one(g.Rand, []any{
					generatedLiteral("true"), generatedLiteral("true"), generatedLiteral("false"), generatedNull, "true",
					generatedLiteral("1"),
				})})
			}
			if g.percent(10) {
				block = append(block, generatedMember{"cache_control", generatedObject{{"type", "ephemeral"}}})
			}
			blocks = append(blocks, append(block, g.vendor()...))
			if g.percent(2) {
				blocks = append(blocks, one(g.Rand, []any{generatedNull, "x", []any{}, generatedObject{}}))
			}
			if g.percent(15) {
				flush()
			}
		default:
			flush()
			m := generatedObject{{"role", "tool"}, {"tool_call_id", c.wire[0]}, {"content", g.content(c)}}
			if g.percent(20) {
				m = append(m, generatedMember{"name", g.tool()})
			}
			if g.format == "ollama" && g.percent(60) {
				m = append(m, generatedMember{"tool_name", c.wire[1]})
			}
			if g.percent(3) {
				m = append(m, generatedMember{"is_error", generatedLiteral("true")}) // ignored in this format
			}
			g.items = append(g.items, append(m, g.vendor()...))
		}
	}
	flush()
}

// output returns a result in the format of responses.
func (g *generator) output(c generatedCall) generatedObject {
	kind, key := one(g.Rand, []string{"function_call_output", "custom_tool_call_output"}), "call_id"
	if g.percent(25) {
		kind = one(g.Rand, []string{
			"local_shell_call_output", "shell_call_output", "shell_call_output", "apply_patch_call_output",
			"computer_call_output",
			"mcp_tool_call_output", "tool_search_output", "new_call_output",
		})
	}
	if kind == "local_shell_call_output" && g.percent(30) {
		key = "id"
	}
	var output any = g.content(c)
	switch {
	case kind == "shell_call_output" && g.percent(90):
		list := []any{}
		for range 1 + g.IntN(2) {
			part := generatedObject{{"stdout", g.text(c)}, {"stderr", g.text(c)}}
			if g.percent(40) {
				part[g.IntN(2)].value = one(g.Rand, []any{"", "", "", generatedAbsent{}, generatedNull})
			}
			if g.percent(70) {
				part = append(part, generatedMember{"outcome", one(g.Rand, []any{
					generatedObject{{"type", "exit"}, {"exit_code", generatedLiteral("0")}}, generatedObject{{"type", "exit"},
						{"exit_code", generatedLiteral("1")}},
					generatedObject{{"type", "timeout"}}, generatedNull, generatedObject{{"exit_code", "1"}},
				})})
			}
			if g.percent(3) {
				part = append(part, generatedMember{"type", one(g.Rand, []any{"input_text", generatedNull})})
			}
			list = append(list, part)
		}
		output = list
	case g.percent(6):
		output = generatedObject{{"content", g.content(c)},
			{"success", one(g.Rand, []any{generatedLiteral("true"), generatedLiteral("false"), generatedAbsent{}})},
			{"x", generatedObject{{"type", "input_text"}, {"text", "x"}}}}
	}
	item := generatedObject{{"type", kind}, {key, c.wire[0]}, {"output", output}}
	if g.percent(10) {
		item = append(item, generatedMember{"status", one(g.Rand, []any{"completed", "failed", "failed", generatedNull})})
	}
	return item
}

// bedrock returns parts of a Bedrock result.
func (g *generator) bedrock(c generatedCall) (parts []any) {
	for range g.IntN(3) {
		switch {
		case g.percent(50):
			parts = append(parts, generatedObject{{"text", g.text(c)}})
		case g.percent(85):
			parts = append(parts, generatedObject{{"json", g.object(c)}})
		default:
			parts = append(parts, one(g.Rand, []any{
				generatedObject{{"image", generatedObject{{"format", "png"}}}}, generatedObject{{"text", "x"}, {"json", "x"}},
				generatedObject{{"text", generatedNull}}, "x", generatedNull,
			}))
		}
	}
	return parts
}

// call returns a call, usually a new one.
func (g *generator) call() generatedCall {
	if g.repeats && len(g.calls) > 0 && g.percent(30) {
		c := one(g.Rand, g.calls)
		if g.percent(50) {
			c.tool = g.tool()
			c.wire[1] = c.tool
		}
		return c
	}
	c := generatedCall{id: g.id(), tool: g.tool()}
	c.wire = [2]any{c.id, c.tool}
	if g.percent(5) {
		c.tool = "inconnu"
		c.wire[1] = one(g.Rand, []any{"", generatedNull, generatedLiteral("4"), generatedAbsent{}, []any{"exec"}})
	}
	if g.percent(4) || (g.format == "ollama" || g.format == "gemini") && g.percent(70) {
		c.wire[0] = one(g.Rand, []any{"", generatedNull, generatedLiteral("4"), generatedAbsent{}, []any{"call_1"}})
	} else {
		g.calls = append(g.calls, c)
	}
	return c
}

// id returns a new id.
func (g *generator) id() string {
	g.next++
	form := "call_%d"
	if g.percent(30) {
		form = one(g.Rand, []string{"toolu_é%d", "id\"%d", "{tool_name}%d", "🔧%d", "a/b\\%d", "%d", "functions.exec:%d",
			"\n%d\x7f", " %d"})
	}
	return fmt.Sprintf(form, g.next)
}

func (g *generator) tool() string {
	return one(g.Rand, []string{"fast_read_file", "fast_read_file", "exec", "search", "read", "lire_é", "mcp__files__run",
		"a\"b\\c", "abc", "{original_chars}", "🔧"})
}

// content returns the content of a result.
func (g *generator) content(c generatedCall) any {
	kind := map[bool]string{false: "text", true: "input_text"}[g.format == "responses"]
	block := func(text any) generatedObject {
		b := generatedObject{{"type", kind}, {"text", text}}
		if g.percent(10) {
			b = append(b, generatedMember{"cache_control", generatedObject{{"type", "ephemeral"}, {"text", "not this"}}})
		}
		return b
	}
	list := func(n int) []any {
		list := []any{}
		for range n {
			list = append(list, block(g.text(c)))
		}
		return list
	}
	switch n := g.IntN(100); {
	case n < 76:
		return g.text(c)
	case n < 82:
		return list(1)
	case n < 90:
		return list(2 + g.IntN(3))
	case n < 95: // lists that cannot be masked
		l := list(g.IntN(3))
		at := g.IntN(len(l) + 1)
		odd := one(g.Rand, []any{
			generatedObject{{"type", "image"}, {"source", generatedObject{{"type", "base64"}, {"data", "AAAA"}}}},
			generatedObject{{"type", "image"}, {"text", "x"}},
			generatedObject{{"type", kind}},
			generatedObject{{"text", "x"}},
			generatedObject{{"type", "output_text"}, {"text", "x"}},
			generatedObject{{"type", strings.ToUpper(kind)}, {"text", "x"}},
			block(generatedNull), block([]any{"x"}), block(generatedLiteral("1")),
			generatedNull, "x", []any{}, generatedLiteral("1"),
		})
		return append(append(append([]any{}, l[:at]...), odd), l[at:]...)
	case n < 96:
		return []any{}
	default:
		return one(g.Rand, []any{
			generatedNull, generatedAbsent{}, generatedLiteral("12"), generatedLiteral("true"),
			generatedObject{{"type", kind}, {"text", g.text(c)}}, generatedObject{},
		})
	}
}

// text returns the text of a result.
func (g *generator) text(c generatedCall) string {
	switch n := g.IntN(100); {
	case n < 30:
		return g.words(5)
	case n < 50:
		return g.words(80)
	case n < 52:
		return strings.Repeat(one(g.Rand, []string{"A", "é", "🔧", "\n", "\"", "\\", "\x00"}), g.IntN(1500))
	case n < 55: // around the limits of MinChars
		return strings.Repeat(one(g.Rand, []string{"A", "é", "🔧"}), one(g.Rand, []int{1, 19, 20, 21, 199, 200, 201}))
	case n < 60:
		return ""
	case n < 70:
		s := one(g.Rand, generatedErrors)
		if g.percent(10) {
			s = s + "\n" + g.words(10)
		}
		return s
	case n < 85:
		s := one(g.Rand, generatedNearErrors)
		if g.percent(10) {
			s = g.words(10) + s
		}
		return s
	case n < 88:
		return "…"
	}

	// A placeholder, or a text that resembles one.
	template := referenceTemplate
	if g.percent(40) {
		template = one(g.Rand, generatedTemplates)
	}
	id, tool, chars := c.id, c.tool, one(g.Rand, []string{"0", "7", "1000", "007", "123456789012"})
	if g.percent(40) {
		switch g.IntN(5) {
		case 0:
			id += "0"
		case 1:
			tool = g.tool()
		case 2:
			chars = one(g.Rand, []string{"", "-1", "1e3", "1234567890123", "１", " 1", "{original_chars}"})
		case 3:
			template += " "
		case 4:
			template = "\n" + template
		}
	}
	result := one(g.Rand, []string{"obs_4kXbZ0aQe7", "obs_4kXbZ0aQe7", "obs_4kXbZ0aQe", "obs_4kXbZ0aQe-", "{id}"})
	return strings.NewReplacer("{tool_call_id}", id, "{tool_name}", tool, "{original_chars}", chars, "{id}",
		result).Replace(template)
}

// words returns a text of at most n words.
func (g *generator) words(n int) string {
	var b strings.Builder
	for range g.IntN(n + 1) {
		b.WriteString(one(g.Rand, []string{
			"a", "line", "résultat", "l’outil", "日本", "🔧", "<b>&amp;</b>", "\"quoted\"", "back\\slash", "/path/to",
			"{tool_name}",
			"terrors", "\u2028", "\x7f", "e\u0301", "12345", "}", "]", ",", "\\u0041", "\\\"", "func f() {", "\x01", "\ufffd",
			"𝄞",
		}))
		b.WriteString(one(g.Rand, []string{" ", " ", " ", "\n", "\t", "\r\n", ""}))
	}
	return b.String()
}

// vendor returns unknown members, usually none.
func (g *generator) vendor() generatedObject {
	var members generatedObject
	for _, key := range []string{"x_vendor", "Content", "ROLE", "é\"", "", "contents", "prompt_cache_key"} {
		if g.percent(2) {
			members = append(members, generatedMember{key, g.any(3)})
		}
	}
	return members
}

// any returns an arbitrary value, nested at most depth levels deep.
func (g *generator) any(depth int) any {
	switch n := g.IntN(7); {
	case n == 0:
		return generatedNull
	case n == 1:
		return generatedLiteral(one(g.Rand, []string{"true", "false"}))
	case n == 2:
		return g.number()
	case n == 3 || depth == 0:
		return g.words(4)
	case n == 4:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.any(depth-1))
		}
		return list
	default:
		o := generatedObject{}
		for _, key := range []string{"z", "role", "content", "tool_call_id", "messages", "a/b", "é"} {
			if g.percent(30) {
				o = append(o, generatedMember{key, g.any(depth - 1)})
			}
		}
		return o
	}
}

func (g *generator) number() generatedLiteral {
	return generatedLiteral(one(g.Rand, []string{"0", "-0", "1.0", "1e400", "-1E-400", "12345678901234567890", "0.1000",
		"3.141592653589793238462643"}))
}

// write appends a value as JSON.
func (g *generator) write(dst []byte, v any) []byte {
	dst = g.blank(dst)
	switch v := v.(type) {
	case generatedLiteral:
		dst = append(dst, v...)
	case string:
		dst = g.writeString(dst, v, g.percent(g.escapes))
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = g.write(dst, e)
		}
		if len(v) == 0 {
			dst = g.blank(dst)
		}
		dst = append(dst, ']')
	case generatedObject:
		var members generatedObject
		seen := map[string]bool{}
		for _, m := range v {
			if seen[m.key] {
				panic("repeated member " + m.key)
			}
			seen[m.key] = true
			if _, absent := m.value.(generatedAbsent); !absent {
				members = append(members, m)
			}
		}
		if g.shuffle {
			g.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		}
		dst = append(dst, '{')
		for i, m := range members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = g.blank(dst)
			dst = g.writeString(dst, m.key, g.escapes > 0 && g.IntN(200) == 0)
			dst = append(g.blank(dst), ':')
			dst = g.write(dst, m.value)
		}
		if len(members) == 0 {
			dst = g.blank(dst)
		}
		dst = append(dst, '}')
	default:
		panic(fmt.Sprintf("cannot write a %T", v))
	}
	return g.blank(dst)
}

// blank sometimes appends white space.
func (g *generator) blank(dst []byte) []byte {
	if g.blanks > 0 && g.percent(g.blanks) {
		dst = append(dst, one(g.Rand, []string{" ", " ", "\n", "\t", "\r\n", "\n    "})...)
	}
	return dst
}

// shortEscapes are the escapes of two characters.
var shortEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`,
	'/': `\/`}

// writeString appends a JSON string. If needless is set, it also escapes characters that do not
// require it.
func (g *generator) writeString(dst []byte, s string, needless bool) []byte {
	often := one(g.Rand, []int{5, 30, 100})
	lone := one(g.Rand, []rune{0xfffd, 0xd83d, 0xdd27}) // an unpaired surrogate decodes to U+FFFD
	dst = append(dst, '"')
	for _, r := range s {
		escape := needless && g.percent(often)
		needed := r < ' ' || r == '"' || r == '\\'
		if !escape && !needed {
			dst = utf8.AppendRune(dst, r)
			continue
		}
		if short, isShort := shortEscapes[r]; isShort && (!escape || g.percent(50)) {
			dst = append(dst, short...)
			continue
		}
		form := one(g.Rand, []string{`\u%04x`, `\u%04X`})
		switch high, low := utf16.EncodeRune(r); {
		case r > 0xffff:
			dst = fmt.Appendf(dst, form+form, high, low)
		case r == 0xfffd:
			dst = fmt.Appendf(dst, form, lone)
		default:
			dst = fmt.Appendf(dst, form, r)
		}
	}
	return append(dst, '"')
}

// TestGenerate checks that the generated conversations are valid and cover every kind.
func TestGenerate(t *testing.T) {
	seeds := 2 * int(*generated)
	for _, format := range formats {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			var masks, breaks, refused, identical, results int
			var size int
			for seed := range uint64(seeds) {
				body := conversation(rand.New(rand.NewPCG(seed, 0)), format)
				if seed%20 == 0 && string(conversation(rand.New(rand.NewPCG(seed, 0)), format)) != string(body) {
					t.Fatalf("seed %d: two different conversations", seed)
				}
				if !json.Valid(body) {
					t.Fatalf("seed %d: not JSON: %s", seed, body)
				}
				size += len(body)
				p := policy(rand.New(rand.NewPCG(seed, 1)))
				out, masked, broken, ok := reference(body, p)
				switch {
				case !ok:
					refused++
					continue
				case masked == 0:
					identical++
				default:
					masks++
				}
				results += masked
				if broken {
					breaks++
				}
				// Masked results are not masked again. Unmasked objects are encoded anew and may
				// become longer than MinChars.
				if _, again, _, _ := reference(out, p); again != 0 && (p.MinChars == 0 || format != "gemini" &&
					format != "bedrock") {
					t.Fatalf("seed %d: masks %d results again", seed, again)
				}
			}
			t.Logf("%d masked (%d results), %d broken, %d refused, %d unchanged, %d bytes each", masks, results, breaks,
				refused, identical, size/seeds)
			if 10*masks < seeds || 40*breaks < seeds || 100*refused < seeds || 20*identical < seeds {
				t.Error("too few conversations of one kind")
			}
		})
	}
}
