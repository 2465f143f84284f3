package gateway

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A guard admits everything but what it is told not to, and remembers what it was asked.
type guard struct {
	mu     sync.Mutex
	asked  []mcp.Target
	denies func(mcp.Target) bool
}

func (g *guard) admit(m *jsonrpc.Message, target mcp.Target) *jsonrpc.Failure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.IsRequest() && !m.Is(jsonrpc.Method, "initialize") {
		g.asked = append(g.asked, target)
	}
	if g.denies != nil && g.denies(target) {
		return jsonrpc.Refused(target.Server, 403)
	}
	return nil
}

func (g *guard) take() []mcp.Target {
	g.mu.Lock()
	defer g.mu.Unlock()
	asked := g.asked
	g.asked = nil
	return asked
}

func guardedPeers() []*peer {
	a := newPeer("a").hasTools("x").
		has("prompts/list", "prompts", `{"name":"p"}`).
		has("resources/list", "resources", `{"uri":"r://1","name":"r"}`)
	a.capabilities = `{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{}}`
	return []*peer{a, newPeer("b").hasTools("y")}
}

func TestEachRequestIsAskedAboutOnce(t *testing.T) { // A53 to A55, A63 to A65
	proxy := mcp.ResourceURI("a", "r://1")
	tests := []struct {
		name, method, params string
		want                 mcp.Target
	}{
		{"a tool", "tools/call", `{"name":"a::x"}`, mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"a tool by an alias", "tools/call", `{"name":"alias::x"}`, mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"a tool that is spelled with escapes", "tools/call", `{"name":"a:\u003ax"}`, mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"a tool of no server", "tools/call", `{"name":"c::x"}`, mcp.Target{}},
		{"a tool without a name", "tools/call", `{"name":5}`, mcp.Target{}},
		{"a prompt", "prompts/get", `{"name":"a::p"}`, mcp.Target{Server: "a", Kind: mcp.Prompt, Name: "p"}},
		{"a resource", "resources/read", `{"uri":"` + proxy + `"}`, mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}},
		{"a resource of nobody", "resources/read", `{"uri":"r://1"}`, mcp.Target{}},
		{"what completes an argument of a prompt", "completion/complete", `{"ref":{"type":"ref/prompt","name":"a::p"},"argument":{"name":"n","value":""}}`, mcp.Target{Server: "a", Kind: mcp.Prompt, Name: "p"}},
		{"what completes a URI", "completion/complete", `{"ref":{"type":"ref/resource","uri":"` + proxy + `"},"argument":{"name":"n","value":""}}`, mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}},
		{"a task", "tasks/get", `{"taskId":"a::1"}`, mcp.Target{Server: "a", Kind: mcp.Other}},
		{"a list", "tools/list", `{}`, mcp.Target{}},
		{"a list with a cursor of nobody", "tools/list", `{"cursor":"!"}`, mcp.Target{}},
		{"a method that nobody knows", "no/such", `{}`, mcp.Target{}},
	}
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				var asked guard
				peers := guardedPeers()
				for _, p := range peers {
					p.speaks[era] = true
				}
				g := newGateway(t, func(c *Config) { c.Servers[0].Aliases = []string{"alias"} }, peers...)
				g.admit = asked.admit
				u := g.user(t, era)
				if era == mcp.Legacy {
					u.connect()
				}
				u.ask(test.method, test.params)
				if got := asked.take(); len(got) != 1 || got[0] != test.want {
					t.Errorf("asked about %+v", got)
				}
			})
		}
	}
	t.Run("a subscription", func(t *testing.T) {
		var asked guard
		peers := guardedPeers()
		peers[0].speaks[mcp.Legacy], peers[1].speaks[mcp.Legacy] = true, true
		g := newGateway(t, nil, peers...)
		g.admit = asked.admit
		u := g.legacy(t)
		u.ask("resources/subscribe", `{"uri":"`+proxy+`"}`)
		if got := asked.take(); len(got) != 1 || got[0] != (mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}) {
			t.Errorf("asked about %+v", got)
		}
	})
	t.Run("tools that were searched for", func(t *testing.T) {
		var asked guard
		peers := guardedPeers()
		peers[0].speaks[mcp.Legacy], peers[1].speaks[mcp.Legacy] = true, true
		g := newGateway(t, func(c *Config) { c.Discovery = true }, peers...)
		g.admit = asked.admit
		u := g.legacy(t)
		u.ask("tools/call", `{"name":"search_tools","arguments":{"query":"x"}}`)
		u.ask("tools/call", `{"name":"call_tool","arguments":{"name":"a::x"}}`)
		u.ask("tools/call", `{"name":"call_tool","arguments":{"name":"nobody"}}`)
		want := []mcp.Target{{Kind: mcp.Tool, Name: "search_tools"}, {Server: "a", Kind: mcp.Tool, Name: "x"}, {Kind: mcp.Tool, Name: "call_tool"}}
		if got := asked.take(); !slices.Equal(got, want) {
			t.Errorf("asked about %+v", got)
		}
	})
}

func TestWhatIsRefusedReachesNoServer(t *testing.T) { // A53
	both(t, nil, guardedPeers, func(t *testing.T, u *user, peers []*peer) {
		g := &guard{denies: func(target mcp.Target) bool { return target.Server == "a" }}
		u.g.admit = g.admit
		for method, params := range map[string]string{
			"tools/call": `{"name":"a::x"}`, "prompts/get": `{"name":"a::p"}`, "resources/read": `{"uri":"` + mcp.ResourceURI("a", "r://1") + `"}`,
			"tasks/get": `{"taskId":"a::1"}`,
		} {
			if s := u.ask(method, params); s.status != 403 || s.symbol() != "acl_denied" {
				t.Errorf("%s: got %d %s", method, s.status, s.body)
			}
			if n := peers[0].count(method); n != 0 {
				t.Errorf("%s reached the server", method)
			}
		}
		if s := u.call("b::y"); s.status != 200 {
			t.Errorf("the other server: got %d %s", s.status, s.body)
		}
	})
}

func TestServersThatAClientMayNotKnow(t *testing.T) { // A53, A57
	configure := func(c *Config) {
		c.Sees = func(identity, server string) bool { return identity == "ann" || server != "a" }
	}
	both(t, configure, guardedPeers, func(t *testing.T, u *user, peers []*peer) {
		if got, _ := u.walk("tools/list", "tools", "name", 0); !slices.Equal(got, []string{"b::y"}) {
			t.Errorf("tools: got %v", got)
		}
		for method, member := range map[string]string{"prompts/list": "prompts", "resources/list": "resources"} {
			if s := u.ask(method, "{}"); !strings.Contains(s.body, `"`+member+`":[]`) {
				t.Errorf("%s: got %s", member, s.body)
			}
		}
		u.tell("notifications/vendor", "")
		for _, method := range []string{"initialize", "server/discover", "notifications/initialized", "notifications/vendor", "tools/list"} {
			if n := peers[0].count(method); n != 0 {
				t.Errorf("the server has heard %s", method)
			}
		}
		ann := u.g.user(t, u.era)
		ann.identity = "ann"
		if u.era == mcp.Legacy {
			ann.connect()
		}
		if got, _ := ann.walk("tools/list", "tools", "name", 0); !slices.Equal(got, []string{"a::x", "b::y"}) {
			t.Errorf("another client: got %v", got)
		}
	})
}

func TestListsAreAskedForAgain(t *testing.T) {
	var mu sync.Mutex
	view := "one"
	configure := func(c *Config) {
		c.View = func(string) string {
			mu.Lock()
			defer mu.Unlock()
			return view
		}
	}
	p := legacyPeer("a").hasTools("x") // which says that its lists never change
	p.capabilities = `{"tools":{}}`
	g := newGateway(t, configure, p)
	u := g.legacy(t)
	list := func() { u.walk("tools/list", "tools", "name", 0) }
	list()
	list()
	if n := p.count("tools/list"); n != 1 {
		t.Fatalf("the list was asked for %d times", n)
	}
	mu.Lock()
	view = "another"
	mu.Unlock()
	if list(); p.count("tools/list") != 2 {
		t.Error("a client that is shown something else is not asked for")
	}
	if g.Refresh("a"); p.count("tools/list") != 2 {
		t.Error("a refresh alone asks for nothing")
	}
	if list(); p.count("tools/list") != 3 {
		t.Error("a list that was refreshed is not asked for again")
	}
	if told := g.Refresh("nobody"); told != 0 {
		t.Errorf("%d clients were told of a server that there is not", told)
	}
}

func TestRefreshTellsWhoListens(t *testing.T) { // A73
	p := legacyPeer("a").hasTools("x")
	p.capabilities = `{"tools":{}}`
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	k := u.listen()
	defer k.hangUp()
	if told := g.Refresh("a"); told != 1 {
		t.Errorf("%d clients were told", told)
	}
	k.nextOf("notifications/tools/list_changed")
	g.TemplatesChanged()
	k.nextOf("notifications/resources/list_changed")
	if got := g.Sessions()[""]; got != 1 {
		t.Errorf("%d sessions", got)
	}
}

func TestNotificationsGoWhereTheyBelong(t *testing.T) { // A58
	a, b := legacyPeer("a"), legacyPeer("b")
	configure := func(c *Config) {
		c.Concerned = func(method string) ([]string, bool) { return []string{"b"}, method == "vendor/one" }
	}
	u := newGateway(t, configure, a, b).legacy(t)
	u.tell("vendor/one", "")
	u.tell("vendor/all", "")
	a.await(t, "vendor/all", 1)
	b.await(t, "vendor/all", 1)
	b.await(t, "vendor/one", 1)
	if a.count("vendor/one") != 0 {
		t.Error("it went to another server, too")
	}
}

func TestHostedResourcesLeadToServers(t *testing.T) { // A67, A69
	configure := func(c *Config) {
		c.Lead = func(uri string) (string, string, bool) {
			name, ok := strings.CutPrefix(uri, "notes://")
			return "a", "r://" + name, ok
		}
	}
	p := legacyPeer("a").does("resources/read", nil)
	p.capabilities = `{"resources":{}}`
	var asked guard
	g := newGateway(t, configure, p)
	g.admit = asked.admit
	u := g.legacy(t)
	u.ask("resources/read", `{"uri":"notes://1"}`)
	if got := asked.take(); len(got) != 1 || got[0] != (mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}) {
		t.Errorf("asked about %+v", got)
	}
	if got := p.await(t, "resources/read", 1); got.message.Text(jsonrpc.URI) != "r://1" {
		t.Errorf("the server was asked for %s", got.message.Raw)
	}
}

func TestTasksOfServersWithNothingElseForAClient(t *testing.T) { // A53, A54
	var peers []*peer
	for _, name := range []string{"a", "b"} {
		p := legacyPeer(name)
		p.capabilities = `{"tools":{},"tasks":{"list":{}}}`
		peers = append(peers, p.has("tasks/list", "tasks", `{"taskId":"1","status":"working"}`))
	}
	g := newGateway(t, func(c *Config) {
		c.Others = func(identity, server string) bool { return identity == "ann" || server == "b" }
	}, peers...)
	for identity, want := range map[string][]string{"ann": {"a::1", "b::1"}, "bob": {"b::1"}} {
		u := g.user(t, mcp.Legacy)
		u.identity = identity
		u.connect()
		before := peers[0].count("tasks/list")
		if got := names(t, u.ask("tasks/list", ""), "tasks", "taskId"); !slices.Equal(got, want) {
			t.Errorf("%s is told of %v", identity, got)
		}
		if asked := peers[0].count("tasks/list") > before; asked != (len(want) == 2) {
			t.Errorf("for %s the server a is asked: %t", identity, asked)
		}
	}
}
