package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// states returns the states of the children at alpha:1.
func (p *testPool) states() string {
	var all []string
	for _, s := range p.Status("alpha:1") {
		all = append(all, string(s.State))
	}
	return strings.Join(all, " ")
}

func TestStatus(t *testing.T) { // A70
	t.Run("unused", func(t *testing.T) {
		p := newPool(t, "")
		text, err := json.Marshal(p.Status("alpha:1"))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "status", string(text), `[{"state":"idle","restarts":0}]`)
		equal(t, "servers", len(p.servers), 0)
	})
	t.Run("running", func(t *testing.T) {
		p := newPool(t, "")
		before := time.Now()
		pid := p.client().pid()
		all := p.Status("alpha:1")
		equal(t, "children", len(all), 1)
		got := all[0]
		if got.Since.Before(before) || got.Since.After(time.Now()) {
			t.Errorf("since %s", got.Since)
		}
		got.Since = time.Time{}
		if want := (Status{PID: pid, State: Running, Era: "legacy", Capabilities: "{}"}); !reflect.DeepEqual(got, want) {
			t.Errorf("status %+v, want %+v", got, want)
		}
		equal(t, "state at another host", p.Status("beta:1")[0].State, Idle)
	})
	t.Run("starting", func(t *testing.T) {
		p := newPool(t, "--hang-init")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = p.client().with(ctx).do(http.MethodPost, toolCall(`1`, "echo", `{}`)) }()
		p.eventually("the child is starting", func() bool { return p.states() == "starting" })
		cancel()
	})
	t.Run("waiting for a restart", func(t *testing.T) {
		p := newPool(t, "")
		pid := p.client().pid()
		p.delay(time.Hour)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		p.until("the child has ended", func() bool { return len(p.exited) == 1 })
		p.eventually("the restart waits", func() bool { return p.states() == "waiting" })
		got := p.Status("alpha:1")[0]
		if got.FailedAt.IsZero() {
			t.Error("FailedAt is not set")
		}
		got.FailedAt = time.Time{}
		want := Status{State: Waiting, LastError: "ended by signal: killed", Era: "legacy", Capabilities: "{}"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("status %+v, want %+v", got, want)
		}
	})
	t.Run("restarted", func(t *testing.T) {
		p := newPool(t, "")
		p.restartSoon("alpha:1", mcp.Legacy)
		_ = syscall.Kill(p.client().pid(), syscall.SIGKILL)
		p.until("the child has restarted", func() bool { return p.restarts == 1 })
		got := p.Status("alpha:1")[0]
		equal(t, "state", got.State, Running)
		equal(t, "restarts", got.Restarts, 1)
		equal(t, "last error", got.LastError, "ended by signal: killed")
	})
	t.Run("not started", func(t *testing.T) {
		p := newPoolOf(t, []string{"/no/such/" + strings.Repeat("x", 1000)})
		_, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
		if err == nil {
			t.Fatal("got a response")
		}
		got := p.Status("alpha:1")[0]
		equal(t, "state", got.State, Stopped)
		contains(t, "last error", got.LastError, "/no/such/xxx")
		if len(got.LastError) > 600 {
			t.Errorf("the last error has %d bytes", len(got.LastError))
		}
	})
	t.Run("without a modern child", func(t *testing.T) {
		p := newPool(t, "")
		_ = p.client().modernCall("pid", `{}`).text()
		pid := p.client().pid()
		equal(t, "states", p.states(), "running")
		equal(t, "pid", p.Status("alpha:1")[0].PID, pid)
	})
	t.Run("children of both eras and of sessions", func(t *testing.T) {
		p := newPool(t, "--modern", perSession)
		own := []int{p.client().initialize(`{}`).pid(), p.client().initialize(`{}`).pid()}
		want := append([]int{p.client().pid(), modernPID(p)}, own...)
		for i, s := range p.Status("alpha:1") {
			equal(t, "pid", s.PID, want[i])
			equal(t, "has a session", s.Session, i >= 2)
			equal(t, "era", s.Era, []string{"legacy", "modern", "legacy", "legacy"}[i])
		}
	})
	t.Run("closed pool", func(t *testing.T) {
		p := newPool(t, "")
		p.client().pid()
		p.Close()
		equal(t, "states", p.states(), "stopped")
	})
}

// delay sets the pause before the next restart of a child that has served no call.
func (p *testPool) delay(d time.Duration) {
	p.t.Helper()
	s, err := p.sharedServer("alpha:1", nil, "")
	if err != nil {
		p.t.Fatal(err)
	}
	c := s.current()
	c.calls.mu.Lock()
	c.calls.served = false
	c.calls.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backoff.First = d
}

// restart restarts the children at alpha:1.
func (p *testPool) restart() {
	p.t.Helper()
	if err := p.Restart(p.client().ctx, "alpha:1"); err != nil {
		p.t.Error(err)
	}
}

func TestRestartDuringACall(t *testing.T) { // A62, A72
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	stream := c.listen()
	defer stream.Body.Close()
	const uri = `{"uri":"file://alpha/data.txt"}`
	c.post(request(`1`, "resources/subscribe", uri)).whole()
	before := c.pid()
	p.delay(time.Hour) // the command does not wait for it
	ended := make(chan error)
	go func() {
		_, err := p.client().do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		ended <- err
	}()
	p.eventually("the child receives the call", func() bool { return strings.Contains(p.messages(), `"hang"`) })

	p.restart()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "is unavailable: the process ended") {
		t.Errorf("the waiting call got %v", err)
	}
	equal(t, "old process runs", exists(before), false)
	equal(t, "closed stdin", p.events("eof"), 1)
	after := c.pid() // in the same session
	got := p.Status("alpha:1")[0]
	equal(t, "pid", got.PID, after)
	equal(t, "restarts", got.Restarts, 1)
	equal(t, "last error", got.LastError, "")
	for _, list := range []string{"tools", "prompts", "resources"} {
		contains(t, "notification", stream.next(), "notifications/"+list+"/list_changed")
	}
	equal(t, "subscribed again", strings.Count(p.messages(), `"method":"resources/subscribe"`), 2)
	p.until("the restart is reported", func() bool { return p.restarts == 1 && len(p.exited) == 1 })
	equal(t, "warnings", p.logs.FilterLevelExact(zap.WarnLevel).Len(), 0)
}

func TestRestart(t *testing.T) { // A62
	t.Run("an unused child is started", func(t *testing.T) {
		p := newPool(t, "")
		p.restart()
		equal(t, "started", len(p.started), 1)
		equal(t, "restarts", p.restarts, 0)
	})
	t.Run("a waiting child is started", func(t *testing.T) {
		p := newPool(t, "")
		pid := p.client().pid()
		p.delay(time.Hour)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		p.eventually("the restart waits", func() bool { return p.states() == "waiting" })
		p.restart()
		equal(t, "states", p.states(), "running")
	})
	t.Run("a starting child is not started twice", func(t *testing.T) {
		p := newPool(t, "--init-delay 0.05")
		var restarts sync.WaitGroup
		for range 5 {
			restarts.Go(p.restart)
		}
		restarts.Wait()
		equal(t, "started", p.events("start"), 1)
	})
	t.Run("calls during the restart wait for the new child", func(t *testing.T) {
		p := newPool(t, "--init-delay 0.05")
		before := p.client().pid()
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.restart()
		}()
		p.eventually("the restart has begun", func() bool { return p.states() == "starting" })
		if after := p.client().pid(); after == before {
			t.Error("the same process")
		}
		<-done
	})
	t.Run("a failed start returns its cause", func(t *testing.T) {
		p := newPool(t, "--exit-at-start 3")
		err := p.Restart(p.client().ctx, "alpha:1")
		if err == nil || !strings.Contains(err.Error(), "exited with status 3") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a canceled restart does not wait", func(t *testing.T) {
		p := newPool(t, "--hang-init")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Restart(ctx, "alpha:1"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("all children of the host are restarted, but no others", func(t *testing.T) {
		p := newPool(t, "--modern", perSession)
		other := p.client()
		other.host = "beta:1"
		clients := []func() int{
			p.client().pid,
			func() int { return modernPID(p) },
			p.client().initialize(`{}`).pid,
			other.pid,
		}
		var before []int
		for _, pid := range clients {
			before = append(before, pid())
		}
		p.restart()
		p.until("the children have restarted", func() bool { return p.restarts == 3 })
		for i, pid := range clients {
			if same := pid() == before[i]; same != (i == 3) {
				t.Errorf("client %d: same child = %t", i, same)
			}
		}
	})
	t.Run("a server of the legacy era is probed again", func(t *testing.T) {
		p := newPool(t, "")
		p.client().modernCall("pid", `{}`).whole()
		modern, _ := p.server(address{host: "alpha:1", era: mcp.Modern})
		if _, err := modern.ready(t.Context()); !errors.Is(err, errLegacyOnly) {
			t.Fatalf("got %v", err)
		}
		p.restart()
		modern.mu.Lock()
		defer modern.mu.Unlock()
		equal(t, "known error", modern.err, nil)
	})
	t.Run("a server of the legacy era is probed again at once", func(t *testing.T) {
		p := newPool(t, "--modern")
		modern, _ := p.server(address{host: "alpha:1", era: mcp.Modern})
		modern.mu.Lock()
		modern.failures = 10 // the next pause is long
		modern.noteFailure(errLegacyOnly, 0, false)
		modern.mu.Unlock()
		p.restart()
		_, err := modern.ready(p.client().ctx)
		equal(t, "error", err, nil)
	})
	t.Run("a closed pool starts nothing", func(t *testing.T) {
		p := newPool(t, "")
		p.client().pid()
		p.Close()
		if err := p.Restart(t.Context(), "alpha:1"); !errors.Is(err, errStopped) {
			t.Errorf("got %v", err)
		}
	})
}

// The child is restarted repeatedly while clients call it, and the pool is closed at the end. Every
// call must end.
func TestRestartUnderLoad(t *testing.T) {
	p := newPool(t, "")
	done := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			c := p.client()
			for {
				select {
				case <-done:
					return
				default:
				}
				_, err := c.do(http.MethodPost, toolCall(`1`, "echo", `{}`))
				if errors.Is(err, context.DeadlineExceeded) {
					t.Error("the call did not end")
					return
				}
			}
		})
	}
	for range 5 {
		p.restart()
	}
	clients.Go(func() { _ = p.Restart(p.client().ctx, "alpha:1") })
	p.within("Close", p.Close)
	close(done)
	clients.Wait()
	equal(t, "zombies", len(zombies()), 0)
}

func TestCheckStarted(t *testing.T) { // A36
	t.Run("CheckStarted does not start a child", func(t *testing.T) {
		p := newPool(t, "", perSession)
		asked, err := p.CheckStarted(t.Context(), "alpha:1")
		if asked || err != nil {
			t.Errorf("got %t, %v", asked, err)
		}
		p.client().initialize(`{}`).pid()
		asked, err = p.CheckStarted(t.Context(), "alpha:1")
		if !asked || err != nil {
			t.Errorf("got %t, %v", asked, err)
		}
		equal(t, "started", p.events("start"), 1) // for its session
		equal(t, "pings", len(p.received("ping")), 1)
	})
	t.Run("a child that does not respond is restarted", func(t *testing.T) {
		p := newPool(t, "--hang-ping")
		p.restartSoon("alpha:1", mcp.Legacy)
		p.client().pid()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if asked, err := p.CheckStarted(ctx, "alpha:1"); !asked || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %t, %v", asked, err)
		}
		p.until("the child has restarted", func() bool { return p.restarts == 1 })
	})
	t.Run("a failed start is repeated", func(t *testing.T) {
		p := newPool(t, "--exit-at-start 3")
		p.restartSoon("alpha:1", mcp.Legacy)
		if _, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`)); err == nil {
			t.Fatal("got a response")
		}
		if asked, err := p.CheckStarted(p.client().ctx, "alpha:1"); !asked || err == nil {
			t.Errorf("got %t, %v", asked, err)
		}
		equal(t, "attempts", p.logs.FilterMessage("MCP server not started").Len(), 2)
		equal(t, "failures reported", p.notStarted, 2)
		equal(t, "restarts", p.Status("alpha:1")[0].Restarts, 1)
		equal(t, "restarts reported", p.restarts, 1)
	})
}

// A child that was started for modern clients turns out to be a legacy child during health checks.
func TestChecksWhileAChildBecomesLegacy(t *testing.T) {
	for range 50 {
		p := newPool(t, "")
		s, err := p.server(address{host: "alpha:1", era: mcp.Modern})
		if err != nil {
			t.Fatal(err)
		}
		g := (&handshaker{server: s}).legacyGroup()
		var checks sync.WaitGroup
		checks.Go(func() {
			for len(p.serversAt("alpha:1")) == 1 {
				_, _ = p.CheckStarted(t.Context(), "alpha:1")
			}
		})
		time.Sleep(time.Millisecond)
		equal(t, "the server has moved", s.becomeLegacy(g), true)
		checks.Wait()
	}
}
