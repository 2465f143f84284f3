package transcript

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An item is a message in a trajectory of SWE-agent or mini-SWE-agent.
type item struct {
	kind
	Content     json.RawMessage `json:"content"`
	Action      text            `json:"action"`
	ToolCalls   json.RawMessage `json:"tool_calls"`
	ToolCallID  text            `json:"tool_call_id"`
	ToolCallIDs []text          `json:"tool_call_ids"`
	Demo        bool            `json:"is_demo"`
	Object      text            `json:"object"`
	Output      json.RawMessage `json:"output"` // a list, of an object that is a response
	Extra       struct {
		Timestamp float64 `json:"timestamp"` // seconds
	} `json:"extra"`
}

// A step is one in a trajectory of SWE-agent that has no history.
type step struct {
	Query       []item `json:"query"`
	Response    text   `json:"response"`
	Thought     text   `json:"thought"`
	Action      text   `json:"action"`
	Observation text   `json:"observation"`
}

func readSteps(steps []step) *Conversation {
	items := steps[0].Query
	for _, s := range steps {
		said := s.Response
		if said == "" {
			said = s.Thought + "\n" + s.Action
		}
		items = append(items,
			item{kind: kind{Role: "assistant"}, Content: said.quoted(), Action: s.Action},
			item{kind: kind{Role: "user"}, Content: s.Observation.quoted()})
	}
	return readItems(items)
}

// readMini reads the messages of a trajectory of mini-SWE-agent: those of chat
// completions or, where one is a response, those of responses.
func readMini(messages json.RawMessage) (*Conversation, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(messages, &raw); err != nil {
		return nil, err
	}
	items := make([]item, len(raw))
	for i := range raw {
		if err := json.Unmarshal(raw[i], &items[i]); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
	}
	if !slices.ContainsFunc(items, func(i item) bool { return i.Object == "response" }) {
		return readItems(items), nil
	}
	c := &Conversation{opening: []byte(`{"input":[`)}
	for i, item := range items {
		if item.Object == "response" {
			for v := range jsonspan.Elements(item.Output) {
				c.say(item.Output[v.Start:v.End], true, item.time())
			}
		} else if item.Role != exit {
			text := []byte(raw[i])
			if edit, has := jsonspan.Remove(text, "extra"); has {
				text = jsonspan.Spliced(text, edit)
			}
			c.say(text, false, item.time())
		}
	}
	return c, nil
}

// exit is the role of the last message of mini-SWE-agent, which is not sent.
const exit = "exit"

// readItems reads messages of chat completions. If none has tool calls, what follows
// a message of the model is the result of the action in it.
func readItems(items []item) *Conversation {
	textual := !slices.ContainsFunc(items, item.calls)
	c := &Conversation{opening: []byte(`{"messages":[`)}
	var call string // the last one, if its result may follow
	for n, i := range items {
		m := map[string]any{"role": i.Role, "content": i.Content}
		switch {
		case i.Role == exit:
			continue
		case i.Demo || i.Content == nil && !i.calls():
		case i.Role == "tool":
			m["content"] = flat(i.Content)
			m["tool_call_id"] = i.ToolCallID
			if len(i.ToolCallIDs) > 0 {
				m["tool_call_id"] = i.ToolCallIDs[0]
			}
		case i.calls():
			m["tool_calls"] = i.ToolCalls
		case textual && i.Role == "assistant":
			call = fmt.Sprintf("call_%d", n)
			m["tool_calls"] = []any{map[string]any{
				"id": call, "type": "function", "function": map[string]any{"name": i.tool(), "arguments": "{}"},
			}}
		case textual && i.Role == "user" && call != "":
			m["role"], m["tool_call_id"], m["content"] = "tool", call, flat(i.Content)
			call = ""
		}
		c.say(encoded(m), i.isModels() && !i.Demo, i.time())
	}
	return c
}

// calls reports whether a message has tool calls.
func (i item) calls() bool { return len(i.ToolCalls) > 2 && i.ToolCalls[0] == '[' }

var toolName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// tool returns the first word of an action, as SWE-agent has it, or else the shell.
func (i item) tool() string {
	word, _, _ := strings.Cut(strings.TrimSpace(string(i.Action)), " ")
	word, _, _ = strings.Cut(word, "\n")
	if toolName.MatchString(word) {
		return word
	}
	return "bash"
}

func (i item) time() time.Time {
	if i.Extra.Timestamp <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(i.Extra.Timestamp * 1000))
}

// flat returns a content that is a list of texts as one text.
func flat(content json.RawMessage) any {
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil {
		return content
	}
	var all strings.Builder
	for _, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return content
		}
		all.WriteString(*p.Text)
	}
	return all.String()
}
