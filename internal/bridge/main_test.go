package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an event.
const patience = await.Patience

// An arrival is a request that a server received.
type arrival = mcptest.Received

// A server is an endpoint that records requests. Handlers serve GET, DELETE and POSTs with certain
// methods. The response to other requests is an empty result.
type server struct {
	*httptest.Server
	t        *testing.T
	script   mcptest.Script
	handlers map[string]func(http.ResponseWriter, *arrival) // by JSON-RPC or HTTP method
}

const sessionID = "session-1"

func newServer(t *testing.T) *server {
	s := &server{t: t, handlers: map[string]func(http.ResponseWriter, *arrival){}}
	s.script.Sessionless = true
	s.script.Handle = s.handle
	s.on("initialize", func(w http.ResponseWriter, a *arrival) {
		w.Header().Set("Mcp-Session-Id", sessionID)
		reply(w, a, `{"protocolVersion":"2025-11-25","capabilities":{}}`)
	})
	s.on("DELETE", func(w http.ResponseWriter, _ *arrival) { w.WriteHeader(http.StatusNoContent) })
	s.Server = httptest.NewServer(&s.script)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *server) on(method string, handler func(http.ResponseWriter, *arrival)) {
	s.handlers[method] = handler
}

func (s *server) handle(w http.ResponseWriter, a *arrival) bool {
	if a.HTTP.Method == http.MethodPost && !json.Valid([]byte(a.Body)) {
		s.t.Errorf("received %.200q, want JSON", a.Body)
	}
	switch handler := s.handlers[a.Method]; {
	case handler != nil:
		handler(w, a)
	case a.ID != nil && a.Method != "answer":
		reply(w, a, `{}`)
	default:
		return false
	}
	return true
}

// reply responds with a result.
func reply(w http.ResponseWriter, a *arrival, result string) { a.Answer(w, `"result":`+result) }

func resultOf(a *arrival, result string) string { return a.Message(`"result":` + result) }

// events responds with a stream of these events, unchanged.
func events(w http.ResponseWriter, texts ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, text := range texts {
		_, _ = io.WriteString(w, text)
	}
	_ = http.NewResponseController(w).Flush()
}

// data returns an event with a message.
func data(message string) string { return "data: " + message + "\n\n" }

// arrived waits for a request that is accepts.
func (s *server) arrived(what string, is func(*arrival) bool) (found *arrival) {
	s.t.Helper()
	await.Until(s.t, what+" to arrive", func() bool {
		all := s.script.Received()
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// method waits for a message or an HTTP request with a method.
func (s *server) method(name string) *arrival {
	s.t.Helper()
	return s.arrived(name, func(a *arrival) bool { return a.Method == name })
}

// order returns the methods of all received requests.
func (s *server) order() (methods []string) {
	for _, a := range s.script.Received() {
		methods = append(methods, a.Method)
	}
	return methods
}

// A client uses the input and output of a bridge.
type client struct {
	t      *testing.T
	in     *io.PipeWriter
	lines  *bufio.Reader
	cancel context.CancelFunc
	done   chan error
	ended  bool
}

// connect starts a bridge to s.
func connect(t *testing.T, s *server) *client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	inReader, in := io.Pipe()
	out, outWriter := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	c := &client{t: t, in: in, lines: bufio.NewReader(out), cancel: cancel, done: make(chan error, 1)}
	b := &Bridge{Transport: transport, URL: s.URL, Log: func(message string, err error) { t.Logf("%s: %v", message, err) }}
	go func() {
		err := b.Run(ctx, inReader, outWriter)
		outWriter.Close()
		c.done <- err
	}()
	t.Cleanup(func() {
		cancel()
		in.Close()
		out.Close()
		if !c.ended {
			<-c.done
		}
	})
	return c
}

// send sends lines without waiting for the bridge to read them.
func (c *client) send(lines ...string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, strings.Join(lines, "\n")+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next line, or "" at the end.
func (c *client) next() string {
	c.t.Helper()
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		line, err := c.lines.ReadString('\n')
		got <- read{line, err}
	}()
	select {
	case r := <-got:
		if r.err == io.EOF && r.line == "" {
			return ""
		}
		if r.err != nil {
			c.t.Fatal(r.err)
		}
		return strings.TrimSuffix(r.line, "\n")
	case <-time.After(patience):
		c.t.Fatal("timeout waiting for a message")
		return ""
	}
}

// expect reads a line and checks that it contains all parts.
func (c *client) expect(parts ...string) string {
	c.t.Helper()
	line := c.next()
	for _, part := range parts {
		if !strings.Contains(line, part) {
			c.t.Fatalf("got %.300q, want %q in it", line, part)
		}
	}
	return line
}

// initialize opens a session.
func (c *client) initialize() {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	c.expect(`"id":0`, `"result"`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// end closes the input, reads all output, and returns the result of Run.
func (c *client) end() error {
	c.t.Helper()
	c.in.Close()
	return c.wait()
}

func (c *client) wait() error {
	c.t.Helper()
	for line := c.next(); line != ""; line = c.next() {
		c.t.Errorf("unexpected line %.200q", line)
	}
	c.ended = true
	return <-c.done
}

func request(id, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q}`, id, method)
}

func notification(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
}

// modern returns a request of the modern era.
func modern(id, method, members string) string {
	return fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%s,"method":%q,`+
			`"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		id,
		method,
		members,
	)
}

// A gate blocks handlers until it is opened, or until the test ends.
type gate struct {
	opened chan struct{}
	open   func()
}

func newGate(t *testing.T) *gate {
	g := &gate{opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

// wait blocks until the gate is opened. It reports false if the client disconnected first.
func (g *gate) wait(a *arrival) bool {
	select {
	case <-g.opened:
		return true
	case <-a.HTTP.Context().Done():
		return false
	}
}

// failingWriter is an output that fails.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// stuckWriter is an output whose writes block.
type stuckWriter struct {
	begun chan struct{}
	gate  *gate
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	close(w.begun)
	<-w.gate.opened
	return len(p), nil
}

// endlessLine is a line that ends only with its bytes.
type endlessLine struct{ left int }

func (l *endlessLine) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), l.left)
	copy(p, bytes.Repeat([]byte("x"), n))
	l.left -= n
	return n, nil
}
