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
	t.Run("of a child that no client has used", func(t *testing.T) {
		p := newPool(t, "")
		text, err := json.Marshal(p.Status("alpha:1"))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "status", string(text), `[{"state":"idle","restarts":0}]`)
		equal(t, "servers", len(p.servers), 0)
	})
	t.Run("of one that runs", func(t *testing.T) {
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
		equal(t, "elsewhere", p.Status("beta:1")[0].State, Idle)
	})
	t.Run("of one that is being started", func(t *testing.T) {
		p := newPool(t, "--hang-init")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = p.client().with(ctx).do(http.MethodPost, toolCall(`1`, "echo", `{}`)) }()
		p.eventually("it is being started", func() bool { return p.states() == "starting" })
		cancel()
	})
	t.Run("of one that has died and waits for its restart", func(t *testing.T) {
		p := newPool(t, "")
		pid := p.client().pid()
		p.delay(time.Hour)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		p.until("it is gone", func() bool { return len(p.exited) == 1 })
		p.eventually("it waits", func() bool { return p.states() == "waiting" })
		got := p.Status("alpha:1")[0]
		if got.FailedAt.IsZero() {
			t.Error("it has not failed at any time")
		}
		got.FailedAt = time.Time{}
		want := Status{State: Waiting, LastError: "ended by signal: killed", Era: "legacy", Capabilities: "{}"}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("status %+v, want %+v", got, want)
		}
	})
	t.Run("of one that has died and is back", func(t *testing.T) {
		p := newPool(t, "")
		p.soon("alpha:1", mcp.Legacy)
		_ = syscall.Kill(p.client().pid(), syscall.SIGKILL)
		p.until("it is back", func() bool { return p.again == 1 })
		got := p.Status("alpha:1")[0]
		equal(t, "state", got.State, Running)
		equal(t, "restarts", got.Restarts, 1)
		equal(t, "last error", got.LastError, "ended by signal: killed")
	})
	t.Run("of one that cannot be started", func(t *testing.T) {
		p := newPoolOf(t, []string{"/no/such/" + strings.Repeat("x", 1000)})
		_, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
		if err == nil {
			t.Fatal("it has answered")
		}
		got := p.Status("alpha:1")[0]
		equal(t, "state", got.State, Stopped)
		contains(t, "last error", got.LastError, "/no/such/xxx")
		if len(got.LastError) > 600 {
			t.Errorf("the last error has %d bytes", len(got.LastError))
		}
	})
	t.Run("of one that does not know the modern era", func(t *testing.T) {
		p := newPool(t, "")
		_ = p.client().modernCall("pid", `{}`).text()
		pid := p.client().pid()
		equal(t, "states", p.states(), "running")
		equal(t, "pid", p.Status("alpha:1")[0].PID, pid)
	})
	t.Run("of the children of both eras and of sessions", func(t *testing.T) {
		p := newPool(t, "--modern", perSession)
		own := []int{p.client().initialize(`{}`).pid(), p.client().initialize(`{}`).pid()}
		want := append([]int{p.client().pid(), modernPID(p)}, own...)
		for i, s := range p.Status("alpha:1") {
			equal(t, "pid", s.PID, want[i])
			equal(t, "of a session", s.Session, i >= 2)
			equal(t, "era", s.Era, []string{"legacy", "modern", "legacy", "legacy"}[i])
		}
	})
	t.Run("of one whose pool was closed", func(t *testing.T) {
		p := newPool(t, "")
		p.client().pid()
		p.Close()
		equal(t, "states", p.states(), "stopped")
	})
}

// delay sets the pause before the next restart of a child that has answered no client.
func (p *testPool) delay(d time.Duration) {
	p.t.Helper()
	s, err := p.sharedServer("alpha:1", nil, "")
	if err != nil {
		p.t.Fatal(err)
	}
	c := s.current()
	c.mu.Lock()
	c.served = false
	c.mu.Unlock()
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

func TestRestartByCommand(t *testing.T) { // A62, A72
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	stream := c.listen()
	defer stream.Body.Close()
	const uri = `{"uri":"file://alpha/data.txt"}`
	c.post(request(`1`, "resources/subscribe", uri)).whole()
	before := c.pid()
	p.delay(time.Hour) // which the command does not wait for
	ended := make(chan error)
	go func() {
		_, err := p.client().do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		ended <- err
	}()
	p.eventually("the child has the call", func() bool { return strings.Contains(p.messages(), `"hang"`) })

	p.restart()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "is unavailable: the process ended") {
		t.Errorf("the call that waited got %v", err)
	}
	equal(t, "the old one", exists(before), false)
	equal(t, "its input was closed", p.events("eof"), 1)
	after := c.pid() // of the same session
	got := p.Status("alpha:1")[0]
	equal(t, "pid", got.PID, after)
	equal(t, "restarts", got.Restarts, 1)
	equal(t, "last error", got.LastError, "")
	for _, list := range []string{"tools", "prompts", "resources"} {
		contains(t, "told", stream.next(), "notifications/"+list+"/list_changed")
	}
	equal(t, "subscribed again", strings.Count(p.messages(), `"method":"resources/subscribe"`), 2)
	p.until("it is reported", func() bool { return p.again == 1 && len(p.exited) == 1 })
	equal(t, "warnings", p.logs.FilterLevelExact(zap.WarnLevel).Len(), 0)
}

func TestRestartsByCommand(t *testing.T) { // A62
	t.Run("a child that no client has used is started", func(t *testing.T) {
		p := newPool(t, "")
		p.restart()
		equal(t, "started", len(p.started), 1)
		equal(t, "restarts", p.again, 0)
	})
	t.Run("one that waits for its restart waits no more", func(t *testing.T) {
		p := newPool(t, "")
		pid := p.client().pid()
		p.delay(time.Hour)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		p.eventually("it waits", func() bool { return p.states() == "waiting" })
		p.restart()
		equal(t, "states", p.states(), "running")
	})
	t.Run("one that is being started is not started twice", func(t *testing.T) {
		p := newPool(t, "--init-delay 0.05")
		var restarts sync.WaitGroup
		for range 5 {
			restarts.Go(p.restart)
		}
		restarts.Wait()
		equal(t, "started", p.events("start"), 1)
	})
	t.Run("calls that come in the meantime wait for the new one", func(t *testing.T) {
		p := newPool(t, "--init-delay 0.05")
		before := p.client().pid()
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.restart()
		}()
		p.eventually("it has begun", func() bool { return p.states() == "starting" })
		if after := p.client().pid(); after == before {
			t.Error("the same process")
		}
		<-done
	})
	t.Run("one that cannot be started says why", func(t *testing.T) {
		p := newPool(t, "--exit-at-start 3")
		err := p.Restart(p.client().ctx, "alpha:1")
		if err == nil || !strings.Contains(err.Error(), "exited with status 3") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("who has left does not wait", func(t *testing.T) {
		p := newPool(t, "--hang-init")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Restart(ctx, "alpha:1"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("all children of the host and no other", func(t *testing.T) {
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
		p.until("they are back", func() bool { return p.again == 3 })
		for i, pid := range clients {
			if same := pid() == before[i]; same != (i == 3) {
				t.Errorf("client %d has the same child: %t", i, same)
			}
		}
	})
	t.Run("one that did not know the modern era is asked again", func(t *testing.T) {
		p := newPool(t, "")
		p.client().modernCall("pid", `{}`).whole()
		modern, _ := p.server(address{host: "alpha:1", era: mcp.Modern})
		if _, err := modern.ready(t.Context()); !errors.Is(err, errLegacyOnly) {
			t.Fatalf("got %v", err)
		}
		p.restart()
		modern.mu.Lock()
		defer modern.mu.Unlock()
		equal(t, "what is known", modern.err, nil)
	})
	t.Run("a pool that was closed starts nothing", func(t *testing.T) {
		p := newPool(t, "")
		p.client().pid()
		p.Close()
		if err := p.Restart(t.Context(), "alpha:1"); !errors.Is(err, errStopped) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRestartsByCommandUnderLoad restarts the child again and again while clients call
// it and the pool is closed in the end. Every call must end.
func TestRestartsByCommandUnderLoad(t *testing.T) {
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
					t.Error("a call that does not end")
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

func TestAlive(t *testing.T) { // A36
	t.Run("no child is started for the check", func(t *testing.T) {
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
		equal(t, "started", p.events("start"), 1) // by its session
		equal(t, "pings", len(p.received("ping")), 1)
	})
	t.Run("one that does not answer is started again", func(t *testing.T) {
		p := newPool(t, "--hang-ping")
		p.soon("alpha:1", mcp.Legacy)
		p.client().pid()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if asked, err := p.CheckStarted(ctx, "alpha:1"); !asked || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %t, %v", asked, err)
		}
		p.until("it is back", func() bool { return p.again == 1 })
	})
	t.Run("one that could not be started is tried again", func(t *testing.T) {
		p := newPool(t, "--exit-at-start 3")
		p.soon("alpha:1", mcp.Legacy)
		if _, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`)); err == nil {
			t.Fatal("it has answered")
		}
		if asked, err := p.CheckStarted(p.client().ctx, "alpha:1"); !asked || err == nil {
			t.Errorf("got %t, %v", asked, err)
		}
		equal(t, "attempts", p.logs.FilterMessage("MCP server not started").Len(), 2)
	})
}
