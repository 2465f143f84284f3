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

// hasAnnotatedTools gives the server a read-only tool and one without that hint.
func (p *fakeServer) hasAnnotatedTools() *fakeServer {
	return p.hasList("tools/list", "tools", annotated("read", "readOnlyHint"), `{"name":"write"}`)
}

// callRefused checks that a call is refused and does not reach the server.
func (u *testClient) callRefused(p *fakeServer, tool, symbol string) {
	u.t.Helper()
	before := p.count("tools/call")
	if got := u.call(p.name + "::" + tool); got.symbol() != symbol {
		u.t.Errorf("%s: got %d %s, want %s", tool, got.status, got.body, symbol)
	}
	if n := p.count("tools/call"); n != before {
		u.t.Errorf("%s: the server got the call", tool)
	}
}

// callReaches checks that a call reaches the server.
func (u *testClient) callReaches(p *fakeServer, tool string) {
	u.t.Helper()
	before := p.count("tools/call")
	if got := u.call(p.name + "::" + tool); got.Result == nil || p.count("tools/call") != before+1 {
		u.t.Errorf("%s: got %d %s, want a result of the server", tool, got.status, got.body)
	}
}

// The gateway requests the tools of a server before the first call, once.
func TestCallsBeforeAnyList(t *testing.T) {
	peers := func() []*fakeServer { return []*fakeServer{newPeer("a").hasAnnotatedTools()} }
	both(t, rulesForAll("deny destructive"), peers, func(t *testing.T, u *testClient, peers []*fakeServer) {
		p := peers[0]
		u.callRefused(p, "write", "acl_denied")
		u.callRefused(p, "unlisted", "acl_denied")
		u.callRefused(p, "", "acl_denied")
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("the server got %d requests for its tools, want 1", n)
		}
		u.callReaches(p, "read")
	})
}

// Of many concurrent calls, one requests the list. If it is canceled, another one does.
func TestOneCallRequestsAnnotations(t *testing.T) {
	const calls = 100
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			p := newPeer("a").hasAnnotatedTools()
			p.eras[era] = true
			list := p.on["tools/list"]
			waiting := make(chan struct{})
			p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
				if p.count("tools/list") == 1 {
					<-a.Context().Done()
					return
				}
				<-waiting
				list(w, a)
			})
			g := newGateway(t, rulesForAll("deny destructive"), p)
			u := g.user(t, era)
			if era == mcp.Legacy {
				u.connect()
			}
			canceled := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", `{"name":"a::read"}`))
			p.waitFor(t, "tools/list", 1)
			var calling sync.WaitGroup
			for range calls {
				calling.Go(func() {
					if got := u.call("a::read"); got.Result == nil {
						t.Errorf("got %d %s", got.status, got.body)
					}
				})
			}
			canceled.disconnect()
			await.Until(t, "all other calls", func() bool { return g.active.Load() == calls })
			close(waiting)
			calling.Wait()
			if n := p.count("tools/list"); n != 2 {
				t.Errorf("the server got %d requests for its tools, want 2", n)
			}
		})
	}
}

// Without a list, calls are refused. After a failure, the gateway waits before it requests the list
// again.
func TestAnnotationsThatCannotBeListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasAnnotatedTools()
		list := p.on["tools/list"]
		p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.refuse(w, http.StatusOK, jsonrpc.CodeInternalError, "not now")
		})
		g := newInMemory(t, rulesForAll("deny destructive"), p)
		defer g.close()
		u := g.legacy(t)
		for range 10 {
			u.callRefused(p, "read", "server_error")
		}
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("the server got %d requests for its tools, want 1", n)
		}
		p.handle("tools/list", list)
		time.Sleep(5 * time.Second)
		u.callReaches(p, "read")
	})
}

// Annotations are valid for a minute, unless the server sends a list-changed notification.
func TestAnnotationsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasAnnotatedTools()
		say := p.keepStreams()
		g := newInMemory(t, rulesForAll("deny destructive"), p)
		defer g.close()
		u := g.legacy(t)
		stream := u.listen()
		p.waitFor(t, "GET", 1)
		u.callReaches(p, "read")
		p.hasList("tools/list", "tools", `{"name":"read"}`)
		u.callReaches(p, "read") // as listed
		time.Sleep(time.Minute)
		u.callRefused(p, "read", "acl_denied")

		p.hasAnnotatedTools()
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.nextOf("notifications/tools/list_changed")
		u.callReaches(p, "read")
		p.hasList("tools/list", "tools", `{"name":"read"}`)
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.nextOf("notifications/tools/list_changed")
		u.callRefused(p, "read", "acl_denied")
		g.replace(rulesForAll("deny destructive"), p) // the reload does not restore them
		u.callRefused(p, "read", "acl_denied")
		stream.disconnect()
	})
}

// A list-changed notification during a list request does not invalidate that list.
func TestToolsThatChangeDuringAList(t *testing.T) {
	p := legacyPeer("a").hasAnnotatedTools()
	say, list := p.keepStreams(), p.on["tools/list"]
	u := newGateway(t, rulesForAll("deny destructive"), p).legacy(t)
	stream := u.listen()
	p.waitFor(t, "GET", 1)
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.nextOf("notifications/tools/list_changed")
		list(w, a)
	})
	u.callReaches(p, "read")
	u.callRefused(p, "write", "acl_denied")
	u.callRefused(p, "unlisted", "acl_denied")
}

// Calls are decided by the annotations that lists show.
func TestListsUpdateAnnotations(t *testing.T) {
	p := modernPeer("a").hasAnnotatedTools()
	u := newGateway(t, rulesForAll("deny destructive"), p).modern(t)
	u.callReaches(p, "read")
	p.hasList("tools/list", "tools", `{"name":"read"}`, annotated("write", "readOnlyHint"))
	if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::write"}) {
		t.Errorf("listed %v", got)
	}
	u.callRefused(p, "read", "acl_denied")
	u.callReaches(p, "write")
}

// A server may choose its tools by any header, so a list with one header does not apply to calls
// with another.
func TestAnnotationsOfOtherHeaders(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("era ", era), func(t *testing.T) {
			p := newPeer("a")
			p.eras[era] = true
			p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
				hint := "destructiveHint"
				if a.Header.Get("X-Mode") == "read" {
					hint = "readOnlyHint"
				}
				a.reply(w, `{"tools":[`+annotated("run", hint)+
					`],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`)
			})
			u := newGateway(t, rulesForAll("deny destructive"), p).user(t, era)
			u.header.Set("X-Mode", "read")
			if era == mcp.Legacy {
				u.connect()
			}
			if got := names(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
				t.Errorf("listed %v", got)
			}
			u.callReaches(p, "run")
			u.header.Set("X-Mode", "write")
			u.callRefused(p, "run", "acl_denied")
			u.header.Set("X-Mode", "read")
			u.callReaches(p, "run")
		})
	}
}

// After a reload, rules that need other annotations find them.
func TestAnnotationsOutliveRules(t *testing.T) {
	p := legacyPeer("a").hasAnnotatedTools()
	g := newGateway(t, rulesForAll("allow a::write", "deny destructive"), p)
	u := g.legacy(t)
	u.callReaches(p, "read")
	u.callReaches(p, "write")
	g.replace(rulesForAll("deny read_only"), p)
	u.callRefused(p, "read", "acl_denied")
	u.callReaches(p, "write")
	g.replace(rulesForAll("deny destructive"), p)
	u.callRefused(p, "write", "acl_denied")
}

// If not all annotations fit in the limit, a tool without stored annotations is refused. It is not
// treated as a tool without hints.
func TestNoRoomForAnnotations(t *testing.T) {
	p := legacyPeer("a")
	var tools []string
	const n = 50_001 // one more than the maximum per client
	for i := range n {
		tools = append(tools, annotated(fmt.Sprint("t", i), "readOnlyHint"))
	}
	p.hasList("tools/list", "tools", tools...)
	g := newGateway(t, rulesForAll("deny read_only"), p)
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
		t.Errorf("%d calls reached the server", calls)
	}
}

// A call over the rate limit does not request a list.
func TestLimitsBeforeAnnotations(t *testing.T) {
	p := legacyPeer("a").hasAnnotatedTools()
	g := newGateway(t, func(c *Config) {
		rulesForAll("deny destructive")(c)
		oneRequest(c)
	}, p)
	u := g.legacy(t)
	u.ask("prompts/list", "") // uses up the limit
	u.callRefused(p, "read", "rate_limited")
	if n := p.count("tools/list"); n != 0 {
		t.Errorf("the server got %d requests for its tools", n)
	}
}

// A tool without a name is ignored, even where all tools are shown.
func TestAnnotationsOfToolsWithoutNames(t *testing.T) {
	p := legacyPeer("a").hasList("tools/list", "tools", `{"name":""}`, `{"title":"x"}`, annotated("read", "readOnlyHint"))
	g := newGateway(t, rulesForAll("allow read_only"), p)
	u := g.legacy(t)
	u.callReaches(p, "read")
	u.ask("tools/list", "")
	u.callReaches(p, "read")
	u.call("a::")
}

// Tools keep their annotations over the pages of a list.
func TestAnnotationsInPages(t *testing.T) {
	p := legacyPeer("a")
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		if a.message.Text(jsonrpc.Cursor) == "" {
			a.reply(w, `{"tools":[{"name":"write"}],"nextCursor":"2"}`)
		} else {
			a.reply(w, `{"tools":[`+annotated("read", "readOnlyHint")+`]}`)
		}
	})
	u := newGateway(t, rulesForAll("deny destructive"), p).legacy(t)
	u.callRefused(p, "write", "acl_denied")
	u.callReaches(p, "read")
}

// The original of a result can be recovered as long as the call is allowed, even if the tools were
// not listed since.
func TestAnnotationsOfOriginals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasList("tools/list", "tools", annotated("x", "readOnlyHint"))
		p.capabilities = `{"tools":{},"tasks":{"list":{},"requests":{"tools":{"call":{}}}}}`
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"task":{"taskId":"1","status":"working"}}`)
		})
		p.handle("tasks/get", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"taskId":"1","status":"completed"}`)
		})
		configure := func(rules ...string) func(*Config) {
			return func(c *Config) {
				policy := rulesOf(rules...)
				c.Auth = headerAuth{}
				c.Clients = []*access.Client{{Name: "ann", Policy: policy, View: policy.Fingerprint()}}
				c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{"ann h": "all of it"}, true
			}
		}
		g := newInMemory(t, configure("deny destructive"), p)
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
			t.Errorf("task: got %s", got.body)
		}
		if got := original(); !strings.Contains(got, "all of it") {
			t.Errorf("original: got %s", got)
		}
		time.Sleep(2 * time.Minute)
		g.replace(configure("deny read_only"), p)
		if got := u.ask("tasks/get", `{"taskId":"a::1"}`); got.Error == nil {
			t.Errorf("task of a denied tool: got %s", got.body)
		}
		if got := original(); strings.Contains(got, "all of it") {
			t.Errorf("original of a denied tool: got %s", got)
		}
	})
}

// If nothing of a server is allowed, the gateway does not request its tools.
func TestAnnotationsOfAServerThatIsDenied(t *testing.T) {
	p := newPeer("a").hasAnnotatedTools()
	rules := rulesForAll("deny read_only:a::*", "deny a::*")
	both(t, rules, func() []*fakeServer { return []*fakeServer{p} }, func(t *testing.T, u *testClient, _ []*fakeServer) {
		u.callRefused(p, "read", "acl_denied")
		if n := len(p.arrivals); n != 0 {
			t.Errorf("the server got %d requests", n)
		}
	})
}
