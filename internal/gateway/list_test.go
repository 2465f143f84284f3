package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// pages gives a server a list of tools in pages.
func (p *fakeServer) pages(size int, names ...string) *fakeServer {
	return p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		at, _ := strconv.Atoi(a.message.Text(jsonrpc.Cursor))
		end := min(at+size, len(names))
		var items []string
		for _, name := range names[at:end] {
			items = append(items, `{"name":"`+name+`"}`)
		}
		next := ""
		if end < len(names) {
			next = fmt.Sprintf(`,"nextCursor":"%d"`, end)
		}
		a.reply(w, `{"tools":[`+strings.Join(items, ",")+`]`+next+`}`)
	})
}

// walk reads a list page by page.
func (u *testClient) walk(method, member, key string, limit int) (all []string, sizes []int) {
	u.t.Helper()
	cursor := ""
	for range 20_000 {
		params := `{`
		if limit > 0 {
			params += `"limit":` + strconv.Itoa(limit)
		}
		if cursor != "" {
			if len(params) > 1 {
				params += ","
			}
			params += `"cursor":"` + cursor + `"`
		}
		s := u.ask(method, params+`}`)
		page := namesIn(u.t, s, member, key)
		all, sizes = append(all, page...), append(sizes, len(page))
		var result struct{ NextCursor string }
		_ = json.Unmarshal(s.Result, &result)
		if cursor = result.NextCursor; cursor == "" {
			return all, sizes
		}
	}
	u.t.Fatal("the list does not end")
	return nil, nil
}

// With any page size, each item is listed once, in order (A18).
func TestPagesOfAnySize(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		var peers []*fakeServer
		for i, n := range []int{0, 7, 1, 0, 12, 3} {
			var tools []string
			for j := range n {
				tools = append(tools, fmt.Sprint("t", j))
			}
			p := newPeer(fmt.Sprint("s", i))
			p.capabilities = `{"tools":{}}`
			peers = append(peers, p.pages(1+i, tools...))
		}
		return peers
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		want, _ := u.walk("tools/list", "tools", "name", 0)
		if len(want) != 23 || want[0] != "s1::t0" || want[22] != "s5::t2" || !slices.IsSorted(want[:7]) {
			t.Fatalf("got %v", want)
		}
		for limit := 1; limit <= 25; limit++ {
			got, sizes := u.walk("tools/list", "tools", "name", limit)
			if !slices.Equal(got, want) {
				t.Errorf("limit %d: got %v", limit, got)
			}
			for i, n := range sizes {
				if n != limit && i < len(sizes)-1 || n == 0 {
					t.Errorf("limit %d: pages of %v", limit, sizes)
				}
			}
		}
	})
}

func TestManyTools(t *testing.T) {
	var peers []*fakeServer
	var want []string
	for i := range 20 {
		p := legacyPeer(fmt.Sprintf("server%02d", i))
		p.capabilities = `{"tools":{}}`
		var tools []string
		for j := range 500 {
			tools = append(tools, fmt.Sprintf("tool%03d", j))
			want = append(want, p.name+"::"+tools[j])
		}
		peers = append(peers, p.pages(100, tools...))
	}
	u := newGateway(t, nil, peers...).legacy(t)
	for _, limit := range []int{0, 499, 9_999, 10_000} {
		if got, _ := u.walk("tools/list", "tools", "name", limit); !slices.Equal(got, want) {
			t.Errorf("limit %d: got %d tools", limit, len(got))
		}
	}
	for _, p := range peers {
		if n := p.count("tools/list"); n != 5 {
			t.Errorf("%s got %d requests", p.name, n)
		}
	}
}

func TestInvalidCursorsAndLimits(t *testing.T) {
	u := newGateway(t, nil, legacyPeer("a").hasTools("x", "y")).legacy(t)
	for _, params := range []string{
		`{"cursor":"!"}`, `{"cursor":""}`, `{"cursor":1}`, `{"cursor":null}`, `{"cursor":"e30"}`,
		`{"cursor":"` + mcp.Cursor(-1) + `"}`, `{"cursor":"eyJvZmZzZXQiOjEuNX0"}`,
		`{"limit":0}`, `{"limit":-1}`, `{"limit":"1"}`, `{"limit":1.5}`, `{"limit":null}`, `{"limit":[]}`,
		`{"limit":99999999999999999999}`,
	} {
		if s := u.ask("tools/list", params); s.code() != jsonrpc.CodeInvalidParams || s.status != 200 {
			t.Errorf("%s: got %d %s (A20)", params, s.status, s.body)
		}
	}
	for params, want := range map[string]string{
		`{"cursor":"` + mcp.Cursor(2) + `"}`:                             `{"tools":[]}`,
		`{"cursor":"` + mcp.Cursor(1<<62) + `","limit":1}`:               `{"tools":[]}`,
		`{"cursor":"` + mcp.Cursor(9) + `","limit":1}`:                   `{"tools":[]}`,
		`{"limit":9223372036854775807,"cursor":"` + mcp.Cursor(3) + `"}`: `{"tools":[]}`,
	} {
		if s := u.ask("tools/list", params); string(s.Result) != want {
			t.Errorf("%s: got %s (A20)", params, s.body)
		}
	}
	if s := u.ask("prompts/list", `{"limit":5}`); string(s.Result) != `{"prompts":[]}` {
		t.Errorf("got %s", s.body)
	}
}

func TestRepeatedCursors(t *testing.T) {
	a := legacyPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"tools":[{"name":"x`+a.message.Text(jsonrpc.Cursor)+`"}],"nextCursor":"`+
			map[string]string{"": "1", "1": "2", "2": "1"}[a.message.Text(jsonrpc.Cursor)]+`"}`)
	})
	b := legacyPeer("b").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"tools":[{"name":"y"}],"nextCursor":"same"}`)
	})
	c := legacyPeer("c").hasTools("z")
	u := newGateway(t, nil, a, b, c).legacy(t)
	got := namesIn(t, u.ask("tools/list", ""), "tools", "name")
	if want := []string{"a::x", "a::x1", "a::x2", "b::y", "c::z"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v (A21)", got, want)
	}
}

// Since 2026-07-28 an empty cursor is like any other. Older servers may mean the end of the list.
func TestEmptyCursorsOfServers(t *testing.T) { // A21
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{newPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			const complete = `,"resultType":"complete","ttlMs":0,"cacheScope":"private"`
			if a.message.Has(jsonrpc.Cursor) {
				a.reply(w, `{"tools":[{"name":"y"}]`+complete+`}`)
				return
			}
			a.reply(w, `{"tools":[{"name":"x"}],"nextCursor":""`+complete+`}`)
		})}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		want := []string{"a::x"}
		if peers[0].eras[mcp.Modern] {
			want = append(want, "a::y")
		}
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// Reading a list that never ends stops with the timeout.
func TestServersWhoseListsNeverEnd(t *testing.T) {
	a := legacyPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		n, _ := strconv.Atoi(a.message.Text(jsonrpc.Cursor))
		a.reply(w, fmt.Sprintf(`{"tools":[{"name":"x%d"}],"nextCursor":"%d"}`, n, n+1))
	})
	u := newGateway(t, nil, a, legacyPeer("b").hasTools("z")).legacy(t)
	if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"b::z"}) {
		t.Errorf("got %d tools", len(got))
	}
	if n := a.count("tools/list"); n > maxPages {
		t.Errorf("requested %d times", n)
	}
}

func TestFailedServersAreLeftOut(t *testing.T) {
	ways := map[string]script{
		"an error":       func(w http.ResponseWriter, a *incoming) { a.refuse(w, 200, -32603, "no") },
		"500":            func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(500) },
		"garbage":        func(w http.ResponseWriter, a *incoming) { a.write(w, 200, "<html>") },
		"no body":        func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(200) },
		"aborted body":   func(w http.ResponseWriter, a *incoming) { a.write(w, 200, `{"json`); panic(http.ErrAbortHandler) },
		"no tools":       func(w http.ResponseWriter, a *incoming) { a.reply(w, `{}`) },
		"null":           func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"tools":null}`) },
		"an object":      func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"tools":{"name":"x"}}`) },
		"an empty array": func(w http.ResponseWriter, a *incoming) { a.reply(w, `[]`) },
		"a second page that fails": func(w http.ResponseWriter, a *incoming) {
			if a.message.Has(jsonrpc.Cursor) {
				w.WriteHeader(500)
				return
			}
			a.reply(w, `{"tools":[{"name":"x"}],"nextCursor":"1"}`)
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			both(t, nil, func() []*fakeServer {
				return []*fakeServer{newPeer("a").hasTools("x"), newPeer("b").handle("tools/list", way), newPeer("c").hasTools("x")}
			}, func(t *testing.T, u *testClient, peers []*fakeServer) {
				want := []string{"a::x", "c::x"}
				for range 2 {
					if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
						t.Errorf("got %v, want %v (A22)", got, want)
					}
				}
				if s := u.call("b::x"); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			})
		})
	}
}

func TestUnreachableServersAreLeftOut(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		p := newPeer("b")
		p.down.Store(true)
		return []*fakeServer{newPeer("a").hasTools("x"), p}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
			t.Errorf("got %v (A6)", got)
		}
		if s := u.call("b::x"); s.symbol() != "connect_error" || s.Error.Data.ServerName != "b" {
			t.Errorf("got %s", s.body)
		}
	})
}

// Fake time: a server that does not respond takes its timeout once, and is retried.
func TestServersThatHang(t *testing.T) {
	for _, method := range []string{"initialize", "tools/list"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("b").hasTools("x")
				normal := p.on[method]
				p.handle(method, func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
				g := newInMemory(t, func(c *Config) { c.JoinTimeout = 15 * time.Second }, legacyPeer("a").hasTools("x"), p)
				defer g.close()
				began := time.Now()
				u := g.legacy(t)
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
					t.Errorf("got %v", got)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("took %v", took)
				}
				if s := u.call("a::x"); s.code() != 0 || time.Since(began) > 20*time.Second {
					t.Errorf("got %+v", s)
				}
				if normal == nil {
					p.mu.Lock()
					delete(p.on, method)
					p.mu.Unlock()
				} else {
					p.handle(method, normal)
				}
				time.Sleep(time.Minute)
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "b::x"}) {
					t.Errorf("later: got %v", got)
				}
			})
		})
	}
}

// A list is requested again only if it may have changed.
func TestCachedLists(t *testing.T) {
	changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	t.Run("a server whose tools never change", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.capabilities = `{"tools":{}}`
		u := newGateway(t, nil, p).legacy(t)
		for range 5 {
			u.ask("tools/list", "")
		}
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("requested %d times", n)
		}
	})
	t.Run("a server without a stream", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		u := newGateway(t, nil, p).legacy(t)
		for range 5 {
			u.ask("tools/list", "")
		}
		if n := p.count("tools/list"); n != 5 {
			t.Errorf("requested %d times", n)
		}
	})
	t.Run("a server with a stream", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		say := p.keepStreams()
		u := newGateway(t, nil, p).legacy(t)
		u.ask("tools/list", "")
		stream := u.listen()
		for range 5 {
			u.ask("tools/list", "")
		}
		if n := p.count("tools/list"); n != 2 {
			t.Errorf("requested %d times, want 2: before and after the stream began", n)
		}
		p.hasTools("x", "y")
		say(changed)
		stream.nextOf("notifications/tools/list_changed")
		for range 5 {
			if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 2 {
				t.Errorf("got %v", got)
			}
		}
		if n := p.count("tools/list"); n != 3 {
			t.Errorf("requested %d times, want 3", n)
		}
		say(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
		stream.nextOf("notifications/prompts/list_changed")
		u.ask("tools/list", "")
		if n := p.count("tools/list"); n != 3 {
			t.Errorf("requested %d times after other changes", n)
		}
		stream.disconnect()
		await.Until(t, "lists are requested again", func() bool {
			n := p.count("tools/list")
			u.ask("tools/list", "")
			return p.count("tools/list") > n
		})
	})
	t.Run("a change during a call", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.keepStreams()
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			p.hasTools("x", "y")
			a.send(w, changed)
			a.finish(w, "{}")
		})
		u := newGateway(t, nil, p).legacy(t)
		u.listen()
		u.ask("tools/list", "")
		if s := u.call("a::x"); len(s.events) != 2 || s.events[0].method() != "notifications/tools/list_changed" {
			t.Errorf("got %s", s.body)
		}
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 2 {
			t.Errorf("got %v", got)
		}
		if n := p.count("tools/list"); n != 2 {
			t.Errorf("requested %d times", n)
		}
	})
	t.Run("a change during a list request", func(t *testing.T) {
		p := legacyPeer("a")
		p.keepStreams()
		p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.send(w, changed)
			a.finish(w, `{"tools":[]}`)
		})
		u := newGateway(t, nil, p).legacy(t)
		stream := u.listen()
		u.ask("tools/list", "")
		stream.nextOf("notifications/tools/list_changed")
		u.ask("tools/list", "")
		if n := p.count("tools/list"); n != 2 {
			t.Errorf("requested %d times", n)
		}
	})
	t.Run("only a resumed call", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.keepStreams()
		u := newGateway(t, nil, p).legacy(t)
		u.header = http.Header{"Last-Event-Id": {u.event("call:MQ/a/7")}}
		u.listen()
		if got := p.waitFor(t, "GET", 1).Header.Get("Last-Event-Id"); got != "7" {
			t.Errorf("resumed after %q", got)
		}
		for range 3 {
			u.ask("tools/list", "")
		}
		if n := p.count("tools/list"); n != 3 {
			t.Errorf("requested %d times: nothing reports changes", n)
		}
	})
	t.Run("a stream for other changes", func(t *testing.T) {
		for wants, asked := range map[string]int{
			`{"resourceSubscriptions":["` + mcp.ResourceURI("a", "x://a") + `"]}`: 3,
			`{"promptsListChanged":true}`:                                         1, // of one list; the gateway listens to all
		} {
			p := modernPeer("a").hasTools("x")
			p.capabilities = `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true}}`
			p.acceptListen()
			u := newGateway(t, nil, p).modern(t)
			u.open(http.MethodPost, u.request("1", mcp.MethodListen, `{"notifications":`+wants+`}`)).next()
			for range 3 {
				u.ask("tools/list", "")
			}
			if n := p.count("tools/list"); n != asked {
				t.Errorf("%s: requested %d times, want %d", wants, n, asked)
			}
		}
	})
	t.Run("a subscription at a server without list changes", func(t *testing.T) {
		p := modernPeer("a").hasTools("x")
		p.capabilities = `{"tools":{"listChanged":true},"resources":{"subscribe":true}}`
		p.handle(mcp.MethodListen, func(w http.ResponseWriter, a *incoming) {
			if !strings.Contains(a.body, "resourceSubscriptions") {
				a.refuse(w, 200, -32603, "not now")
				return
			}
			a.send(w, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`)
			<-a.Context().Done()
		})
		u := newGateway(t, nil, p).legacy(t)
		u.listen()
		u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`)
		for range 3 {
			u.ask("tools/list", "")
		}
		if n := p.count("tools/list"); n != 3 {
			t.Errorf("requested %d times: nothing reports changes", n)
		}
	})
	t.Run("a modern server with a stream", func(t *testing.T) {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			p := modernPeer("a").hasTools("x")
			say := p.acceptListen()
			u := newGateway(t, nil, p).user(t, era)
			var stream *liveReply
			if era == mcp.Legacy {
				stream = u.connect().listen()
			} else {
				stream = u.open(http.MethodPost, u.request(`"l"`, mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))
				stream.next()
			}
			for range 3 {
				u.ask("tools/list", "")
			}
			if n := p.count("tools/list"); n != 1 {
				t.Errorf("client of era %d: requested %d times", era, n)
			}
			say(toolsChanged)
			stream.nextOf("notifications/tools/list_changed")
			u.ask("tools/list", "")
			if n := p.count("tools/list"); n != 2 {
				t.Errorf("client of era %d: requested %d times after a change", era, n)
			}
		}
	})
	t.Run("a lost session", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.capabilities = `{"tools":{}}`
		u := newGateway(t, nil, p).legacy(t)
		u.ask("tools/list", "")
		p.forget()
		p.hasTools("x", "y")
		u.call("a::x")
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// Modern lists have a TTL.
func TestListsWithTTL(t *testing.T) {
	for _, scope := range []string{"public", "private"} {
		t.Run(scope, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := modernPeer("a")
				p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
					a.reply(w, `{"tools":[{"name":"x"}],"resultType":"complete","ttlMs":60000,"cacheScope":"`+scope+`"}`)
				})
				q := modernPeer("b")
				q.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
					a.reply(w, `{"tools":[{"name":"x"}],"resultType":"complete","ttlMs":30000,"cacheScope":"public"}`)
				})
				g := newInMemory(t, nil, p, q)
				defer g.close()
				u := g.modern(t)
				var result struct {
					TTL        int64 `json:"ttlMs"`
					CacheScope string
					ResultType string
				}
				s := u.ask("tools/list", "")
				if json.Unmarshal(s.Result, &result) != nil || result.TTL > 30_000 || result.CacheScope != scope ||
					result.ResultType != "complete" {
					t.Errorf("got %s", s.body)
				}
				time.Sleep(20 * time.Second)
				u.ask("tools/list", "")
				if p.count("tools/list") != 1 || q.count("tools/list") != 1 {
					t.Errorf("requested %d and %d times", p.count("tools/list"), q.count("tools/list"))
				}
				time.Sleep(20 * time.Second)
				u.ask("tools/list", "")
				if p.count("tools/list") != 1 || q.count("tools/list") != 2 {
					t.Errorf("after 40 s: requested %d and %d times", p.count("tools/list"), q.count("tools/list"))
				}
				time.Sleep(30 * time.Second)
				u.ask("tools/list", "")
				if p.count("tools/list") != 2 {
					t.Errorf("after 70 s: requested %d times", p.count("tools/list"))
				}
			})
		})
	}
}

// Clients never see each other's lists, but equal lists share memory.
func TestListsOfSeveralClients(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := newPeer("a")
		p.eras[era] = true
		p.capabilities = `{"tools":{},"prompts":{}}`
		p.hasList("prompts/list", "prompts", `{"name":"p"}`)
		p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"tools":[{"name":"of-`+a.Header.Get("Authorization")+`"}],"ttlMs":3600000,"cacheScope":"private"}`)
		})
		g := newGateway(t, nil, p)
		for _, name := range []string{"ann", "bob", "ann"} {
			u := g.user(t, era)
			u.header.Set("Authorization", name)
			if era == mcp.Legacy {
				u.connect()
			}
			if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::of-" + name}) {
				t.Errorf("%s got %v", name, got)
			}
			u.ask("prompts/list", "")
		}
		seen := map[*catalog.List]int{}
		for _, c := range g.known() {
			if list := c.knownList(g.Gateway, g.config.Servers[0], mcp.Prompts); list != nil {
				seen[list]++
			}
		}
		if len(seen) != 1 {
			t.Errorf("era %d: %d copies of the same list", era, len(seen))
		}
	}
}

// Fake time: an expired list is requested again.
func TestExpiredLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		p.keepStreams()
		g := newInMemory(t, func(c *Config) { c.Discovery = true }, p)
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		defer stream.disconnect()
		search := func() {
			t.Helper()
			if s := u.ask("tools/call", `{"name":"search_tools","arguments":{"query":"x"}}`); !strings.Contains(s.answer,
				"a::x") {
				t.Errorf("got %s", s.body)
			}
		}
		search()
		search()
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("requested %d times, want 1", n)
		}
		time.Sleep(10*time.Minute + idleTime/10)
		synctest.Wait()
		if g.index.latest != nil || g.shelf.Expire() > 0 {
			t.Error("lists of idle clients remain")
		}
		search()
		if n := p.count("tools/list"); n != 2 {
			t.Errorf("requested %d times, want 2", n)
		}
	})
}

// Information about servers is stored once for all clients, up to a limit.
func TestLargeServerInfo(t *testing.T) {
	long := strings.Repeat("x", maxServerInfo)
	for name, tt := range map[string]struct {
		instructions, capabilities string
		want                       string // instructions that clients get
		tools                      bool   // the server can be used
	}{
		"short":                 {"how to", everything, "a:\nhow to", true},
		"long instructions":     {long, everything, "", true},
		"too many capabilities": {"how to", `{"tools":{},"` + long + `":{}}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").hasTools("x")
			p.instructions, p.capabilities = tt.instructions, tt.capabilities
			g := newInMemory(t, nil, p)
			defer g.close()
			u := g.legacy(t)
			var result struct{ Instructions string }
			_ = json.Unmarshal(u.hello.Result, &result)
			if result.Instructions != tt.want {
				t.Errorf("got instructions %.100q", result.Instructions)
			}
			if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) == 1 != tt.tools {
				t.Errorf("got tools %v", got)
			}
		})
	}
}

// Clients request lists concurrently while the lists change.
func TestListsUnderLoad(t *testing.T) {
	p, q := legacyPeer("a").hasTools("x", "y"), legacyPeer("b").hasTools("z")
	say := p.keepStreams()
	g := newGateway(t, nil, p, q)
	var all sync.WaitGroup
	for range 10 {
		u := g.legacy(t)
		u.listen()
		for range 3 {
			all.Go(func() {
				for range 20 {
					s := u.ask("tools/list", `{"limit":2}`)
					if s.code() != 0 || !strings.Contains(s.answer, `"a::x"`) || strings.Contains(s.answer, `"b::z"`) {
						t.Errorf("got %s", s.body)
						return
					}
				}
			})
		}
	}
	for range 20 {
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	}
	all.Wait()
}

// Clients are notified of servers that become available later.
func TestServersThatStartLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("b").hasTools("x")
		p.down.Store(true)
		a := legacyPeer("a").hasTools("x")
		a.keepStreams()
		p.keepStreams()
		g := newInMemory(t, nil, a, p)
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		defer stream.disconnect()
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
		p.down.Store(false)
		timer := time.AfterFunc(5*time.Minute, func() { t.Error("no notification arrived"); stream.cancel() })
		for e := range stream.events {
			if e.method() == "notifications/tools/list_changed" {
				break
			}
		}
		timer.Stop()
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// A large list is not copied for each client that requests it: clients may read it slowly.
func TestLargeListsAreShared(t *testing.T) {
	tools := make([]string, 8)
	for i := range tools {
		tools[i] = fmt.Sprintf(`{"name":"t%d","description":"%s","inputSchema":{}}`, i, strings.Repeat("x", 1<<20))
	}
	large := modernPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"tools":[`+strings.Join(tools, ",")+`],"resultType":"complete","ttlMs":60000,"cacheScope":"public"}`)
	})
	g := newGateway(t, nil, large, modernPeer("b").hasTools("x"))
	u := g.modern(t)
	request := func() string {
		r := u.serverRequest("tools/list", "{}")
		w := countingWriter{header: http.Header{}}
		g.NewRequest(&w, r, inbound.Endpoint{Kind: upstream.Aggregate}, inbound.Peer{Address: "192.0.2.1"}).Serve()
		return fmt.Sprint(w.status, " ", w.bytes>>20)
	}
	if got := request(); got != "200 8" {
		t.Fatalf("got %s", got)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	request()
	runtime.ReadMemStats(&after)
	if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 2 {
		t.Errorf("a list of 8 MiB takes %d MiB for a client", allocated)
	}
	list := u.ask("tools/list", "{}")
	var names struct {
		Tools []struct{ Name, Description string }
	}
	if err := json.Unmarshal(list.Result, &names); err != nil || len(names.Tools) != len(tools)+1 ||
		names.Tools[7].Name != "a::t7" || len(names.Tools[7].Description) != 1<<20 || names.Tools[8].Name != "b::x" {
		t.Errorf("got %d tools, %v", len(names.Tools), err)
	}
}

// A countingWriter counts what is written.
type countingWriter struct {
	header        http.Header
	status, bytes int
}

func (w *countingWriter) Header() http.Header         { return w.header }
func (w *countingWriter) WriteHeader(status int)      { w.status = status }
func (w *countingWriter) Flush()                      {}
func (w *countingWriter) Write(p []byte) (int, error) { w.bytes += len(p); return len(p), nil }
