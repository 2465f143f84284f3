package httpsse

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

func TestMain(m *testing.M) {
	mailbox.MaxUnread = 64 << 20
	goleak.VerifyTestMain(m)
}

// A server uses HTTP+SSE. The test writes its messages.
type server struct {
	t      *testing.T
	url    *url.URL
	opened chan *opened // streams
	posts  chan string  // messages, with the path of their POST
	refuse func(w http.ResponseWriter) bool
	first  string // beginning of the stream
}

// An opened is a stream of a server.
type opened struct {
	send   chan string // events; closed to end the stream
	closed chan struct{}
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, opened: make(chan *opened, 10), posts: make(chan string, 100),
		first: "event: endpoint\ndata: /message?session=1\n\n"}
	at := httptest.NewServer(s)
	t.Cleanup(at.Close)
	s.url, _ = url.Parse(at.URL + "/sse")
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		s.posts <- r.URL.RequestURI() + " " + string(body)
		if s.refuse == nil || !s.refuse(w) {
			w.WriteHeader(http.StatusAccepted)
		}
		return
	}
	o := &opened{make(chan string, 100), make(chan struct{})}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, s.first)
	_ = http.NewResponseController(w).Flush()
	s.opened <- o
	defer close(o.closed)
	for {
		select {
		case event, ok := <-o.send:
			if !ok {
				return
			}
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (o *opened) say(message string) { o.send <- "event: message\ndata: " + message + "\n\n" }

// posted returns the next message that was posted to the endpoint.
func (s *server) posted() (m received) {
	s.t.Helper()
	path, message, _ := strings.Cut(next(s.t, s.posts), " ")
	if path != "/message?session=1" {
		s.t.Errorf("posted at %s", path)
	}
	m.text = message
	if err := json.Unmarshal([]byte(message), &m); err != nil {
		s.t.Fatal(err)
	}
	return m
}

type received struct {
	text   string
	ID     json.RawMessage
	Method string
	Params struct {
		RequestID json.RawMessage `json:"requestId"`
		Meta      struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
}

// next waits for a value.
func next[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(await.Patience):
		t.Fatal("timeout")
	}
	return value
}

// upstream returns the Upstream of the server.
func (s *server) upstream() Upstream {
	target := *s.url
	return Upstream{
		Server: "id", Name: "old", Owner: "owner", Target: &target, Hosts: []string{s.url.Host},
		Request: func(ctx context.Context) *http.Request {
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String(), nil)
			r.Header.Set("Accept", "text/event-stream")
			return r
		},
		Serve: s.pass,
	}
}

// pass acts as a reverse proxy.
func (s *server) pass(w http.ResponseWriter, r *http.Request) error {
	out := r.Clone(r.Context())
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", s.url.Scheme, s.url.Host
	res, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for name, values := range res.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(res.StatusCode)
	var buf [4096]byte
	for {
		n, err := res.Body.Read(buf[:])
		if _, failed := w.Write(buf[:n]); failed != nil {
			return failed
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A client sends requests of Streamable HTTP.
type client struct {
	t       *testing.T
	pool    *Pool
	server  *server
	session string
	at      *opened
}

func newClient(t *testing.T, p *Pool, s *server) *client {
	t.Helper()
	id, err := p.Open(t.Context(), s.upstream())
	if err != nil {
		t.Fatal(err)
	}
	return &client{t, p, s, id, next(t, s.opened)}
}

func openPool(t *testing.T) *Pool {
	t.Helper()
	return openPoolWith(t, idleLimits, idleTime)
}

func openPoolWith(t *testing.T, limits quota.Limits, ttl time.Duration) *Pool {
	t.Helper()
	p := newPool(limits, ttl)
	t.Cleanup(func() {
		p.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return p
}

// A response is read while it arrives.
type response struct {
	t      *testing.T
	cancel context.CancelFunc
	header http.Header
	begun  chan int // the status
	lines  chan string
	done   chan struct{}
	err    error
}

// do sends a request.
func (c *client) do(method, message string) *response {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	r, _ := http.NewRequestWithContext(ctx, method, c.server.url.String(), nil)
	r.Header.Set(mcp.SessionHeader, c.session)
	r.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		httpbody.Post(r, []byte(message))
	}
	res := &response{t: c.t, cancel: cancel, header: http.Header{}, begun: make(chan int, 1),
		lines: make(chan string, 1000), done: make(chan struct{})}
	in, out := io.Pipe()
	w := &pipeWriter{res: res, out: out}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if text := strings.TrimPrefix(lines.Text(), "data: "); strings.HasPrefix(text, "{") {
				res.lines <- text
			}
		}
	})
	go func() {
		res.err = c.pool.Serve(w, r, Upstream{Server: "id", Serve: c.server.pass})
		out.Close()
		reading.Wait()
		close(res.done)
		cancel()
	}()
	c.t.Cleanup(func() { cancel(); <-res.done })
	return res
}

func (c *client) post(message string) *response { c.t.Helper(); return c.do(http.MethodPost, message) }

func (c *client) call(id, method, params string) *response {
	c.t.Helper()
	return c.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`)
}

type pipeWriter struct {
	res    *response
	out    io.Writer
	status int
}

func (w *pipeWriter) Header() http.Header         { return w.res.header }
func (w *pipeWriter) Write(p []byte) (int, error) { w.WriteHeader(200); return w.out.Write(p) }
func (w *pipeWriter) FlushError() error           { return nil }
func (w *pipeWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.res.begun <- status
	}
}

// is waits for a message and checks that it contains a text.
func (r *response) is(part string) {
	r.t.Helper()
	if line := next(r.t, r.lines); !strings.Contains(line, part) {
		r.t.Errorf("got %s, want %s", line, part)
	}
}

// ends waits for the end of the response and checks its status and error.
func (r *response) ends(status int, failure string) {
	r.t.Helper()
	next(r.t, r.done)
	got := 0
	select {
	case got = <-r.begun:
	default:
	}
	if got != status || fmt.Sprint(r.err) != failure && !(failure == "" && r.err == nil) {
		r.t.Errorf("status %d, error %v, want %d and %q", got, r.err, status, failure)
	}
}

var errNotRead = errors.New("not read")
