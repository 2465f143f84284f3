//go:build linux

package chaos

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestReloadWhileThingsFail reloads, with and without a change, while servers fail and clients
// call: G27, A60. Calls end as without a reload, and children of unchanged servers keep running.
// Clients repeat calls that got no response because their connection was closed.
func TestReloadWhileThingsFail(t *testing.T) {
	bad := newServer(t, map[string]func(*exchange){
		"silent": hangs,
		"closes": sends(""),
		"endless-events": sendsRepeatedly(ok+isSSE+"\r\n", strings.Replace(noiseEvent, "here", strings.Repeat("here", 1000),
			1), unlimited),
		"endless-string": sendsRepeatedly(ok+isJSON+"\r\n"+resultStart, strings.Repeat("x", 10_000), unlimited),
	})
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{bad.Server},
		gateway: []string{"name chaos", "server bad " + bad.URL + "/mcp", block("server hurried "+bad.URL+"/mcp",
			"timeout 1s"), block(child("dying"), "stop_grace 200ms")},
	})
	// A reload may close a connection just when it is used again.
	for _, n := range s.otherClients {
		n.retries = true
	}
	callers := map[endpoint]*testClient{}
	for _, w := range endpoints {
		callers[w] = s.initializedClient(t, w)
		callers[w].retries = true
		for _, server := range []string{"bad", "hurried", "dying"} {
			callers[w].initialize(t, server)
			callers[w].awaitRecovery(t, server)
		}
	}
	near := func() (pids []int) {
		for _, p := range s.processes() {
			if p.name == "near" {
				pids = append(pids, p.pid)
			}
		}
		return pids
	}
	before := near()
	s.runFault(t, "reloads", 192, func(o *faultRun) {
		over := make(chan struct{})
		var running sync.WaitGroup
		for w, c := range callers {
			for tool, class := range map[string]map[endpoint]string{"silent": gatewayError("timeout"),
				"closes": gatewayError("connect_error"), "endless-string": {rpc: "502 timeout"},
				"endless-events": {rpc: "502 timeout"}} {
				if class[w] == "" {
					continue
				}
				server := "hurried"
				if tool == "closes" {
					server = "bad"
				}
				running.Go(func() {
					for {
						got := c.call(o, server, tool, "")
						o.record(w, got)
						if got.class != class[w] {
							o.failOnce(w, "%s ended with %s, want %s: %.300q", tool, got.class, class[w], got.body)
						}
						select {
						case <-over:
							return
						case <-time.After(20 * time.Millisecond):
						}
					}
				})
			}
			running.Go(func() {
				for {
					c.call(o, "dying", "die", `{"code":1}`)
					select {
					case <-over:
						return
					case <-time.After(200 * time.Millisecond):
					}
				}
			})
		}
		for i := range byLength(6, 60) {
			config := s.config
			if i%2 == 0 {
				config = strings.Replace(config, "separator __", "separator __\nrequest_limit 9MiB", 1)
			}
			s.adminRequest(t, "POST", "/load", config)
			o.awaitOtherCalls(5)
		}
		s.adminRequest(t, "POST", "/load", s.config)
		close(over)
		running.Wait()
		for _, c := range callers {
			c.awaitRecovery(t, "dying")
			c.awaitRecovery(t, "bad")
			c.http.CloseIdleConnections()
		}
		if now := near(); !slices.Equal(now, before) {
			o.Errorf("A60 the children were %v, now %v", before, now)
		}
	})
}
