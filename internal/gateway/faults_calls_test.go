package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Fake time: two gateways without a name share clients. Sessions of forgotten clients are ended at
// the right gateway. No credentials reach a server of the same name in the other gateway.
func TestForgottenClientsOfSeveralGateways(t *testing.T) {
	for _, last := range []bool{false, true} {
		t.Run(fmt.Sprint("created last ", last), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own, foreign := legacyPeer("fs"), legacyPeer("fs")
				state, retained, generation := NewState(nil), NewRetained(nil, false), new(int)
				of := func(p *fakeServer, id string) *Gateway {
					return New(testConfig(func(c *Config) { c.Generation, c.Servers[0].ID = generation, id }, p), state, retained)
				}
				var one, two *Gateway
				if last {
					two, one = of(foreign, "2"), of(own, "1")
				} else {
					one, two = of(own, "1"), of(foreign, "2")
				}
				g := &testGateway{Gateway: one, t: t, url: "http://gateway.invalid/mcp"}
				g.serving.Store(one)
				g.transport = handlerTransport{g}
				defer g.close()
				defer two.Close()
				const clients = 3
				for i := range clients {
					u := g.modern(t)
					u.header.Set("Authorization", fmt.Sprint("Bearer ", i))
					u.call("fs::x")
				}
				time.Sleep(2 * idleTime)
				synctest.Wait()
				if all := foreign.arrivals; len(all) > 0 {
					t.Errorf("a server of another gateway got %s with %s", all[0].method(), all[0].Header.Get("Authorization"))
				}
				keys := map[string]string{}
				for _, call := range own.requests("tools/call") {
					keys[call.session] = call.Header.Get("Authorization")
				}
				ended := own.requests("DELETE")
				if len(ended) != clients {
					t.Errorf("%d of %d sessions were ended", len(ended), clients)
				}
				for _, end := range ended {
					if got := end.Header.Get("Authorization"); got != keys[end.session] {
						t.Errorf("the session of %q was ended by %q", keys[end.session], got)
					}
				}
			})
		})
	}
}

// Fake time: clients that connected together are forgotten together. Their sessions are ended a few
// at a time.
func TestManyClientsAreForgottenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		ends := &slowEndRoutes{fakeRoutes: fakeRoutes{p}}
		g := newInMemory(t, func(c *Config) { c.Servers[0].Routes = ends }, p)
		defer g.close()
		const clients = 100
		for i := range clients {
			u := g.modern(t)
			u.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i)
			u.call("a::x")
		}
		time.Sleep(2 * idleTime)
		synctest.Wait()
		if n := p.count("DELETE"); n != clients {
			t.Errorf("%d of %d sessions were ended", n, clients)
		}
		if most, places := ends.most.Load(), int32(cap(g.ending)); most > places {
			t.Errorf("%d at once, want %d", most, places)
		}
	})
}

// slowEndRoutes delay the end of a session.
type slowEndRoutes struct {
	fakeRoutes
	open, most atomic.Int32
}

func (s *slowEndRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if r.Method == http.MethodDelete {
		n := s.open.Add(1)
		defer s.open.Add(-1)
		for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
		}
		time.Sleep(time.Second)
	}
	return s.fakeRoutes.Serve(w, r, account)
}

// Headers of proxies and tracing differ between requests of the same client, whose held calls
// continue. Other credentials make another client.
func TestHeadersOfSingleRequests(t *testing.T) {
	same := map[string]bool{}
	for _, name := range []string{
		"Cf-Ray", "Cf-Connecting-Ip", "Cdn-Loop", "X-B3-Traceid", "B3", "Sentry-Trace", "X-Datadog-Trace-Id",
		"X-Cloud-Trace-Context",
		"X-Correlation-Id", "Request-Id", "X-Amz-Cf-Id", "Uber-Trace-Id", "X-Stainless-Retry-Count", "Idempotency-Key",
		"True-Client-Ip", "Baggage", "User-Agent",
	} {
		same[name] = true
	}
	for _, name := range []string{"Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "X-Tenant-Id", "X-User-Id",
		"X-Session", "X-Client-Secret"} {
		same[name] = false
	}
	p := legacyPeer("a").handle("tools/call", askingTool(1))
	g := newInMemory(t, nil, p)
	defer g.close()
	for name, goesOn := range same {
		u := g.modern(t)
		u.info = fmt.Sprintf(`{"name":%q,"version":"1"}`, name)
		before := p.count("initialize")
		u.header.Set(name, "1")
		in, key := readInput(t, u.call("a::x"))
		u.header.Set(name, "2")
		s := u.retry("a::x", in, key, `{"action":"mine"}`)
		if strings.Contains(s.answer, `"mine"`) != goesOn {
			t.Errorf("%s: got %s", name, s.body)
		}
		if n := p.count("initialize") - before; goesOn && n != 1 || !goesOn && n != 2 {
			t.Errorf("%s: %d sessions", name, n)
		}
	}
}

// Fake time: if a server refuses notifications/initialized, it is not sent with every request, and
// delays no request.
func TestServersThatRefuseInitialized(t *testing.T) {
	refusing := func(status int) script {
		return func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(status) }
	}
	for _, test := range []struct {
		name   string
		answer script
		times  int
	}{
		{"400", refusing(400), 1},
		{"405", refusing(405), 1},
		{"500, which is temporary", refusing(500), 3},
		{"503, which is temporary", refusing(503), 3},
		{"a response that never ends", func(w http.ResponseWriter, a *incoming) {
			w.WriteHeader(http.StatusAccepted)
			_ = http.NewResponseController(w).Flush()
			<-a.Context().Done()
		}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("a").handle("notifications/initialized", test.answer)
				g := newInMemory(t, nil, p)
				defer g.close()
				u := g.legacy(t)
				var calls sync.WaitGroup
				for range 10 {
					calls.Go(func() {
						if s := u.call("a::x"); s.code() != 0 {
							t.Errorf("got %s", s.body)
						}
					})
				}
				calls.Wait()
				if n := p.count("notifications/initialized"); n != test.times {
					t.Errorf("the server was notified %d times, want %d", n, test.times)
				}
			})
		})
	}
}

// The stored request to end a session later has no body.
func TestStoredRequestsHaveNoBody(t *testing.T) {
	p := legacyPeer("a")
	g := newInMemory(t, nil, p)
	defer g.close()
	u := g.modern(t)
	u.header.Set("Authorization", "Bearer mine")
	u.call("a::x")
	for _, l := range g.known()[0].allLinks() {
		if l.endRequest == nil || l.endRequest.Header.Get("Authorization") != "Bearer mine" {
			t.Fatalf("kept %v", l.endRequest)
		}
		if l.endRequest.Body != http.NoBody || l.endRequest.GetBody != nil {
			t.Error("a body is stored")
		}
	}
}

// Fake time: a call ends with its response, even if the server never ends the stream.
func TestAnsweredCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.finish(w, `{"done":true}`)
			for range 1_000 {
				if a.Context().Err() != nil {
					ended.Store(true)
					return
				}
				a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
				time.Sleep(time.Second)
			}
		})
		g := newInMemory(t, nil, p)
		defer g.close()
		if s := g.modern(t).call("a::x"); !strings.Contains(s.answer, `"done":true`) {
			t.Errorf("got %s", s.body)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		if !ended.Load() || len(g.busy) > 0 {
			t.Errorf("ended: %t; %d clients are busy", ended.Load(), len(g.busy))
		}
	})
}

// Servers that ping treat an error as a closed client. Without a client, the gateway answers.
func TestPingsOfServers(t *testing.T) {
	ping := func(p *fakeServer, method, result string) <-chan string {
		answer := make(chan string, 1)
		p.handle(method, func(w http.ResponseWriter, a *incoming) {
			answer <- a.ask(w, `"p"`, "ping", `{}`)
			if result == "" {
				<-a.Context().Done()
				return
			}
			a.finish(w, result)
		})
		return answer
	}
	listen := func(u *testClient) {
		u.startRequest(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
	}
	for _, test := range []struct {
		name           string
		era            mcp.Era
		method, result string
		visit          func(u *testClient)
	}{
		{"in a call of a modern client", mcp.Modern, "tools/call", `{"content":[]}`,
			func(u *testClient) { u.call("a::x") }},
		{"on the stream of a modern client", mcp.Modern, "GET", "", listen},
		{"with a list, to a modern client", mcp.Modern, "tools/list", `{"tools":[]}`,
			func(u *testClient) { u.ask("tools/list", "") }},
		{"with a list, to a legacy client without a stream", mcp.Legacy, "tools/list", `{"tools":[]}`,
			func(u *testClient) { u.ask("tools/list", "") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := legacyPeer("a")
			answer := ping(p, test.method, test.result)
			u := newGateway(t, nil, p).user(t, test.era)
			u.capabilities = `{}`
			if test.era == mcp.Legacy {
				u.connect()
			}
			test.visit(u)
			await.Until(t, "the ping has a response", func() bool { return len(answer) > 0 })
			if got := <-answer; got != `{"jsonrpc":"2.0","id":"p","result":{}}` {
				t.Errorf("the ping got the response %s", got)
			}
		})
	}
}

// Two processes use one session of a server, and both send requests of their own in it.
func TestIDsOfReplicas(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	one, two := newInMemory(t, nil, p), newInMemory(t, nil, p)
	defer one.close()
	defer two.close()
	u := one.legacy(t)
	for _, u := range []*testClient{u, u.atGateway(two), u.atGateway(two), u} {
		for _, method := range []string{"tools/list", "prompts/list", "resources/list"} {
			u.ask(method, "")
		}
	}
	seen := map[string]bool{}
	for _, method := range []string{"initialize", "tools/list", "prompts/list", "resources/list"} {
		for _, a := range p.requests(method) {
			if seen[a.id()] {
				t.Errorf("%s has the id %s of another request", method, a.id())
			}
			seen[a.id()] = true
		}
	}
	if n := p.count("initialize"); n != 1 {
		t.Errorf("initialized %d times", n)
	}
}

// A client that disconnects while the gateway waits for one server leaves no sessions with the
// others.
func TestClientsThatDisconnectDuringInitialize(t *testing.T) {
	quick, slow := legacyPeer("a"), legacyPeer("b").
		handle("initialize", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
	met := make(chan struct{})
	g := newInMemory(t, func(c *Config) { c.Servers[0].Routes = signalingRoutes{fakeRoutes{quick}, met} }, quick, slow)
	defer g.close()
	u := g.user(t, mcp.Legacy)
	const tries = 3
	for i := range tries {
		// Each client is another audience, for which the servers are unknown.
		params := fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"version":"%d"}}`, i)
		live := u.start(http.MethodPost, u.request("1", "initialize", params))
		<-met
		slow.waitFor(t, "initialize", i+1)
		live.disconnect()
	}
	await.Until(t, "no session remains", func() bool {
		quick.mu.Lock()
		defer quick.mu.Unlock()
		return quick.last == tries && len(quick.alive) == 0
	})
}

// signalingRoutes signal when the handshake is done.
type signalingRoutes struct {
	fakeRoutes
	met chan<- struct{}
}

func (m signalingRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	met := isPosted(r, func(m *jsonrpc.Message) bool { return m.Is(jsonrpc.Method, "initialize") })
	err := m.fakeRoutes.Serve(w, r, account)
	if met {
		m.met <- struct{}{}
	}
	return err
}

// If a server refuses the response to its request, the call is canceled.
func TestServersThatRefuseAResponse(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(1))
	p.onUnknownSession = func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusServiceUnavailable) }
	g := newInMemory(t, nil, p)
	defer g.close()
	u := g.modern(t)
	in, key := readInput(t, u.call("a::x"))
	p.forget()
	if s := u.retry("a::x", in, key, `{}`); s.code() == 0 {
		t.Errorf("got %s", s.body)
	}
	call := p.waitFor(t, "tools/call", 1)
	if cancellation := p.waitFor(t, "notifications/cancelled", 1); !strings.Contains(cancellation.body,
		`"requestId":`+call.id()) {
		t.Errorf("got %s", cancellation.body)
	}
}

// Fake time: calls work although the tool list never arrives.
func TestCallsDoNotWaitForLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").handle("tools/list", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		for range 3 {
			began := time.Now()
			s := u.call("a::x")
			if took := time.Since(began); s.code() != 0 || took > time.Second {
				t.Errorf("got %s after %v", s.body, took)
			}
			time.Sleep(time.Minute)
		}
	})
}

// A request gets one response, even if the server sends a second, large one.
func TestLargeSecondResponses(t *testing.T) {
	large := `{"content":"` + strings.Repeat("x", 2<<20) + `"}`
	for name, first := range map[string]string{
		"the only message": "",
		"in a stream":      `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				if first != "" {
					a.send(w, first)
				}
				a.finish(w, `{"n":1}`)
				a.finish(w, large)
			})
			s := newGateway(t, nil, p).legacy(t).call("a::x")
			if s.broken != nil || !strings.Contains(s.answer, `"n":1`) || len(s.body) > 1_000 {
				t.Errorf("got %d bytes: %.100s (%v)", len(s.body), s.body, s.broken)
			}
		})
	}
}

// Fake time: calls whose server disconnects free their quota.
func TestQuotaOfEndedCalls(t *testing.T) {
	for name, end := range map[string]script{
		"server aborts": func(http.ResponseWriter, *incoming) { panic(http.ErrAbortHandler) },
		"server ends":   func(http.ResponseWriter, *incoming) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					a.send(w, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`)
					time.Sleep(time.Second)
					end(w, a)
				})
				g := newInMemory(t, nil, p)
				defer g.close()
				u := g.modern(t)
				var in inputResult
				var key string
				for range maxOwnerHeldCalls {
					in, key = readInput(t, u.call("a::x"))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				g.mu.Lock()
				held := len(g.held)
				g.mu.Unlock()
				if held > 0 {
					t.Errorf("%d calls are still held", held)
				}
				if s := u.retry("a::x", in, key, `{}`); s.code() == 0 {
					t.Errorf("got %s", s.body)
				}
				readInput(t, u.call("a::x"))
			})
		})
	}
}
