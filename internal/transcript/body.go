package transcript

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// messageMembers are the members of a request body that can hold the messages.
var messageMembers = []string{"messages", "input", "contents"}

// promptMembers are the other members that are part of the prompt, in the order in
// which providers place them before the messages.
var promptMembers = []string{
	"tools", "functions", "toolConfig", "system", "instructions", "systemInstruction", "system_instruction",
}

// readBody reads the body of a request to a model.
func readBody(body []byte) (*Conversation, error) {
	if !json.Valid(body) {
		return nil, json.Unmarshal(body, new(json.RawMessage))
	}
	body = withoutCacheControl(body)
	members := map[string][]byte{}
	for m := range jsonspan.Members(body) {
		members[m.Key] = body[m.Value.Start:m.Value.End]
	}
	c := &Conversation{opening: []byte(`{`), isRequest: true}
	for _, name := range promptMembers {
		if value, has := members[name]; has {
			c.opening = append(append(c.opening, `"`+name+`":`...), value...)
			c.opening = append(c.opening, ',')
		}
	}
	for _, name := range messageMembers {
		list, has := members[name]
		if !has || list[0] != '[' {
			continue
		}
		c.opening = append(c.opening, `"`+name+`":[`...)
		for v := range jsonspan.Elements(list) {
			element := list[v.Start:v.End]
			c.add(element, fromModel(element), time.Time{})
		}
		return c, nil
	}
	return nil, ErrUnknownFormat
}

// A kind holds the members that identify the author of a list element.
type kind struct {
	Type text `json:"type"`
	Role text `json:"role"`
}

// fromModel reports whether the model wrote an element of the message list.
func fromModel(element []byte) bool {
	var k kind
	return json.Unmarshal(element, &k) == nil && k.fromModel()
}

func (k kind) fromModel() bool {
	if k.Role != "" {
		return k.Role == "assistant" || k.Role == "model"
	}
	return strings.HasSuffix(string(k.Type), "_call") || k.Type == "reasoning"
}

// cacheControl matches cache breakpoints. They are not part of the prompt, and clients
// move them with every request. It cannot match inside a string, where quotes are escaped.
var cacheControl = func() *regexp.Regexp {
	const member = `"cache_control"\s*:\s*\{(?:[^{}"]|"[^"\\]*")*\}`
	return regexp.MustCompile(`,\s*` + member + `|` + member + `\s*,\s*`)
}()

func withoutCacheControl(body []byte) []byte {
	if !bytes.Contains(body, []byte(`"cache_control"`)) {
		return body
	}
	return cacheControl.ReplaceAll(body, nil)
}

// firstMessages returns the messages up to and including the first user message. They
// are equal in all requests of one conversation.
func (c *Conversation) firstMessages() string {
	var first []byte
	for _, m := range c.messages {
		first = append(first, m.text...)
		var k kind
		if json.Unmarshal(m.text, &k) == nil && k.Role == "user" {
			break
		}
	}
	return string(first)
}
