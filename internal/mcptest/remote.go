package mcptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// Remote is an MCP server over Streamable HTTP for one or both eras. It is strict about the
// protocol: sessions and their versions in the legacy era, _meta and the headers that repeat the
// body in the modern one. It records all messages.
//
// Its tools are echo, ask, ask-all, hang, progress, fail, change, touch and link, which
// [toolsNamed] describes. Its prompt is p, its resource <name>:///data, its template
// <name>:///{name}. With the argument ask, the prompt sends a roots request first, and so does the
// resource <name>:///asking.
//
// A legacy request ends when a notification cancels it, even if the client disconnects before; a
// modern request ends when the client disconnects.
type Remote struct {
	Name           string
	Legacy, Modern bool
	Forgetful      bool // does not record messages

	// Primes limits the legacy era to revision 2025-11-25, and begins event streams with an empty
	// event, which clients can resume.
	Primes bool

	start sync.Once
	server
	seen []RemoteMessage
	life context.Context // done when the server is closed
	end  context.CancelCauseFunc
}

// ready makes the server on first use.
func (s *Remote) ready() {
	s.start.Do(func() {
		s.life, s.end = context.WithCancelCause(context.Background())
		s.server.name, s.uri, s.strict = s.Name, s.Name+":///*", true
		s.capabilities = json.RawMessage(
			`{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},` +
				`"completions":{}}`,
		)
		s.tools = toolsNamed(remoteToolNames)
		s.sessions, s.listens = map[string]*session{}, map[*call]listenFilter{}
	})
}

// Close ends the requests that no client has cancelled.
func (s *Remote) Close() {
	s.ready()
	s.end(errCancelled)
}

// A RemoteMessage is a message that a Remote has received, or an event: "hanging", "hung up" and
// "cancelled", with the method and the id of the request. The stream of a session is the event
// "stream", its end "session ended".
type RemoteMessage struct {
	Event   string
	Method  string
	ID      string // the literal
	Session string
	Header  http.Header
	Body    string
}

// Seen returns the recorded messages and events with a method or name.
func (s *Remote) Seen(methodOrEvent string) (found []RemoteMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.seen {
		if m.Event == methodOrEvent || m.Event == "" && m.Method == methodOrEvent {
			found = append(found, m)
		}
	}
	return found
}

// Forget drops all sessions.
func (s *Remote) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
}

// Become changes the eras of the server and drops its sessions, as an upgrade does.
func (s *Remote) Become(legacy, modern bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Legacy, s.Modern = legacy, modern
	clear(s.sessions)
}

// eras returns the eras of the server.
func (s *Remote) eras() (legacy, modern bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Legacy, s.Modern
}

func (s *Remote) record(m RemoteMessage) {
	if s.Forgetful {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, m)
}

// ServeHTTP implements http.Handler.
func (s *Remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.ready()
	version := r.Header.Get("Mcp-Protocol-Version")
	legacy, modern := s.eras()
	if r.Method != http.MethodPost {
		if !legacy || version == modernVersion {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		s.serveSession(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	m, failure := readMessage(body)
	if failure != nil {
		refuse(w, http.StatusBadRequest, nil, failure)
		return
	}
	s.record(RemoteMessage{
		Method:  m.Method,
		ID:      string(m.ID),
		Session: r.Header.Get("Mcp-Session-Id"),
		Header:  r.Header.Clone(),
		Body:    string(body),
	})
	var handshakes []string
	switch {
	case legacy && s.Primes:
		handshakes = protocolVersions[:1]
	case legacy:
		handshakes = protocolVersions
	}
	x := &remoteRequest{remote: s, w: w, r: r}
	c := newCall(&s.server, x, m, handshakes)
	c.modern = c.meta[metaProtocolVersion] != nil || version == modernVersion
	x.modern = c.modern
	switch {
	case c.modern && modern:
		x.serveModern(c)
	case c.modern:
		refuse(w, http.StatusBadRequest, nil, &rpcError{Code: -32000, Message: "Bad Request: Unsupported protocol version"})
	case legacy:
		x.serveLegacy(c)
	default:
		refuse(w, http.StatusBadRequest, m.ID, unsupportedVersion("2025-11-25", nil))
	}
}

// serveSession serves GET and DELETE.
func (s *Remote) serveSession(w http.ResponseWriter, r *http.Request) {
	session := s.findSession(w, r)
	if session == nil {
		return
	}
	if r.Method == http.MethodDelete {
		s.mu.Lock()
		delete(s.sessions, session.id)
		s.mu.Unlock()
		s.record(RemoteMessage{Event: "session ended", Session: session.id})
		w.WriteHeader(http.StatusNoContent)
		return
	}
	messages := make(chan []byte, 100)
	session.mu.Lock()
	session.streams[r] = func(raw []byte) {
		select {
		case messages <- raw:
		default:
		}
	}
	session.mu.Unlock()
	startEvents(w)
	_ = http.NewResponseController(w).Flush()
	s.record(RemoteMessage{Event: "stream", Session: session.id})
	for {
		select {
		case message := <-messages:
			writeEvent(w, message)
		case <-r.Context().Done():
			session.mu.Lock()
			delete(session.streams, r)
			session.mu.Unlock()
			return
		}
	}
}

// findSession returns the session of a request. If there is none, it responds with the error and
// returns nil.
func (s *Remote) findSession(w http.ResponseWriter, r *http.Request) *session {
	id := r.Header.Get("Mcp-Session-Id")
	s.mu.Lock()
	session := s.sessions[id]
	s.mu.Unlock()
	switch version := r.Header.Get("Mcp-Protocol-Version"); {
	case id == "":
		refuse(w, http.StatusBadRequest, nil,
			&rpcError{Code: -32000, Message: "Bad Request: Mcp-Session-Id header is required"})
		return nil
	case session == nil:
		refuse(w, http.StatusNotFound, nil, &rpcError{Code: -32001, Message: "Session not found"})
		return nil
	case version != "" && version != session.revision():
		refuse(w, http.StatusBadRequest, nil, &rpcError{Code: -32000, Message: "Bad Request: Unsupported protocol version"})
		return nil
	}
	return session
}

// remoteRequest is a POST and its response, the wire of one call.
type remoteRequest struct {
	remote *Remote
	w      http.ResponseWriter
	r      *http.Request
	modern bool

	writing sync.Mutex
	stream  bool
}

func (x *remoteRequest) serveLegacy(c *call) {
	session := newSession()
	if c.Method == "initialize" {
		session.id = rand.Text()
		x.remote.mu.Lock()
		x.remote.sessions[session.id] = session
		x.remote.mu.Unlock()
		x.w.Header().Set("Mcp-Session-Id", session.id)
	} else if session = x.remote.findSession(x.w, x.r); session == nil {
		return
	}
	if c.Method == "" || c.ID == nil {
		session.receive(c.message)
		x.w.WriteHeader(http.StatusAccepted)
		return
	}
	c.begin(x.remote.life, session)
	c.run()
}

func (x *remoteRequest) serveModern(c *call) {
	if c.ID == nil || c.Method == "" {
		x.w.WriteHeader(http.StatusAccepted)
		return
	}
	failure := c.checkMeta()
	if failure == nil {
		failure = x.checkHeaders(c)
	}
	if failure != nil {
		refuse(x.w, http.StatusBadRequest, c.ID, failure)
		return
	}
	c.begin(x.r.Context(), newSession())
	c.run()
}

// checkHeaders checks the headers that repeat the body in the modern era.
func (x *remoteRequest) checkHeaders(c *call) *rpcError {
	var p struct {
		Name, URI string
		Arguments struct{ Region string }
	}
	_ = c.decodeParams(&p)
	want := map[string]string{"Mcp-Protocol-Version": modernVersion, "Mcp-Method": c.Method, "Mcp-Name": ""}
	switch c.Method {
	case "tools/call", "prompts/get":
		want["Mcp-Name"] = p.Name
	case "resources/read":
		want["Mcp-Name"] = p.URI
	}
	if c.Method == "tools/call" && p.Name == "echo" {
		want["Mcp-Param-Region"] = p.Arguments.Region
	}
	for name, value := range want {
		header := x.r.Header.Get(name)
		if encoded, ok := strings.CutPrefix(header, "=?base64?"); ok {
			text, _ := base64.StdEncoding.DecodeString(strings.TrimSuffix(encoded, "?="))
			header = string(text)
		}
		if header != value {
			return &rpcError{Code: -32020, Message: "header mismatch: " + name}
		}
	}
	return nil
}

// send implements wire.
func (x *remoteRequest) send(raw []byte) {
	x.writing.Lock()
	defer x.writing.Unlock()
	x.write(raw)
}

// write is send for callers that hold the lock.
func (x *remoteRequest) write(raw []byte) {
	if !x.stream {
		x.stream = true
		startEvents(x.w)
		if x.remote.Primes && !x.modern {
			_, _ = io.WriteString(x.w, "id: 1\nretry: 1000\ndata: \n\n")
		}
	}
	if x.r.Context().Err() == nil {
		writeEvent(x.w, raw)
	}
}

// finish implements wire.
func (x *remoteRequest) finish(raw []byte, failure *rpcError) {
	x.writing.Lock()
	defer x.writing.Unlock()
	switch {
	case x.stream:
		x.write(raw)
	case x.modern && failure != nil && failure.Code == codeMethodNotFound:
		writeJSON(x.w, http.StatusNotFound, raw)
	default:
		writeJSON(x.w, http.StatusOK, raw)
	}
}

// event implements wire.
func (x *remoteRequest) event(m message, event string) {
	x.remote.record(RemoteMessage{Event: event, Method: m.Method, ID: string(m.ID)})
}

// HTTPSSE serves a Streamable HTTP server over HTTP+SSE, the transport of the first revision of the
// protocol: /sse is an event stream for each session, /message receives its messages. A message is
// accepted when the server begins to respond, which is later than with most servers.
type HTTPSSE struct {
	Server http.Handler

	mu       sync.Mutex
	sessions map[string]*sseSession
	opened   int
}

// An sseSession is one event stream.
type sseSession struct {
	server http.Handler
	life   context.Context
	end    context.CancelFunc

	mu      sync.Mutex
	w       http.ResponseWriter // nil once the stream has ended
	session string              // session ID at the server
}

// Open returns how many streams are open now, and how many have ever been opened.
func (h *HTTPSSE) Open() (now, ever int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions), h.opened
}

// Drop ends all streams.
func (h *HTTPSSE) Drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		s.end()
	}
}

// ServeHTTP implements http.Handler.
func (h *HTTPSSE) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/sse":
		h.stream(w, r)
	case r.Method == http.MethodPost && r.URL.Path == "/message":
		h.mu.Lock()
		s := h.sessions[r.URL.Query().Get("session")]
		h.mu.Unlock()
		if s == nil {
			http.Error(w, "Session not found", http.StatusNotFound)
			return
		}
		s.servePost(w, r)
	default:
		http.NotFound(w, r)
	}
}

// stream opens a session, until its client disconnects.
func (h *HTTPSSE) stream(w http.ResponseWriter, r *http.Request) {
	id := rand.Text()
	s := &sseSession{server: h.Server, w: w}
	s.life, s.end = context.WithCancel(r.Context())
	defer s.end()
	h.mu.Lock()
	if h.sessions == nil {
		h.sessions = map[string]*sseSession{}
	}
	h.sessions[id] = s
	h.opened++
	h.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	s.send(&streamable.Event{Type: "endpoint"}, []byte("/message?session="+id))
	<-s.life.Done()
	h.mu.Lock()
	delete(h.sessions, id)
	h.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w = nil
}

// servePost handles a POST of a message.
func (s *sseSession) servePost(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	status := make(chan int, 1)
	go s.forward(http.MethodPost, r.Header, body, status)
	select {
	case code := <-status:
		w.WriteHeader(code)
	case <-r.Context().Done():
	}
}

// forward forwards a request to the server, and sends the messages of its response on the stream.
// It sends the status for the POST to status.
func (s *sseSession) forward(method string, header http.Header, body []byte, status chan<- int) {
	r, _ := http.NewRequestWithContext(s.life, method, "/mcp", bytes.NewReader(body))
	r.Header = header.Clone()
	r.Header.Set("Accept", "application/json, text/event-stream")
	s.mu.Lock()
	if s.session != "" {
		r.Header.Set("Mcp-Session-Id", s.session)
	}
	s.mu.Unlock()
	w := new(streamable.Reader)
	w.OnHeader = func(code int) bool {
		if id := w.Header().Get("Mcp-Session-Id"); id != "" && s.setSession(id) {
			go s.forward(http.MethodGet, header, nil, make(chan int, 1))
		}
		if code == http.StatusOK {
			code = http.StatusAccepted
		}
		status <- code
		return code == http.StatusAccepted
	}
	w.OnMessage = func(e *streamable.Event) error {
		if len(e.Data) > 0 {
			s.send(&streamable.Event{Type: "message"}, e.Data)
		}
		return nil
	}
	s.server.ServeHTTP(w, r)
	_ = w.Close()
}

// setSession sets the session ID at the server. It reports whether it is the first one.
func (s *sseSession) setSession(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.session == ""
	s.session = id
	return first
}

// send sends an event on the stream.
func (s *sseSession) send(event *streamable.Event, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	for _, piece := range event.Buffers(data) {
		_, _ = s.w.Write(piece)
	}
	_ = http.NewResponseController(s.w).Flush()
}

// Interface guard
var _ http.Handler = (*Remote)(nil)
