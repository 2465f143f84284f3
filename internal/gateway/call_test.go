package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Between modern clients and servers, input-required results pass unchanged.
func TestInputBetweenModernPeersIsUnchanged(t *testing.T) {
	result := `{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{` + oddJSON +
		`}}},"requestState":"\u0061\/opaque"}`
	p := modernPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if a.message.Has(jsonrpc.RequestState) {
			a.reply(w, `{"resultType":"complete"}`)
			return
		}
		a.reply(w, result)
	})
	u := newGateway(t, nil, p).modern(t)
	s := u.call("a::x")
	if string(s.Result) != result {
		t.Errorf("got %s", s.Result)
	}
	again := `"inputResponses":{"k":{` + oddJSON + `}},"requestState":"\u0061\/opaque"`
	if s := u.ask("tools/call", `{"name":"a::x",`+again+`}`); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if got := p.waitFor(t, "tools/call", 2).body; !strings.Contains(got, again) {
		t.Errorf("got %s", got)
	}
}

// In the modern era, errors have HTTP statuses.
func TestStatusOfErrors(t *testing.T) {
	for _, tt := range []struct{ status, code int }{{404, -32601}, {400, -32602}, {400, -32020}, {400, -32021},
		{200, -32602}, {200, -1}} {
		p := newPeer("a").handle("tools/call", func(w http.ResponseWriter,
			a *incoming) {
			a.refuse(w, tt.status, tt.code, "m")
		})
		p.eras[mcp.Modern] = true
		g := newGateway(t, nil, p)
		s := g.modern(t).call("a::x")
		if s.code() != tt.code || tt.status != 200 && s.status != tt.status {
			t.Errorf("%v: got %d %s", tt, s.status, s.body)
		}
		if s := g.legacy(t).call("a::x"); s.code() != tt.code || s.status != 200 {
			t.Errorf("%v: legacy client: got %d %s", tt, s.status, s.body)
		}
	}
}

// A request gets one response, even if the server sends several.
func TestServersThatRespondTwice(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{newPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,`+
				`"progress":1}}`, a.message.Literal(jsonrpc.ProgressToken)))
			a.finish(w, `{"n":1}`)
			a.finish(w, `{"n":2}`)
			a.send(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-1,"message":"m"}}`)
		})}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		meta := `{"progressToken":"t"}`
		if u.era == mcp.Modern {
			meta = string(u.meta(`,"progressToken":"t"`))
		}
		s := u.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","_meta":` + meta + `}}`)
		answers := 0
		for _, e := range s.events {
			if e.isAnswer() {
				answers++
			}
		}
		if answers != 1 || !strings.Contains(s.answer, `"n":1`) {
			t.Errorf("got %s", s.body)
		}
	})
}

// After a server lost its session, the gateway repeats what the client has set.
func TestStateIsRepeatedAfterALostSession(t *testing.T) {
	p := legacyPeer("a")
	u := newGateway(t, nil, p).legacy(t)
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`)
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://b")+`"}`)
	u.ask("resources/unsubscribe", `{"uri":"`+mcp.ResourceURI("a", "x://b")+`"}`)
	u.ask("logging/setLevel", `{"level":"debug"}`)
	p.forget()
	if s := u.call("a::x"); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if all := p.requests("resources/subscribe"); len(all) != 3 || all[2].message.Text(jsonrpc.URI) != "x://a" ||
		all[2].session != "a-session-2" {
		t.Errorf("subscribed %d times", len(all))
	}
	if all := p.requests("logging/setLevel"); len(all) != 2 || all[1].session != "a-session-2" ||
		all[1].message.Text(jsonrpc.Level) != "debug" {
		t.Errorf("the level was set %d times", len(all))
	}
}

// A call that is canceled during a new handshake ends, too.
func TestCancellationDuringAHandshake(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	p.forget()
	p.handle("initialize", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
	call := u.start(http.MethodPost, u.request("7", "tools/call", `{"name":"a::x"}`))
	p.waitFor(t, "initialize", 2)
	call.disconnect()
	await.Until(t, "the call has ended", func() bool { return g.known()[0].calls.any() == nil })
	p.mu.Lock()
	delete(p.on, "initialize")
	p.mu.Unlock()
	if s := u.call("a::x"); s.code() != 0 {
		t.Errorf("later call: %s", s.body)
	}
}

// A client that reuses the id of a running call does not affect other clients.
func TestReusedIDs(t *testing.T) {
	p := legacyPeer("a")
	canceled, release := p.addWaitingTool()
	defer release()
	u := newGateway(t, nil, p).legacy(t)
	one := u.start(http.MethodPost, u.request(`"\u0031"`, "tools/call", `{"name":"a::wait","arguments":{"who":"one"}}`))
	p.waitFor(t, "tools/call", 1)
	two := u.start(http.MethodPost, u.request(`1`, "tools/call", `{"name":"a::wait","arguments":{"who":"two"}}`))
	p.waitFor(t, "tools/call", 2)
	u.notify("notifications/cancelled", `{"requestId":1}`)
	await.Until(t, "the call is canceled", func() bool { return len(canceled()) == 1 })
	if !canceled()["two"] {
		t.Errorf("got %v", canceled())
	}
	two.waitEnd()
	release()
	if e := one.nextOf(""); !strings.Contains(e.data, `"result"`) || e.id() != `"\u0031"` {
		t.Errorf("got %s", e.data)
	}
}

// Errors of clients are not failures of the server.
func TestFaultsOfRequests(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	answer := func(status int, contentType, body string) {
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", a.id()))
		})
	}
	g := newGateway(t, func(c *Config) { c.Servers[0].ForwardAuth = false }, p)
	u := g.legacy(t)
	for _, tt := range []struct {
		name, contentType, body string
		status                  int
		answered                bool
		reason                  string
		certainty               upstream.Certainty
	}{
		{"a result", "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`, 200, true, "", 0},
		{"an error", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`, 200, true, "",
			0},
		{"an error with a status", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`,
			400, true, "", 0},
		{"params that it refuses", "text/plain", "bad", 400, false, "", 0},
		{"too many requests", "text/plain", "later", 429, false, "", 0},
		{"credentials that it refuses", "text/plain", "no", 401, false, "HTTP 401 text/plain", upstream.Weak},
		{"an unavailable server", "text/html", "<html>", 503, false, "HTTP 503 text/html", upstream.Doubtful},
		{"an HTML page", "text/html", "<html>", 200, false, "not an MCP server: HTTP 200 text/html", upstream.Doubtful},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer(tt.status, tt.contentType, tt.body)
			seen := g.config.Observer.(*recorder)
			seen.takeRecords()
			u.call("a::x")
			var got upstream.Record
			for _, r := range seen.takeRecords() {
				if r.ClientMethod == "tools/call" && r.Server == "a" {
					got = r
				}
			}
			fault := got.Fault
			if fault == nil {
				fault = new(upstream.Fault)
			}
			if got.Answered != tt.answered || fault.Reason != tt.reason || fault.Certainty != tt.certainty {
				t.Errorf("answered %t, %q, %d: want %t, %q, %d", got.Answered, fault.Reason, fault.Certainty, tt.answered,
					tt.reason, tt.certainty)
			}
		})
	}
}

// Some servers write "error":null into results.
func TestResultsWithANullError(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		a, b := newPeer("a").hasTools("x"), newPeer("b").hasTools("x")
		a.nullErrors = true
		return []*fakeServer{a, b}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "b::x"}) {
			t.Errorf("got %v", got)
		}
		if answer := u.call("a::x"); !strings.Contains(string(answer.Result), `"text":"a"`) || answer.Error != nil {
			t.Errorf("got %s", answer.body)
		}
	})
}

// A server need not end a stream after the response. Neither the handshake nor calls wait for that.
func TestStreamsThatDoNotEnd(t *testing.T) {
	for client, era := range bothEras {
		for name, peer := range map[string]func(string) *fakeServer{"legacy": legacyPeer, "modern": modernPeer} {
			t.Run(fmt.Sprintf("%s, a %s server", client, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := peer("a").hasTools("x")
					p.endless = true
					g := newInMemory(t, nil, p, legacyPeer("b"))
					defer g.close()
					began := time.Now()
					u := g.as(t, era)
					if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
						t.Errorf("got %v", got)
					}
					if answer := u.call("a::x"); answer.Error != nil {
						t.Errorf("got %s", answer.body)
					}
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("took %s", took)
					}
				})
			})
		}
	}
}

// HTTP errors often have JSON bodies, and some servers send other JSON to keep streams open.
func TestJSONThatIsNotAMessage(t *testing.T) {
	body := func(status int, body string) script {
		return func(w http.ResponseWriter, a *incoming) { a.write(w, status, body) }
	}
	for _, tt := range []struct {
		name   string
		answer script
		want   string
	}{
		{"an error that is a text", body(500, `{"status":500,"error":"Internal Server Error"}`), `"status_code":500`},
		{"an error without a code", body(401, `{"error":{"type":"auth","message":"no"}}`), `"status_code":401`},
		{"another member", body(503, `{"message":"no"}`), `"status_code":503`},
		{"an error that is a text, with status 200", body(200, `{"jsonrpc":"2.0","error":"no"}`), `"invalid_response"`},
		{"an event", func(w http.ResponseWriter, a *incoming) {
			a.sendAs(w, "event: ping\n", "{}")
			a.finish(w, `{"content":[]}`)
		}, `"content":[]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both(t, nil, func() []*fakeServer {
				return []*fakeServer{newPeer("a").hasTools("x").handle("tools/call", tt.answer), newPeer("b")}
			}, func(t *testing.T, u *testClient, _ []*fakeServer) {
				answer := u.call("a::x")
				m := new(jsonrpc.Message)
				if m.Read([]byte(answer.answer)) != nil || m.Check() != nil || len(answer.events) > 1 ||
					!strings.Contains(answer.answer, tt.want) {
					t.Errorf("got %s", answer.body)
				}
			})
		})
	}
}

// A client gets the names of its missing servers, and no others.
func TestMissingServersAreNamed(t *testing.T) {
	broken := legacyPeer("broken")
	broken.handle("initialize", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusUnauthorized) })
	broken.handle("server/discover", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusUnauthorized) })
	for _, tt := range []struct {
		name      string
		configure func(*Config)
		want      string
	}{
		{"an allowed server", func(c *Config) { c.ReportMissing = true },
			"Unavailable servers: broken (HTTP status 401). Their tools are missing until they are back."},
		{"report_missing off", func(*Config) {}, ""},
		{"a denied server", func(c *Config) {
			c.ReportMissing = true
			policy, err := acl.New([]acl.Rule{{Action: acl.Allow, Pattern: "ok::*"}}, acl.Deny)
			if err != nil {
				t.Fatal(err)
			}
			c.Clients = []*access.Client{{Name: "*", Policy: policy}}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			configure := func(c *Config) {
				c.Servers[1].ForwardAuth = false
				tt.configure(c)
			}
			g := newGateway(t, configure, legacyPeer("ok").hasTools("x"), broken)
			answer := g.user(t, 0).ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
				`"clientInfo":{"name":"c","version":"1"}}`)
			if got := strings.Contains(answer.body, "broken"); got != (tt.want != "") ||
				!strings.Contains(answer.body, tt.want) {
				t.Errorf("got %s", answer.body)
			}
		})
	}
}

// During an outage, the error of each call contains the reason.
func TestCallsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no retry happens in between
		p := legacyPeer("a")
		p.handle("initialize", func(w http.ResponseWriter, _ *incoming) { panic(http.ErrAbortHandler) })
		p.handle("server/discover", func(w http.ResponseWriter, _ *incoming) { panic(http.ErrAbortHandler) })
		g := newGateway(t, nil, p, legacyPeer("b"))
		u := g.legacy(t)
		answer := u.call("a::whatever")
		if answer.symbol() != "connect_error" || !strings.Contains(answer.body,
			`"MCP server a is unavailable: connection lost; the gateway keeps trying"`) {
			t.Errorf("got %s", answer.body)
		}
		faults := g.config.Observer.(*recorder)
		faults.mu.Lock()
		defer faults.mu.Unlock()
		if len(faults.faults) == 0 || faults.faults[0].Server != "a" || faults.faults[0].Tried != "initialize" ||
			faults.faults[0].Retry <= 0 {
			t.Errorf("reported %+v", faults.faults)
		}
	})
}

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
		if most, places := ends.most.Load(), int32(cap(g.clients.ending)); most > places {
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
		g.clients.mu.Lock()
		defer g.clients.mu.Unlock()
		if busy := len(g.clients.busy); !ended.Load() || busy > 0 {
			t.Errorf("ended: %t; %d clients are busy", ended.Load(), busy)
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
				g.waiting.mu.Lock()
				held := len(g.waiting.byKey)
				g.waiting.mu.Unlock()
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

// A server that has an argument like the focus argument, such as another gateway, receives it.
func TestFocusOfServer(t *testing.T) {
	focus := toolview.NewFocus("aim")
	decodeURIs := `{"name":"x","inputSchema":{"type":"object","properties":{"a":{}}}}`
	edit, _ := focus.Add([]byte(decodeURIs))
	own := string(jsonspan.Spliced([]byte(decodeURIs), edit))
	p := legacyPeer("a").hasList("tools/list", "tools", decodeURIs).
		handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"content":[]}`)
		})
	g := newGateway(t, func(c *Config) {
		c.Servers[0].Mask, c.Servers[0].MaskMCP, c.Servers[0].Focus = originalsMask{}, true, focus
	}, p)
	u := g.legacy(t)
	for i, test := range []struct{ tool, want string }{{decodeURIs, `{}`}, {own, `{"aim":"y"}`}, {decodeURIs, `{}`}} {
		p.hasList("tools/list", "tools", test.tool)
		if list := u.ask("tools/list", ""); !bytes.Contains(list.Result, []byte(`"aim":{"type":"string"`)) {
			t.Fatalf("got %s", list.Result)
		}
		u.ask("tools/call", `{"name":"a::x","arguments":{"aim":"y"}}`)
		called := p.waitFor(t, "tools/call", i+1)
		if got := string(called.message.Literal(jsonrpc.Arguments)); got != test.want {
			t.Errorf("%d: the server got %s, want %s", i+1, got, test.want)
		}
	}
}
