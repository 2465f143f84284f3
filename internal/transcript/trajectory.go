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

// An item is a message in a SWE-agent or mini-SWE-agent trajectory.
type item struct {
	kind
	Content     json.RawMessage `json:"content"`
	Action      text            `json:"action"`
	ToolCalls   json.RawMessage `json:"tool_calls"`
	ToolCallID  text            `json:"tool_call_id"`
	ToolCallIDs []text          `json:"tool_call_ids"`
	Demo        bool            `json:"is_demo"`
	Object      text            `json:"object"`
	Output      json.RawMessage `json:"output"` // list; only if Object is "response"
	Extra       struct {
		Timestamp float64 `json:"timestamp"` // seconds
	} `json:"extra"`
}

// A step is a step of a SWE-agent trajectory without a history.
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
		reply := s.Response
		if reply == "" {
			reply = s.Thought + "\n" + s.Action
		}
		items = append(items,
			item{kind: kind{Role: "assistant"}, Content: reply.quoted(), Action: s.Action},
			item{kind: kind{Role: "user"}, Content: s.Observation.quoted()})
	}
	return readItems(items)
}

// readMiniSWE reads the messages of a mini-SWE-agent trajectory. They have the format of
// the Responses API if one of them is a response, and that of chat completions otherwise.
func readMiniSWE(messages json.RawMessage) (*Conversation, error) {
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
				c.add(item.Output[v.Start:v.End], true, item.time())
			}
		} else if item.Role != exitRole {
			text := []byte(raw[i])
			if edit, has := jsonspan.Remove(text, "extra"); has {
				text = jsonspan.Spliced(text, edit)
			}
			c.add(text, false, item.time())
		}
	}
	return c, nil
}

// exitRole is the role of the last mini-SWE-agent message, which is not sent to the model.
const exitRole = "exit"

// readItems reads chat completion messages. If none has tool calls, the user message
// after a message of the model becomes the result of the action in that message.
func readItems(items []item) *Conversation {
	textual := !slices.ContainsFunc(items, item.hasToolCalls)
	c := &Conversation{opening: []byte(`{"messages":[`)}
	var call string // ID of the last call while its result is missing
	for n, i := range items {
		m := map[string]any{"role": i.Role, "content": i.Content}
		switch {
		case i.Role == exitRole:
			continue
		case i.Demo || i.Content == nil && !i.hasToolCalls():
		case i.Role == "tool":
			m["content"] = joinTexts(i.Content)
			m["tool_call_id"] = i.ToolCallID
			if len(i.ToolCallIDs) > 0 {
				m["tool_call_id"] = i.ToolCallIDs[0]
			}
		case i.hasToolCalls():
			m["tool_calls"] = i.ToolCalls
		case textual && i.Role == "assistant":
			call = fmt.Sprintf("call_%d", n)
			m["tool_calls"] = []any{map[string]any{
				"id": call, "type": "function", "function": map[string]any{"name": i.toolName(), "arguments": "{}"},
			}}
		case textual && i.Role == "user" && call != "":
			m["role"], m["tool_call_id"], m["content"] = "tool", call, joinTexts(i.Content)
			call = ""
		}
		c.add(encodeJSON(m), i.fromModel() && !i.Demo, i.time())
	}
	return c
}

// hasToolCalls reports whether a message has tool calls.
func (i item) hasToolCalls() bool { return len(i.ToolCalls) > 2 && i.ToolCalls[0] == '[' }

var toolNamePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// toolName returns the first word of a SWE-agent action, or "bash" if it is not a valid name.
func (i item) toolName() string {
	word, _, _ := strings.Cut(strings.TrimSpace(string(i.Action)), " ")
	word, _, _ = strings.Cut(word, "\n")
	if toolNamePattern.MatchString(word) {
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

// joinTexts returns a list of text parts as one string, and other content unchanged.
func joinTexts(content json.RawMessage) any {
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
