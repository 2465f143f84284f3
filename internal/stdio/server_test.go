package stdio

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestAChildIsStartedOnce(t *testing.T) { // A3, A29
	p := newPool(t, "--init-delay 0.05")
	equal(t, "starts before the first call", p.events("start"), 0)
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() { equal(t, "echo", p.client().call("echo", `{}`), `{"name":"echo","arguments":{}}`) })
		calls.Go(func() { p.client().initialize(`{}`) })
	}
	calls.Wait()
	equal(t, "start", p.events("start"), 1)
	equal(t, "initialize", len(p.received("initialize")), 1)
	equal(t, "initialized", len(p.received("notifications/initialized")), 1)
	contains(t, "second message", string(p.read()[2].Message), "notifications/initialized")
}

func TestChildrenThatDoNotStart(t *testing.T) { // A6
	tests := []struct {
		name    string
		command []string // nil for mcptest with flags
		flags   string
		change  func(*Config)
		want    string
	}{
		{
			"no response",
			nil,
			"--hang-init",
			func(c *Config) { c.StartTimeout = 50 * time.Millisecond },
			"not initialized within 50ms",
		},
		{"exit at the start", nil, "--exit-at-start 3", nil, "exited with status 3"},
		{"no such command", []string{"/no/such/command"}, "", nil, "no such file"},
		{"a command that is not in PATH", []string{"no-such-command-anywhere"}, "", nil, "not found"},
		{
			"no such directory",
			nil,
			"",
			func(c *Config) { c.Dir = "/no/such/dir" },
			"dir: /no/such/dir is not a directory",
		},
		{"exit with status 0 and no output", []string{"true"}, "", nil, "exited with status 0 during initialize"},
		{"closed stdout", []string{"sh", "-c", "exec >&-; sleep 60"}, "", nil, "killed"},
		{
			"an error as the response to initialize",
			[]string{"sh", "-c", `read l; echo '{"id":1,"error":{"code":-5,` +
				`"message":"no"}}'; cat`},
			"",
			nil,
			`"code":-5`,
		},
		{
			"a response without a version",
			[]string{"sh", "-c", `read l; echo '{"id":1,"result":{}}'; cat`},
			"",
			nil,
			"no protocolVersion",
		},
		{"exit during the handshake", []string{"sh", "-c", `read l; exit 4`}, "", nil, "exited with status 4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			change := func(c *Config) {
				if tt.command != nil {
					c.Command = tt.command
				}
				if tt.change != nil {
					tt.change(c)
				}
			}
			p := newPool(t, tt.flags, change)
			p.restartSoon("alpha:1", mcp.Legacy)
			res, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
			if err == nil {
				t.Fatalf("got %d", res.StatusCode)
			}
			contains(t, "error", err.Error(), tt.want)
			if _, err := p.client().do(http.MethodPost, request(`1`, "initialize", `{}`)); err == nil {
				t.Error("initialize succeeds")
			}
			equal(t, "sessions", len(p.sessions.byID), 0)
			equal(t, "starts reported", len(p.started), 0)
			if p.logs.FilterMessage("MCP server not started").Len() == 0 {
				t.Error("the failure was not logged")
			}
		})
	}
}

func TestThePauseBeforeARestart(t *testing.T) { // A37
	type death struct {
		life   time.Duration
		served bool
	}
	never := death{}
	useful := death{time.Second, true}
	old := death{time.Minute, false}
	tests := []struct {
		name   string
		deaths []death
		want   []time.Duration
	}{
		{
			"grows while the child serves no call",
			[]death{never, never, never, never, never, never, never},
			[]time.Duration{1, 2, 4, 8, 16, 30, 30},
		},
		{"stays short if the child served calls", []death{useful, useful, useful}, []time.Duration{1, 1, 1}},
		{
			"grows for a child that ends within a minute",
			[]death{{59 * time.Second, false}, {59 * time.Second, false}},
			[]time.Duration{1, 2},
		},
		{"is short after a minute without failure", []death{never, never, never, old, never}, []time.Duration{1, 2, 4, 1, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(nil, address{}, nil)
			for i, d := range tt.deaths {
				before := time.Now()
				s.noteFailure(errors.New("x"), d.life, d.served)
				most := tt.want[i] * time.Second
				if due := s.due.Sub(before); due < most/2 || due > most+time.Since(before) {
					t.Errorf("end %d: restart after %s, want %s to %s", i, due, most/2, most)
				}
			}
		})
	}
}

func TestCallsDuringALongPauseFailAtOnce(t *testing.T) {
	for _, worked := range []bool{false, true} { // if it has worked, a restart is scheduled
		p := newPool(t, "")
		s, err := p.sharedServer("alpha:1", nil, "")
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.backoff.First, s.wasReady = time.Minute, worked
		s.noteFailure(errors.New("it burned down"), 0, false)
		s.mu.Unlock()
		_, err = p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		contains(t, "error", err.Error(), "it burned down")
		if err := p.Check(p.client().ctx, "alpha:1"); err == nil {
			t.Error("the server is healthy")
		}
	}
}

func TestAChildDies(t *testing.T) { // A37
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	p.restartSoon("alpha:1", mcp.Legacy)
	stream := c.listen()
	defer stream.Body.Close()
	const uri = `{"uri":"file://alpha/data.txt"}`
	c.post(request(`1`, "resources/subscribe", uri)).whole()
	before := c.pid()

	ended := make(chan error)
	go func() {
		_, err := p.client().do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		ended <- err
	}()
	p.inFlightIs(1)
	r := c.post(request(`"r"`, "tools/call", `{"name":"slow","arguments":{"ms":1}}`)) // the child still serves calls
	equal(t, "slept", r.text(), "slept")
	_ = syscall.Kill(before, syscall.SIGKILL)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the waiting call got %v", err)
	}
	p.until("the child has restarted without a call", func() bool { return p.restarts == 1 })
	after := c.pid() // in the same session
	if after == before {
		t.Error("the same process")
	}
	for _, list := range []string{"tools", "prompts", "resources"} {
		contains(t, "notification", stream.next(), "notifications/"+list+"/list_changed")
	}
	equal(t, "subscribed again", strings.Count(p.messages(), `"method":"resources/subscribe"`), 2)
	c.call("touch", uri)
	contains(t, "notification", stream.next(), "notifications/resources/updated")
	equal(t, "initialize requests", len(p.received("initialize")), 2)
	equal(t, "second initialize", p.received("initialize")[0], p.received("initialize")[1])
	equal(t, "initialized", len(p.received("notifications/initialized")), 2)
	equal(
		t,
		"log entries",
		p.logs.FilterMessage("MCP server ended").
			FilterField(zap.String("mcp_server",
				"alpha")).
			FilterField(zap.Int("pid", before)).
			Len(),
		1,
	)
}

func TestChildDiesDuringAStream(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{"elicitation":{}}`)
	p.restartSoon("alpha:1", mcp.Legacy)
	pid := c.pid()
	r := c.post(toolCall(`"q"`, "ask", `{"method":"elicitation/create"}`))
	req := r.next()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	equal(
		t,
		"answer",
		r.next(),
		`{"jsonrpc":"2.0","error":{"code":-32002,"message":"MCP server alpha is unavailable: `+
			`the process ended","data":{"code":"connect_error","server_name":"alpha"}},"id":"q"}`,
	)
	p.until("the child has restarted", func() bool { return p.restarts == 1 })
	equal(
		t,
		"status of a response to the old child",
		c.post(result(idOf(t, req), `{"roots":[]}`)).StatusCode,
		http.StatusBadRequest,
	)
	equal(t, "open server requests", len(c.poolSession(p).serverRequests.open), 0)
}

func TestAChildThatClosesItsStdinIsRestarted(t *testing.T) {
	p := newPuppets(t)
	p.restartSoon("alpha:1", mcp.Legacy)
	contains(t, "answer", p.client().post(request(`1`, "close-stdin", `{}`)).whole(), "closed")
	p.eventually("the child has restarted", func() bool { // noticed at the second message at the latest
		p.client().post(notification("notifications/x", `{}`))
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.restarts == 1
	})
	equal(t, "status", p.client().post(request(`1`, "heard", `{}`)).StatusCode, http.StatusOK)
}

// A client whose call fails because the child has ended can repeat it at once, and gets the next
// child.
func TestCallAfterADeath(t *testing.T) {
	p := newPool(t, "", perSession)
	p.onExit = func() { time.Sleep(50 * time.Millisecond) } // as on a busy machine
	c := p.client().initialize(`{}`)
	for range 2 {
		pid, calls := c.pid(), len(p.received("tools/call"))
		failed := make(chan string)
		go func() { failed <- c.post(toolCall(`1`, "hang", `{}`)).last() }()
		p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) > calls })
		_ = syscall.Kill(pid, syscall.SIGKILL)
		contains(t, "response", <-failed, `"connect_error"`)
		if after := c.pid(); after == pid {
			t.Errorf("the child is still process %d", pid)
		}
	}
}

// The child is killed repeatedly while clients call it. Every call must end.
func TestManyDeathsUnderLoad(t *testing.T) {
	p := newPool(t, "")
	p.restartSoon("alpha:1", mcp.Legacy)
	p.client().pid()
	done := make(chan struct{})
	var clients sync.WaitGroup
	var good, bad atomic.Int64
	for n := range 8 {
		clients.Go(func() {
			c := p.client()
			if n%2 == 0 {
				c.initialize(`{"roots":{}}`)
			}
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				body := toolCall(`1`, "echo", fmt.Sprintf(`{"secret":"%d-%d"}`, n, i))
				if i%3 == 0 {
					body = request(`1`, "tools/call", `{"name":"progress","arguments":{"steps":2},"_meta":{"progressToken":1}}`)
				}
				res, err := c.do(http.MethodPost, body)
				if err != nil {
					bad.Add(1)
					if errors.Is(err, context.DeadlineExceeded) {
						t.Error("the call did not end")
						return
					}
					continue
				}
				switch answer := newReply(t, res).last(); {
				case strings.Contains(answer, `"connect_error"`):
					bad.Add(1)
				case i%3 != 0:
					good.Add(1)
					contains(t, "echo", answer, fmt.Sprintf(`%d-%d`, n, i))
				default:
					good.Add(1)
					contains(t, "progress", answer, "done")
				}
			}
		})
	}
	for n := range 5 {
		p.until("the child has restarted", func() bool { return len(p.started) == n+1 })
		_ = syscall.Kill(p.client().pid(), syscall.SIGKILL) // after a call
		p.until("the child has ended", func() bool { return len(p.exited) == n+1 })
	}
	p.until("the child has restarted", func() bool { return p.restarts == 5 })
	p.client().pid()
	close(done)
	clients.Wait()
	if z := zombies(); len(z) > 0 {
		t.Errorf("zombies: %s", z)
	}
	t.Logf("%d calls succeeded, %d failed", good.Load(), bad.Load())
}

func TestHealth(t *testing.T) { // A36
	ctx := t.Context()
	shortly := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 50*time.Millisecond)
	}
	t.Run("Check starts a child", func(t *testing.T) {
		p := newPool(t, "")
		if err := p.Check(ctx, "alpha:1"); err != nil {
			t.Error(err)
		}
		equal(t, "started", len(p.started), 1)
		if err := p.Check(ctx, "alpha:1"); err != nil {
			t.Error(err)
		}
		equal(t, "pings", len(p.received("ping")), 1)
	})
	t.Run("a child that does not know ping is alive", func(t *testing.T) {
		p := newPool(t, "--no-ping")
		for range 3 {
			if err := p.Check(ctx, "alpha:1"); err != nil {
				t.Error(err)
			}
		}
		equal(t, "started", len(p.started), 1)
	})
	t.Run("a child that does not respond is restarted", func(t *testing.T) {
		p := newPool(t, "--hang-ping")
		p.restartSoon("alpha:1", mcp.Legacy)
		pid := p.client().pid()
		ctx, cancel := shortly()
		defer cancel()
		if err := p.Check(ctx, "alpha:1"); err == nil {
			t.Error("the child is healthy")
		}
		p.until("the child has restarted", func() bool { return p.restarts == 1 })
		equal(t, "old process runs", exists(pid), false)
		equal(t, "echo", p.client().call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	})
	t.Run("a canceled check does not stop the child", func(t *testing.T) {
		p := newPool(t, "--hang-ping")
		pid := p.client().pid()
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			p.inFlightIs(1)
			cancel()
		}()
		if err := p.Check(ctx, "alpha:1"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		equal(t, "pid", p.client().pid(), pid)
	})
	t.Run("a child that ends during a check is not alive", func(t *testing.T) {
		script := `read -r l; printf '%s\n' '{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; read ` +
			`-r l; read -r l; exit 3`
		p := newPoolOf(t, []string{"sh", "-c", script})
		if err := p.Check(ctx, "alpha:1"); err != nil {
			t.Error(err)
		}
		if err := p.Check(ctx, "alpha:1"); err == nil || !strings.Contains(err.Error(), "exited with status 3") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Check asks every child", func(t *testing.T) {
		p := newPool(t, "--modern --hang-ping", perSession)
		p.restartSoon("alpha:1", mcp.Legacy)
		p.restartSoon("alpha:1", mcp.Modern)
		legacy := p.client()
		own := p.client().initialize(`{}`)
		pids := []int{legacy.pid(), own.pid(), modernPID(p)}
		ctx, cancel := shortly()
		defer cancel()
		_ = p.Check(ctx, "alpha:1")
		p.until("the children have ended", func() bool { return len(p.exited) == 3 })
		for _, pid := range pids {
			equal(t, "process", exists(pid), false)
		}
	})
}

func TestAChildThatIsStartingIsNotAsked(t *testing.T) { // A36
	p := newPool(t, "--hang-init")
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.client().with(ctx).do(http.MethodPost, toolCall(`1`, "pid", `{}`))
	}()
	p.eventually("the child starts", func() bool { return p.states() == "starting" })
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if asked, err := p.CheckStarted(soon, "alpha:1"); asked || err != nil {
		t.Errorf("got %t, %v", asked, err)
	}
	leave()
	<-ended
}

func TestBusyChildSurvivesOneFailedCheck(t *testing.T) { // A36, A37
	ask := func(p *testPool) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return p.Check(ctx, "alpha:1")
	}
	p := newPool(t, "--hang-ping")
	p.restartSoon("alpha:1", mcp.Legacy)
	pid := p.client().pid()
	ended := make(chan error, 1)
	go func() {
		_, err := p.client().do(http.MethodPost, toolCall(`2`, "hang", `{}`))
		ended <- err
	}()
	p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) == 2 })
	if err := ask(p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	equal(t, "process runs", exists(pid), true)
	equal(t, "ended calls", len(ended), 0)
	if err := ask(p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the call got a response")
	}
	p.until("the child has restarted", func() bool { return p.restarts == 1 })
}

func TestConcurrentRestartsOfSessionChildren(t *testing.T) { // A62
	p := newPool(t, "--init-delay 0.05", perSession)
	clients := []*client{p.client().initialize(`{}`), p.client().initialize(`{}`)}
	for _, c := range clients {
		c.pid()
	}
	var restarts sync.WaitGroup
	for range 6 {
		restarts.Go(p.restart)
	}
	restarts.Wait()
	for _, c := range clients {
		c.pid()
	}
	for _, s := range p.Status("alpha:1") {
		if !s.Session && s.PID != 0 {
			t.Errorf("started a child that no client uses: %+v", s)
		}
	}
}
