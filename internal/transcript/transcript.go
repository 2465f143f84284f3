// Package transcript reads the conversations that agents have noted, and makes the
// requests of them that the agents have sent to a model.
//
// It reads, and tells by what they hold:
//
//   - the body of a request to a model, as the last one of its conversation;
//   - JSON Lines of such bodies, as the requests of one or more conversations;
//   - sessions of Claude Code;
//   - rollouts of Codex;
//   - trajectories of SWE-agent and mini-SWE-agent. Where actions and observations
//     are plain texts, they become tool calls and results.
//
// Transcripts do not have all that is sent: sessions of Claude Code have neither the
// system prompt nor the tools. Of the settings of a request, such as the model or the
// temperature, only those are kept that are part of the prompt, before the messages.
package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"time"
)

// ErrUnknown is met by files that have no conversation in any known format.
var ErrUnknown = errors.New("no conversation in a known format")

// A Conversation is what an agent and a model have said to each other.
type Conversation struct {
	opening  []byte // of each request, up to and including the bracket of the list
	messages []message
	sent     bool     // they are a request; otherwise what follows the last reply was not sent
	bodies   [][]byte // all requests, where several were noted
}

// A message is an element of the list of messages.
type message struct {
	text  []byte
	model bool // it is the model's
	at    time.Time
}

// A Request is what an agent has sent to a model.
type Request struct {
	Body []byte    // good until the next request
	At   time.Time // zero if it is not known
}

// closing ends each request. All before it stands in the next one, too.
const closing = `]}`

// Requests goes through the requests of a conversation: one before each reply of the
// model, with all that was said up to then.
func (c *Conversation) Requests() iter.Seq[Request] {
	return func(yield func(Request) bool) {
		if len(c.bodies) > 1 {
			for _, raw := range c.bodies {
				one, err := readBody(raw)
				if err != nil || !yield(Request{Body: one.whole()}) {
					return
				}
			}
			return
		}
		body, at := slices.Clone(c.opening), time.Time{}
		for i, m := range c.messages {
			if i > 0 && m.model && !c.messages[i-1].model && !yield(Request{append(body, closing...), at}) {
				return
			}
			if !m.at.IsZero() {
				at = m.at
			}
			body = c.appendMessage(body, i)
		}
		if c.sent {
			yield(Request{append(body, closing...), at})
		}
	}
}

// whole returns a request with all messages.
func (c *Conversation) whole() []byte {
	body := slices.Clone(c.opening)
	for i := range c.messages {
		body = c.appendMessage(body, i)
	}
	return append(body, closing...)
}

func (c *Conversation) appendMessage(body []byte, i int) []byte {
	if i > 0 {
		body = append(body, ',')
	}
	return append(body, c.messages[i].text...)
}

func (c *Conversation) say(text []byte, model bool, at time.Time) {
	c.messages = append(c.messages, message{text, model, at})
}

// asks reports whether there are requests at all.
func (c *Conversation) asks() bool {
	for range c.Requests() {
		return true
	}
	return false
}

// Read returns the conversations of a file, which must stay as it is while they are
// used.
func Read(file []byte) ([]*Conversation, error) {
	file = bytes.TrimLeft(file, " \t\r\n")
	first, _, _ := bytes.Cut(file, []byte("\n"))
	var (
		found []*Conversation
		err   error
	)
	if json.Valid(first) && len(bytes.TrimSpace(file)) > len(bytes.TrimSpace(first)) || isLine(first) {
		found, err = readLines(file)
	} else {
		found, err = readDocument(file)
	}
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(c *Conversation) bool { return !c.asks() })
	if len(found) == 0 {
		return nil, ErrUnknown
	}
	return found, nil
}

// readDocument reads a file that is one JSON text.
func readDocument(file []byte) ([]*Conversation, error) {
	var d struct {
		History    []item          `json:"history"`
		Trajectory []step          `json:"trajectory"`
		Messages   json.RawMessage `json:"messages"`
		Format     text            `json:"trajectory_format"`
		Info       json.RawMessage `json:"info"`
	}
	if len(file) > 0 && file[0] == '[' {
		d.Messages, d.Info = file, []byte("{}") // a mini-SWE-agent of the first days
		if !json.Valid(file) {
			return nil, json.Unmarshal(file, new(json.RawMessage))
		}
	} else if err := json.Unmarshal(file, &d); err != nil {
		return nil, err
	}
	var c *Conversation
	var err error
	switch {
	case len(d.History) > 0:
		c = readItems(d.History)
	case len(d.Trajectory) > 0:
		c = readSteps(d.Trajectory)
	case d.Messages != nil && (d.Format != "" || d.Info != nil):
		c, err = readMini(d.Messages)
	default:
		c, err = readBody(file)
	}
	if err != nil {
		return nil, err
	}
	return []*Conversation{c}, nil
}

// A text is a string of JSON, and empty where there is something else.
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(t))
	}
	return nil
}

// time returns the time that a text says, or none.
func (t text) time() time.Time {
	at, _ := time.Parse(time.RFC3339, string(t))
	return at
}

// quoted returns the text as JSON.
func (t text) quoted() []byte { return encoded(t) }

// encoded returns JSON as agents write it: < and > stand for themselves.
func encoded(value any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(err) // of texts, and of JSON that was read before
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
