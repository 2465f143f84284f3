package mcptest

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

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
