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

// What clients do to the gateway: G15, G24, G25, A29, A32.
func TestClientFails(t *testing.T) {
	big := text(strings.Repeat("x", 16<<20))
	var waiting, gone atomic.Int64
	far := newServer(t, map[string]func(*exchange){
		"hang": func(x *exchange) {
			waiting.Add(1)
			defer gone.Add(1)
			waits(x)
		},
		"big": func(x *exchange) { answer(x.w, x.id, big) },
	})
	modern := &mcptest.Remote{Name: "modern", Modern: true}
	journal := filepath.Join(t.TempDir(), "journal")
	s := newStage(t, play{
		servers: []*httpServer{far.Server},
		gateway: []string{
			block("server away "+far.URL+"/mcp", "mask off"),
			"server modern " + newUpstream(t, modern).URL + "/mcp",
			block(child("child", "--modern"), "env DS_LOG "+journal, "mask off"),
		},
		site: []string{
			block("mcp_gateway", "separator __", "mcp_path /rated/mcp", "rpc_path /rated/api/mcp-gateway", "rate 60/1m burst 10", "server away "+far.URL+"/mcp"),
			block("mcp_gateway", "separator __", "mcp_path /few/mcp", "rpc_path /few/api/mcp-gateway", "max_sessions 100", "server away "+far.URL+"/mcp"),
		},
	})
	callers := map[way]*caller{}
	for _, w := range everyWay {
		callers[w] = s.caller(t, w)
		for _, server := range []string{"away", "child"} {
			callers[w].meet(t, server)
			callers[w].recovers(t, server)
		}
	}
	hangUp := func() {
		for _, c := range callers {
			c.http.CloseIdleConnections()
		}
	}
	hangUp()
	parallel := more(4, 16)

	for _, server := range []string{"away", "child"} {
		s.endure(t, "leaves in mid-call of "+map[string]string{"away": "a server over HTTP", "child": "a child"}[server], 64, func(o *ordeal) {
			leaving, leave := context.WithCancel(t.Context())
			var running sync.WaitGroup
			began, begun := waiting.Load(), cancelled(journal, `"name":"hang"`)
			endedBefore := cancelled(journal, `"event":"cancelled"`)
			for w, c := range callers {
				for range parallel {
					running.Go(func() {
						got := c.callUntil(leaving, server, "hang", "")
						o.ended(w, outcome{class: "it leaves", took: got.took})
					})
				}
			}
			calls := len(callers) * parallel
			await.Until(o.T, "the calls to arrive", func() bool {
				if server == "away" {
					return waiting.Load()-began == int64(calls)
				}
				return cancelled(journal, `"name":"hang"`)-begun == calls
			})
			leave()
			running.Wait()
			await.Until(o.T, "G25 the calls to be cancelled", func() bool {
				if server == "away" {
					return gone.Load() == waiting.Load()
				}
				return cancelled(journal, `"event":"cancelled"`)-endedBefore == calls
			})
		})
	}

	s.endure(t, "reads a byte per second", more(96, 384), func(o *ordeal) {
		var conns []net.Conn
		for _, w := range []way{rpc, oneServer, joined} {
			for range more(5, 20) {
				conns = append(conns, o.slowReader(callers[w], "away", "big"))
			}
		}
		pace := time.NewTicker(time.Second)
		defer pace.Stop()
		for range more(3, 15) {
			<-pace.C
			for _, conn := range conns {
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					o.Error(err)
				}
			}
		}
		for _, conn := range conns {
			conn.Close()
			o.ended(joined, outcome{class: "it leaves"})
		}
	})

	for _, slow := range []struct{ name, beginning, again string }{
		{"sends headers a byte at a time", "POST %s HTTP/1.1\r\nHost: %s\r\nX-More: ", "x"},
		{"sends a body a byte at a time", "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n{", " "},
	} {
		s.endure(t, slow.name, more(64, 128), func(o *ordeal) {
			var running sync.WaitGroup
			leaves := make(chan struct{})
			for w, c := range callers {
				for range more(10, 100) {
					running.Go(func() {
						o.sendSlowly(c, slow.beginning, slow.again, leaves)
						o.ended(w, outcome{class: "it leaves"})
					})
				}
			}
			o.meanwhile(more(30, 300))
			close(leaves)
			running.Wait()
		})
	}

	for _, big := range []struct {
		name, body, class string
	}{
		{"nests deeply", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000) + "}", "400 invalid_request"},
		{"nests without end", strings.Repeat(`{"a":`, 1_000_000), "400 invalid_request"},
		{"sends more than request_limit", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"` + strings.Repeat("x", 11<<20) + `"}`, "413 payload_too_large"},
		{"has a million members", `{"jsonrpc":"2.0","id":null,` + strings.Repeat(`"a":1,`, 1_000_000) + `"method":"x"}`, ""},
	} {
		s.endure(t, big.name, 192, func(o *ordeal) {
			var running sync.WaitGroup
			for w, c := range callers {
				running.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), guard)
					defer cancel()
					got := c.send(ctx, "away", "null", big.body)
					o.ended(w, got)
					if big.class != "" && got.class != big.class || got.class == "no answer" || got.class == "never ended" {
						o.wrong(w, "ended with %s, want %s: %.300q", got.class, big.class, got.body)
					}
				})
			}
			running.Wait()
			hangUp()
		})
	}

	s.endure(t, "floods the gateway with calls", more(192, 384), func(o *ordeal) {
		flood(o, more(500, 5_000), func(i int) outcome {
			w := everyWay[i%len(everyWay)]
			got := callers[w].call(o, "away", "echo", fmt.Sprintf(`{"text":"%d"}`, i))
			if got.class != "200 result" || echoed(got.text) != strconv.Itoa(i) {
				o.wrong(w, "ended with %s %s: %.300q", got.class, got.text, got.body)
			}
			return got
		})
		hangUp()
	})

	s.endure(t, "floods the gateway with calls beyond its rate", 192, func(o *ordeal) {
		var refused, served atomic.Int64
		c := newCaller(t, s.url+"/rated", rpc)
		flood(o, more(500, 5_000), func(int) outcome {
			got := c.call(o, "away", "echo", "")
			switch got.class {
			case "429 rate_limited":
				refused.Add(1)
			case "200 result":
				served.Add(1)
			default:
				o.wrong(rpc, "ended with %s: %.300q", got.class, got.body)
			}
			return got
		})
		if served.Load() == 0 || refused.Load() < served.Load() {
			o.Errorf("A32 %d served, %d refused", served.Load(), refused.Load())
		}
		c.http.CloseIdleConnections()
	})

	s.endure(t, "floods the gateway with sessions", 192, func(o *ordeal) {
		c := newCaller(t, s.url+"/few", joined)
		flood(o, more(1_000, 3_000), func(i int) outcome {
			ctx, cancel := context.WithTimeout(t.Context(), guard)
			defer cancel()
			got := c.send(ctx, "", `"hi"`, `{"jsonrpc":"2.0","id":"hi","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`+strconv.Itoa(i)+`","version":"1"}}}`)
			if got.class != "200 result" || got.session == "" {
				o.wrong(joined, "ended with %s: %.300q", got.class, got.body)
			}
			return got
		})
		c.http.CloseIdleConnections()
	})

	s.endure(t, "floods the gateway with connections", more(192, 384), func(o *ordeal) {
		var conns []net.Conn
		for range more(500, 2_000) {
			conns = append(conns, o.dial())
		}
		o.meanwhile(more(15, 100))
		for _, conn := range conns {
			o.ended(rpc, outcome{class: "it leaves"})
			conn.Close()
		}
	})
}

// flood makes so many calls, as many at a time as there may be.
func flood(o *ordeal, calls int, one func(i int) outcome) {
	var running sync.WaitGroup
	places := make(chan struct{}, more(100, 400))
	for i := range calls {
		places <- struct{}{}
		running.Go(func() {
			o.ended(rpc, one(i))
			<-places
		})
	}
	running.Wait()
}

// cancelled counts what a child has written down.
func cancelled(journal, what string) int {
	text, _ := os.ReadFile(journal)
	return strings.Count(string(text), what)
}

// dial connects to the site.
func (s *stage) dial() net.Conn {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		panic(err)
	}
	return conn
}

// slowReader calls a tool and leaves the answer to be read.
func (o *ordeal) slowReader(c *caller, server, tool string) net.Conn {
	o.Helper()
	conn := o.dial()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	if c.way == joined || c.way == joinedModern {
		tool = server + "__" + tool
	}
	req := c.request(o.Context(), server, c.toolCall(`"slow"`, tool, "{}"))
	if err := req.Write(conn); err != nil {
		o.Error(err)
	}
	return conn
}

// sendSlowly begins a request, and does not come to its end before it leaves.
func (o *ordeal) sendSlowly(c *caller, beginning, again string, leaves <-chan struct{}) {
	conn := o.dial()
	defer conn.Close()
	url := c.request(o.Context(), "away", "").URL
	_, err := fmt.Fprintf(conn, beginning, url.Path, url.Host)
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for err == nil {
		select {
		case <-leaves:
			return
		case <-pace.C:
			_, err = io.WriteString(conn, again)
		}
	}
	o.Errorf("it was hung up on: %v", err)
}
