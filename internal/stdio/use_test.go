package stdio

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A host that is used again while its children are stopped keeps its sessions only if it keeps
// their children: new ones would not have the subscriptions of the sessions.
func TestUseWhileAHostIsStopped(t *testing.T) {
	const sessions = 5_000
	for range 5 {
		p := newPool(t, "")
		p.Use("alpha:1")
		p.client().initialize(`{}`)
		for i := range sessions - 1 {
			if p.sessions.open(message(t, request(`1`, "initialize", `{}`)), "alpha:1", fmt.Sprint(i)) == nil {
				t.Fatal("no room for a session")
			}
		}
		p.hosts.remove([]string{"alpha:1"})

		p.hosts.mu.Lock() // so that stopHost and Use go on at the same time
		stopped, used := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			p.stopHost(t.Context(), 0, "alpha:1")
		}()
		time.Sleep(10 * time.Millisecond)
		go func() {
			defer close(used)
			p.Use("alpha:1")
		}()
		time.Sleep(10 * time.Millisecond)
		p.hosts.mu.Unlock()
		<-stopped
		<-used
		want := 0
		if len(p.servers) > 0 {
			want = sessions
		}
		equal(t, "sessions", len(p.sessions.byID), want)
	}
}

// A host is released while a session waits until its owner can begin another one.
func TestReleaseBeforeASessionBegins(t *testing.T) {
	p := newPool(t, "", perSession)
	p.Use("alpha:1")
	limiter := rate.NewLimiter(1, 1)
	limiter.Allow()
	p.sessions.starts.limiters[""] = limiter
	opened := make(chan *reply)
	go func() {
		opened <- p.client().post(request(`1`, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`))
	}()
	await.Until(t, "the session waits", func() bool { return limiter.Tokens() < 0 })
	p.Release(t.Context(), 0, "alpha:1")
	equal(t, "status", (<-opened).StatusCode, http.StatusServiceUnavailable)
	equal(t, "started", p.events("start"), 0)
}
