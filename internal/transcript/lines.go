package transcript

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A line is one line of a JSON Lines file, in any of the supported formats.
type line struct {
	kind
	Timestamp text `json:"timestamp"`

	// Claude Code
	UUID      text            `json:"uuid"`
	Parent    text            `json:"parentUuid"`
	Agent     text            `json:"agentId"`
	Sidechain bool            `json:"isSidechain"`
	Summary   bool            `json:"isCompactSummary"`
	APIError  bool            `json:"isApiErrorMessage"` // not written by the model
	Message   json.RawMessage `json:"message"`

	// Codex
	Payload json.RawMessage `json:"payload"`

	// Requests
	Messages json.RawMessage `json:"messages"`
	Input    json.RawMessage `json:"input"`
	Contents json.RawMessage `json:"contents"`
	Request  wrapped         `json:"request"`
}

// A wrapped request is one of Code Assist. Other values decode as an empty one.
type wrapped struct{ Contents json.RawMessage }

func (w *wrapped) UnmarshalJSON(raw []byte) error {
	var request struct {
		Contents json.RawMessage `json:"contents"`
	}
	if json.Unmarshal(raw, &request) == nil {
		w.Contents = request.Contents
	}
	return nil
}

// isLine reports whether a file is a single line of a Claude Code or Codex session.
func isLine(file []byte) bool {
	var l line
	return json.Unmarshal(file, &l) == nil && (l.isClaude() || l.Payload != nil)
}

func (l *line) isClaude() bool {
	return l.Message != nil && (l.Type == "user" || l.Type == "assistant")
}

// A lineReader collects the conversations of a JSON Lines file.
type lineReader struct {
	conversations []*Conversation
	current       map[string]*Conversation // latest conversation by name, or by its first messages
	names         map[text]string          // Claude Code: conversation name by line UUID
	lastReply     map[*Conversation]text   // Claude Code: ID of the last reply
}

func readLines(file []byte) ([]*Conversation, error) {
	r := lineReader{current: map[string]*Conversation{}, names: map[text]string{}, lastReply: map[*Conversation]text{}}
	number := 0
	for raw := range bytes.Lines(file) {
		number++
		complete := bytes.HasSuffix(raw, []byte("\n"))
		if raw = bytes.TrimSpace(raw); len(raw) == 0 {
			continue
		}
		var l line
		err := json.Unmarshal(raw, &l)
		if err == nil {
			err = r.read(&l, raw)
		} else if !complete { // the agent was still writing it
			break
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, withoutTypes(err))
		}
	}
	return r.conversations, nil
}

func (r *lineReader) read(l *line, raw []byte) error {
	switch {
	case l.isClaude():
		return r.readClaude(l)
	case l.Payload != nil:
		return r.readCodex(l)
	case l.Messages != nil || l.Input != nil || l.Contents != nil || l.Request.Contents != nil:
		return r.readRequest(raw)
	case l.Type == "message" || l.fromModel() || strings.HasSuffix(string(l.Type), "_output"):
		r.conversation("", `{"input":[`).add(raw, l.fromModel(), l.Timestamp.time()) // early Codex versions
	}
	return nil
}

// conversation returns the current conversation with this name. It starts one if needed.
func (r *lineReader) conversation(name, opening string) *Conversation {
	if r.current[name] == nil {
		r.start(name, opening)
	}
	return r.current[name]
}

// start starts a conversation, which replaces the current one with this name.
func (r *lineReader) start(name, opening string) {
	c := &Conversation{opening: []byte(opening)}
	r.conversations = append(r.conversations, c)
	r.current[name] = c
}

// readRequest reads a request body. Requests with equal first messages form one conversation.
func (r *lineReader) readRequest(raw []byte) error {
	c, err := readBody(raw)
	if err != nil {
		return err
	}
	first := c.firstMessages()
	earlier := r.current[first]
	if earlier == nil {
		earlier = c
		r.conversations = append(r.conversations, c)
		r.current[first] = c
	}
	earlier.bodies = append(earlier.bodies, raw)
	return nil
}

// readClaude reads a line of a Claude Code session. Lines of subagents are interleaved
// with those of the main conversation. A summary starts a new conversation.
func (r *lineReader) readClaude(l *line) error {
	var m struct {
		ID      text            `json:"id"`
		Role    text            `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(l.Message, &m); err != nil {
		return err
	}
	name := r.conversationName(l)
	r.names[l.UUID] = name
	if l.APIError || len(bytes.Trim(m.Content, "[] \t\r\n")) == 0 {
		return nil
	}
	if l.Summary {
		delete(r.current, name)
	}
	c := r.conversation(name, `{"messages":[`)
	msg := slices.Concat([]byte(`{"role":`), m.Role.quoted(), []byte(`,"content":`), m.Content, []byte(`}`))
	if l.Type == "user" {
		c.add(msg, false, l.Timestamp.time())
		return nil
	}
	// Each block of a reply has its own line, with tool results possibly in between.
	if m.ID != "" && r.lastReply[c] == m.ID && c.appendToReply(m.Content) {
		return nil
	}
	r.lastReply[c] = m.ID
	c.add(msg, true, l.Timestamp.time())
	return nil
}

// conversationName returns the name of a line's conversation: empty for the main one.
func (r *lineReader) conversationName(l *line) string {
	switch {
	case !l.Sidechain:
		return ""
	case l.Agent != "":
		return string(l.Agent)
	case r.names[l.Parent] != "":
		return r.names[l.Parent]
	}
	return string(l.UUID)
}

// appendToReply adds content blocks to the model's last message. It returns false if that
// message does not hold blocks.
func (c *Conversation) appendToReply(blocks []byte) bool {
	i := len(c.messages) - 1
	for i >= 0 && !c.messages[i].fromModel {
		i--
	}
	if i < 0 || !bytes.HasSuffix(c.messages[i].text, []byte(`]}`)) || blocks[0] != '[' {
		return false
	}
	m := &c.messages[i]
	m.text = slices.Concat(m.text[:len(m.text)-2], []byte(`,`), blocks[1:], []byte(`}`))
	return true
}

// readCodex reads a line of a Codex rollout. A compaction starts a new conversation.
func (r *lineReader) readCodex(l *line) error {
	var p struct {
		kind
		Instructions     text `json:"instructions"`
		BaseInstructions struct {
			Text text `json:"text"`
		} `json:"base_instructions"`
		Message     text              `json:"message"`
		Replacement []json.RawMessage `json:"replacement_history"`
	}
	if err := json.Unmarshal(l.Payload, &p); err != nil {
		return err
	}
	const items = `{"input":[`
	switch l.Type {
	case "session_meta":
		if instructions := p.Instructions + p.BaseInstructions.Text; instructions != "" {
			if c := r.conversation("", items); len(c.messages) == 0 {
				c.opening = slices.Concat([]byte(`{"instructions":`), instructions.quoted(), []byte(`,"input":[`))
			}
		}
	case "response_item":
		if p.Type != "ghost_snapshot" { // internal to Codex, not sent
			r.conversation("", items).add(l.Payload, p.fromModel(), l.Timestamp.time())
		}
	case "compacted":
		opening := string(r.conversation("", items).opening)
		r.start("", opening)
		if p.Replacement == nil {
			msg := slices.Concat([]byte(`{"type":"message","role":"user","content":`), p.Message.quoted(), []byte(`}`))
			p.Replacement = append(p.Replacement, msg)
		}
		for _, item := range p.Replacement {
			r.current[""].add(item, false, l.Timestamp.time())
		}
	}
	return nil
}
