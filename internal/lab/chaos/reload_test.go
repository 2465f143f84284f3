//go:build linux

package chaos

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// An operator reloads, with and without a change, while servers fail and clients call: G27,
// A60. Calls end as they would without it, and no child of a server that is the same is
// started anew. What got no answer, because its connection was closed, is sent again.
func TestReloadWhileThingsFail(t *testing.T) {
	bad := newServer(t, map[string]func(*exchange){
		"silent":         waits,
		"closes":         says(""),
		"endless-events": repeats(ok+isSSE+"\r\n", strings.Replace(noise, "here", strings.Repeat("here", 1000), 1), endless),
		"endless-string": repeats(ok+isJSON+"\r\n"+begun, strings.Repeat("x", 10_000), endless),
	})
	s := newStage(t, play{
		servers: []*httpServer{bad.Server},
		gateway: []string{"name chaos", "server bad " + bad.URL + "/mcp", block("server hurried "+bad.URL+"/mcp", "timeout 1s"), block(child("dying"), "stop_grace 200ms")},
	})
	// A connection may be closed by the one configuration just when it is used again.
	for _, n := range s.neighbours {
		n.patient = true
	}
	callers := map[way]*caller{}
	for _, w := range everyWay {
		callers[w] = s.caller(t, w)
		callers[w].patient = true
		for _, server := range []string{"bad", "hurried", "dying"} {
			callers[w].meet(t, server)
			callers[w].recovers(t, server)
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
	s.endure(t, "reloads", 192, func(o *ordeal) {
		over := make(chan struct{})
		var running sync.WaitGroup
		for w, c := range callers {
			for tool, class := range map[string]map[way]string{"silent": everywhere("timeout"), "closes": everywhere("connect_error"), "endless-string": {rpc: "502 timeout"}, "endless-events": {rpc: "502 timeout"}} {
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
						o.ended(w, got)
						if got.class != class[w] {
							o.wrong(w, "%s ended with %s, want %s: %.300q", tool, got.class, class[w], got.body)
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
		for i := range more(6, 60) {
			config := s.config
			if i%2 == 0 {
				config = strings.Replace(config, "separator __", "separator __\nrequest_limit 9MiB", 1)
			}
			s.askAdmin(t, "POST", "/load", config)
			o.meanwhile(5)
		}
		s.askAdmin(t, "POST", "/load", s.config)
		close(over)
		running.Wait()
		for _, c := range callers {
			c.recovers(t, "dying")
			c.recovers(t, "bad")
			c.http.CloseIdleConnections()
		}
		if now := near(); !slices.Equal(now, before) {
			o.Errorf("A60 the children %v have become %v", before, now)
		}
	})
}
