package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// TestMain runs the test binary as a child process if its first argument is ds, puppet or filler.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "ds":
			os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		case "puppet":
			puppet(os.Stdin, os.Stdout)
			os.Exit(0)
		case "filler":
			filler(os.Args[2], os.Stdin, os.Stdout)
			os.Exit(0)
		}
	}
	mailbox.MaxUnread = 64 << 20
	goleak.VerifyTestMain(m)
}

// puppet is a child process that the test controls. Request "say" writes raw bytes and replaces $ID
// in them by the id of the request. "heard" returns all messages received before it. "fill" writes
// raw bytes and returns a string of code bytes. "close-stdin" closes stdin. "exit" ends the process
// with the status in code.
func puppet(stdin io.Reader, stdout io.Writer) {
	var heard []string
	lines := bufio.NewReader(stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Raw  string
				Code int
			}
		}
		_ = json.Unmarshal(line, &m)
		answer := func(result any) {
			text, _ := json.Marshal(result)
			_, _ = fmt.Fprintf(stdout, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, text)
		}
		switch m.Method {
		case "initialize":
			answer(
				map[string]any{
					"protocolVersion": mcp.Latest,
					"capabilities":    map[string]any{"tools": map[string]any{}},
					"serverInfo":      map[string]any{"name": "puppet", "version": "1"},
				},
			)
		case "say":
			_, _ = io.WriteString(stdout, strings.ReplaceAll(m.Params.Raw, "$ID", string(m.ID)))
		case "fill":
			_, _ = io.WriteString(stdout, m.Params.Raw)
			answer(strings.Repeat("x", m.Params.Code))
		case "heard":
			answer(heard)
		case "close-stdin":
			answer("closed")
			_ = syscall.Close(0)
			select {}
		case "exit":
			os.Exit(m.Params.Code)
		}
		heard = append(heard, string(bytes.TrimSpace(line)))
	}
}

// testPool is a pool that collects its logs and counts its events.
type testPool struct {
	*Pool
	t       *testing.T
	journal string // file in which children of mcptest log their input
	logs    *observer.ObservedLogs
	onNoise func() // if set, the reader of a child calls it for each line that is not a message
	onExit  func() // if set, the reader of a child calls it when the child ends

	mu       sync.Mutex
	changed  *sync.Cond // signaled when a field below or logs changes
	started  []int      // pids
	exited   []int
	restarts int
	noise    int
	dropped  int

	notStarted int
}

func (p *testPool) Started(_ string, pid int, restart bool) {
	p.note(func() {
		p.started = append(p.started, pid)
		if restart {
			p.restarts++
		}
	})
}
func (p *testPool) NotStarted(_ string, restart bool) {
	p.note(func() {
		p.notStarted++
		if restart {
			p.restarts++
		}
	})
}
func (p *testPool) Exited(_ string, pid int, _ error) {
	if p.onExit != nil {
		p.onExit()
	}
	p.note(func() { p.exited = append(p.exited, pid) })
}
func (p *testPool) Noise(string) {
	if p.onNoise != nil {
		p.onNoise()
	}
	p.note(func() { p.noise++ })
}
func (p *testPool) Dropped(string) { p.note(func() { p.dropped++ }) }

func (p *testPool) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.changed.Broadcast()
}

// until waits for a condition that depends on events and logs of the pool.
func (p *testPool) until(what string, condition func() bool) {
	p.t.Helper()
	late := false
	defer time.AfterFunc(await.Patience, func() { p.note(func() { late = true }) }).Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !condition() {
		if late {
			p.t.Fatalf("timeout waiting for: %s", what)
		}
		p.changed.Wait()
	}
}

// eventually polls a condition of which the pool reports no changes.
func (p *testPool) eventually(what string, condition func() bool) {
	p.t.Helper()
	await.Until(p.t, what, condition)
}

// newPool returns a pool of children of mcptest with these flags.
func newPool(t *testing.T, flags string, change ...func(*Config)) *testPool {
	t.Helper()
	return newPoolOf(t, append([]string{os.Args[0], "ds", "alpha"}, strings.Fields(flags)...), change...)
}

func newPuppets(t *testing.T, change ...func(*Config)) *testPool {
	t.Helper()
	return newPoolOf(t, []string{os.Args[0], "puppet"}, change...)
}

func newPoolOf(t *testing.T, command []string, change ...func(*Config)) *testPool {
	t.Helper()
	p := &testPool{t: t, journal: filepath.Join(t.TempDir(), "journal")}
	p.changed = sync.NewCond(&p.mu)
	var core zapcore.Core
	core, p.logs = observer.New(zap.DebugLevel)
	logger := zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		p.note(func() {})
		return nil
	}))
	config := Config{
		Command:      command,
		Env:          []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "DS_LOG=" + p.journal, "GORACE=atexit_sleep_ms=0"},
		Framing:      Newline,
		Isolation:    Shared,
		StartTimeout: await.Patience,
		StopGrace:    await.Patience,
		MaxMessage:   64 << 20,
		MaxSessions:  10_000,
		SessionTTL:   time.Hour,
		Logger:       func() *zap.Logger { return logger },
	}
	for _, f := range change {
		f(&config)
	}
	p.Pool = NewPool(config, p)
	t.Cleanup(func() {
		p.within("Close", p.Close)
		for _, pid := range p.started {
			if exists(pid) {
				t.Errorf("process %d still runs", pid)
			}
		}
	})
	return p
}

func perSession(c *Config) { c.Isolation = PerSession }

// within fails the test if f does not return in time.
func (p *testPool) within(what string, f func()) {
	p.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(2 * await.Patience): // a child may have used up its grace
		p.t.Errorf("%s does not return", what)
	}
}

// restartSoon shortens the pause before restarts of a server.
func (p *testPool) restartSoon(host string, era mcp.Era) {
	p.t.Helper()
	s, err := p.sharedServer(host, nil, "")
	if era == mcp.Modern {
		s, err = p.server(address{host: host, era: era})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backoff.First = 2 * time.Millisecond
}

// exists reports whether a process runs. A zombie process does not run.
func exists(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		state, _ := processState(stat)
		return state != "Z"
	}
	return runtime.GOOS != "linux" && syscall.Kill(pid, 0) == nil
}

// zombies returns the ended child processes that were not waited for.
func zombies() (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		if state, parent := processState(stat); state == "Z" && parent == strconv.Itoa(os.Getpid()) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// processState parses the state and the parent in /proc/<pid>/stat. They follow the name of the
// process, which may contain spaces and parentheses.
func processState(stat []byte) (state, parent string) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return "", ""
	}
	return string(fields[0]), string(fields[1])
}

// text returns the bytes of a frame.
func (f frame) text() string { return string(bytes.Join(f, nil)) }

// A client sends requests to a pool.
type client struct {
	p       *testPool
	host    string
	session string
	ctx     context.Context
}

// client returns a client whose requests time out. The timeout is longer than await.Patience, so
// that a test that waits for a condition reports that condition.
func (p *testPool) client() *client {
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*await.Patience)
	p.t.Cleanup(cancel)
	return &client{p: p, host: "alpha:1", ctx: ctx}
}

// with returns a copy of the client whose requests end with ctx.
func (c *client) with(ctx context.Context) *client {
	other := *c
	other.ctx = ctx
	return &other
}

// do sends a request. Headers are names, each followed by its value.
func (c *client) do(method, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(c.ctx, method, "http://"+c.host+"/mcp", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return c.p.RoundTrip(req)
}

// post sends a message and returns the response. As in the gateway, an error becomes a response.
func (c *client) post(body string, headers ...string) *reply {
	c.p.t.Helper()
	res, err := c.do(http.MethodPost, body, headers...)
	var failure *jsonrpc.Failure
	if errors.As(err, &failure) {
		var m jsonrpc.Message
		_ = m.Read([]byte(body))
		res, err = respond(nil, failure.Status, failure.Append(nil, m.Literal(jsonrpc.ID))), nil
	}
	if err != nil {
		c.p.t.Errorf("POST %.200s: %v", body, err)
		return &reply{Response: &http.Response{Header: http.Header{}, Body: http.NoBody}, t: c.p.t}
	}
	return newReply(c.p.t, res)
}

// initialize opens a session with these capabilities.
func (c *client) initialize(capabilities string) *client {
	c.p.t.Helper()
	r := c.post(
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":` +
			capabilities +
			`,"clientInfo":{"name":"test","version":"1"}}}`,
	)
	if c.session = r.Header.Get("Mcp-Session-Id"); c.session == "" {
		c.p.t.Fatalf("no session: %d %s", r.StatusCode, r.whole())
	}
	r.Body.Close()
	return c
}

// listen opens the stream of the session.
func (c *client) listen() *reply {
	c.p.t.Helper()
	res, err := c.do(http.MethodGet, "")
	if err != nil {
		c.p.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		c.p.t.Fatalf("GET: %d", res.StatusCode)
	}
	return newReply(c.p.t, res)
}

// call calls a tool and returns the text of its result.
func (c *client) call(tool, arguments string) string {
	c.p.t.Helper()
	return c.post(toolCall(`1`, tool, arguments)).text()
}

// pid returns the id of the process that serves the client.
func (c *client) pid() int {
	c.p.t.Helper()
	pid, err := strconv.Atoi(c.call("pid", `{}`))
	if err != nil {
		c.p.t.Fatal(err)
	}
	return pid
}

func request(id, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params)
}

func notification(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
}

func toolCall(id, tool, arguments string) string {
	return request(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

// say returns a request for which a puppet writes raw.
func say(id, raw string) string {
	return request(id, "say", `{"raw":`+quote(raw)+`}`)
}

func quote(s string) string { return string(jsonrpc.Quote(s)) }

// A reply is a response from which the test reads messages.
type reply struct {
	*http.Response
	t      *testing.T
	events *bufio.Reader // nil if the response is JSON
}

func newReply(t *testing.T, res *http.Response) *reply {
	r := &reply{Response: res, t: t}
	if res.Header.Get("Content-Type") == "text/event-stream" {
		r.events = bufio.NewReader(res.Body)
	}
	return r
}

// next returns the next message of a stream, or "" at its end.
func (r *reply) next() string {
	r.t.Helper()
	if r.events == nil {
		r.t.Errorf("not a stream: %s", r.whole())
		return ""
	}
	for {
		line, err := r.events.ReadString('\n')
		if err == io.EOF || errors.Is(err, context.Canceled) {
			r.Body.Close()
			return ""
		}
		if err != nil {
			r.t.Error(err)
			return ""
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
	}
}

// last returns the last message of a stream, or the message of a JSON response.
func (r *reply) last() (message string) {
	r.t.Helper()
	if r.events == nil {
		return r.whole()
	}
	for m := r.next(); m != ""; m = r.next() {
		message = m
	}
	return message
}

// whole returns the body of a JSON response.
func (r *reply) whole() string {
	r.t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		r.t.Error(err)
	}
	r.Body.Close()
	return string(body)
}

// text returns the text of a tool result.
func (r *reply) text() string {
	r.t.Helper()
	return textOf(r.last())
}

func textOf(answer string) string {
	var m struct {
		Result struct {
			Content []struct {
				Text string
			}
		}
	}
	if err := json.Unmarshal([]byte(answer), &m); err != nil || len(m.Result.Content) == 0 {
		return "no text: " + answer
	}
	return m.Result.Content[0].Text
}

// An entry is a line in the journal of children.
type entry struct {
	PID       int
	Event     string
	RequestID json.RawMessage
	Message   json.RawMessage
}

// read returns the entries that children have written so far.
func (p *testPool) read() (entries []entry) {
	p.t.Helper()
	data, err := os.ReadFile(p.journal)
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			continue // incomplete because the child was killed
		}
		entries = append(entries, e)
	}
	return entries
}

// received returns the messages of a method that children have received so far.
func (p *testPool) received(method string) (messages []string) {
	p.t.Helper()
	for _, e := range p.read() {
		var m struct{ Method string }
		if json.Unmarshal(e.Message, &m) == nil && m.Method == method {
			messages = append(messages, string(e.Message))
		}
	}
	return messages
}

// events returns the number of events of a kind in the journal.
func (p *testPool) events(event string) (n int) {
	p.t.Helper()
	for _, e := range p.read() {
		if e.Event == event {
			n++
		}
	}
	return n
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

func contains(t *testing.T, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s:\n got %.500s\nwant … %s …", what, got, want)
	}
}
