package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A cutStream is the stream of a call that a server sends in parts, one per connection.
type cutStream struct {
	p      *fakeServer
	method string
	parts  []func(*connection)

	mu   sync.Mutex
	next int
	call string // id of the call
}

// A connection sends one part of a stream.
type connection struct {
	*incoming
	w http.ResponseWriter
	*cutStream
}

// cutStream makes a server send the stream of a method in parts, one per connection. Each
// connection must continue where the last one ended.
func (p *fakeServer) cutStream(method string, parts ...func(*connection)) {
	s := &cutStream{p: p, method: method, parts: parts}
	serve := func(w http.ResponseWriter, a *incoming) {
		last := a.Header.Get("Last-Event-Id")
		s.mu.Lock()
		n := s.next
		s.next++
		if n == 0 {
			s.call = a.id()
		}
		s.mu.Unlock()
		if want := strconv.Itoa(n); n > 0 && (last != want || a.Header.Get(mcp.SessionHeader) == "" ||
			a.Header.Get(mcp.VersionHeader) == "" || a.Header.Get("Accept") != "text/event-stream") {
			a.refuse(w, http.StatusBadRequest, -32000, "wants to go on after "+last+", not "+want)
			return
		}
		s.parts[n](&connection{a, w, s})
	}
	p.handle(method, serve)
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		if a.Header.Get("Last-Event-Id") == "" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		serve(w, a)
	})
}

// resumed returns the number of requests that resumed the stream.
func (p *fakeServer) resumed() (n int) {
	for _, a := range p.requests("GET") {
		if a.Header.Get("Last-Event-Id") != "" {
			n++
		}
	}
	return n
}

// send sends an event with an id, so that the client can resume after it.
func (c *connection) send(message string) {
	c.sendAs(c.w, fmt.Sprintf("id: %d\nretry: 6000\n", c.next), message)
}

// progress sends progress, with the token of the client or of the gateway.
func (c *connection) progress(n int) {
	token := c.call
	if !strings.HasPrefix(token, `"gateway`) {
		token = `"mine"`
	}
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`,
		token, n))
}

func (c *connection) result(result string) {
	c.send(`{"jsonrpc":"2.0","id":` + c.call + `,"result":` + result + `}`)
}

// progressOf returns the progress that a client received, in order.
func progressOf(s reply) (all []string) {
	for _, e := range s.events {
		if e.method() == "notifications/progress" {
			_, n, _ := strings.Cut(e.data, `"progress":`)
			n, _, _ = strings.Cut(n, "}")
			all = append(all, strings.TrimSuffix(n, `,"proxy":{"server":"a"`))
		}
	}
	return all
}

const withToken = `{"name":"a::x","arguments":{},"_meta":{"progressToken":"mine"}}`

// callWithToken makes a call with a progress token.
func (u *testClient) callWithToken() reply {
	u.t.Helper()
	if u.era == mcp.Legacy {
		return u.ask("tools/call", withToken)
	}
	return u.post(`{"jsonrpc":"2.0","id":` + u.nextID() +
		`,"method":"tools/call","params":{"name":"a::x","arguments":{},"_meta":` + string(u.meta(`,"progressToken":"mine"`)) +
		`}}`)
}

var bothEras = map[string]mcp.Era{"legacy": mcp.Legacy, "modern": mcp.Modern}

// as returns a client of an era.
func (g *testGateway) as(t testing.TB, era mcp.Era) *testClient {
	if era == mcp.Modern {
		return g.modern(t)
	}
	return g.legacy(t)
}

// Fake time: a server ends the stream of a call repeatedly, or its connections break. The client
// does not notice it.
func TestCallsAreResumed(t *testing.T) {
	const parts = 15
	for name, era := range bothEras {
		for ending, end := range map[string]func(*connection){
			"ended": func(*connection) {},
			"broken within an event": func(c *connection) {
				_, _ = io.WriteString(c.w, "id: 99\ndata: {\"jsonrpc\":\"2.0\",")
				panic(http.ErrAbortHandler)
			},
			"ended within an event": func(c *connection) {
				_, _ = io.WriteString(c.w, "id: 99\ndata: {\"jsonrpc\":\"2.0\",")
			},
		} {
			t.Run(name+", "+ending, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := legacyPeer("a")
					all := []func(*connection){func(c *connection) { c.send(""); end(c) }}
					for i := range parts {
						all = append(all, func(c *connection) {
							time.Sleep(time.Second)
							c.progress(i)
							end(c)
						})
					}
					p.cutStream("tools/call", append(all, func(c *connection) {
						c.result(`{"content":[{"type":"resource_link","uri":"x://a"}]}`)
						<-c.Context().Done() // some servers do not end the stream
					})...)
					g := newInMemory(t, func(c *Config) { c.Servers[0].Timeout = 5 * time.Second }, p, legacyPeer("b"))
					defer g.close()
					u := g.as(t, era)
					g.config.Observer.(*recorder).takeRecords()
					s := u.callWithToken()
					var want []string
					for i := range parts {
						want = append(want, strconv.Itoa(i))
					}
					if got := progressOf(s); !slices.Equal(got, want) || !strings.Contains(s.answer, mcp.ResourceURI("a", "x://a")) {
						t.Errorf("got %v and %s", got, s.body)
					}
					if calls, gets := p.count("tools/call"), p.resumed(); calls != 1 || gets != parts+1 {
						t.Errorf("called %d times, resumed %d times", calls, gets)
					}
					for _, r := range g.config.Observer.(*recorder).takeRecords() {
						if r.Method == "tools/call" && (r.Outcome != upstream.OutcomeOK || r.Duration > (parts+1)*7*time.Second) ||
							r.Method == "stream" && era == mcp.Legacy {
							t.Errorf("recorded as %+v", r)
						}
					}
				})
			})
		}
	}
}

// hostRoutes set the host, like request_header does.
type hostRoutes struct {
	fakeRoutes
	hosts chan string // hosts of the requests
}

func (u hostRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	isCall := func(m *jsonrpc.Message) bool { return m.Is(jsonrpc.Method, "tools/call") }
	if r.Header.Get("Last-Event-Id") != "" || isPosted(r, isCall) {
		u.hosts <- r.Host
	}
	r.Host += ".internal"
	return u.fakeRoutes.Serve(w, r, account)
}

// Changes that the routes make to a call do not affect requests that resume it.
func TestResumedCallsHaveTheHostOfTheClient(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("a")
				p.cutStream("tools/call", func(c *connection) { c.send("") }, func(c *connection) { c.progress(1) },
					func(c *connection) { c.result("{}") })
				hosts := make(chan string, 3)
				g := newInMemory(t, func(c *Config) { c.Servers[0].Routes = hostRoutes{fakeRoutes{p}, hosts} }, p)
				defer g.close()
				g.as(t, era).call("a::x")
				for range cap(hosts) {
					if host := <-hosts; host != "gateway.invalid" {
						t.Errorf("got host %s", host)
					}
				}
			})
		})
	}
}

// If a stream cannot be resumed, the call fails. It is not repeated, because it may have run.
func TestCallsThatCannotBeResumed(t *testing.T) {
	for name, era := range bothEras {
		for ending, tt := range map[string]struct {
			rest script
			want string // symbol of the error
		}{
			"a lost session": {func(w http.ResponseWriter, a *incoming) {
				a.write(w, http.StatusNotFound, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`)
			}, "connect_error"},
			"an unknown event": {func(w http.ResponseWriter, a *incoming) {
				a.write(w, http.StatusBadRequest, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,`+
					`"message":"Invalid event ID format"}}`)
			}, "connect_error"},
			"no such method": {func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusMethodNotAllowed) },
				"connect_error"},
			"no stream": {func(w http.ResponseWriter, a *incoming) { a.write(w, http.StatusOK, `{}`) },
				"connect_error"},
			"an unavailable server": {func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusServiceUnavailable) },
				"connect_error"},
			"no new event":  {func(w http.ResponseWriter, a *incoming) { a.send(w, "") }, "connect_error"},
			"no connection": {func(http.ResponseWriter, *incoming) { panic(http.ErrAbortHandler) }, "connect_error"},
			"silence": {func(w http.ResponseWriter, a *incoming) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(http.StatusOK)
				<-a.Context().Done()
			}, "timeout"},
		} {
			t.Run(name+", "+ending, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := legacyPeer("a").handle("tools/call",
						func(w http.ResponseWriter, a *incoming) { a.sendAs(w, "id: 1\nretry: 20\n", "") })
					g := newInMemory(t, func(c *Config) {
						c.Servers[0].Timeout = time.Hour
						if tt.want == "timeout" {
							c.Servers[0].Timeout = 20 * time.Second
						}
					}, p)
					defer g.close()
					u := g.as(t, era)
					u.ask("tools/list", "")
					p.handle("GET", func(w http.ResponseWriter, a *incoming) {
						if a.Header.Get("Last-Event-Id") == "" {
							w.WriteHeader(http.StatusMethodNotAllowed)
							return
						}
						tt.rest(w, a)
					})
					s := u.call("a::x")
					if s.symbol() != tt.want {
						t.Errorf("got %d %s", s.status, s.body)
					}
					if n := p.count("tools/call"); n != 1 {
						t.Errorf("called %d times", n)
					}
					attempts := 1
					switch ending {
					case "an unavailable server", "no new event", "no connection":
						attempts = 10
					}
					if n := p.resumed(); n != attempts {
						t.Errorf("resumed %d times, want %d", n, attempts)
					}
				})
			})
		}
	}
}

// Fake time: a server that ends its stream and becomes unreachable gets no more time than a silent
// one.
func TestResumedCallsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) { a.sendAs(w, "id: 1\n", "") })
		p.handle("GET", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusBadGateway) })
		g := newInMemory(t, func(c *Config) { c.Servers[0].Timeout = 5 * time.Second }, p)
		defer g.close()
		began := time.Now()
		s := g.legacy(t).call("a::x")
		if took := time.Since(began); s.symbol() != "timeout" || took != 5*time.Second {
			t.Errorf("got %s after %v", s.body, took)
		}
	})
}

// A stream that times out is not resumed, because it has not ended.
func TestSilentCallsAreNotResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.sendAs(w, "id: 1\nretry: 10\n", "")
			<-a.Context().Done()
		})
		g := newInMemory(t, func(c *Config) { c.Servers[0].Timeout = 5 * time.Second }, p)
		defer g.close()
		if s := g.legacy(t).call("a::x"); s.symbol() != "timeout" || p.resumed() != 0 {
			t.Errorf("got %s, resumed %d times", s.body, p.resumed())
		}
	})
}

// Requests of the gateway itself are resumed, too.
func TestListsAreResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		p.cutStream("tools/list", func(c *connection) { c.send("") }, func(c *connection) { c.send("") },
			func(c *connection) { c.result(`{"tools":[{"name":"x","inputSchema":{}}]}`) })
		g := newInMemory(t, nil, p)
		defer g.close()
		if got := namesIn(t, g.legacy(t).ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) ||
			p.count("tools/list") != 1 {
			t.Errorf("got %q by %d requests", got, p.count("tools/list"))
		}
	})
}

// A server can send requests in a resumed stream, and receives the responses, even if the client
// takes long.
func TestServerRequestsInResumedStreams(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("a")
				answered := p.expect("a-session-1", "7")
				p.cutStream("tools/call", func(c *connection) { c.send("") }, func(c *connection) {
					c.send(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"?"}}`)
				}, func(c *connection) {
					time.Sleep(20 * time.Second) // the client takes longer
					c.send("")
				}, func(c *connection) {
					select {
					case text := <-answered:
						c.result(`{"got":` + text + `}`)
					case <-c.Context().Done():
					}
				})
				g := newInMemory(t, func(c *Config) { c.Servers[0].Timeout = 5 * time.Second }, p)
				defer g.close()
				u := g.as(t, era)
				var answer string
				if era == mcp.Modern {
					in, key := readInput(t, u.call("a::x"))
					time.Sleep(time.Minute)
					answer = u.retry("a::x", in, key, `{"action":"accept"}`).body
				} else {
					live := u.startRequest("tools/call", `{"name":"a::x"}`)
					e := live.nextOf("elicitation/create")
					time.Sleep(time.Minute)
					u.respond(e, `{"action":"accept"}`)
					answer = live.nextOf("").data
					for answer == "" { // an event without data
						answer = live.nextOf("").data
					}
				}
				if !strings.Contains(answer, `"got":{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}`) ||
					p.count("tools/call") != 1 {
					t.Errorf("got %s", answer)
				}
			})
		})
	}
}

// A call is not resumed if the client cancels it or disconnects while the gateway waits.
func TestDisconnectBeforeACallIsResumed(t *testing.T) {
	for name, leave := range map[string]func(*testClient, *liveReply){
		"canceled":     func(u *testClient, _ *liveReply) { u.notify("notifications/cancelled", `{"requestId":2}`) },
		"disconnected": func(_ *testClient, k *liveReply) { k.disconnect() },
		"canceled and disconnected": func(u *testClient, k *liveReply) {
			u.notify("notifications/cancelled", `{"requestId":2}`)
			k.disconnect()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("a").handle("tools/call",
					func(w http.ResponseWriter, a *incoming) { a.sendAs(w, "id: 1\nretry: 10000\n", "") })
				g := newInMemory(t, nil, p)
				defer g.close()
				u := g.legacy(t)
				live := u.start(http.MethodPost, u.request("2", "tools/call", `{"name":"a::x"}`))
				p.waitFor(t, "tools/call", 1)
				synctest.Wait()
				leave(u, live)
				live.waitEnd()
				time.Sleep(time.Minute)
				if n := p.resumed(); n != 0 {
					t.Errorf("resumed %d times", n)
				}
				if n, want := p.count("notifications/cancelled"), strings.Count(name, "canceled"); n != want {
					t.Errorf("the server got %d cancellations, want %d", n, want)
				}
			})
		})
	}
}

// A server ends the stream of a call that the client canceled.
func TestCanceledCallsAreNotResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		canceled := make(chan struct{})
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.sendAs(w, "id: 1\nretry: 10\n", "")
			<-canceled
		})
		p.handle("notifications/cancelled", func(w http.ResponseWriter, _ *incoming) {
			w.WriteHeader(http.StatusAccepted)
			close(canceled)
		})
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.legacy(t)
		live := u.start(http.MethodPost, u.request("2", "tools/call", `{"name":"a::x"}`))
		p.waitFor(t, "tools/call", 1)
		u.notify("notifications/cancelled", `{"requestId":2}`)
		live.waitEnd()
		if n := p.resumed(); n != 0 {
			t.Errorf("resumed %d times", n)
		}
	})
}

// A client resumes a call whose stream the server ends repeatedly.
func TestClientsResumeInterruptedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		parts := []func(*connection){func(c *connection) { c.progress(0); <-c.Context().Done() }}
		for i := range 20 {
			parts = append(parts, func(c *connection) { c.progress(i + 1) })
		}
		p.cutStream("tools/call", append(parts, func(c *connection) { c.result(`{}`); <-c.Context().Done() })...)
		g := newInMemory(t, nil, p)
		defer g.close()
		u, other := g.legacy(t), g.legacy(t)
		live := u.start(http.MethodPost, u.request("2", "tools/call", withToken))
		first := live.next()
		live.disconnect()
		synctest.Wait()
		other.header = http.Header{"Last-Event-Id": {first.last}}
		if stream := other.listen(); stream.status != http.StatusBadRequest {
			t.Errorf("another session: got %d", stream.status)
		}
		u.header = http.Header{"Last-Event-Id": {first.last}}
		stream := u.listen()
		for i := range 20 {
			id := u.event(fmt.Sprintf("call:Mg/a/%d", i+2))
			if e := stream.next(); !strings.Contains(e.data, fmt.Sprintf(`"progress":%d`, i+1)) || e.last != id {
				t.Fatalf("got %+v after %d", e, i)
			}
		}
		if e := stream.next(); e.id() != "2" || !e.isAnswer() {
			t.Errorf("got %+v", e)
		}
		stream.waitEnd()
		if n := p.count("tools/call"); n != 1 {
			t.Errorf("called %d times", n)
		}
	})
}

// A client may resume before the gateway notices the broken connection. Then the gateway leaves the
// rest to the client, even if the server ends the broken stream, or does not know yet that it is
// broken.
func TestClientsResumeCallsOnceOnly(t *testing.T) {
	for name, refusals := range map[string]int{"the server ends the old stream": 0, "the server does not know yet": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				back := make(chan struct{})
				p := legacyPeer("a")
				p.cutStream("tools/call", func(c *connection) {
					c.progress(0)
					select {
					case <-back:
					case <-c.Context().Done():
					}
				}, func(c *connection) {
					close(back)
					synctest.Wait()
					c.result(`{}`)
				})
				resume := p.on["GET"]
				p.handle("GET", func(w http.ResponseWriter, a *incoming) {
					if p.resumed() <= refusals {
						w.WriteHeader(http.StatusConflict)
						return
					}
					resume(w, a)
				})
				g := newInMemory(t, nil, p)
				defer g.close()
				u := g.legacy(t)
				live := u.start(http.MethodPost, u.request("2", "tools/call", withToken))
				u.header = http.Header{"Last-Event-Id": {live.next().last}}
				if e := u.listen().next(); e.id() != "2" || !e.isAnswer() {
					t.Errorf("got %+v", e)
				}
				time.Sleep(time.Minute) // the gateway could resume again
				if n := p.resumed(); n != refusals+1 {
					t.Errorf("resumed %d times", n)
				}
				live.disconnect()
			})
		})
	}
}

// A server request that cannot be written to a broken connection is not refused, because the client
// may resume the stream.
func TestServerRequestsWaitForResumingClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan string, 1)
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			answers <- a.ask(w, `"q"`, "elicitation/create", `{"message":"?"}`)
		})
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.user(t, mcp.Legacy)
		u.capabilities = `{"elicitation":{}}`
		u.connect()
		g.transport = handlerTransport{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.ServeHTTP(&brokenWriter{w, "elicitation/create"}, r)
		})}
		u.start(http.MethodPost, u.request("2", "tools/call", `{"name":"a::x"}`))
		if answer := <-answers; answer != "" {
			t.Errorf("the server received %s", answer)
		}
	})
}

// A client that does not want the rest of a large response is no failure of the server.
func TestClientsThatLeaveLargeResponses(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			p := newPeer("a")
			p.eras[era] = true
			p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"content":[{"type":"text","text":"`)
				for range 4 {
					if _, err := io.WriteString(w, strings.Repeat("x", streamable.MaxHeld)); err != nil {
						panic(http.ErrAbortHandler) // as reverse_proxy does
					}
				}
			})
			g := newInMemory(t, nil, p)
			defer g.close()
			u := g.user(t, era)
			if era == mcp.Legacy {
				u.connect()
			}
			g.transport = handlerTransport{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				g.ServeHTTP(&brokenWriter{w, "xxx"}, r)
			})}
			u.start(http.MethodPost, u.request("2", "tools/call", `{"name":"a::x"}`))
			o := g.config.Observer.(*recorder)
			var calls []upstream.Record
			await.Until(t, "the record", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				for _, r := range o.records {
					if r.Method == "tools/call" {
						calls = append(calls, r)
					}
				}
				return len(calls) > 0
			})
			if r := calls[0]; r.Outcome != upstream.OutcomeCanceled || r.Fault != nil {
				t.Errorf("outcome %s, fault %v", r.Outcome, r.Fault)
			}
		})
	}
}

// A brokenWriter fails to write a text.
type brokenWriter struct {
	http.ResponseWriter
	text string
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		return 0, io.ErrClosedPipe
	}
	return w.ResponseWriter.Write(p)
}

func (w *brokenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A client that resumes after an event that the server has forgotten gets an error.
func TestClientsResumeAfterForgottenEvents(t *testing.T) {
	p := legacyPeer("a").handle("GET", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusBadRequest) })
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	u.header = http.Header{"Last-Event-Id": {u.event("call:MQ/a/1")}}
	if stream := u.listen(); stream.status != http.StatusBadRequest || p.count("GET") != 1 {
		t.Errorf("got %d after %d attempts", stream.status, p.count("GET"))
	}
}

// A large response of which a part was forwarded cannot be resumed. One of which nothing was
// forwarded can.
func TestLargeResponsesAreResumed(t *testing.T) {
	result := largeResult(3 << 20)
	for name, tt := range map[string]struct {
		size int // bytes before the connection breaks
		torn bool
	}{"little has come": {1 << 10, false}, "a part was passed on": {2 << 20, true}} {
		for era, of := range bothEras {
			t.Run(name+", "+era, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := legacyPeer("a")
					p.cutStream("tools/call", func(c *connection) {
						c.send("")
						_, _ = io.WriteString(c.w, "id: 2\ndata: "+(`{"jsonrpc":"2.0","id":` + c.call + `,"result":` + result)[:tt.size])
						panic(http.ErrAbortHandler)
					}, func(c *connection) { c.result(result) })
					g := newInMemory(t, nil, p)
					defer g.close()
					s := g.as(t, of).call("a::x")
					switch {
					case tt.torn && (s.broken == nil || p.resumed() != 0):
						t.Errorf("got %.200s, resumed %d times: %v", s.body, p.resumed(), s.broken)
					case !tt.torn && !strings.Contains(s.answer, mcp.ResourceURI("a", "x://first")):
						t.Errorf("got %.200s", s.body)
					}
				})
			})
		}
	}
}

// recordingMask is a Mask that records what it masks.
type recordingMask struct {
	originalsMask
	mu    sync.Mutex
	about []mcp.Target
	goals []string
}

func (m *recordingMask) Serve(w http.ResponseWriter, r *http.Request, about upstream.MaskRequest,
	next upstream.Handler) error {
	m.mu.Lock()
	m.about, m.goals = append(m.about, about.About), append(m.goals, about.Goal)
	m.mu.Unlock()
	return next.ServeHTTP(w, r)
}

// The rest of a resumed call is masked like the call, with the same focus.
func TestResumedCallsAreMasked(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mask := new(recordingMask)
				p := legacyPeer("a").hasList("tools/list", "tools",
					`{"name":"x","inputSchema":{"type":"object","properties":{"a":{}}}}`)
				p.cutStream("tools/call", func(c *connection) { c.send("") }, func(c *connection) { c.result(`{}`) })
				g := newInMemory(t, func(c *Config) {
					c.Servers[0].Mask, c.Servers[0].MaskMCP, c.Servers[0].Focus = mask, true, toolview.NewFocus("aim")
				}, p)
				defer g.close()
				u := g.as(t, era)
				u.ask("tools/list", "")
				u.ask("tools/call", `{"name":"a::x","arguments":{"aim":"y"}}`)
				want := mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}
				if !slices.Equal(mask.about, []mcp.Target{want, want}) || !slices.Equal(mask.goals, []string{"y", "y"}) {
					t.Errorf("masked %v with goals %q", mask.about, mask.goals)
				}
			})
		})
	}
}

// rewritten returns a response with shown names.
func rewritten(g *Gateway, l *link, raw []byte) []byte {
	var m jsonrpc.Message
	found, failure := namePaths.ReadStrings(&m, raw, nil)
	if failure != nil {
		return raw
	}
	return jsonspan.Spliced(raw, l.translator(g).rename(raw, found)...)
}

// largeResult returns a result that names resources before, between and after long texts.
func largeResult(size int) string {
	var b strings.Builder
	b.WriteString(`{"content":[{"type":"resource_link","uri":"x://first","name":"a"}`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"type":"text","text":%q,"uri2":"x://not"},{"type":"resource",`+
			`"resource":{"uri":"x:\/\/n\u00e9%d","text":"y"}}`, strings.Repeat("text ", 1000), i)
	}
	b.WriteString(`], "n":12345678901234567890123, "structuredContent":{"uri":"x://stays",` +
		`"contents":[{"uri":"x://stays"}]},"_meta":{"k":"v"}}`)
	return b.String()
}

// Large responses are rewritten like small ones.
func TestLargeResponsesAreRewritten(t *testing.T) {
	result := largeResult(3 << 20)
	want := string(rewritten(newBareGateway(nil, newPeer("a")), &link{serverName: "a"},
		[]byte(`{"jsonrpc":"2.0","id":1,"result":`+result+`}`)))
	if !strings.Contains(want, mcp.ResourceURI("a", "x://first")) || strings.Contains(want, `"x://first"`) {
		t.Fatal("the small response is not rewritten")
	}
	send := map[string]func(w http.ResponseWriter, head, text string){
		"JSON": func(w http.ResponseWriter, _, text string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		},
		"JSON in small pieces": func(w http.ResponseWriter, _, text string) {
			w.Header().Set("Content-Type", "application/json")
			for text != "" {
				n := min(1021, len(text))
				_, _ = io.WriteString(w, text[:n])
				text = text[n:]
			}
		},
		"an event": func(w http.ResponseWriter, head, text string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, head+"data: "+text+"\n\n")
		},
		"an event of many lines": func(w http.ResponseWriter, head, text string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, head+"data: "+strings.ReplaceAll(text, `,{"type"`, ",\r\ndata: {\"type\"")+"\r\n\r\n")
		},
		"after a notification": func(w http.ResponseWriter, head, text string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n")
			_, _ = io.WriteString(w, head+"data: "+text+"\n\n")
		},
	}
	for name, send := range send {
		for _, pair := range [][2]mcp.Era{{mcp.Legacy, mcp.Legacy}, {mcp.Modern, mcp.Modern}, {mcp.Legacy, mcp.Modern}} {
			t.Run(fmt.Sprint(name, pair), func(t *testing.T) {
				p := newPeer("a")
				p.eras[pair[1]] = true
				p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					send(w, "id: 9\n", `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result+`}`)
				})
				g := newGateway(t, nil, p)
				u := g.user(t, pair[0])
				if pair[0] == mcp.Legacy {
					u.connect()
				}
				u.last.Store(0)
				s := u.call("a::x")
				if s.broken != nil || strings.ReplaceAll(s.answer, `, {"type"`, `,{"type"`) != want { // line breaks become spaces
					t.Errorf("%v: got %d bytes, want %d: %.200s", s.broken, len(s.answer), len(want), s.answer)
				}
				if n := len(s.events); n > 0 && !strings.HasPrefix(s.events[n-1].last, "call:MQ/a/9.") {
					t.Errorf("got id %q", s.events[n-1].last)
				}
				u.accept = "application/json"
				u.last.Store(0)
				if s := u.call("a::x"); strings.ReplaceAll(s.answer, "\n", "") != want {
					t.Errorf("without event streams: %v: got %d bytes, want %d: %.200s", s.broken, len(s.answer), len(want),
						s.answer)
				}
			})
		}
	}
}

// A client must not accept a truncated response as complete.
func TestTruncatedLargeResponses(t *testing.T) {
	result := largeResult(2 << 20)
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		for name, abort := range map[string]bool{"breaks off": true, "just ends": false} {
			for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
				t.Run(fmt.Sprint(contentType, " ", name, server), func(t *testing.T) {
					p := newPeer("a")
					p.eras[server] = true
					p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
						w.Header().Set("Content-Type", contentType)
						if contentType != "application/json" {
							_, _ = io.WriteString(w, "data: ")
						}
						_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result[:3<<19])
						if abort {
							panic(http.ErrAbortHandler)
						}
					})
					g := newGateway(t, nil, p)
					u := g.legacy(t)
					if s := u.call("a::x"); s.broken == nil {
						t.Errorf("the client accepted %d bytes as complete", len(s.body))
					}
					if s := u.ask("ping", ""); s.code() != 0 || s.broken != nil {
						t.Errorf("later call: %+v", s)
					}
				})
			}
		}
	}
}

// Some clients end lines of event streams at other characters than the standard, so these
// characters are escaped. JSON responses stay unchanged.
func TestEventsHaveNoOtherLineEnds(t *testing.T) {
	const odd = "\u2028data: {}\u0085\u2029"
	large := strings.Repeat("x", streamable.MaxHeld)
	escaped := strings.NewReplacer("\u2028", `\u2028`, "\u0085", `\u0085`, "\u2029", `\u2029`).Replace
	note := func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: a"+odd+"b\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"t":"`+odd+`"}}`)
	}
	for name, test := range map[string]struct {
		send func(w http.ResponseWriter, a *incoming)
		want string
	}{
		"JSON":       {func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"t":"`+odd+`"}`) }, odd},
		"large JSON": {func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"t":"`+large+odd+`"}`) }, odd},
		"an event":   {func(w http.ResponseWriter, a *incoming) { note(w, a); a.finish(w, `{"t":"`+odd+`"}`) }, escaped(odd)},
		"a large event": {func(w http.ResponseWriter, a *incoming) {
			note(w, a)
			a.finish(w, `{"t":"`+large+strings.Repeat(odd, 100_000)+`"}`)
		}, escaped(odd)},
	} {
		t.Run(name, func(t *testing.T) {
			u := newGateway(t, nil, legacyPeer("a").handle("tools/call", test.send)).legacy(t)
			s := u.call("a::x")
			if s.broken != nil || !strings.Contains(s.answer, test.want) {
				t.Errorf("%v: got %d bytes that end in %q", s.broken, len(s.answer), s.answer[max(0, len(s.answer)-100):])
			}
			if len(s.events) > 0 && strings.ContainsAny(s.body, "\u2028\u0085\u2029") {
				t.Error("an event has other line ends")
			}
		})
	}
}

// Notifications can be large, too.
func TestLargeNotifications(t *testing.T) {
	note := `{"jsonrpc":"2.0","method":"notifications/message","params":{"t":"` +
		strings.Repeat("x", 2*streamable.MaxHeld) + `"}}`
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, note)
		a.finish(w, "{}")
	})
	u := newGateway(t, nil, p).legacy(t)
	if s := u.call("a::x"); len(s.events) != 2 || len(s.events[0].data) < len(note) || string(s.Result) != "{}" {
		t.Errorf("got %d %.300s", s.status, s.body)
	}
}

// A response to another request is ignored, even if it is large.
func TestLargeResponsesToOtherRequests(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, `{"jsonrpc":"2.0","id":"another","result":{"t":"`+strings.Repeat("x", streamable.MaxHeld)+`"}}`)
		a.finish(w, `{"mine":true}`)
	})
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	s := u.call("a::x")
	if strings.Contains(s.body, "another") {
		t.Errorf("the response was forwarded: %.200s", s.body)
	}
	if s.Error == nil && string(s.Result) != `{"mine":true}` {
		t.Errorf("got %.200s", s.answer)
	}
}

func TestInvalidResponses(t *testing.T) {
	tests := []struct {
		name        string
		status      int
		contentType string
		body        string // ID stands for the id
		symbol      string // "" for an error of the server
		code        int
	}{
		{"500 and HTML", 500, "text/html", "<h1>", "http_error", 0},
		{"401", 401, "", "", "http_error", 0},
		{"302", 302, "", "", "http_error", 0},
		{"200 and HTML", 200, "text/html", "<h1>", "invalid_json", 0},
		{"200 and no body", 200, "application/json", "", "invalid_response", 0},
		{"a batch", 200, "application/json", `[{"jsonrpc":"2.0","id":ID,"result":{}}]`, "invalid_json", 0},
		{"an error, id null", 200, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m"}}`, "",
			-1},
		{"an error without an id", 500, "application/json", `{"jsonrpc":"2.0","error":{"code":-1,"message":"m"}}`, "", -1},
		{"an error", 500, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-1,"message":"m"}}`, "", -1},
		{"a request instead of a response", 200, "application/json", `{"jsonrpc":"2.0","method":"n"}`, "invalid_response", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				w.Header().Set("Content-Type", tt.contentType)
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, strings.ReplaceAll(tt.body, "ID", a.id()))
			})
			g := newGateway(t, nil, p)
			u := g.legacy(t)
			s := u.call("a::x")
			var m jsonrpc.Message
			if failure := m.Read([]byte(s.answer)); failure != nil || !m.IsResponse() ||
				string(m.Literal(jsonrpc.ID)) != strconv.FormatInt(u.last.Load(), 10) {
				t.Fatalf("got %d %s", s.status, s.body)
			}
			if s.symbol() != tt.symbol || tt.code != 0 && s.code() != tt.code || s.status != 200 {
				t.Errorf("got %d %s", s.status, s.body)
			}
		})
	}
}

// The refusals of server requests derive their requests from that of the client, whose headers the
// next attempt changes.
func TestRefusalsEndBeforeTheNextAttempt(t *testing.T) {
	const refused = 50
	p := modernPeer("a").hasTools("x")
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if p.count("tools/call") > 1 {
			if n := p.count(""); n != refused {
				t.Errorf("the call was repeated after %d of %d refusals", n, refused)
			}
			a.reply(w, `{"resultType":"complete","content":[]}`)
			return
		}
		requests := ""
		for i := range refused {
			requests += fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"roots/list"}`, 1000+i) + "\n\ndata: "
		}
		a.send(w, requests+`{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-32020,"message":"headers"}}`)
	})
	g := newGateway(t, nil, p)
	u := g.user(t, mcp.Legacy)
	u.capabilities = "{}"
	u.connect()
	if s := u.call("a::x"); s.code() != 0 || p.count("tools/call") != 2 {
		t.Errorf("%d calls, got %s", p.count("tools/call"), s.body)
	}
}
