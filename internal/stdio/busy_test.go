package stdio

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

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
