// Package transcript reads recorded agent conversations and reconstructs the requests
// that the agents sent to a model.
//
// It detects the format of a file from its content:
//
//   - the body of a request to a model, taken as the last request of a conversation;
//   - JSON Lines of such bodies, the requests of one or more conversations;
//   - Claude Code sessions;
//   - Codex rollouts;
//   - SWE-agent and mini-SWE-agent trajectories. Actions and observations in plain text
//     become tool calls and results.
//
// Transcripts are incomplete: Claude Code sessions contain neither the system prompt nor
// the tools. Settings of a request that are not part of the prompt, such as the model or
// the temperature, are dropped.
package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// ErrUnknownFormat is the error for files without a conversation in a known format.
var ErrUnknownFormat = errors.New("no conversation in a known format")

// A Conversation is a recorded exchange of messages between an agent and a model.
type Conversation struct {
	opening   []byte // start of each request, up to and including "[" of the message list
	messages  []message
	isRequest bool     // messages form a request; otherwise those after the last reply were not sent
	bodies    [][]byte // recorded request bodies, if any
}

// A message is an element of the message list.
type message struct {
	text      []byte
	fromModel bool // written by the model
	time      time.Time
}

// A Request is a request from an agent to a model.
type Request struct {
	Body []byte    // valid until the next request
	At   time.Time // zero if unknown
}

// closing ends each request body. The next request repeats everything before it.
const closing = `]}`

// Requests yields the requests of a conversation in order: one before each reply of the
// model, with all messages up to then.
func (c *Conversation) Requests() iter.Seq[Request] {
	return func(yield func(Request) bool) {
		if len(c.bodies) > 1 {
			for _, raw := range c.bodies {
				request, err := readBody(raw)
				if err != nil || !yield(Request{Body: request.fullBody()}) {
					return
				}
			}
			return
		}
		body, at := slices.Clone(c.opening), time.Time{}
		for i, m := range c.messages {
			if i > 0 && m.fromModel && !c.messages[i-1].fromModel && !yield(Request{append(body, closing...), at}) {
				return
			}
			if !m.time.IsZero() {
				at = m.time
			}
			body = c.appendMessage(body, i)
		}
		if c.isRequest {
			yield(Request{append(body, closing...), at})
		}
	}
}

// fullBody returns a request body with all messages.
func (c *Conversation) fullBody() []byte {
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

func (c *Conversation) add(text []byte, model bool, at time.Time) {
	c.messages = append(c.messages, message{text, model, at})
}

// hasRequests reports whether Requests yields any.
func (c *Conversation) hasRequests() bool {
	for range c.Requests() {
		return true
	}
	return false
}

// Read returns the conversations of a file that contain at least one request. The
// conversations refer to file, which must not change while they are used.
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
		err = withoutTypes(err)
	}
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(c *Conversation) bool { return !c.hasRequests() })
	if len(found) == 0 {
		return nil, ErrUnknownFormat
	}
	return found, nil
}

// withoutTypes returns ErrUnknownFormat for the error that a member has another type than in the
// known formats. That error names types of this package.
func withoutTypes(err error) error {
	if _, mistyped := errors.AsType[*json.UnmarshalTypeError](err); mistyped {
		return ErrUnknownFormat
	}
	return err
}

// readDocument reads a file that is a single JSON value.
func readDocument(file []byte) ([]*Conversation, error) {
	var d struct {
		History    []item          `json:"history"`
		Trajectory []step          `json:"trajectory"`
		Messages   json.RawMessage `json:"messages"`
		Format     text            `json:"trajectory_format"`
		Info       json.RawMessage `json:"info"`
	}
	if len(file) > 0 && file[0] == '[' {
		d.Messages, d.Info = file, []byte("{}") // early mini-SWE-agent versions
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
		c, err = readMiniSWE(d.Messages)
	default:
		c, err = readBody(file)
	}
	if err != nil {
		return nil, err
	}
	return []*Conversation{c}, nil
}

// A text is a JSON string. Values of other types decode as the empty text.
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(t))
	}
	return nil
}

// time parses an RFC 3339 time. It returns the zero time if that fails.
func (t text) time() time.Time {
	at, _ := time.Parse(time.RFC3339, string(t))
	return at
}

// quoted returns the text as JSON.
func (t text) quoted() []byte { return encodeJSON(t) }

// encodeJSON returns value as JSON, with < and > not escaped, as agents write it.
func encodeJSON(value any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(err) // impossible: texts and JSON that was valid before
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

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
	if request := members["request"]; len(request) > 0 && request[0] == '{' { // of Code Assist
		return readBody(request)
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
