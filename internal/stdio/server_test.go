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
	equal(t, "started before it is needed", p.events("start"), 0)
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
		command []string // "" is mcptest with flags
		flags   string
		change  func(*Config)
		want    string
	}{
		{
			"it never answers",
			nil,
			"--hang-init",
			func(c *Config) { c.StartTimeout = 50 * time.Millisecond },
			"not initialized within 50ms",
		},
		{"it exits at once", nil, "--exit-at-start 3", nil, "exited with status 3"},
		{"there is no such command", []string{"/no/such/command"}, "", nil, "no such file"},
		{"it is not on the path", []string{"no-such-command-anywhere"}, "", nil, "not found"},
		{
			"there is no such directory",
			nil,
			"",
			func(c *Config) { c.Dir = "/no/such/dir" },
			"dir: /no/such/dir is not a directory",
		},
		{"it says nothing and ends well", []string{"true"}, "", nil, "exited with status 0 during initialize"},
		{"it closes its stdout", []string{"sh", "-c", "exec >&-; sleep 60"}, "", nil, "killed"},
		{
			"it refuses to be initialized",
			[]string{"sh", "-c", `read l; echo '{"id":1,"error":{"code":-5,` +
				`"message":"no"}}'; cat`},
			"",
			nil,
			`"code":-5`,
		},
		{
			"it has no version",
			[]string{"sh", "-c", `read l; echo '{"id":1,"result":{}}'; cat`},
			"",
			nil,
			"no protocolVersion",
		},
		{"it dies at the sight of a handshake", []string{"sh", "-c", `read l; exit 4`}, "", nil, "exited with status 4"},
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
			p.soon("alpha:1", mcp.Legacy)
			res, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
			if err == nil {
				t.Fatalf("got %d", res.StatusCode)
			}
			contains(t, "error", err.Error(), tt.want)
			if _, err := p.client().do(http.MethodPost, request(`1`, "initialize", `{}`)); err == nil {
				t.Error("a session of it")
			}
			equal(t, "sessions", len(p.sessions), 0)
			equal(t, "reported as started", len(p.started), 0)
			if p.logs.FilterMessage("MCP server not started").Len() == 0 {
				t.Error("not in the log")
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
			"grows while it is of no use",
			[]death{never, never, never, never, never, never, never},
			[]time.Duration{1, 2, 4, 8, 16, 30, 30},
		},
		{"stays short if it is", []death{useful, useful, useful}, []time.Duration{1, 1, 1}},
		{
			"grows for one that lives a while without use",
			[]death{{59 * time.Second, false}, {59 * time.Second, false}},
			[]time.Duration{1, 2},
		},
		{"is short again after a good life", []death{never, never, never, old, never}, []time.Duration{1, 2, 4, 1, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(nil, address{}, nil)
			for i, d := range tt.deaths {
				before := time.Now()
				s.noteFailure(errors.New("x"), d.life, d.served)
				most := tt.want[i] * time.Second
				if due := s.due.Sub(before); due < most/2 || due > most+time.Since(before) {
					t.Errorf("death %d: due after %s, want %s to %s", i, due, most/2, most)
				}
			}
		})
	}
}

func TestCallsDuringALongPauseFailAtOnce(t *testing.T) {
	for _, worked := range []bool{false, true} { // then a restart is under way
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
			t.Error("it is healthy")
		}
	}
}

func TestAChildDies(t *testing.T) { // A37
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	p.soon("alpha:1", mcp.Legacy)
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
	r := c.post(request(`"r"`, "tools/call", `{"name":"slow","arguments":{"ms":1}}`)) // it serves as ever
	equal(t, "slept", r.text(), "slept")
	_ = syscall.Kill(before, syscall.SIGKILL)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the call that waited got %v", err)
	}
	p.until("it is started again by itself", func() bool { return p.again == 1 })
	after := c.pid() // of the same session
	if after == before {
		t.Error("the same process")
	}
	for _, list := range []string{"tools", "prompts", "resources"} {
		contains(t, "told", stream.next(), "notifications/"+list+"/list_changed")
	}
	equal(t, "subscribed again", strings.Count(p.messages(), `"method":"resources/subscribe"`), 2)
	c.call("touch", uri)
	contains(t, "told", stream.next(), "notifications/resources/updated")
	equal(t, "greetings", len(p.received("initialize")), 2)
	equal(t, "the same words", p.received("initialize")[0], p.received("initialize")[1])
	equal(t, "initialized", len(p.received("notifications/initialized")), 2)
	equal(
		t,
		"ended in the log",
		p.logs.FilterMessage("MCP server ended").
			FilterField(zap.String("mcp_server",
				"alpha")).
			FilterField(zap.Int("pid", before)).
			Len(),
		1,
	)
}

func TestAChildDiesInMidStream(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{"elicitation":{}}`)
	p.soon("alpha:1", mcp.Legacy)
	pid := c.pid()
	r := c.post(toolCall(`"q"`, "ask", `{"method":"elicitation/create"}`))
	question := r.next()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	equal(
		t,
		"answer",
		r.next(),
		`{"jsonrpc":"2.0","error":{"code":-32002,"message":"MCP server alpha is unavailable: `+
			`the process ended","data":{"code":"connect_error","server_name":"alpha"}},"id":"q"}`,
	)
	p.until("it is back", func() bool { return p.again == 1 })
	equal(
		t,
		"the answer is for one that has died",
		c.post(result(idOf(t, question), `{"roots":[]}`)).StatusCode,
		http.StatusBadRequest,
	)
	equal(t, "open questions", len(c.known(p).serverRequests), 0)
}

func TestAChildThatClosesItsStdinIsRestarted(t *testing.T) {
	p := newPuppets(t)
	p.soon("alpha:1", mcp.Legacy)
	contains(t, "answer", p.client().post(request(`1`, "close-stdin", `{}`)).whole(), "closed")
	p.eventually("it is started again", func() bool { // the second message shows it at the latest
		p.client().post(notification("notifications/x", `{}`))
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.again == 1
	})
	equal(t, "status", p.client().post(request(`1`, "heard", `{}`)).StatusCode, http.StatusOK)
}

// A client whose call fails because the child has died may call again at once, and gets
// the next child.
func TestCallAfterADeath(t *testing.T) {
	p := newPool(t, "", perSession)
	p.onExit = func() { time.Sleep(50 * time.Millisecond) } // as where the machine is busy
	c := p.client().initialize(`{}`)
	for range 2 {
		pid, calls := c.pid(), len(p.received("tools/call"))
		failed := make(chan string)
		go func() { failed <- c.post(toolCall(`1`, "hang", `{}`)).last() }()
		p.eventually("the call", func() bool { return len(p.received("tools/call")) > calls })
		_ = syscall.Kill(pid, syscall.SIGKILL)
		contains(t, "the call", <-failed, `"connect_error"`)
		if after := c.pid(); after == pid {
			t.Errorf("it is still %d", pid)
		}
	}
}

// TestManyDeathsUnderLoad kills the child again and again while clients call it.
// Every call must end.
func TestManyDeathsUnderLoad(t *testing.T) {
	p := newPool(t, "")
	p.soon("alpha:1", mcp.Legacy)
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
						t.Error("a call that does not end")
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
		p.until("it is back", func() bool { return len(p.started) == n+1 })
		_ = syscall.Kill(p.client().pid(), syscall.SIGKILL) // when it has been of use
		p.until("it is gone", func() bool { return len(p.exited) == n+1 })
	}
	p.until("it is back", func() bool { return p.again == 5 })
	p.client().pid()
	close(done)
	clients.Wait()
	if z := zombies(); len(z) > 0 {
		t.Errorf("zombies: %s", z)
	}
	t.Logf("%d calls got a result, %d did not", good.Load(), bad.Load())
}

func TestHealth(t *testing.T) { // A36
	ctx := t.Context()
	shortly := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 50*time.Millisecond)
	}
	t.Run("a child is started to be asked", func(t *testing.T) {
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
	t.Run("one that does not know ping is alive", func(t *testing.T) {
		p := newPool(t, "--no-ping")
		for range 3 {
			if err := p.Check(ctx, "alpha:1"); err != nil {
				t.Error(err)
			}
		}
		equal(t, "started", len(p.started), 1)
	})
	t.Run("one that does not answer is started again", func(t *testing.T) {
		p := newPool(t, "--hang-ping")
		p.soon("alpha:1", mcp.Legacy)
		pid := p.client().pid()
		ctx, cancel := shortly()
		defer cancel()
		if err := p.Check(ctx, "alpha:1"); err == nil {
			t.Error("it is healthy")
		}
		p.until("it is back", func() bool { return p.again == 1 })
		equal(t, "the old one", exists(pid), false)
		equal(t, "echo", p.client().call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	})
	t.Run("a cancelled check does not kill the child", func(t *testing.T) {
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
	t.Run("one that dies when it is asked is not alive", func(t *testing.T) {
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
	t.Run("every child is asked", func(t *testing.T) {
		p := newPool(t, "--modern --hang-ping", perSession)
		p.soon("alpha:1", mcp.Legacy)
		p.soon("alpha:1", mcp.Modern)
		legacy := p.client()
		own := p.client().initialize(`{}`)
		pids := []int{legacy.pid(), own.pid(), modernPID(p)}
		ctx, cancel := shortly()
		defer cancel()
		_ = p.Check(ctx, "alpha:1")
		p.until("they have ended", func() bool { return len(p.exited) == 3 })
		for _, pid := range pids {
			equal(t, "process", exists(pid), false)
		}
	})
}
