//go:build linux

package chaos

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// What child processes do to the gateway: A35 to A39, A41.
func TestChildFails(t *testing.T) {
	lines := more(500, 2_000)
	s := newStage(t, play{
		gateway: []string{
			block(child("bad", "--modern"), "max_line 1MiB", "stop_grace 200ms"),
			block(child("hurried", "--modern"), "timeout 1s", "stop_grace 200ms"),
			block(child("dying", "--exit-at-start", "3"), "timeout 10s", "start_timeout 2s"),
			block(child("dumb", "--hang-init"), "timeout 10s", "start_timeout 1s", "stop_grace 200ms"),
		},
		hopeless: []string{"dying", "dumb"},
		site: []string{block("mcp_gateway", "separator __", "mcp_path /checked/mcp", "rpc_path /checked/api/mcp-gateway", "health_interval 300ms", "health_timeout 1s",
			block(child("hanging"), "timeout 30s", "stop_grace 200ms"))},
	})
	all := byDoor("200 result", "200 result", "200 result")
	for _, f := range []fault{
		{name: "is killed in mid-call", begin: killed("bad"), tool: "hang", ends: everywhere("connect_error")},
		{name: "exits in mid-call", tool: "die", arguments: `{"code":3}`, calls: 1, ends: everywhere("connect_error")},
		{name: "never answers", server: "hurried", tool: "hang", ends: everywhere("timeout")},
		{name: "is stopped", server: "hurried", begin: stopped("hurried"), tool: "echo", ends: everywhere("timeout")},
		{name: "hangs and fails its health check", gateway: "/checked", begin: stopped("hanging"), server: "hanging", tool: "echo", calls: 1, ends: everywhere("connect_error")},
		{name: "writes what is no message", tool: "noise", arguments: babble(lines), ends: all},
		{name: "writes to stderr without end", tool: "stderr", arguments: babble(lines), ends: all},
		{name: "writes a line longer than max_line", tool: "big", arguments: `{"n":2000000}`, ends: everywhere("invalid_response")},
		{name: "writes half a line and no more", server: "hurried", tool: "half", ends: everywhere("timeout")},
		{name: "closes its output and lives on", tool: "mute", calls: 1, ends: everywhere("connect_error")},
		{name: "answers nobody", tool: "wrong-id", ends: all},
		{name: "answers twice", tool: "late", arguments: `{"ms":50}`, ends: all},
		{name: "exits when it is started", server: "dying", tool: "echo", ends: map[way]string{
			rpc: "502 connect_error", oneServerModern: "502 connect_error", joined: "200 connect_error", joinedModern: "200 connect_error"}},
		{name: "does not shake hands", server: "dumb", tool: "echo", ends: map[way]string{
			rpc: "502 connect_error", oneServerModern: "502 connect_error", joined: "200 connect_error", joinedModern: "200 connect_error"}},
	} {
		if f.server == "" {
			f.server = "bad"
		}
		s.endures(t, f)
	}
}

// babble is what a child is to write.
func babble(lines int) string {
	return `{"lines":` + strconv.Itoa(lines) + `,"text":"` + strings.Repeat("noise ", 200) + `"}`
}

// signal sends a signal to all processes of a server.
func (s *stage) signal(server string, signal syscall.Signal) {
	for _, p := range s.processes() {
		if p.name == server {
			_ = syscall.Kill(p.pid, signal)
		}
	}
}

// stopped has the processes of a server hang until the fault is over, or they are
// killed.
func stopped(server string) func(*ordeal) func() {
	return func(o *ordeal) func() {
		goOn := again(20*time.Millisecond, func() { o.signal(server, syscall.SIGSTOP) })
		await.Until(o.T, "the child to be stopped", func() bool {
			return slices.ContainsFunc(o.processes(), func(p process) bool { return p.name == server && p.state == 'T' })
		})
		return func() {
			goOn()
			o.signal(server, syscall.SIGCONT)
		}
	}
}

// killed kills the processes of a server again and again.
func killed(server string) func(*ordeal) func() {
	return func(o *ordeal) func() {
		return again(300*time.Millisecond, func() { o.signal(server, syscall.SIGKILL) })
	}
}

// again does something at a pace, until what it returns is called.
func again(pace time.Duration, do func()) (end func()) {
	over := make(chan struct{})
	var doing sync.WaitGroup
	doing.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
			}
			do()
		}
	})
	return func() {
		close(over)
		doing.Wait()
	}
}
