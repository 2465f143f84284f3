package transcript

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A line is one of a file in JSON Lines, of whatever program.
type line struct {
	kind
	Timestamp text `json:"timestamp"`

	// Claude Code
	UUID      text            `json:"uuid"`
	Parent    text            `json:"parentUuid"`
	Agent     text            `json:"agentId"`
	Sidechain bool            `json:"isSidechain"`
	Summary   bool            `json:"isCompactSummary"`
	Failed    bool            `json:"isApiErrorMessage"` // the model has not said this
	Message   json.RawMessage `json:"message"`

	// Codex
	Payload json.RawMessage `json:"payload"`

	// Requests
	Messages json.RawMessage `json:"messages"`
	Input    json.RawMessage `json:"input"`
	Contents json.RawMessage `json:"contents"`
}

// isLine reports whether a file is a single line of a session.
func isLine(file []byte) bool {
	var l line
	return json.Unmarshal(file, &l) == nil && (l.isClaude() || l.Payload != nil)
}

func (l *line) isClaude() bool {
	return l.Message != nil && (l.Type == "user" || l.Type == "assistant")
}

// A lineReader collects the conversations of a file in JSON Lines.
type lineReader struct {
	found  []*Conversation
	named  map[string]*Conversation // the conversation that goes on, by what tells it
	chains map[text]string          // Claude Code: the name, by the id of each line
	reply  map[*Conversation]text   // Claude Code: the id of the last reply
}

func readLines(file []byte) ([]*Conversation, error) {
	r := lineReader{named: map[string]*Conversation{}, chains: map[text]string{}, reply: map[*Conversation]text{}}
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
		} else if !complete { // it was still being written
			break
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return r.found, nil
}

func (r *lineReader) read(l *line, raw []byte) error {
	switch {
	case l.isClaude():
		return r.claude(l)
	case l.Payload != nil:
		return r.codex(l)
	case l.Messages != nil || l.Input != nil || l.Contents != nil:
		return r.request(raw)
	case l.Type == "message" || l.isModels() || strings.HasSuffix(string(l.Type), "_output"):
		r.goOn("", `{"input":[`).say(raw, l.isModels(), l.Timestamp.time()) // a Codex of the first days
	}
	return nil
}

// goOn returns the conversation of this name that goes on.
func (r *lineReader) goOn(name, opening string) *Conversation {
	if r.named[name] == nil {
		r.begin(name, opening)
	}
	return r.named[name]
}

// begin ends the conversation of this name, if there is one, and begins another.
func (r *lineReader) begin(name, opening string) {
	c := &Conversation{opening: []byte(opening)}
	r.found = append(r.found, c)
	r.named[name] = c
}

// request takes a request. It goes on with the conversation that began alike.
func (r *lineReader) request(raw []byte) error {
	c, err := readBody(raw)
	if err != nil {
		return err
	}
	origin := c.origin()
	before := r.named[origin]
	if before == nil {
		before = c
		r.found = append(r.found, c)
		r.named[origin] = c
	}
	before.bodies = append(before.bodies, raw)
	return nil
}

// claude takes a line of a session of Claude Code. Conversations of subagents stand in
// between, and a summary begins the conversation anew.
func (r *lineReader) claude(l *line) error {
	var m struct {
		ID      text            `json:"id"`
		Role    text            `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(l.Message, &m); err != nil {
		return err
	}
	name := r.chain(l)
	r.chains[l.UUID] = name
	if l.Failed || len(bytes.Trim(m.Content, "[] \t\r\n")) == 0 {
		return nil
	}
	if l.Summary {
		delete(r.named, name)
	}
	c := r.goOn(name, `{"messages":[`)
	said := slices.Concat([]byte(`{"role":`), m.Role.quoted(), []byte(`,"content":`), m.Content, []byte(`}`))
	if l.Type == "user" {
		c.say(said, false, l.Timestamp.time())
		return nil
	}
	// A reply has a line for each block, and results of tools may come in between.
	if m.ID != "" && r.reply[c] == m.ID && c.join(m.Content) {
		return nil
	}
	r.reply[c] = m.ID
	c.say(said, true, l.Timestamp.time())
	return nil
}

// chain returns the name of the conversation that a line belongs to.
func (r *lineReader) chain(l *line) string {
	switch {
	case !l.Sidechain:
		return ""
	case l.Agent != "":
		return string(l.Agent)
	case r.chains[l.Parent] != "":
		return r.chains[l.Parent]
	}
	return string(l.UUID)
}

// join adds blocks to the last message of the model, if that has blocks.
func (c *Conversation) join(blocks []byte) bool {
	i := len(c.messages) - 1
	for i >= 0 && !c.messages[i].model {
		i--
	}
	if i < 0 || !bytes.HasSuffix(c.messages[i].text, []byte(`]}`)) || blocks[0] != '[' {
		return false
	}
	m := &c.messages[i]
	m.text = slices.Concat(m.text[:len(m.text)-2], []byte(`,`), blocks[1:], []byte(`}`))
	return true
}

// codex takes a line of a rollout of Codex. A compaction begins the conversation anew.
func (r *lineReader) codex(l *line) error {
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
			if c := r.goOn("", items); len(c.messages) == 0 {
				c.opening = slices.Concat([]byte(`{"instructions":`), instructions.quoted(), []byte(`,"input":[`))
			}
		}
	case "response_item":
		if p.Type != "ghost_snapshot" { // which is Codex's own
			r.goOn("", items).say(l.Payload, p.isModels(), l.Timestamp.time())
		}
	case "compacted":
		opening := string(r.goOn("", items).opening)
		r.begin("", opening)
		if p.Replacement == nil {
			said := slices.Concat([]byte(`{"type":"message","role":"user","content":`), p.Message.quoted(), []byte(`}`))
			p.Replacement = append(p.Replacement, said)
		}
		for _, item := range p.Replacement {
			r.named[""].say(item, false, l.Timestamp.time())
		}
	}
	return nil
}
