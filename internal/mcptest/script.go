package mcptest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Script is an MCP server over Streamable HTTP whose responses, valid or not, a test writes. It
// records every request. Unlike [Remote], which checks sessions, versions and headers, Script
// accepts any message, so it works behind every endpoint of a gateway.
//
// Set the fields before the first request, and later in [Script.Change].
type Script struct {
	// Sessions makes the server refuse requests outside of a session.
	Sessions bool

	// Sessionless makes the server begin no sessions, and refuse GET and DELETE with status 405.
	Sessionless bool

	// Legacy limits the server to the legacy era.
	Legacy bool

	// Capabilities of the server. Default: tools, prompts, resources with subscribe, and completions.
	Capabilities string

	Tools       []string // names, or whole descriptors
	Resources   []string // URIs
	Templates   []string // URI templates
	Completions []string // values of every completion, after "complete"

	// Replies are the members of responses, such as "result":{}, by method or tool name. By default a
	// call returns its params as text.
	Replies map[string]string

	// Before are messages before the response to a call. They make it an event stream.
	Before []string

	// Events makes every response an event stream.
	Events bool

	// Handle may serve a request itself and return true. It is called first.
	Handle func(w http.ResponseWriter, r *Received) bool

	mu       sync.Mutex
	received []*Received
	sessions map[string]bool
	streams  map[chan string]bool
}

// Received is a request that a Script has received.
type Received struct {
	HTTP *http.Request
	Body string

	// Method is the method of the message, "answer" for a response, or the HTTP method of a request
	// that is not a POST.
	Method                    string
	ID, Params, Result, Error json.RawMessage
}

// NewReceived reads a message.
func NewReceived(body []byte) *Received {
	var m message
	_ = json.Unmarshal(body, &m)
	return &Received{
		Body:   string(body),
		Method: cmp.Or(m.Method, "answer"),
		ID:     m.ID,
		Params: m.Params,
		Result: m.Result,
		Error:  m.Error,
	}
}

func (r *Received) String() string { return r.Method + ": " + r.Body }

// Param returns a member of the params unchanged, or "".
func (r *Received) Param(name string) string {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(r.Params, &members)
	return string(members[name])
}

// Tool returns the name of the called tool, or "".
func (r *Received) Tool() (name string) {
	if r.Method == "tools/call" {
		_ = json.Unmarshal([]byte(r.Param("name")), &name)
	}
	return name
}

// Message returns the response to the request with these members.
func (r *Received) Message(members string) string {
	return `{"jsonrpc":"2.0","id":` + string(r.ID) + `,` + members + `}`
}

// Answer sends the response to the request with these members, as JSON.
func (r *Received) Answer(w http.ResponseWriter, members string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, r.Message(members))
}

// Stream sends messages as events, without an end.
func (r *Received) Stream(w http.ResponseWriter, messages ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_ = http.NewResponseController(w).Flush()
	for _, message := range messages {
		writeEvent(w, []byte(message))
	}
}

// Text returns the members of a tool result with this text.
func Text(text string) string {
	return `"result":{"content":[{"type":"text","text":` + string(encode(text)) + `}]}`
}

// Change changes the fields while the server is in use.
func (s *Script) Change(change func(*Script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// Received returns the requests with one of these methods in the order of arrival, or all requests.
func (s *Script) Received(methods ...string) (found []*Received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.received {
		if len(methods) == 0 || slices.Contains(methods, r.Method) {
			found = append(found, r)
		}
	}
	return found
}

// Count returns the number of requests with one of these methods, or of all requests.
func (s *Script) Count(methods ...string) int { return len(s.Received(methods...)) }

// Forget ends all sessions, as a restart does.
func (s *Script) Forget() { s.Change(func(s *Script) { clear(s.sessions) }) }

// Say sends a message on every stream that a GET opened.
func (s *Script) Say(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.streams {
		stream <- message
	}
}

// Listeners returns the number of open streams.
func (s *Script) Listeners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// ServeHTTP implements http.Handler.
func (s *Script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	got := NewReceived(body)
	got.HTTP = r
	if r.Method != http.MethodPost {
		got.Method = r.Method
	}
	session := r.Header.Get("Mcp-Session-Id")
	s.mu.Lock()
	s.received = append(s.received, got)
	handle := s.Handle
	isKnown := !s.Sessions || got.Method == "initialize" || s.sessions[session]
	s.mu.Unlock()
	if handle != nil && handle(w, got) {
		return
	}
	switch {
	case !isKnown && session == "":
		http.Error(w, "no session", http.StatusBadRequest)
	case !isKnown:
		http.Error(w, "no such session", http.StatusNotFound)
	case s.Sessionless && r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.Method == http.MethodGet:
		s.stream(w, r)
	case r.Method == http.MethodDelete:
		s.Change(func(s *Script) { delete(s.sessions, session) })
		w.WriteHeader(http.StatusNoContent)
	case got.ID == nil || got.Method == "answer":
		w.WriteHeader(http.StatusAccepted)
	default:
		s.Answer(w, got)
	}
}

// stream serves a GET.
func (s *Script) stream(w http.ResponseWriter, r *http.Request) {
	stream := make(chan string, 100)
	s.Change(func(s *Script) {
		if s.streams == nil {
			s.streams = map[chan string]bool{}
		}
		s.streams[stream] = true
	})
	defer s.Change(func(s *Script) { delete(s.streams, stream) })
	startEvents(w)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case message := <-stream:
			writeEvent(w, []byte(message))
		case <-r.Context().Done():
			return
		}
	}
}

// Answer responds to a request as the fields say. A Handle function calls it to add something
// before or after.
func (s *Script) Answer(w http.ResponseWriter, r *Received) {
	if r.Method == "initialize" && !s.Sessionless {
		session := "session-" + rand.Text()
		s.Change(func(s *Script) {
			if s.sessions == nil {
				s.sessions = map[string]bool{}
			}
			s.sessions[session] = true
		})
		w.Header().Set("Mcp-Session-Id", session)
	}
	s.mu.Lock()
	members := s.members(r)
	var before []string
	if r.Method == "tools/call" {
		before = s.Before
	}
	asEvents := s.Events || len(before) > 0
	s.mu.Unlock()
	if !asEvents {
		r.Answer(w, members)
		return
	}
	r.Stream(w, append(slices.Clone(before), r.Message(members))...)
}

// members returns the members of the response, including those that only the modern era has.
func (s *Script) members(r *Received) string {
	members := s.Replies[r.Method]
	if reply, ok := s.Replies[r.Tool()]; ok && r.Method == "tools/call" {
		members = reply
	}
	if members == "" {
		members = s.standard(r)
	}
	rest, isResult := strings.CutPrefix(members, `"result":{`)
	if !isResult || s.Legacy || r.HTTP.Header.Get("Mcp-Protocol-Version") != modernVersion {
		return members
	}
	members = `"result":{"resultType":"complete","_meta":{"` + metaServerInfo + `":` + scriptInfo + `}`
	if r.Method != "tools/call" && r.Method != "prompts/get" {
		members += `,"ttlMs":0,"cacheScope":"private"`
	}
	if rest != "}" {
		members += ","
	}
	return members + rest
}

// scriptInfo is the serverInfo of a Script.
const scriptInfo = `{"name":"script","version":"1"}`

// standard returns the members of the default response.
func (s *Script) standard(r *Received) string {
	capabilities := cmp.Or(s.Capabilities, `{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{}}`)
	switch r.Method {
	case "initialize":
		return `"result":{"protocolVersion":"` + protocolVersions[0] + `","capabilities":` + capabilities +
			`,"serverInfo":` + scriptInfo + `}`
	case "server/discover":
		if s.Legacy {
			break
		}
		return fmt.Sprintf(
			`"result":{"supportedVersions":[%q,%q],"capabilities":%s}`,
			modernVersion,
			protocolVersions[0],
			capabilities,
		)
	case "tools/list":
		return scriptList("tools", s.Tools, `{"name":%s,"inputSchema":{"type":"object"}}`)
	case "prompts/list":
		return scriptList("prompts", []string{"greet", "insult"}, `{"name":%s}`)
	case "resources/list":
		return scriptList("resources", s.Resources, `{"uri":%s,"name":"a name"}`)
	case "resources/templates/list":
		return scriptList("resourceTemplates", s.Templates, `{"uriTemplate":%s,"name":"a name"}`)
	case "resources/read":
		return `"result":{"contents":[{"uri":` + r.Param("uri") + `,"text":"read"}]}`
	case "prompts/get":
		return `"result":{"messages":[{"role":"user","content":{"type":"text","text":"hello"}}]}`
	case "completion/complete":
		values := append([]string{"complete"}, s.Completions...)
		return fmt.Sprintf(`"result":{"completion":{"values":%s,"total":%d,"hasMore":false}}`, encode(values), len(values))
	case "tools/call":
		return Text(string(r.Params))
	case "ping", "resources/subscribe", "resources/unsubscribe":
		return `"result":{}`
	}
	return fmt.Sprintf(`"error":{"code":%d,"message":"no such method"}`, codeMethodNotFound)
}

// scriptList returns a list of items in this format. Items that are objects stay unchanged.
func scriptList(kind string, items []string, format string) string {
	items = slices.Clone(items)
	for i, item := range items {
		if !strings.HasPrefix(item, "{") {
			items[i] = fmt.Sprintf(format, encode(item))
		}
	}
	return `"result":{"` + kind + `":[` + strings.Join(items, ",") + `]}`
}

// Interface guard
var _ http.Handler = (*Script)(nil)
