package transcript

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// lists are the members of a request that have the messages.
var lists = []string{"messages", "input", "contents"}

// prompts are the other members that are part of the prompt, in the order in which
// providers put them before the messages.
var prompts = []string{
	"tools", "functions", "toolConfig", "system", "instructions", "systemInstruction", "system_instruction",
}

// readBody reads the body of a request to a model.
func readBody(body []byte) (*Conversation, error) {
	if !json.Valid(body) {
		return nil, json.Unmarshal(body, new(json.RawMessage))
	}
	body = withoutMarks(body)
	members := map[string][]byte{}
	for m := range jsonspan.Members(body) {
		members[m.Key] = body[m.Value.Start:m.Value.End]
	}
	c := &Conversation{opening: []byte(`{`), sent: true}
	for _, name := range prompts {
		if value, has := members[name]; has {
			c.opening = append(append(c.opening, `"`+name+`":`...), value...)
			c.opening = append(c.opening, ',')
		}
	}
	for _, name := range lists {
		list, has := members[name]
		if !has || list[0] != '[' {
			continue
		}
		c.opening = append(c.opening, `"`+name+`":[`...)
		for v := range jsonspan.Elements(list) {
			element := list[v.Start:v.End]
			c.say(element, isModels(element), time.Time{})
		}
		return c, nil
	}
	return nil, ErrUnknown
}

// kind is what tells whose an element of a list is.
type kind struct {
	Type text `json:"type"`
	Role text `json:"role"`
}

// isModels reports whether an element of a list of messages is the model's.
func isModels(element []byte) bool {
	var k kind
	return json.Unmarshal(element, &k) == nil && k.isModels()
}

func (k kind) isModels() bool {
	if k.Role != "" {
		return k.Role == "assistant" || k.Role == "model"
	}
	return strings.HasSuffix(string(k.Type), "_call") || k.Type == "reasoning"
}

// marks are those of breakpoints. Clients move them with every request, and they are
// not part of the prompt. They cannot stand within a string, where quotes are escaped.
var marks = func() *regexp.Regexp {
	const mark = `"cache_control"\s*:\s*\{(?:[^{}"]|"[^"\\]*")*\}`
	return regexp.MustCompile(`,\s*` + mark + `|` + mark + `\s*,\s*`)
}()

func withoutMarks(body []byte) []byte {
	if !bytes.Contains(body, []byte(`"cache_control"`)) {
		return body
	}
	return marks.ReplaceAll(body, nil)
}

// origin returns the messages of a request up to the first of the user's, which those
// of one conversation have in common.
func (c *Conversation) origin() string {
	var origin []byte
	for _, m := range c.messages {
		origin = append(origin, m.text...)
		var k kind
		if json.Unmarshal(m.text, &k) == nil && k.Role == "user" {
			break
		}
	}
	return string(origin)
}
