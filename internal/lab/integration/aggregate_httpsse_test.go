package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// An httpSSEServer is a server of the official SDK over HTTP+SSE, with the lines that it printed.
type httpSSEServer struct {
	t       *testing.T // the server stops when it ends
	address string
	cmd     *exec.Cmd
	ended   chan struct{}

	mu    sync.Mutex
	lines []string
}

func newHTTPSSEServer(t *testing.T) *httpSSEServer {
	t.Helper()
	s := &httpSSEServer{t: t, address: freeAddress(t)}
	s.start()
	return s
}

// start starts the server, or restarts it.
func (s *httpSSEServer) start() {
	t := s.t
	t.Helper()
	_, port, _ := net.SplitHostPort(s.address)
	s.cmd = peer(t, "httpsse.mjs", port)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := s.count("ready")
	s.ended = make(chan struct{})
	ended, cmd := s.ended, s.cmd
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, lines.Text())
			s.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() { s.kill(t) })
	s.await(t, "ready", ready+1)
}

// kill kills the server.
func (s *httpSSEServer) kill(t *testing.T) {
	t.Helper()
	_ = s.cmd.Process.Kill()
	wait(t, s.ended, "the end of the server")
}

// count returns how often the server has printed a line.
func (s *httpSSEServer) count(line string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, noted := range s.lines {
		if noted == line {
			n++
		}
	}
	return n
}

// await waits until the server has printed a line n times.
func (s *httpSSEServer) await(t *testing.T, line string, n int) {
	t.Helper()
	await.Until(t, fmt.Sprintf("%d × %s", n, line), func() bool { return s.count(line) >= n })
}

// Servers of the protocol's first revision work like others, for clients of both eras and together
// with other servers.
func TestAggregateHTTPSSE(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			s := newHTTPSSEServer(t)
			address := freeAddress(t)
			config := func(more ...string) string {
				return site(address, gateway(append([]string{"separator __", "server sse http://" + s.address + "/sse",
					child("other")}, more...)...))
			}
			load(t, config())
			endpoint := joinedAt("http://" + address)
			c := newTestClient(t, endpoint, era.modern, fullCapabilities)
			answered := func(t *testing.T, c *testClient, tool, answer string) string {
				t.Helper()
				params := callOf("sse", tool, `{}`)
				d := c.begin(t, "tools/call", params)
				m := d.next(t)
				if c.Modern {
					return c.ask(t, "tools/call", retryParams(params, m.Input(t), func(string) string { return answer })).answer.Text()
				}
				c.respond(t, m, answer)
				return d.finish(t).answer.Text()
			}
			t.Run("lists", func(t *testing.T) {
				for method, want := range map[string]string{"tools/list": `"sse__count"`, "resources/list": proxyURI("sse",
					"note://one")} {
					if got := c.ask(t, method, `{}`).answer; !strings.Contains(string(got.Result), want) || method == "tools/list" &&
						!strings.Contains(string(got.Result), `"other__echo"`) {
						t.Errorf("%s: got %s, want %s in it", method, got.Raw, want)
					}
				}
			})
			t.Run("calls", func(t *testing.T) {
				for _, want := range []string{"1", "2"} {
					same(t, c.use(t, "sse", "count", `{}`), want)
				}
				if got := c.use(t, "other", "slow", `{"ms":0}`); got != "slept" {
					t.Errorf("the other server returned %q", got)
				}
				got := c.ask(t, "resources/read", `{"uri":`+quote(proxyURI("sse", "note://one"))+`}`).answer
				if !strings.Contains(string(got.Result), `"text":"one"`) {
					t.Errorf("got %s", got.Raw)
				}
			})
			t.Run("progress", func(t *testing.T) {
				got := c.ask(t, "tools/call", callOf("sse", "progress", `{}`, `"_meta":{"progressToken":"mine"}`))
				if len(got.events) != 3 || string(got.events[2].Params.ProgressToken) != `"mine"` ||
					got.events[2].Params.Progress != 3 || got.answer.Text() != "done" {
					t.Errorf("%v before %s", got.events, got.answer.Raw)
				}
			})
			t.Run("server requests", func(t *testing.T) {
				if got := answered(t, c, "ask", formAnswer); !strings.Contains(got, `"action":"accept"`) {
					t.Errorf("the server received %s", got)
				}
				if got := answered(t, c, "sample", sampleAnswer); !strings.Contains(got, `"model":"m"`) {
					t.Errorf("the server received %s", got)
				}
			})
			t.Run("changes", func(t *testing.T) {
				uri := proxyURI("sse", "note://one")
				var d *exchange
				if c.Modern {
					d = c.begin(t, "subscriptions/listen", `{"notifications":{"toolsListChanged":true,"resourceSubscriptions":[`+
						quote(uri)+`]}}`)
					d.awaitMessage(t, "notifications/subscriptions/acknowledged")
				} else {
					c.ask(t, "resources/subscribe", `{"uri":`+quote(uri)+`}`)
					d = c.listen(t)
				}
				defer d.Cancel()
				// Until the gateway has subscribed, notifications arrive in the response to the call.
				awaitFrom := func(tool, method string) mcpclient.Message {
					t.Helper()
					var received mcpclient.Message
					await.Until(t, method, func() bool {
						c.use(t, "sse", tool, `{}`)
						for {
							select {
							case received = <-d.Messages:
								if received.Method == method && received.Params.Proxy.Server == "sse" {
									return true
								}
							case <-time.After(100 * time.Millisecond):
								return false
							}
						}
					})
					return received
				}
				if m := awaitFrom("touch", "notifications/resources/updated"); m.Params.URI != uri {
					t.Errorf("got %s, want %s", m.Raw, uri)
				}
				awaitFrom("change", "notifications/tools/list_changed")
				await.Until(t, "the tool", func() bool {
					return strings.Contains(string(c.ask(t, "tools/list", `{}`).answer.Result), `"sse__more1"`)
				})
			})
			t.Run("cancellation", func(t *testing.T) {
				d := c.begin(t, "tools/call", callOf("sse", "hang", `{}`))
				s.await(t, "hanging", 1)
				if c.Modern {
					d.Cancel()
				} else {
					c.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`}}`)
					d.awaitEnd(t)
				}
				s.await(t, "cancelled", 1)
			})
			t.Run("two clients", func(t *testing.T) {
				other := newTestClient(t, endpoint, era.modern, fullCapabilities, "Authorization: Bearer other")
				same(t, other.use(t, "sse", "count", `{}`), "1")
				same(t, c.use(t, "sse", "count", `{}`), "3")
				var asked sync.WaitGroup
				for name, caller := range map[string]*testClient{"one": c, "other": other} {
					asked.Go(func() {
						for range 5 {
							if got := answered(t, caller, "ask", `{"action":"accept","content":{"name":"`+name+
								`"}}`); !strings.Contains(got, `"`+name+`"`) {
								t.Errorf("%s got the name %s", name, got)
							}
						}
					})
				}
				asked.Wait()
				if n := s.count("opened"); n != 2 {
					t.Errorf("got %d streams", n)
				}
				if !era.modern {
					send(t, client, "DELETE", endpoint, "", other.Headers...)
					s.await(t, "closed", 1)
				}
			})
			t.Run("reload", func(t *testing.T) {
				load(t, config(child("new")))
				same(t, c.use(t, "sse", "count", `{}`), "4")
				if n := s.count("opened"); n != 2 {
					t.Errorf("got %d streams", n)
				}
			})
			t.Run("restart", func(t *testing.T) {
				s.kill(t)
				s.start()
				same(t, c.use(t, "sse", "count", `{}`), "1")
			})
			t.Run("exit during a call", func(t *testing.T) {
				got := c.ask(t, "tools/call", callOf("sse", "exit", `{}`)).answer
				if got.Error == nil || got.Error.Symbol() != "connect_error" || got.Error.Server() != "sse" ||
					!strings.Contains(got.Error.Message, "event stream") {
					t.Errorf("got %s, want an error about the exit", got.Raw)
				}
				wait(t, s.ended, "the end of the server")
				s.start()
				same(t, c.use(t, "sse", "count", `{}`), "1")
				if n := s.count("exiting"); n != 1 {
					t.Errorf("got %d calls", n)
				}
			})
			t.Run("removal", func(t *testing.T) {
				closed := s.count("closed")
				load(t, site(address, gateway("separator __", child("other"))))
				s.await(t, "closed", closed+1)
			})
		})
	}
}

// Streams of servers end with Caddy, which does not wait for them.
func TestAggregateHTTPSSEStops(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	server := &mcptest.HTTPSSE{Server: remote}
	url := serve(t, gateway("separator __", "server far http://"+upstream(t, server)+"/sse"))
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
		c.use(t, "far", "echo", `{}`)
		c.listenForChanges(t)
	}
	if now, ever := server.Open(); now != 2 || ever != 2 {
		t.Errorf("%d streams are open, of %d, want 2", now, ever)
	}
	t.Run("a stream that breaks off", func(t *testing.T) {
		c := newTestClient(t, joinedAt(url), false, fullCapabilities)
		d := c.begin(t, "tools/call", callOf("far", "hang", `{}`))
		await.Until(t, "the call", func() bool { return len(remote.Seen("hanging")) == 1 })
		server.Drop()
		if got := d.finish(t).answer; got.Error == nil || got.Error.Symbol() != "connect_error" {
			t.Errorf("got %s, want an error that it broke off", got.Raw)
		}
		c.use(t, "far", "echo", `{}`)
		if n := len(remote.Seen("hanging")); n != 1 {
			t.Errorf("got %d calls", n)
		}
	})
	caddyOf(t).caddy.stop(t)
	await.Until(t, "the streams to end", func() bool { now, _ := server.Open(); return now == 0 })
}

// All requests to an HTTP+SSE server pass its handlers. Configured answers are posted to the
// endpoint that the server names.
func TestAggregateHTTPSSEHandlers(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	server := &mcptest.HTTPSSE{Server: remote}
	address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "secret" {
			t.Errorf("%s %s without a key", r.Method, r.URL)
		}
		if r.Header.Get("Authorization") != "" || r.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s %s with %v", r.Method, r.URL, r.Header)
		}
		server.ServeHTTP(w, r)
	}))
	url := serve(t, gateway("separator __", block("server far http://"+address+"/sse", "request_header X-Key secret"),
		child("other"),
		block("answer far roots/list", "roots file:///configured"), "answer far sampling/createMessage drop"))
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, "Authorization: Bearer mine")
			if got := c.ask(t, "tools/call", requestingCall("far", "roots/list")).answer.Text(); !strings.Contains(got,
				"file:///configured") {
				t.Errorf("the server received %s", got)
			}
			if got := c.ask(t, "tools/call",
				requestingCall("far", "sampling/createMessage")).answer.Text(); !strings.Contains(got, "-32601") {
				t.Errorf("the server received %s", got)
			}
		})
	}
	if got := post(t, rpcAt(url, "far"), rpc("tools/list", `{}`)); gatewayErrorOf(t, got).Symbol != "http_error" ||
		!strings.Contains(got.body, "it speaks HTTP+SSE") {
		t.Errorf("/rpc returned %s", got.body)
	}
}

// A server changes its transport while clients are connected.
func TestAggregateHTTPSSEUpgrades(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: true}
			t.Cleanup(remote.Close)
			old := &mcptest.HTTPSSE{Server: remote}
			var now atomic.Pointer[http.Handler]
			become := func(h http.Handler) {
				now.Store(&h)
				remote.Forget()
				old.Drop()
				await.Until(t, "the streams to end", func() bool { open, _ := old.Open(); return open == 0 })
			}
			become(old)
			url := serve(t, gateway("separator __", child("other"),
				"server far http://"+upstream(t,
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*now.Load()).ServeHTTP(w, r) }))+"/sse"))
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
			for _, h := range []http.Handler{old, remote, old, old, remote} {
				become(h)
				if got := c.use(t, "far", "echo", `{"n":1}`); !strings.Contains(got, `{"n":1}`) {
					t.Errorf("%T: got %s", h, got)
				}
				if open, _ := old.Open(); (open > 0) != (h == http.Handler(old)) {
					t.Errorf("%T: %d streams are open", h, open)
				}
			}
		})
	}
}

// An HTTP+SSE server is not trusted, and cannot affect other servers.
func TestAggregateHTTPSSEHostile(t *testing.T) {
	isolate(t)
	var requested sync.Map
	trap := upstream(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requested.Store(r.URL.String(), true)
	}))
	open := map[string]*sync.WaitGroup{}
	hostile := func(name string, say func(w io.Writer, flush func())) string {
		open[name] = new(sync.WaitGroup)
		return "server " + name + " http://" + upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				http.Error(w, "GET only", http.StatusMethodNotAllowed)
				return
			}
			open[name].Add(1)
			defer open[name].Done()
			w.Header().Set("Content-Type", "text/event-stream")
			say(w, func() { _ = http.NewResponseController(w).Flush() })
			<-r.Context().Done()
		})) + "/sse"
	}
	lines := []string{"separator __", "join_timeout 3s", child("good"),
		hostile("elsewhere", func(w io.Writer, flush func()) {
			fmt.Fprintf(w, "event: endpoint\ndata: http://%s/message\n\n", trap)
			flush()
		}),
		hostile("silent", func(w io.Writer, flush func()) {
			fmt.Fprint(w, ": hello\n\nevent: message\ndata: {}\n\n")
			flush()
		}),
		hostile("endless", func(w io.Writer, flush func()) {
			for _, err := fmt.Fprint(w, "event: endpoint\ndata: /"); err == nil; flush() {
				_, err = fmt.Fprint(w, strings.Repeat("x", 1<<16))
			}
		}),
	}
	url := serve(t, gateway(lines...))
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
			got := c.ask(t, "tools/list", `{}`).answer
			if !strings.Contains(string(got.Result), `"good__echo"`) {
				t.Errorf("got %.300s", got.Raw)
			}
			if got := c.use(t, "good", "slow", `{"ms":0}`); got != "slept" {
				t.Errorf("got %q", got)
			}
		})
	}
	requested.Range(func(url, _ any) bool {
		t.Errorf("%s was requested", url)
		return true
	})
	log := caddyOf(t).caddy.stop(t)
	for _, all := range open {
		all.Wait() // all streams are closed
	}
	lines = strings.Split(log, "\n")
	if !slices.ContainsFunc(lines, func(line string) bool {
		return strings.Contains(line, `"mcp_server":"elsewhere"`) && strings.Contains(line, "an endpoint at another host")
	}) {
		t.Errorf("the log does not name the server with an endpoint at another host:\n%.5000s", log)
	}
}
