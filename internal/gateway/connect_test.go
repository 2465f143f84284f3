package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// methods returns the methods that a server received, in order.
func (p *fakeServer) methods() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arrivals {
		all = append(all, a.method())
	}
	return all
}

// A request that finds the server unavailable does not close a link that another one has opened since.
func TestFailureKeepsAnOpenLink(t *testing.T) {
	var s serverSession
	for _, attempt := range []struct {
		failure      *jsonrpc.Failure
		open, failed bool
	}{
		{jsonrpc.Timeout("a"), false, true},
		{nil, true, false},
		{jsonrpc.Timeout("a"), true, false},
	} {
		s.noteOpened(attempt.failure)
		if s.isOpen() != attempt.open || s.hasFailed() != attempt.failed {
			t.Errorf("after %v: open %v, failed %v", attempt.failure, s.isOpen(), s.hasFailed())
		}
	}
}

// The gateway tries the modern era first, whatever the era of the client, and only once.
func TestServersAreDiscovered(t *testing.T) {
	tests := []struct {
		name   string
		peer   *fakeServer
		speaks [2]bool
		client mcp.Era
		want   []string // first methods
		again  string   // first method for a second client
	}{
		{"modern server", modernPeer("a"), [2]bool{mcp.Modern: true}, mcp.Legacy, []string{"server/discover"},
			"server/discover"},
		{"legacy server", legacyPeer("a"), [2]bool{mcp.Legacy: true}, mcp.Legacy, []string{"server/discover", "initialize"},
			"initialize"},
		{"both, legacy client", newPeer("a"), [2]bool{true, true}, mcp.Legacy, []string{"server/discover", "initialize"},
			"initialize"},
		{"both, modern client", newPeer("a"), [2]bool{true, true}, mcp.Modern, []string{"server/discover"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.peer
			p.eras = tt.speaks
			g := newGateway(t, nil, p)
			connect := func() {
				u := g.user(t, tt.client)
				if tt.client == mcp.Legacy {
					u.connect()
				}
				if s := u.call("a::x"); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			}
			connect()
			got := p.methods()
			if len(got) < len(tt.want) || !slices.Equal(got[:len(tt.want)], tt.want) || got[len(tt.want)] == "initialize" {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			connect()
			if next := p.methods()[len(got)]; tt.again != "" && next != tt.again {
				t.Errorf("then got %q, want %q", next, tt.again)
			}
		})
	}
}

// If a server refuses a version, the gateway tries one that the server offers.
func TestRefusedVersions(t *testing.T) {
	refuse := func(w http.ResponseWriter, a *incoming, code int, supported string) {
		a.write(w, http.StatusBadRequest, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,`+
			`"message":"Unsupported protocol version","data":{"supported":[%s]}}}`, a.id(), code, supported))
	}
	t.Run("the same version again", func(t *testing.T) {
		p := modernPeer("a")
		p.handle("server/discover", func(w http.ResponseWriter, a *incoming) {
			p.handle("server/discover", nil)
			refuse(w, a, -32022, `"2026-07-28"`)
		})
		if s := newGateway(t, nil, p).legacy(t).call("a::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		all := p.requests("server/discover")
		if len(all) != 2 || all[0].id() == all[1].id() {
			t.Errorf("got %d requests", len(all))
		}
		for _, a := range all {
			if failure := mcp.CheckModern(a.Header, &a.message); failure != nil || !a.message.Has(jsonrpc.ClientInfo) {
				t.Errorf("got %v, %v, %s", failure, a.Header, a.body)
			}
		}
	})
	t.Run("without end", func(t *testing.T) {
		p := modernPeer("a").handle("server/discover",
			func(w http.ResponseWriter, a *incoming) { refuse(w, a, -32022, `"2026-07-28"`) })
		if s := newGateway(t, nil, p).modern(t).call("a::x"); s.code() == 0 || p.count("server/discover") != 2 {
			t.Errorf("got %s after %d attempts", s.body, p.count("server/discover"))
		}
	})
	t.Run("an older version", func(t *testing.T) {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			p := legacyPeer("a")
			p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
				if !a.message.Is(jsonrpc.Requested, "2024-11-05") {
					refuse(w, a, -32602, `"2024-11-05"`)
					return
				}
				p.initialize(w, a)
			})
			u := newGateway(t, nil, p).user(t, era)
			if era == mcp.Legacy {
				u.connect()
			}
			if s := u.call("a::x"); s.code() != 0 {
				t.Errorf("got %s", s.body)
			}
			asked := p.requests("initialize")
			if len(asked) != 2 || !strings.Contains(asked[1].body, `"capabilities":`+allCapabilities) {
				t.Errorf("got %d requests", len(asked))
			}
			if call := p.requests("tools/call")[0]; call.Header.Get(mcp.VersionHeader) != "2024-11-05" {
				t.Errorf("got %v", call.Header)
			}
		}
	})
	t.Run("the other era", func(t *testing.T) {
		p := legacyPeer("a").handle("server/discover", nil)
		p.eras = [2]bool{true, true}
		p.handle("server/discover", func(w http.ResponseWriter, a *incoming) { refuse(w, a, -32022, `"2025-11-25"`) })
		if s := newGateway(t, nil, p).modern(t).call("a::x"); s.code() != 0 || p.count("initialize") != 1 {
			t.Errorf("got %s", s.body)
		}
	})
}

// A repeated call has a new id at the server. The response has the id of the client.
func TestRepeatedCallsHaveOtherIDs(t *testing.T) {
	check := func(t *testing.T, p *fakeServer, n int) {
		t.Helper()
		ids := map[string]bool{}
		for _, call := range p.requests("tools/call") {
			ids[call.id()] = true
		}
		if calls := p.count("tools/call"); calls != n || len(ids) != n {
			t.Errorf("got %d calls with %d ids, want %d", calls, len(ids), n)
		}
	}
	large := strings.Repeat("x", 2<<20)
	t.Run("after input", func(t *testing.T) {
		p := modernPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			if a.message.Has(jsonrpc.InputResponses) {
				a.reply(w, `{"resultType":"complete","content":[{"type":"text","text":"`+large+`"}]}`)
				return
			}
			a.reply(w, `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}}}`)
		})
		u := newGateway(t, nil, p).legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		u.respond(call.nextOf("roots/list"), `{"roots":[]}`)
		if e := call.nextOf(""); e.id() != fmt.Sprint(u.last.Load()) || !strings.Contains(e.data, large) {
			t.Errorf("got id %s and %d bytes", e.id(), len(e.data))
		}
		check(t, p, 2)
	})
	t.Run("after input from the gateway", func(t *testing.T) {
		p := modernPeer("a").handle("tools/call", inputTool(2))
		u := newGateway(t, func(c *Config) {
			c.Servers[0].Answers = []upstream.Answer{{Method: "elicitation/create", Action: upstream.Respond,
				Result: []byte(`{"action":"accept"}`)}}
		}, p).modern(t)
		if s := u.call("a::x"); s.code() != 0 || !strings.Contains(s.answer, `"accept"`) ||
			!strings.Contains(s.answer, `"id":`+fmt.Sprint(u.last.Load())) {
			t.Errorf("got %s", s.body)
		}
		check(t, p, 3)
	})
	t.Run("in another session, of a modern client", func(t *testing.T) {
		p := legacyPeer("a")
		u := newGateway(t, nil, p).modern(t)
		u.call("a::x")
		p.forget()
		if s := u.call("a::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		check(t, p, 3)
	})
	t.Run("in another session", func(t *testing.T) {
		p := legacyPeer("a")
		u := newGateway(t, nil, p).legacy(t)
		p.forget()
		started := make(chan struct{})
		p.handle("tools/call", func(_ http.ResponseWriter, a *incoming) {
			close(started)
			<-a.Context().Done()
		})
		call := u.start(http.MethodPost, u.request("7", "tools/call", `{"name":"a::x"}`))
		defer call.disconnect()
		<-started
		check(t, p, 2)
		u.notify("notifications/cancelled", `{"requestId":7}`)
		canceled := p.waitFor(t, "notifications/cancelled", 1)
		if got := string(canceled.message.Literal(jsonrpc.RequestID)); got != p.requests("tools/call")[1].id() {
			t.Errorf("got %s", canceled.body)
		}
	})
}

// A client that resumes a call gets the response with its own id, even if the call was repeated
// with another one.
func TestRepeatedCallsAreResumed(t *testing.T) {
	p := legacyPeer("a")
	u := newGateway(t, nil, p).legacy(t)
	p.forget()
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: 1\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"first"}}`)
		<-a.Context().Done()
	})
	call := u.start(http.MethodPost, u.request("7", "tools/call", `{"name":"a::x"}`))
	first := call.next()
	call.disconnect()
	sent := p.requests("tools/call")[1].id()
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		if a.Header.Get("Last-Event-Id") == "1" {
			a.send(w, `{"jsonrpc":"2.0","id":`+sent+`,"result":{"content":[]}}`)
		}
	})
	u.header = http.Header{"Last-Event-Id": {first.last}}
	rest := u.start(http.MethodGet, "")
	defer rest.disconnect()
	if e := rest.nextOf(""); e.id() != "7" {
		t.Errorf("got %s", e.data)
	}
}

// invalidTool has an annotation that is invalid for a header.
const invalidTool = `{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"number",` +
	`"x-mcp-header":"A"}}}}`

// Tools with invalid annotations cannot be used over HTTP in the modern era.
func TestInvalidToolsAreLeftOut(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := modernPeer("a").hasList("tools/list", "tools", invalidTool, `{"name":"good","inputSchema":{"type":"object"}}`)
		g := newGateway(t, nil, p)
		u := g.user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		for range 2 {
			if s := u.ask("tools/list", "{}"); strings.Contains(s.answer, "a::bad") || !strings.Contains(s.answer, "a::good") {
				t.Errorf("got %s", s.body)
			}
		}
		if s := u.call("a::bad"); s.code() != jsonrpc.CodeInvalidParams || !strings.Contains(s.body, "x-mcp-header of a") ||
			p.count("tools/call") != 0 {
			t.Errorf("got %s", s.body)
		}
		if got := g.config.Observer.(*recorder).invalid; len(got) != 1 ||
			!strings.HasPrefix(got[0], "a bad: x-mcp-header of a: ") {
			t.Errorf("got %q", got)
		}
		p.hasTools("bad", "good")
		if s := u.ask("tools/list", "{}"); !strings.Contains(s.answer, "a::bad") {
			t.Errorf("got %s", s.body)
		}
		if s := u.call("a::bad"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
	}
	t.Run("endpoints without headers", func(t *testing.T) {
		child := modernPeer("b").hasList("tools/list", "tools", invalidTool)
		legacy := legacyPeer("a").hasList("tools/list", "tools", invalidTool)
		u := newGateway(t, func(c *Config) { c.Servers[1].ChildrenOnly = true }, legacy, child).legacy(t)
		if s := u.ask("tools/list", "{}"); !strings.Contains(s.answer, "a::bad") || !strings.Contains(s.answer, "b::bad") {
			t.Errorf("got %s", s.body)
		}
	})
}

// If headers are missing, the gateway lists the tools again and repeats the call, except for
// clients that could set them: these get the error.
func TestMissingParamHeaders(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := modernPeer("a").hasTools("x")
		g := newGateway(t, nil, p)
		u := g.user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		u.ask("tools/list", "{}")
		p.hasList("tools/list", "tools", `{"name":"x","inputSchema":{"type":"object",`+
			`"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`)
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			if a.Header.Get("Mcp-Param-Region") != "eu" {
				a.refuse(w, http.StatusBadRequest, -32020, "Mcp-Param-Region is missing")
				return
			}
			a.reply(w, `{"resultType":"complete","content":[]}`)
		})
		const params = `{"name":"a::x","arguments":{"region":"eu"}}`
		if era == mcp.Modern {
			if s := u.ask("tools/call", params); s.code() != -32020 || p.count("tools/call") != 1 {
				t.Errorf("got %s after %d calls", s.body, p.count("tools/call"))
			}
			continue
		}
		if s := u.ask("tools/call", params); s.code() != 0 || p.count("tools/call") != 2 {
			t.Errorf("got %s after %d calls", s.body, p.count("tools/call"))
		}
		if s := u.ask("tools/call", params); s.code() != 0 || p.count("tools/call") != 3 {
			t.Errorf("got %s after %d calls", s.body, p.count("tools/call"))
		}
		// The call is repeated only once.
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) { a.refuse(w, http.StatusBadRequest, -32020, "no") })
		if s := u.ask("tools/call", params); s.code() != -32020 || p.count("tools/call") != 5 {
			t.Errorf("got %s after %d calls", s.body, p.count("tools/call"))
		}
	}
}

// Health checks use the era of the server.
func TestProbesUseTheEraOfTheServer(t *testing.T) {
	for want, p := range map[string]*fakeServer{"ping": legacyPeer("a"), "server/discover": modernPeer("a")} {
		g := newGateway(t, nil, p)
		g.modern(t).call("a::x")
		n := p.count(want)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/", http.NoBody)
		if err := g.servers["a"].Probe(httptest.NewRecorder(), r); err != nil {
			t.Error(err)
		}
		probes := p.requests(want)
		if len(probes) != n+1 {
			t.Errorf("got %q, want %s", p.methods(), want)
		} else if failure := mcp.CheckModern(probes[n].Header, &probes[n].message); (failure == nil) !=
			(want == "server/discover") {
			t.Errorf("got %v %s", probes[n].Header, probes[n].body)
		}
	}
}

// A call that was canceled in the meantime is not repeated.
func TestCancelledCallIsNotRepeated(t *testing.T) {
	p := legacyPeer("a")
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		p.waitFor(t, "notifications/cancelled", 1)
		p.forget()
		p.onUnknownSession(w, a)
	})
	u := newGateway(t, nil, p).legacy(t)
	call := u.start("POST", u.request("7", "tools/call", `{"name":"a::x"}`))
	p.waitFor(t, "tools/call", 1)
	u.notify("notifications/cancelled", `{"requestId":7}`)
	call.waitEnd()
	if n := p.count("tools/call"); n != 1 {
		t.Errorf("the server got %d calls", n)
	}
}

// If a server speaks one era only, clients get its error in that era.
func TestRefusalsOfServersOfOneEra(t *testing.T) {
	refuse := func(code int, text string) func(http.ResponseWriter, *incoming) {
		return func(w http.ResponseWriter, a *incoming) { a.refuse(w, http.StatusOK, code, text) }
	}
	for _, own := range []string{"initialize", "server/discover"} {
		p := newPeer("a").
			handle("initialize", refuse(jsonrpc.CodeMethodNotFound, "unknown")).
			handle("server/discover", refuse(jsonrpc.CodeMethodNotFound, "unknown")).
			handle(own, refuse(-32099, "too many sessions"))
		p.eras[mcp.Legacy], p.eras[mcp.Modern] = true, true
		g := newGateway(t, func(c *Config) { c.Servers[0].ChildrenOnly = true }, p)
		for _, u := range []*testClient{g.legacy(t), g.modern(t)} {
			if got := u.call("a::x"); !strings.Contains(got.body, "too many sessions") {
				t.Errorf("%s: got %s", own, got.body)
			}
		}
	}
}
