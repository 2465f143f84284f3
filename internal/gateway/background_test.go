package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// answersSlowly delays the answer to initialize.
func (p *fakeServer) answersSlowly(after time.Duration) *fakeServer {
	return p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
		if backoff.Sleep(a.Context(), after) {
			p.initialize(w, a)
		}
	})
}

// listenFor opens a stream for list-changed notifications of tools.
func (u *testClient) listenFor() *liveReply {
	if u.era == mcp.Legacy {
		return u.listen()
	}
	return u.open(http.MethodPost, u.request(`"l"`, mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))
}

func joinWithin(d time.Duration) func(*Config) { return func(c *Config) { c.JoinTimeout = d } }

// Fake time: a server that never answers the handshake delays a client once, whatever the number of
// requests and clients.
func TestServersWithoutHandshakeAreTriedInBackground(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("b").hasTools("x").answersSlowly(time.Hour)
				g := newInMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"), p)
				defer g.close()
				var waited time.Duration
				ask := func(u *testClient) {
					began := time.Now()
					if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
						t.Errorf("got %v", got)
					}
					waited += time.Since(began)
				}
				u := g.user(t, era)
				if era == mcp.Legacy {
					u.connect()
				}
				ask(u)
				if waited > 15*time.Second {
					t.Errorf("the first list took %v", waited)
				}
				waited = 0
				for i := range 110 {
					other := g.user(t, era)
					other.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i) // another audience
					if era == mcp.Legacy {
						other.connect()
					}
					ask(u)
					ask(other)
					time.Sleep(time.Second)
				}
				if waited != 0 {
					t.Errorf("later lists took %v", waited)
				}
				if n := p.count("initialize"); n < 3 || n > 9 {
					t.Errorf("tried %d times", n)
				}
				// Retries end.
				time.Sleep(11 * time.Minute)
				n := p.count("initialize")
				time.Sleep(time.Hour)
				if p.count("initialize") != n {
					t.Error("the server is tried without a client")
				}
			})
		})
	}
}

// Fake time: a client that can be notified gets its response after firstWait. Others wait longer,
// so that they get all items.
func TestSlowServers(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := legacyPeer("b").hasTools("x").answersSlowly(12 * time.Second)
				slow.capabilities = `{"tools":{}}`
				slow.handle("server/discover", func(w http.ResponseWriter, a *incoming) { a.refuse(w, 404, -32601, "no") })
				g := newInMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"), slow)
				defer g.close()
				u, method, params := g.user(t, era), "server/discover", ""
				if era == mcp.Legacy {
					method, params = "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"u",`+
						`"version":"1"}}`
				}
				began := time.Now()
				answer := u.ask(method, params)
				if took := time.Since(began); took != firstWait {
					t.Errorf("%s took %v", method, took)
				}
				for _, capability := range []string{"tools", "prompts", "resources"} {
					if !strings.Contains(answer.body, `"`+capability+`":{"listChanged":true`) {
						t.Errorf("no %s in %s", capability, answer.body)
					}
				}
				if era == mcp.Legacy {
					u.session = answer.header.Get(mcp.SessionHeader)
				}
				stream := u.listenFor()
				defer stream.disconnect()
				asked := time.Now()
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
					t.Errorf("got %v", got)
				}
				if took := time.Since(asked); took != firstWait {
					t.Errorf("list took %v", took)
				}
				for e := range stream.events {
					if e.method() == "notifications/tools/list_changed" {
						break
					}
				}
				if came := time.Since(began); came > 16*time.Second {
					t.Errorf("the client was notified after %v", came)
				}
				asked = time.Now()
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "b::x"}) ||
					time.Since(asked) != 0 {
					t.Errorf("got %v after %v", got, time.Since(asked))
				}
			})
		})
	}
	t.Run("a client that does not listen", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newInMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"),
				legacyPeer("b").hasTools("x").answersSlowly(12*time.Second))
			defer g.close()
			began := time.Now()
			u := g.legacy(t)
			if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "b::x"}) {
				t.Errorf("got %v", got)
			}
			if took := time.Since(began); took != 12*time.Second {
				t.Errorf("took %v", took)
			}
		})
	})
	t.Run("a client that opens a stream while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newInMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"),
				legacyPeer("b").hasTools("x").answersSlowly(12*time.Second))
			defer g.close()
			u := g.legacy(t)
			listed := make(chan time.Duration, 1)
			go func() {
				began := time.Now()
				u.ask("tools/list", "")
				listed <- time.Since(began)
			}()
			time.Sleep(5 * time.Second)
			stream := u.listen()
			defer stream.disconnect()
			if took := <-listed; took > 7*time.Second {
				t.Errorf("took %v", took)
			}
		})
	})
}

// Fake time: a client without a stream is notified when it opens one.
func TestClientsThatListenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newInMemory(t, joinWithin(10*time.Second), legacyPeer("a").hasTools("x"),
			legacyPeer("b").hasTools("x").answersSlowly(8*time.Second))
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
		stream.disconnect()
		time.Sleep(10 * time.Second)
		stream = u.listen()
		defer stream.disconnect()
		for e := range stream.events {
			if e.method() == "notifications/tools/list_changed" {
				return
			}
		}
		t.Error("the client was not notified")
	})
}

// Fake time: a call to a child process that is starting waits as long as for a response.
func TestCallsWaitForChildrenThatStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("b").hasTools("x").answersSlowly(20 * time.Second)
		g := newInMemory(t, func(c *Config) {
			c.JoinTimeout = 5 * time.Second
			c.Servers[0].ChildrenOnly, c.Servers[0].Timeout = true, 30*time.Second
		}, p)
		defer g.close()
		u := g.legacy(t)
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		if s := u.call("b::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
	})
}

// Fake time: join_timeout may be longer than timeout.
func TestJoinTimeoutBeyondTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("b").answersSlowly(45 * time.Second)
		p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			time.Sleep(45 * time.Second)
			a.reply(w, `{"tools":[{"name":"x"}]}`)
		})
		g := newInMemory(t, func(c *Config) {
			c.JoinTimeout, c.Servers[0].Timeout = 2*time.Minute, 30*time.Second
		}, p)
		defer g.close()
		if got := namesIn(t, g.legacy(t).ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// A server with resources need not have templates.
func TestUnsupportedLists(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		core, logged := observer.New(zap.WarnLevel)
		p := legacyPeer("a").handle("resources/templates/list", func(w http.ResponseWriter, a *incoming) {
			a.refuse(w, http.StatusOK, jsonrpc.CodeMethodNotFound, "Method not found")
		})
		g := newGateway(t, func(c *Config) { c.Logger = zap.New(core) }, p)
		u := g.user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		if got := namesIn(t, u.ask("resources/templates/list", ""), "resourceTemplates", "uriTemplate"); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		if n := logged.Len(); n > 0 {
			t.Errorf("logged %v", logged.All())
		}
	}
}

// Clients that list on each notification are notified of changes only. A list that keeps failing is
// not announced, even if other lists of the server succeed.
func TestListsThatFailAreNotAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.capabilities = `{"tools":{},"prompts":{},"resources":{}}`
		p.handle("prompts/list", func(w http.ResponseWriter, a *incoming) { a.refuse(w, 200, -32603, "broken") })
		p.hasList("resources/list", "resources")
		g := newInMemory(t, joinWithin(15*time.Second), p)
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		defer stream.disconnect()
		list := func() {
			u.ask("tools/list", "")
			u.ask("prompts/list", "")
			u.ask("resources/list", "")
		}
		list()
		var notices atomic.Int64
		go func() {
			for e := range stream.events {
				if e.method() == "notifications/tools/list_changed" && notices.Add(1) < 100 {
					list()
				}
			}
		}()
		time.Sleep(10 * time.Second)
		if n := notices.Load(); n > 0 {
			t.Errorf("got %d list-changed notifications", n)
		}
	})
}

// Fake time: background requests are limited per owner. Requests beyond the limit wait for their
// servers. All background requests end with their timeout or with the gateway.
func TestRequestsThatGoOnAreBounded(t *testing.T) {
	ends := map[string]func(g *testGateway){
		"after the timeout": func(g *testGateway) { time.Sleep(2 * g.config.JoinTimeout) },
		"when another gateway replaces it": func(g *testGateway) {
			next := New(g.config, g.State, g.Retained)
			g.serving.Store(next)
			g.Close()
			g.Gateway = next
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var waiting atomic.Int64
				hang := func(_ http.ResponseWriter, a *incoming) {
					waiting.Add(1)
					defer waiting.Add(-1)
					<-a.Context().Done()
				}
				p := legacyPeer("b").handle("server/discover", hang).handle("initialize", hang)
				g := newInMemory(t, joinWithin(time.Minute), legacyPeer("a").hasTools("x"), p)
				defer g.close()
				const requests = 100
				ask := func(owner string, i int) {
					u := g.modern(t)
					u.identity = owner
					u.info = fmt.Sprintf(`{"name":"%s-%d","version":"1"}`, owner, i) // another audience
					began := time.Now()
					if s := u.ask("server/discover", ""); s.code() != 0 || time.Since(began) != firstWait {
						t.Errorf("after %v: %s", time.Since(began), s.body)
					}
				}
				var asking sync.WaitGroup
				for i := range requests {
					asking.Go(func() { ask("one", i) })
				}
				asking.Wait()
				synctest.Wait()
				limit := int64(backgroundLimits.OwnerEntries)
				if kept, n := backgroundsQuota.Usage().Entries, waiting.Load(); kept != limit || n != limit {
					t.Errorf("got %d background requests and %d requests to the server, want %d", kept, n, limit)
				}
				ask("another", 0)
				synctest.Wait()
				if kept, n := backgroundsQuota.Usage().Entries, waiting.Load(); kept != limit+1 || n != limit+1 {
					t.Errorf("with another client: got %d background requests and %d requests to the server", kept, n)
				}
				end(g)
				synctest.Wait()
				kept, n := backgroundsQuota.Usage(), waiting.Load()
				if kept.Entries != 0 || kept.Bytes != 0 || n > 1 { // one is a retry
					t.Errorf("got %d background requests (%d bytes) and %d requests to the server", kept.Entries, kept.Bytes, n)
				}
			})
		})
	}
}

// Fake time: a client that disconnects before its answer leaves no background requests.
func TestDisconnectEndsBackgroundRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newInMemory(t, joinWithin(time.Minute), legacyPeer("b").answersSlowly(time.Hour))
		defer g.close()
		u := g.modern(t)
		call := u.start(http.MethodPost, u.request("1", "server/discover", ""))
		time.Sleep(firstWait / 2)
		call.disconnect()
		synctest.Wait()
		if kept := backgroundsQuota.Usage().Entries; kept != 0 {
			t.Errorf("got %d background requests", kept)
		}
	})
}
