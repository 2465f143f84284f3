package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// annotated returns the definition of a tool with one hint.
func annotated(name, hint string) string {
	return `{"name":"` + name + `","inputSchema":{"type":"object"},"annotations":{"` + hint + `":true}}`
}

// readsAndWrites gives a peer a tool that reads and one that does not say so.
func (p *peer) readsAndWrites() *peer {
	return p.has("tools/list", "tools", annotated("read", "readOnlyHint"), `{"name":"write"}`)
}

// refuses wants a call to be refused without the server seeing it.
func (u *user) refuses(p *peer, tool, symbol string) {
	u.t.Helper()
	before := p.count("tools/call")
	if got := u.call(p.name + "::" + tool); got.symbol() != symbol {
		u.t.Errorf("%s: got %d %s, want %s", tool, got.status, got.body, symbol)
	}
	if n := p.count("tools/call"); n != before {
		u.t.Errorf("%s: the server has got the call", tool)
	}
}

// uses wants a call to reach the server.
func (u *user) uses(p *peer, tool string) {
	u.t.Helper()
	before := p.count("tools/call")
	if got := u.call(p.name + "::" + tool); got.Result == nil || p.count("tools/call") != before+1 {
		u.t.Errorf("%s: got %d %s, want a result of the server", tool, got.status, got.body)
	}
}

// A server is asked for its tools before the first call, once.
func TestCallsBeforeAnyList(t *testing.T) {
	peers := func() []*peer { return []*peer{newPeer("a").readsAndWrites()} }
	both(t, everybody("deny destructive"), peers, func(t *testing.T, u *user, peers []*peer) {
		p := peers[0]
		u.refuses(p, "write", "acl_denied")
		u.refuses(p, "unlisted", "acl_denied")
		u.refuses(p, "", "acl_denied")
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("it was asked for its tools %d times, want 1", n)
		}
		u.uses(p, "read")
	})
}

// Of many calls at once, one has the server asked. If that is canceled, another one does.
func TestOneCallAsksForAnnotations(t *testing.T) {
	const calls = 100
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			p := newPeer("a").readsAndWrites()
			p.speaks[era] = true
			list := p.on["tools/list"]
			waiting := make(chan struct{})
			p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
				if p.count("tools/list") == 1 {
					<-a.Context().Done()
					return
				}
				<-waiting
				list(w, a)
			})
			g := newGateway(t, everybody("deny destructive"), p)
			u := g.user(t, era)
			if era == mcp.Legacy {
				u.connect()
			}
			canceled := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", `{"name":"a::read"}`))
			p.await(t, "tools/list", 1)
			var calling sync.WaitGroup
			for range calls {
				calling.Go(func() {
					if got := u.call("a::read"); got.Result == nil {
						t.Errorf("got %d %s", got.status, got.body)
					}
				})
			}
			canceled.hangUp()
			await.Until(t, "all other calls", func() bool { return g.active.Load() == calls })
			close(waiting)
			calling.Wait()
			if n := p.count("tools/list"); n != 2 {
				t.Errorf("the server was asked for its tools %d times, want 2", n)
			}
		})
	}
}

// What cannot be listed cannot be called, and a server that fails is left alone for a while.
func TestAnnotationsThatCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").readsAndWrites()
		list := p.on["tools/list"]
		p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.refuse(w, http.StatusOK, jsonrpc.CodeInternalError, "not now")
		})
		g := newMemory(t, everybody("deny destructive"), p)
		defer g.close()
		u := g.legacy(t)
		for range 10 {
			u.refuses(p, "read", "server_error")
		}
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("the server was asked for its tools %d times, want 1", n)
		}
		p.does("tools/list", list)
		time.Sleep(5 * time.Second)
		u.uses(p, "read")
	})
}

// Annotations are good for a minute, unless the server says that its tools have changed.
func TestAnnotationsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").readsAndWrites()
		say := p.listens()
		g := newMemory(t, everybody("deny destructive"), p)
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		p.await(t, "GET", 1)
		u.uses(p, "read")
		p.has("tools/list", "tools", `{"name":"read"}`)
		u.uses(p, "read") // as it was listed
		time.Sleep(time.Minute)
		u.refuses(p, "read", "acl_denied")

		p.readsAndWrites()
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.nextOf("notifications/tools/list_changed")
		u.uses(p, "read")
		p.has("tools/list", "tools", `{"name":"read"}`)
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.nextOf("notifications/tools/list_changed")
		u.refuses(p, "read", "acl_denied")
		g.replace(everybody("deny destructive"), p) // what was known before stays forgotten
		u.refuses(p, "read", "acl_denied")
		stream.hangUp()
	})
}

// A server that says that its tools have changed while it lists them has listed them.
func TestToolsThatChangeWhileTheyAreListed(t *testing.T) {
	p := legacyPeer("a").readsAndWrites()
	say, list := p.listens(), p.on["tools/list"]
	u := newGateway(t, everybody("deny destructive"), p).legacy(t)
	stream := u.listen()
	p.await(t, "GET", 1)
	p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.nextOf("notifications/tools/list_changed")
		list(w, a)
	})
	u.uses(p, "read")
	u.refuses(p, "write", "acl_denied")
	u.refuses(p, "unlisted", "acl_denied")
}

// A list shows the annotations by which a call is decided.
func TestListsAreTheLatestAnnotations(t *testing.T) {
	p := modernPeer("a").readsAndWrites()
	u := newGateway(t, everybody("deny destructive"), p).modern(t)
	u.uses(p, "read")
	p.has("tools/list", "tools", `{"name":"read"}`, annotated("write", "readOnlyHint"))
	if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::write"}) {
		t.Errorf("listed %v", got)
	}
	u.refuses(p, "read", "acl_denied")
	u.uses(p, "write")
}

// A server may choose by any header what a tool does, so a list with one says nothing of calls with
// another.
func TestAnnotationsOfOtherHeaders(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			p := newPeer("a")
			p.speaks[era] = true
			p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
				hint := "destructiveHint"
				if a.Header.Get("X-Mode") == "read" {
					hint = "readOnlyHint"
				}
				a.reply(w, `{"tools":[`+annotated("run", hint)+
					`],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`)
			})
			u := newGateway(t, everybody("deny destructive"), p).user(t, era)
			u.header.Set("X-Mode", "read")
			if era == mcp.Legacy {
				u.connect()
			}
			if got := names(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
				t.Errorf("listed %v", got)
			}
			u.uses(p, "run")
			u.header.Set("X-Mode", "write")
			u.refuses(p, "run", "acl_denied")
			u.header.Set("X-Mode", "read")
			u.uses(p, "run")
		})
	}
}

// A reload that has a rule ask for other annotations finds them, too.
func TestAnnotationsOutliveRules(t *testing.T) {
	p := legacyPeer("a").readsAndWrites()
	g := newGateway(t, everybody("allow a::write", "deny destructive"), p)
	u := g.legacy(t)
	u.uses(p, "read")
	u.uses(p, "write")
	g.replace(everybody("deny read_only"), p)
	u.refuses(p, "read", "acl_denied")
	u.uses(p, "write")
	g.replace(everybody("deny destructive"), p)
	u.refuses(p, "write", "acl_denied")
}

// If there is no room for all annotations, a tool is not taken for one that has none.
func TestNoRoomForAnnotations(t *testing.T) {
	p := legacyPeer("a")
	var tools []string
	const n = 50_001 // the most that are remembered for a client, and one
	for i := range n {
		tools = append(tools, annotated(fmt.Sprint("t", i), "readOnlyHint"))
	}
	p.has("tools/list", "tools", tools...)
	g := newGateway(t, everybody("deny read_only"), p)
	u := g.legacy(t)
	symbols := map[string]int{}
	for _, i := range []int{0, n / 2, n - 1} {
		got := u.call(fmt.Sprint("a::t", i))
		symbols[got.symbol()]++
	}
	if symbols["busy"] == 0 || symbols["busy"]+symbols["acl_denied"] != 3 {
		t.Errorf("got %v", symbols)
	}
	if calls := p.count("tools/call"); calls != 0 {
		t.Errorf("%d calls were let through", calls)
	}
}

// A call that is over the limit has no server asked.
func TestLimitsBeforeAnnotations(t *testing.T) {
	p := legacyPeer("a").readsAndWrites()
	g := newGateway(t, func(c *Config) {
		everybody("deny destructive")(c)
		oneRequest(c)
	}, p)
	u := g.legacy(t)
	u.ask("prompts/list", "") // which is the request
	u.refuses(p, "read", "rate_limited")
	if n := p.count("tools/list"); n != 0 {
		t.Errorf("it was asked for its tools %d times", n)
	}
}

// A tool without a name is none, also where all are shown.
func TestAnnotationsOfToolsWithoutNames(t *testing.T) {
	p := legacyPeer("a").has("tools/list", "tools", `{"name":""}`, `{"title":"x"}`, annotated("read", "readOnlyHint"))
	g := newGateway(t, everybody("allow read_only"), p)
	u := g.legacy(t)
	u.uses(p, "read")
	u.ask("tools/list", "")
	u.uses(p, "read")
	u.call("a::")
}

// A tool does not lose its annotations with the page of the list that it is in.
func TestAnnotationsInPages(t *testing.T) {
	p := legacyPeer("a")
	p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
		if a.message.Text(jsonrpc.Cursor) == "" {
			a.reply(w, `{"tools":[{"name":"write"}],"nextCursor":"2"}`)
		} else {
			a.reply(w, `{"tools":[`+annotated("read", "readOnlyHint")+`]}`)
		}
	})
	u := newGateway(t, everybody("deny destructive"), p).legacy(t)
	u.refuses(p, "write", "acl_denied")
	u.uses(p, "read")
}

// What was got by a call can be had again as long as the call is allowed, also if the server was not
// asked for its tools since.
func TestAnnotationsOfWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").has("tools/list", "tools", annotated("x", "readOnlyHint"))
		p.capabilities = `{"tools":{},"tasks":{"list":{},"requests":{"tools":{"call":{}}}}}`
		p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"task":{"taskId":"1","status":"working"}}`)
		})
		p.does("tasks/get", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"taskId":"1","status":"completed"}`)
		})
		configure := func(rules ...string) func(*Config) {
			return func(c *Config) {
				policy := rulesOf(rules...)
				c.Auth = believing{}
				c.Clients = []*access.Client{{Name: "ann", Policy: policy, View: policy.Fingerprint()}}
				c.Servers[0].Mask, c.Servers[0].MaskMCP = keeping{"ann h": "all of it"}, true
			}
		}
		g := newMemory(t, configure("deny destructive"), p)
		defer g.close()
		u := g.user(t, mcp.Legacy)
		u.identity = "ann"
		u.connect()
		if got := u.ask("tools/call", `{"name":"a::x","arguments":{},"task":{}}`); !strings.Contains(got.body, "a::1") {
			t.Fatalf("got %s", got.body)
		}
		original := func() string {
			return u.ask("resources/read", `{"uri":"`+mcp.ObservationURI("h")+`"}`).body
		}
		time.Sleep(2 * time.Minute)
		if got := u.ask("tasks/get", `{"taskId":"a::1"}`); got.Result == nil {
			t.Errorf("the task: got %s", got.body)
		}
		if got := original(); !strings.Contains(got, "all of it") {
			t.Errorf("the original: got %s", got)
		}
		time.Sleep(2 * time.Minute)
		g.replace(configure("deny read_only"), p)
		if got := u.ask("tasks/get", `{"taskId":"a::1"}`); got.Error == nil {
			t.Errorf("the task of a tool that is denied now: got %s", got.body)
		}
		if got := original(); strings.Contains(got, "all of it") {
			t.Errorf("the original of a tool that is denied now: got %s", got)
		}
	})
}

// A server of which nothing is allowed is not asked for its tools either.
func TestAnnotationsOfAServerThatIsDenied(t *testing.T) {
	p := newPeer("a").readsAndWrites()
	rules := everybody("deny read_only:a::*", "deny a::*")
	both(t, rules, func() []*peer { return []*peer{p} }, func(t *testing.T, u *user, _ []*peer) {
		u.refuses(p, "read", "acl_denied")
		if n := len(p.arrivals); n != 0 {
			t.Errorf("the server got %d requests", n)
		}
	})
}
