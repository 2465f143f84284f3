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

// slowly answers initialize after a time.
func (p *peer) slowly(after time.Duration) *peer {
	return p.does("initialize", func(w http.ResponseWriter, a *incoming) {
		if backoff.Sleep(a.Context(), after) {
			p.initialize(w, a)
		}
	})
}

// listenFor opens a stream in which the client hears that tools have changed.
func (u *user) listenFor() *talk {
	if u.era == mcp.Legacy {
		return u.listen()
	}
	return u.open(http.MethodPost, u.request(`"l"`, mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))
}

func joinWithin(d time.Duration) func(*Config) { return func(c *Config) { c.JoinTimeout = d } }

// In time that is not real, and in both eras: one that never shakes hands holds up a client once, however often and
// however many clients ask.
func TestServersThatNeverShakeHandsAreTriedBesideRequests(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("b").hasTools("x").slowly(time.Hour)
				g := newMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"), p)
				defer g.close()
				var waited time.Duration
				ask := func(u *user) {
					began := time.Now()
					if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
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
					other.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i) // which is another client to the servers
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
					t.Errorf("it was tried %d times", n)
				}
				// Nor is it tried for ever.
				time.Sleep(11 * time.Minute)
				n := p.count("initialize")
				if time.Sleep(time.Hour); p.count("initialize") != n {
					t.Error("it is tried although no client wants it")
				}
			})
		})
	}
}

// In time that is not real: a client is answered after firstWait if it hears of what comes later. Another one waits
// for that, so that it misses nothing.
func TestServersThatAreSlow(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := legacyPeer("b").hasTools("x").slowly(12 * time.Second)
				slow.capabilities = `{"tools":{}}`
				slow.does("server/discover", func(w http.ResponseWriter, a *incoming) { a.refuse(w, 404, -32601, "no") })
				g := newMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"), slow)
				defer g.close()
				u, method, params := g.user(t, era), "server/discover", ""
				if era == mcp.Legacy {
					method, params = "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"u","version":"1"}}`
				}
				began := time.Now()
				said := u.ask(method, params)
				if took := time.Since(began); took != firstWait {
					t.Errorf("%s took %v", method, took)
				}
				for _, capability := range []string{"tools", "prompts", "resources"} {
					if !strings.Contains(said.body, `"`+capability+`":{"listChanged":true`) {
						t.Errorf("no %s in %s", capability, said.body)
					}
				}
				if era == mcp.Legacy {
					u.session = said.header.Get(mcp.SessionHeader)
				}
				stream := u.listenFor()
				defer stream.hangUp()
				asked := time.Now()
				if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
					t.Errorf("got %v", got)
				}
				if took := time.Since(asked); took != firstWait {
					t.Errorf("the list took %v", took)
				}
				for e := range stream.events {
					if e.method() == "notifications/tools/list_changed" {
						break
					}
				}
				if came := time.Since(began); came > 16*time.Second {
					t.Errorf("the client is told after %v", came)
				}
				asked = time.Now()
				if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "b::x"}) || time.Since(asked) != 0 {
					t.Errorf("got %v after %v", got, time.Since(asked))
				}
			})
		})
	}
	t.Run("a client that does not listen", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("x").slowly(12*time.Second))
			defer g.close()
			began := time.Now()
			u := g.legacy(t)
			if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "b::x"}) {
				t.Errorf("got %v", got)
			}
			if took := time.Since(began); took != 12*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
	t.Run("a client that begins to listen meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newMemory(t, joinWithin(15*time.Second), legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("x").slowly(12*time.Second))
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
			defer stream.hangUp()
			if took := <-listed; took > 7*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
}

// In time that is not real: a client that had no stream when the server came is told when it opens one.
func TestClientsThatListenTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newMemory(t, joinWithin(10*time.Second), legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("x").slowly(8*time.Second))
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		if got := names(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
		stream.hangUp()
		time.Sleep(10 * time.Second)
		stream = u.listen()
		defer stream.hangUp()
		for e := range stream.events {
			if e.method() == "notifications/tools/list_changed" {
				return
			}
		}
		t.Error("it was not told")
	})
}

// In time that is not real: a call of a child process that is starting waits for it as long as for an answer.
func TestCallsWaitForChildrenThatStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("b").hasTools("x").slowly(20 * time.Second)
		g := newMemory(t, func(c *Config) {
			c.JoinTimeout = 5 * time.Second
			c.Servers[0].ChildrenOnly, c.Servers[0].Timeout = true, 30*time.Second
		}, p)
		defer g.close()
		u := g.legacy(t)
		if got := names(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		if s := u.call("b::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
	})
}

// In time that is not real: join_timeout may be longer than the time for answers.
func TestJoinTimeoutBeyondTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("b").slowly(45 * time.Second)
		p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
			time.Sleep(45 * time.Second)
			a.reply(w, `{"tools":[{"name":"x"}]}`)
		})
		g := newMemory(t, func(c *Config) {
			c.JoinTimeout, c.Servers[0].Timeout = 2*time.Minute, 30*time.Second
		}, p)
		defer g.close()
		if got := names(t, g.legacy(t).ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// A server that has resources need not have templates.
func TestListsThatAServerDoesNotKnow(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		core, logged := observer.New(zap.WarnLevel)
		p := legacyPeer("a").does("resources/templates/list", func(w http.ResponseWriter, a *incoming) {
			a.refuse(w, http.StatusOK, jsonrpc.CodeMethodNotFound, "Method not found")
		})
		g := newGateway(t, func(c *Config) { c.Logger = zap.New(core) }, p)
		u := g.user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		if got := names(t, u.ask("resources/templates/list", ""), "resourceTemplates", "uriTemplate"); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		if n := logged.Len(); n > 0 {
			t.Errorf("logged %v", logged.All())
		}
	}
}

// A client that lists anew whenever lists have changed is told only of changes: not of a list that a server
// fails to give, however often its other lists can be had.
func TestListsThatFailAreNotAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.capabilities = `{"tools":{},"prompts":{},"resources":{}}`
		p.does("prompts/list", func(w http.ResponseWriter, a *incoming) { a.refuse(w, 200, -32603, "broken") })
		p.has("resources/list", "resources")
		g := newMemory(t, joinWithin(15*time.Second), p)
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		defer stream.hangUp()
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
			t.Errorf("%d announcements of changes", n)
		}
	})
}

// In time that is not real: what goes on after requests is bounded for each owner. Requests beyond that are answered
// like the others. All of it ends when the servers had their time, or with the gateway.
func TestRequestsThatGoOnAreBounded(t *testing.T) {
	ends := map[string]func(g *front){
		"after a time": func(g *front) { time.Sleep(g.sideTime()) },
		"with the gateway, when another takes its place": func(g *front) {
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
				p := legacyPeer("b").does("server/discover", hang).does("initialize", hang)
				g := newMemory(t, joinWithin(time.Minute), legacyPeer("a").hasTools("x"), p)
				defer g.close()
				const requests = 100
				ask := func(owner string, i int) {
					u := g.modern(t)
					u.identity = owner
					u.info = fmt.Sprintf(`{"name":"%s-%d","version":"1"}`, owner, i) // another client to the servers
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
				limit := int64(sideLimits.OwnerEntries)
				if kept, n := keptSides.Usage().Entries, waiting.Load(); kept != limit || n != limit {
					t.Errorf("%d requests go on with %d questions to the server, want %d", kept, n, limit)
				}
				ask("another", 0)
				synctest.Wait()
				if kept, n := keptSides.Usage().Entries, waiting.Load(); kept != limit+1 || n != limit+1 {
					t.Errorf("with that of another client, %d requests go on with %d questions to the server", kept, n)
				}
				end(g)
				synctest.Wait()
				kept, n := keptSides.Usage(), waiting.Load()
				if kept.Entries != 0 || kept.Bytes != 0 || n > 1 { // one is a retry
					t.Errorf("%d requests (%d bytes) go on with %d questions", kept.Entries, kept.Bytes, n)
				}
			})
		})
	}
}

// In time that is not real: a client that leaves before it is answered leaves nothing.
func TestRequestsOfClientsThatLeaveDoNotGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newMemory(t, joinWithin(time.Minute), legacyPeer("b").slowly(time.Hour))
		defer g.close()
		u := g.modern(t)
		call := u.start(http.MethodPost, u.request("1", "server/discover", ""))
		time.Sleep(firstWait / 2)
		call.hangUp()
		synctest.Wait()
		if kept := keptSides.Usage().Entries; kept != 0 {
			t.Errorf("%d requests go on", kept)
		}
	})
}
