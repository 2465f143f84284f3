package transcript

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

func lines(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

const (
	chatBody = `{"model":"m","messages":[{"role":"user","content":"u"},` +
		chatCall + `,` + chatResult + `],` +
		`"tools":[{"type":"function"}],"temperature":1}`
	chatUser   = `{"role":"user","content":"u"}`
	chatCall   = `{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"read","arguments":"{}"}}]}`
	chatResult = `{"role":"tool","tool_call_id":"a","content":"r"}`
	chatStart  = `{"tools":[{"type":"function"}],"messages":[`

	itemUser   = `{"type":"message","role":"user","content":[{"type":"input_text","text":"u"}]}`
	itemThink  = `{"type":"reasoning","summary":[]}`
	itemCall   = `{"type":"function_call","call_id":"a","name":"shell","arguments":"{}"}`
	itemResult = `{"type":"function_call_output","call_id":"a","output":"r"}`
	itemReply  = `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"done"}]}`
)

func textual(id, content, tool string) string {
	return `{"content":"` + content + `","role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"` + tool +
		`"},"id":"` + id + `","type":"function"}]}`
}

func observed(id, content string) string {
	return `{"content":"` + content + `","role":"tool","tool_call_id":"` + id + `"}`
}

func list(opening string, messages ...string) string {
	return opening + strings.Join(messages, ",") + "]}"
}

const (
	messages = `{"messages":[`
	input    = `{"input":[`
)

const (
	geminiUser   = `{"role":"user","parts":[{"text":"u"}]}`
	geminiCall   = `{"role":"model","parts":[{"functionCall":{"name":"read","args":{}}}]}`
	geminiResult = `{"role":"user","parts":[{"functionResponse":{"name":"read","response":{"output":"r"}}}]}`
	contents     = `{"systemInstruction":{"parts":[{"text":"s"}]},"contents":[`
)

func codeAssist(messages ...string) string {
	return `{"model":"m","project":"p","request":` + list(contents, messages...) + `}`
}

func TestRequests(t *testing.T) {
	system, user := `{"content":"s","role":"system"}`, `{"content":"u","role":"user"}`
	for _, test := range []struct {
		name, file string
		want       [][]string // the requests of each conversation
	}{
		{
			name: "a body is the last request; members that are not part of the prompt are dropped",
			file: chatBody,
			want: [][]string{{list(chatStart, chatUser), list(chatStart, chatUser, chatCall, chatResult)}},
		},
		{
			name: "a Responses API request on several lines",
			file: "{\n\"input\": [" + itemUser + ",\n" + itemThink + "," + itemCall + "," + itemResult + "],\n" +
				"\"instructions\": \"i\"}\n",
			want: [][]string{{
				list(`{"instructions":"i","input":[`, itemUser),
				list(`{"instructions":"i","input":[`, itemUser, itemThink, itemCall, itemResult),
			}},
		},
		{
			name: "Code Assist wraps the body",
			file: codeAssist(geminiUser, geminiCall, geminiResult),
			want: [][]string{{list(contents, geminiUser), list(contents, geminiUser, geminiCall, geminiResult)}},
		},
		{
			name: "JSON Lines of Code Assist",
			file: lines(codeAssist(geminiUser), `{"request":"other"}`, codeAssist(geminiUser, geminiCall, geminiResult)),
			want: [][]string{{list(contents, geminiUser), list(contents, geminiUser, geminiCall, geminiResult)}},
		},
		{
			name: "cache breakpoints are removed",
			file: list(messages, `{"role":"user","content":[{"text":"a \"cache_control\" b","cache_control":{"type":"}"}},`+
				`{"cache_control": {"type":"ephemeral","ttl":"1h"}, "text":"c"}]}`),
			want: [][]string{{list(messages, `{"role":"user","content":[{"text":"a \"cache_control\" b"},{"text":"c"}]}`)}},
		},
		{
			name: "JSON Lines requests belong together if their first messages are equal",
			file: lines(
				list(messages, chatUser),
				list(messages, `{"role":"user","content":"other"}`),
				list(messages, chatUser, chatCall, chatResult),
				"",
			),
			want: [][]string{
				{list(messages, chatUser), list(messages, chatUser, chatCall, chatResult)},
				{list(messages, `{"role":"user","content":"other"}`)},
			},
		},
		{
			name: "a single recorded request is expanded to all requests before it",
			file: lines(
				list(messages, chatUser, chatCall, chatResult),
				list(messages, `{"role":"user","content":"other"}`, chatCall, chatResult),
			),
			want: [][]string{
				{list(messages, chatUser), list(messages, chatUser, chatCall, chatResult)},
				{list(messages, said("user", "other")), list(messages, said("user", "other"), chatCall, chatResult)},
			},
		},
		{
			name: "Claude Code: a reply has several lines, with results in between",
			file: claudeSession,
			want: [][]string{{
				list(messages, `{"role":"user","content":"u"}`),
				list(messages, `{"role":"user","content":"u"}`,
					`{"role":"assistant","content":[{"type":"text","text":"t"},`+
						`{"type":"tool_use","id":"a","name":"Read"},{"type":"tool_use","id":"b","name":"Read"}]}`,
					`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"ra"}]}`,
					`{"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"rb"}]}`),
			}},
		},
		{
			name: "Claude Code: subagents have their own conversations, and a summary starts a new one",
			file: lines(
				claude("user", "1", "", "u", ""),
				claude("user", "s1", "", "sub", `,"isSidechain":true`),
				claude("assistant", "s2", "s1", "sub reply", `,"isSidechain":true`),
				claude("assistant", "2", "1", "reply", ""),
				claude("user", "a1", "", "agent", `,"isSidechain":true,"agentId":"f00"`),
				claude("assistant", "a2", "s1", "agent reply", `,"isSidechain":true,"agentId":"f00"`),
				claude("user", "3", "", "summary", `,"isCompactSummary":true`),
				claude("assistant", "4", "3", "reply", ""),
			),
			want: [][]string{
				{list(messages, said("user", "u"))},
				{list(messages, said("user", "sub"))},
				{list(messages, said("user", "agent"))},
				{list(messages, said("user", "summary"))},
			},
		},
		{
			name: "Codex: items of a rollout",
			file: lines(
				codex("session_meta", `{"id":"x","base_instructions":{"text":"be < brief"}}`),
				codex("response_item", itemUser),
				codex("event_msg", `{"type":"user_message","message":"u"}`),
				codex("turn_context", `{"model":"m"}`),
				codex("response_item", itemThink),
				codex("response_item", itemCall),
				codex("response_item", itemResult),
				codex("response_item", `{"type":"ghost_snapshot","ghost_commit":{}}`),
				codex("response_item", itemReply),
			),
			want: [][]string{{
				list(`{"instructions":"be < brief","input":[`, itemUser),
				list(`{"instructions":"be < brief","input":[`, itemUser, itemThink, itemCall, itemResult),
			}},
		},
		{
			name: "Codex: a compaction starts a new conversation",
			file: lines(
				codex("response_item", itemUser), codex("response_item", itemReply),
				codex("compacted", `{"message":"short","replacement_history":[`+itemUser+`,`+itemReply+`]}`),
				codex("response_item", itemReply),
				codex("compacted", `{"message":"shorter"}`),
				codex("response_item", itemReply),
			),
			want: [][]string{
				{list(input, itemUser)},
				{list(input, itemUser, itemReply)},
				{list(input, `{"type":"message","role":"user","content":"shorter"}`)},
			},
		},
		{
			name: "Codex: items without a wrapper",
			file: lines(`{"id":"x","timestamp":"2025-05-01T00:00:00Z","instructions":null}`,
				itemUser, `{"record_type":"state"}`, itemCall, itemResult, itemReply),
			want: [][]string{{list(input, itemUser), list(input, itemUser, itemCall, itemResult)}},
		},
		{
			name: "SWE-agent: a history of texts",
			file: `{"environment":"e","trajectory":[{"action":"x"}],"info":{},"history":[
				{"role":"system","content":"s","agent":"primary"},
				{"role":"assistant","content":"demo","is_demo":true},
				{"role":"user","content":"demo result","is_demo":true},
				{"role":"user","content":"u"},
				{"role":"assistant","content":"look <here>","thought":"t","action":"open a.go\n"},
				{"role":"user","content":[{"type":"text","text":"ra"}]},
				{"role":"assistant","content":"run","action":"./run it"},
				{"role":"user","content":"rb"}]}`,
			want: [][]string{{
				list(messages, system, `{"content":"demo","role":"assistant"}`, `{"content":"demo result","role":"user"}`, user),
				list(messages, system, `{"content":"demo","role":"assistant"}`, `{"content":"demo result","role":"user"}`, user,
					textual("call_4", "look <here>", "open"), observed("call_4", "ra")),
			}},
		},
		{
			name: "SWE-agent: a history of tool calls",
			file: `{"history":[
				{"role":"user","content":"u","tool_calls":null},
				{"role":"assistant","content":"","message_type":"action","tool_calls":[{"id":"a","type":"function"}]},
				{"role":"tool","content":[{"type":"text","text":"ra"}],"tool_call_ids":["a"],"message_type":"observation"},
				{"role":"assistant","content":"done"}]}`,
			want: [][]string{{
				list(messages, user),
				list(messages, user, `{"content":"","role":"assistant","tool_calls":[{"id":"a","type":"function"}]}`,
					observed("a", "ra")),
			}},
		},
		{
			name: "SWE-agent: steps without a history",
			file: `{"trajectory":[
				{"query":[{"role":"user","content":"u"}],"response":"look","action":"ls","observation":"ra"},
				{"thought":"now","action":"cat b","observation":"rb"},
				{"response":"done","action":"submit","observation":""}]}`,
			want: [][]string{{
				list(messages, user),
				list(messages, user, textual("call_1", "look", "ls"), observed("call_1", "ra")),
				list(messages, user, textual("call_1", "look", "ls"), observed("call_1", "ra"),
					textual("call_3", `now\ncat b`, "cat"), observed("call_3", "rb")),
			}},
		},
		{
			name: "mini-SWE-agent: texts",
			file: `{"info":{"exit_status":"Submitted"},"trajectory_format":"mini-swe-agent-1","messages":[
				{"role":"system","content":"s"},{"role":"user","content":"u","extra":{"timestamp":1}},
				{"role":"assistant","content":"look","extra":{"response":{"long":1}}},{"role":"user","content":"ra"},
				{"role":"assistant","content":"done"},{"role":"user","content":""}]}`,
			want: [][]string{{
				list(messages, system, user),
				list(messages, system, user, textual("call_2", "look", "bash"), observed("call_2", "ra")),
			}},
		},
		{
			name: "mini-SWE-agent: only a list",
			file: "[" + said("user", "u") + "," + said("assistant", "look") + "," + said("user", "ra") + "," + said("assistant",
				"done") + "]",
			want: [][]string{{
				list(messages, user),
				list(messages, user, textual("call_1", "look", "bash"), observed("call_1", "ra")),
			}},
		},
		{
			name: "mini-SWE-agent: tool calls",
			file: `{"info":{},"trajectory_format":"mini-swe-agent-1.1","messages":[
				{"role":"user","content":"u"},
				{"role":"assistant","content":null,"tool_calls":[{"id":"a"}],"extra":{"actions":[]}},
				{"role":"tool","tool_call_id":"a","content":"ra","extra":{"raw_output":"ra"}},
				{"role":"assistant","content":"done"},{"role":"exit","content":"x"}]}`,
			want: [][]string{{
				list(messages, user),
				list(messages, user, `{"content":null,"role":"assistant","tool_calls":[{"id":"a"}]}`, observed("a", "ra")),
			}},
		},
		{
			name: "mini-SWE-agent: responses",
			file: `{"info":{},"trajectory_format":"mini-swe-agent-1.1","messages":[
				{"role":"user","content":"u"},
				{"object":"response","output":[` + itemThink + `,` + itemCall + `],"extra":{}},
				{"type":"function_call_output","call_id":"a","output":"r","extra":{"raw":"r"}},
				{"object":"response","output":[` + itemReply + `]},{"role":"exit","content":"x"}]}`,
			want: [][]string{{
				list(input, `{"role":"user","content":"u"}`),
				list(input, `{"role":"user","content":"u"}`, itemThink, itemCall, itemResult),
			}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, err := Read([]byte(test.file))
			if err != nil {
				t.Fatal(err)
			}
			var got [][]string
			for _, c := range found {
				var bodies []string
				for r := range c.Requests() {
					bodies = append(bodies, string(r.Body))
					if err := new(chat.Conversation).Parse(r.Body); err != nil {
						t.Errorf("%v: %s", err, r.Body)
					}
				}
				got = append(got, bodies)
			}
			if !slices.EqualFunc(got, test.want, slices.Equal) {
				t.Errorf("got\n%s\nwant\n%s", show(got), show(test.want))
			}
		})
	}
}

func show(conversations [][]string) string {
	var all []string
	for _, bodies := range conversations {
		all = append(all, strings.Join(bodies, "\n"))
	}
	return strings.Join(all, "\n--\n")
}

const claudeSession = `{"type":"summary","summary":"x","leafUuid":"z"}
{"type":"user","uuid":"1","isSidechain":false,"message":{"role":"user","content":"u"}}
{"type":"assistant","uuid":"2","message":{"id":"m","model":"x","role":"assistant","content":[{"type":"text","text":"t"}]}}
{"type":"assistant","uuid":"2b","message":{"id":"m","role":"assistant","content":[ ]}}
{"type":"assistant","uuid":"3","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"a","name":"Read"}]}}
{"type":"user","uuid":"4","toolUseResult":"long","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"ra"}]}}
{"type":"assistant","uuid":"5","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"b","name":"Read"}]}}
{"type":"user","uuid":"6","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"rb"}]}}
{"type":"assistant","uuid":"7","isApiErrorMessage":true,"message":{"role":"assistant","content":[{"type":"text","text":"overloaded"}]}}
{"type":"assistant","uuid":"8","message":{"id":"n","role":"assistant","content":[{"type":"text","text":"done"}]}}
{"type":"user","uuid":"9","message":{"role":"user","content":"not sent"}}
{"type":"assistant","uuid":"10","mess`

func said(role, content string) string { return `{"role":"` + role + `","content":"` + content + `"}` }

func claude(role, uuid, parent, content, more string) string {
	return `{"type":"` + role + `","uuid":"` + uuid + `","parentUuid":"` + parent + `","message":` +
		said(role, content) + more + `}`
}

func codex(kind, payload string) string {
	return `{"timestamp":"2026-01-01T00:00:00Z","type":"` + kind + `","payload":` + payload + `}`
}

func TestTimes(t *testing.T) {
	for name, file := range map[string]string{
		"Claude Code": lines(
			claude("user", "1", "", "u", `,"timestamp":"2026-01-01T00:00:05.250Z"`),
			claude("assistant", "2", "", "a", `,"timestamp":"2026-01-01T00:00:07Z"`),
			claude("user", "3", "", "v", `,"timestamp":"2026-01-01T00:10:00Z"`),
			claude("assistant", "4", "", "b", `,"timestamp":"2026-01-01T00:10:07Z"`)),
		"mini-SWE-agent": `{"info":{},"messages":[
			{"role":"user","content":"u","extra":{"timestamp":1767225605.25}},{"role":"assistant","content":"a"},
			{"role":"user","content":"v","extra":{"timestamp":1767226200}},{"role":"assistant","content":"b"}]}`,
	} {
		found, err := Read([]byte(file))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for r := range found[0].Requests() {
			got = append(got, r.At.UTC().Format(time.RFC3339Nano))
		}
		if want := []string{"2026-01-01T00:00:05.25Z", "2026-01-01T00:10:00Z"}; !slices.Equal(got, want) {
			t.Errorf("%s: sent at %v", name, got)
		}
	}
}

func TestUnreadable(t *testing.T) {
	syntax := new(json.SyntaxError)
	for name, file := range map[string]string{
		"invalid JSON":         "x",
		"an empty file":        "",
		"a truncated document": chatBody[:100],
		"a truncated list":     `[{"role":"user"`,
		"an invalid line":      lines(codex("response_item", itemUser), `{"type`, codex("response_item", itemReply)),
	} {
		if _, err := Read([]byte(file)); !errors.As(err, &syntax) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, file := range map[string]string{
		"another document":          `{"name":"package","version":"1"}`,
		"other lines":               lines(`{"a":1}`, `{"a":2}`),
		"a session without replies": lines(claude("user", "1", "", "u", ""), claude("user", "2", "", "v", "")),
		"a number":                  "1",
		"a text":                    `"x"`,
		"a member of another type":  `{"history":{}}`,
		"a line of another type":    lines(`{"a":1}`, `["a"]`),
		"a message of another type": `{"info":{},"messages":["a"]}`,
	} {
		if found, err := Read([]byte(file)); !errors.Is(err, ErrUnknownFormat) {
			t.Errorf("%s: %d conversations, %v", name, len(found), err)
		}
	}
	if _, err := Read([]byte(lines(codex("response_item", itemUser), `{"type`, ""))); err == nil ||
		!strings.Contains(err.Error(), "line 2") {
		t.Errorf("error does not name the line: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(chatBody))
	f.Add([]byte(claudeSession))
	f.Add([]byte(codex("response_item", itemUser) + "\n" + codex("compacted", `{"message":"x"}`)))
	f.Add([]byte(`{"history":[{"role":"user","content":"u"},{"role":"assistant","content":"look","tool_calls":[{}]}]}`))
	f.Add([]byte(`{"info":{},"messages":[{"object":"response","output":[{}],"extra":{}}]}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		found, err := Read(file)
		if err != nil {
			return
		}
		for _, c := range found {
			for r := range c.Requests() {
				if !json.Valid(r.Body) {
					t.Errorf("not JSON: %q", r.Body)
				}
			}
		}
	})
}
