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

// TestChildFails has child processes fail: A35 to A39, A41.
func TestChildFails(t *testing.T) {
	lines := byLength(500, 2_000)
	s := newTestbed(t, testbedConfig{
		gateway: []string{
			block(child("bad", "--modern"), "max_line 1MiB", "stop_grace 200ms"),
			block(child("hurried", "--modern"), "timeout 1s", "stop_grace 200ms"),
			block(child("dying", "--exit-at-start", "3"), "timeout 10s", "start_timeout 2s"),
			block(child("dumb", "--hang-init"), "timeout 10s", "start_timeout 1s", "stop_grace 200ms"),
		},
		neverReady: []string{"dying", "dumb"},
		site: []string{block("mcp_gateway", "separator __", "mcp_path /checked/mcp", "rpc_path /checked/api/mcp-gateway",
			"health_interval 300ms", "health_timeout 1s",
			block(child("hanging"), "timeout 30s", "stop_grace 200ms"))},
	})
	all := byEndpoint("200 result", "200 result", "200 result")
	for _, f := range []fault{
		{name: "is killed during a call", start: killRepeatedly("bad"), tool: "hang", want: gatewayError("connect_error")},
		{name: "exits during a call", tool: "die", arguments: `{"code":3}`, calls: 1, want: gatewayError("connect_error")},
		{name: "never responds", server: "hurried", tool: "hang", want: gatewayError("timeout")},
		{name: "is suspended", server: "hurried", start: suspendServer("hurried"), tool: "echo",
			want: gatewayError("timeout")},
		{name: "hangs and fails its health check", gateway: "/checked", start: suspendServer("hanging"), server: "hanging",
			tool: "echo", calls: 1, want: gatewayError("connect_error")},
		{name: "writes lines that are not messages", tool: "noise", arguments: noiseArguments(lines), want: all},
		{name: "writes much to stderr", tool: "stderr", arguments: noiseArguments(lines), want: all},
		{name: "writes a line longer than max_line", tool: "big", arguments: `{"n":2000000}`,
			want: gatewayError("invalid_response")},
		{name: "writes half a line", server: "hurried", tool: "half", want: gatewayError("timeout")},
		{name: "closes its output and keeps running", tool: "mute", calls: 1, want: gatewayError("connect_error")},
		{name: "responds with an unknown id", tool: "wrong-id", want: all},
		{name: "responds twice", tool: "late", arguments: `{"ms":50}`, want: all},
		{name: "exits at start", server: "dying", tool: "echo", want: map[endpoint]string{
			rpc: "502 connect_error", oneServerModern: "502 connect_error", joined: "200 connect_error",
			joinedModern: "200 connect_error"}},
		{name: "does not initialize", server: "dumb", tool: "echo", want: map[endpoint]string{
			rpc: "502 connect_error", oneServerModern: "502 connect_error", joined: "200 connect_error",
			joinedModern: "200 connect_error"}},
	} {
		if f.server == "" {
			f.server = "bad"
		}
		s.runCallFault(t, f)
	}
}

// noiseArguments returns the arguments for a tool that writes this many lines.
func noiseArguments(lines int) string {
	return `{"lines":` + strconv.Itoa(lines) + `,"text":"` + strings.Repeat("noise ", 200) + `"}`
}

// signal sends a signal to all processes of a server.
func (s *testbed) signal(server string, signal syscall.Signal) {
	for _, p := range s.processes() {
		if p.name == server {
			_ = syscall.Kill(p.pid, signal)
		}
	}
}

// suspendServer suspends the processes of a server with SIGSTOP until the fault ends or they are
// killed.
func suspendServer(server string) func(*faultRun) func() {
	return func(o *faultRun) func() {
		stop := repeatEvery(20*time.Millisecond, func() { o.signal(server, syscall.SIGSTOP) })
		await.Until(o.T, "the child to be stopped", func() bool {
			return slices.ContainsFunc(o.processes(), func(p process) bool { return p.name == server && p.state == 'T' })
		})
		return func() {
			stop()
			o.signal(server, syscall.SIGCONT)
		}
	}
}

// killRepeatedly kills the processes of a server repeatedly, until the fault ends.
func killRepeatedly(server string) func(*faultRun) func() {
	return func(o *faultRun) func() {
		return repeatEvery(300*time.Millisecond, func() { o.signal(server, syscall.SIGKILL) })
	}
}

// repeatEvery calls do at intervals until end is called.
func repeatEvery(pace time.Duration, do func()) (end func()) {
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
