//go:build linux

package chaos

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// TestClientFails has clients misbehave: G15, G24, G25, A29, A32.
func TestClientFails(t *testing.T) {
	big := text(strings.Repeat("x", 16<<20))
	var waiting, gone atomic.Int64
	far := newServer(t, map[string]func(*exchange){
		"hang": func(x *exchange) {
			waiting.Add(1)
			defer gone.Add(1)
			hangs(x)
		},
		"big": func(x *exchange) { answer(x.w, x.id, big) },
	})
	modern := &mcptest.Remote{Name: "modern", Modern: true}
	journal := filepath.Join(t.TempDir(), "journal")
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{far.Server},
		gateway: []string{
			block("server away "+far.URL+"/mcp", "mask off"),
			"server modern " + newUpstream(t, modern).URL + "/mcp",
			block(child("child", "--modern"), "env DS_LOG "+journal, "mask off"),
		},
		site: []string{
			block("mcp_gateway", "separator __", "mcp_path /rated/mcp", "rpc_path /rated/api/mcp-gateway",
				"rate 60/1m burst 10", "server away "+far.URL+"/mcp"),
			block("mcp_gateway", "separator __", "mcp_path /few/mcp", "rpc_path /few/api/mcp-gateway", "max_sessions 100",
				"server away "+far.URL+"/mcp"),
		},
	})
	callers := map[endpoint]*testClient{}
	for _, w := range endpoints {
		callers[w] = s.initializedClient(t, w)
		for _, server := range []string{"away", "child"} {
			callers[w].initialize(t, server)
			callers[w].awaitRecovery(t, server)
		}
	}
	closeIdle := func() {
		for _, c := range callers {
			c.http.CloseIdleConnections()
		}
	}
	closeIdle()
	parallel := byLength(4, 16)

	for _, server := range []string{"away", "child"} {
		s.runFault(t, "disconnects during a call to "+map[string]string{"away": "an HTTP server",
			"child": "a child"}[server], 64, func(o *faultRun) {
			leaving, leave := context.WithCancel(t.Context())
			var running sync.WaitGroup
			began, begun := waiting.Load(), countInJournal(journal, `"name":"hang"`)
			endedBefore := countInJournal(journal, `"event":"cancelled"`)
			for w, c := range callers {
				for range parallel {
					running.Go(func() {
						got := c.callUntil(leaving, server, "hang", "")
						o.record(w, outcome{class: "client disconnects", took: got.took})
					})
				}
			}
			calls := len(callers) * parallel
			await.Until(o.T, "the calls to arrive", func() bool {
				if server == "away" {
					return waiting.Load()-began == int64(calls)
				}
				return countInJournal(journal, `"name":"hang"`)-begun == calls
			})
			leave()
			running.Wait()
			await.Until(o.T, "G25 the calls to be cancelled", func() bool {
				if server == "away" {
					return gone.Load() == waiting.Load()
				}
				return countInJournal(journal, `"event":"cancelled"`)-endedBefore == calls
			})
		})
	}

	s.runFault(t, "reads a byte per second", byLength(96, 384), func(o *faultRun) {
		var conns []net.Conn
		for _, w := range []endpoint{rpc, oneServer, joined} {
			for range byLength(5, 20) {
				conns = append(conns, o.slowReader(callers[w], "away", "big"))
			}
		}
		pace := time.NewTicker(time.Second)
		defer pace.Stop()
		for range byLength(3, 15) {
			<-pace.C
			for _, conn := range conns {
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					o.Error(err)
				}
			}
		}
		for _, conn := range conns {
			conn.Close()
			o.record(joined, outcome{class: "client disconnects"})
		}
	})

	for _, slow := range []struct{ name, start, repeated string }{
		{"sends headers a byte at a time", "POST %s HTTP/1.1\r\nHost: %s\r\nX-More: ", "x"},
		{"sends a body a byte at a time", "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: " +
			"application/json\r\nContent-Length: 10000\r\n\r\n{", " "},
	} {
		s.runFault(t, slow.name, byLength(64, 128), func(o *faultRun) {
			var running sync.WaitGroup
			stop := make(chan struct{})
			for w, c := range callers {
				for range byLength(10, 100) {
					running.Go(func() {
						o.sendSlowly(c, slow.start, slow.repeated, stop)
						o.record(w, outcome{class: "client disconnects"})
					})
				}
			}
			o.awaitOtherCalls(byLength(30, 300))
			close(stop)
			running.Wait()
		})
	}

	for _, big := range []struct {
		name, body, class string
	}{
		{"nests deeply", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + strings.Repeat("[", 1_000_000) +
			strings.Repeat("]", 1_000_000) + "}", "400 invalid_request"},
		{"nests without end", strings.Repeat(`{"a":`, 1_000_000), "400 invalid_request"},
		{"sends more than request_limit", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"` + strings.Repeat("x",
			11<<20) + `"}`, "413 payload_too_large"},
		{"has a million members", `{"jsonrpc":"2.0","id":null,` + strings.Repeat(`"a":1,`, 1_000_000) + `"method":"x"}`, ""},
	} {
		s.runFault(t, big.name, 192, func(o *faultRun) {
			var running sync.WaitGroup
			for w, c := range callers {
				running.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
					defer cancel()
					got := c.send(ctx, "away", "null", big.body)
					o.record(w, got)
					if big.class != "" && got.class != big.class || got.class == "no response" || got.class == "never ended" {
						o.failOnce(w, "ended with %s, want %s: %.300q", got.class, big.class, got.body)
					}
				})
			}
			running.Wait()
			closeIdle()
		})
	}

	s.runFault(t, "floods the gateway with calls", byLength(192, 384), func(o *faultRun) {
		flood(o, byLength(500, 5_000), func(i int) outcome {
			w := endpoints[i%len(endpoints)]
			got := callers[w].call(o, "away", "echo", fmt.Sprintf(`{"text":"%d"}`, i))
			if got.class != "200 result" || echoed(got.text) != strconv.Itoa(i) {
				o.failOnce(w, "ended with %s %s: %.300q", got.class, got.text, got.body)
			}
			return got
		})
		closeIdle()
	})

	s.runFault(t, "floods the gateway with calls beyond its rate", 192, func(o *faultRun) {
		var refused, served atomic.Int64
		c := newTestClient(t, s.url+"/rated", rpc)
		flood(o, byLength(500, 5_000), func(int) outcome {
			got := c.call(o, "away", "echo", "")
			switch got.class {
			case "429 rate_limited":
				refused.Add(1)
			case "200 result":
				served.Add(1)
			default:
				o.failOnce(rpc, "ended with %s: %.300q", got.class, got.body)
			}
			return got
		})
		if served.Load() == 0 || refused.Load() < served.Load() {
			o.Errorf("A32 %d served, %d refused", served.Load(), refused.Load())
		}
		c.http.CloseIdleConnections()
	})

	s.runFault(t, "floods the gateway with sessions", 192, func(o *faultRun) {
		c := newTestClient(t, s.url+"/few", joined)
		flood(o, byLength(1_000, 3_000), func(i int) outcome {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			got := c.send(ctx, "", `"hi"`, `{"jsonrpc":"2.0","id":"hi","method":"initialize",`+
				`"params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`+strconv.Itoa(i)+
				`","version":"1"}}}`)
			if got.class != "200 result" || got.session == "" {
				o.failOnce(joined, "ended with %s: %.300q", got.class, got.body)
			}
			return got
		})
		c.http.CloseIdleConnections()
	})

	s.runFault(t, "floods the gateway with connections", byLength(192, 384), func(o *faultRun) {
		var conns []net.Conn
		for range byLength(500, 2_000) {
			conns = append(conns, o.dial())
		}
		o.awaitOtherCalls(byLength(15, 100))
		for _, conn := range conns {
			o.record(rpc, outcome{class: "client disconnects"})
			conn.Close()
		}
	})
}

// flood makes this many calls, with limited concurrency.
func flood(o *faultRun, calls int, one func(i int) outcome) {
	var running sync.WaitGroup
	slots := make(chan struct{}, byLength(100, 400))
	for i := range calls {
		slots <- struct{}{}
		running.Go(func() {
			o.record(rpc, one(i))
			<-slots
		})
	}
	running.Wait()
}

// countInJournal counts occurrences of a text in the journal of a child.
func countInJournal(journal, what string) int {
	text, _ := os.ReadFile(journal)
	return strings.Count(string(text), what)
}

// dial connects to the site.
func (s *testbed) dial() net.Conn {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		panic(err)
	}
	return conn
}

// slowReader calls a tool and returns the connection, whose response the caller reads.
func (o *faultRun) slowReader(c *testClient, server, tool string) net.Conn {
	o.Helper()
	conn := o.dial()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	if c.endpoint == joined || c.endpoint == joinedModern {
		tool = server + "__" + tool
	}
	req := c.request(o.Context(), server, c.toolCall(`"slow"`, tool, "{}"))
	if err := req.Write(conn); err != nil {
		o.Error(err)
	}
	return conn
}

// sendSlowly starts a request and continues it slowly, without finishing, until stop is closed.
func (o *faultRun) sendSlowly(c *testClient, start, repeated string, stop <-chan struct{}) {
	conn := o.dial()
	defer conn.Close()
	url := c.request(o.Context(), "away", "").URL
	_, err := fmt.Fprintf(conn, start, url.Path, url.Host)
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for err == nil {
		select {
		case <-stop:
			return
		case <-pace.C:
			_, err = io.WriteString(conn, repeated)
		}
	}
	o.Errorf("the gateway closed the connection: %v", err)
}
