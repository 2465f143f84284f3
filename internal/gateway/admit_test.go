package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
)

// rulesOf returns a policy with rules such as "allow a::x" and "deny a::*", in this order. It
// allows everything else.
func rulesOf(rules ...string) *acl.Policy {
	compiled := make([]acl.Rule, len(rules))
	for i, rule := range rules {
		verb, pattern, _ := strings.Cut(rule, " ")
		action, ok := acl.ParseAction(verb)
		if !ok {
			panic("unknown action " + verb)
		}
		compiled[i] = acl.Rule{Action: action, Pattern: pattern}
	}
	policy, err := acl.New(compiled, acl.Allow)
	if err != nil {
		panic(err)
	}
	return policy
}

// rulesForAll returns a configuration with rules for all clients.
func rulesForAll(rules ...string) func(*Config) {
	return func(c *Config) {
		policy := rulesOf(rules...)
		c.Clients = []*access.Client{{Name: "*", Policy: policy, View: policy.Fingerprint()}}
	}
}

// oneRequest limits each client to one request per hour.
func oneRequest(c *Config) {
	c.Limits = []access.Limit{access.NewLimit(ratelimit.Limit{Key: "test", N: 1, Per: time.Hour}, nil)}
}

// targetOf sends a request twice to a gateway that admits one. It returns the response to the first
// request and the target of the refused second one. Each request must be counted once.
func (u *testClient) targetOf(method, params string) (reply, mcp.Target) {
	u.t.Helper()
	tally, observer := u.g.Usage.Tally(access.Anonymous), u.g.config.Observer.(*recorder)
	before := tally.Requests.Load()
	first := u.ask(method, params)
	if n := tally.Requests.Load() - before; n != 1 {
		u.t.Errorf("the request was counted %d times, want 1", n)
	}
	if denials := observer.takeDenials(); len(denials) > 0 {
		u.t.Fatalf("denied: %+v", denials)
	}
	second := u.ask(method, params)
	denials := observer.takeDenials()
	if len(denials) != 1 || denials[0].Method != method || denials[0].Code != "rate_limited" ||
		second.status != http.StatusTooManyRequests {
		u.t.Fatalf("over the limit: got %d %s, denied %+v", second.status, second.body, denials)
	}
	if n := tally.Requests.Load() - before; n != 2 {
		u.t.Errorf("two requests were counted %d times", n)
	}
	return first, denials[0].Target
}

func guardedPeers() []*fakeServer {
	a := newPeer("a").hasTools("x").
		hasList("prompts/list", "prompts", `{"name":"p"}`).
		hasList("resources/list", "resources", `{"uri":"r://1","name":"r"}`)
	a.capabilities = `{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{}}`
	return []*fakeServer{a, newPeer("b").hasTools("y")}
}

func TestEachRequestIsAdmittedOnce(t *testing.T) { // A53 to A55, A63 to A65
	proxy := mcp.ResourceURI("a", "r://1")
	tests := []struct {
		name, method, params string
		want                 mcp.Target
	}{
		{"a tool", "tools/call", `{"name":"a::x"}`, mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"a tool by an alias", "tools/call", `{"name":"alias::x"}`, mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"a tool with escapes in its name", "tools/call", `{"name":"a:\u003ax"}`,
			mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"a tool of an unknown server", "tools/call", `{"name":"c::x"}`, mcp.Target{}},
		{"a tool without a name", "tools/call", `{"name":5}`, mcp.Target{}},
		{"a prompt", "prompts/get", `{"name":"a::p"}`, mcp.Target{Server: "a", Kind: mcp.Prompt, Name: "p"}},
		{"a resource", "resources/read", `{"uri":"` + proxy + `"}`,
			mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}},
		{"a resource by the URI of its server", "resources/read", `{"uri":"r://1"}`, mcp.Target{}},
		{"a resource of an unknown server", "resources/read", `{"uri":"r://2"}`, mcp.Target{}},
		{"completion of a prompt argument", "completion/complete",
			`{"ref":{"type":"ref/prompt","name":"a::p"},"argument":{"name":"n","value":""}}`,
			mcp.Target{Server: "a", Kind: mcp.Prompt, Name: "p"}},
		{"completion of a URI", "completion/complete",
			`{"ref":{"type":"ref/resource","uri":"` + proxy + `"},"argument":{"name":"n","value":""}}`,
			mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}},
		{"a task", "tasks/get", `{"taskId":"a::1"}`, mcp.Target{Server: "a", Kind: mcp.Other}},
		{"a list", "tools/list", `{}`, mcp.Target{}},
		{"a list with an invalid cursor", "tools/list", `{"cursor":"!"}`, mcp.Target{}},
		{"an unknown method", "no/such", `{}`, mcp.Target{}},
		{"a search for tools", "tools/call", `{"name":"search_tools","arguments":{"query":"x"}}`,
			mcp.Target{Kind: mcp.Tool, Name: "search_tools"}},
		{"a tool by call_tool", "tools/call", `{"name":"call_tool","arguments":{"name":"a::x"}}`,
			mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}},
		{"an unknown tool by call_tool", "tools/call", `{"name":"call_tool","arguments":{"name":"unknown"}}`,
			mcp.Target{Kind: mcp.Tool, Name: "call_tool"}},
		{"a subscription", "resources/subscribe", `{"uri":"` + proxy + `"}`,
			mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}},
		{"a subscription by the URI of the server", "resources/subscribe", `{"uri":"r://1"}`, mcp.Target{}},
	}
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, test := range tests {
			if era == mcp.Modern && test.method == "resources/subscribe" {
				continue // legacy only
			}
			t.Run(fmt.Sprint(test.name, ", era ", era), func(t *testing.T) {
				peers := guardedPeers()
				for _, p := range peers {
					p.eras[era] = true
				}
				g := newGateway(t, func(c *Config) {
					oneRequest(c)
					c.Servers[0].Aliases = []string{"alias"}
					c.Discovery = strings.Contains(test.params, "_tool")
				}, peers...)
				u := g.user(t, era)
				if era == mcp.Legacy {
					u.connect()
				}
				if _, got := u.targetOf(test.method, test.params); got != test.want {
					t.Errorf("checked %+v", got)
				}
			})
		}
	}
}

func TestRefusedRequestsDoNotReachServers(t *testing.T) { // A53
	configure := rulesForAll("allow a::other", "deny a::*") // so that the client may see the server
	both(t, configure, guardedPeers, func(t *testing.T, u *testClient, peers []*fakeServer) {
		for method, params := range map[string]string{
			"tools/call": `{"name":"a::x"}`, "prompts/get": `{"name":"a::p"}`,
			"resources/read": `{"uri":"` + mcp.ResourceURI("a", "r://1") + `"}`,
			"tasks/get":      `{"taskId":"a::1"}`,
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

func TestDeniedServersAreHidden(t *testing.T) { // A53, A57
	configure := func(c *Config) {
		c.Clients = []*access.Client{{Name: "ann"}, {Name: "*", Policy: rulesOf("deny a::*")}}
	}
	both(t, configure, guardedPeers, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if got, _ := u.walk("tools/list", "tools", "name", 0); !slices.Equal(got, []string{"b::y"}) {
			t.Errorf("tools: got %v", got)
		}
		for method, member := range map[string]string{"prompts/list": "prompts", "resources/list": "resources"} {
			if s := u.ask(method, "{}"); !strings.Contains(s.body, `"`+member+`":[]`) {
				t.Errorf("%s: got %s", member, s.body)
			}
		}
		u.notify("notifications/vendor", "")
		for _, method := range []string{"initialize", "server/discover", "notifications/initialized", "notifications/vendor",
			"tools/list"} {
			if n := peers[0].count(method); n != 0 {
				t.Errorf("the server received %s", method)
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

func TestListsAreRequestedAgain(t *testing.T) {
	view := func(text string) func(*Config) {
		return func(c *Config) { c.Clients = []*access.Client{{Name: "*", View: text}} }
	}
	p := legacyPeer("a").hasTools("x") // declares no list changes
	p.capabilities = `{"tools":{}}`
	g := newGateway(t, view("one"), p)
	u := g.legacy(t)
	list := func() { u.walk("tools/list", "tools", "name", 0) }
	list()
	list()
	g.replace(view("one"), p)
	list()
	if n := p.count("tools/list"); n != 1 {
		t.Fatalf("the list was requested %d times", n)
	}
	g.replace(view("another"), p)
	if list(); p.count("tools/list") != 2 {
		t.Error("no list was requested for a client with another view")
	}
	g.Refresh("a")
	if p.count("tools/list") != 2 {
		t.Error("the refresh itself requested a list")
	}
	if list(); p.count("tools/list") != 3 {
		t.Error("the list was not requested again after a refresh")
	}
	if notified := g.Refresh("unknown"); notified != 0 {
		t.Errorf("%d clients were notified of an unknown server", notified)
	}
}

func TestRefreshNotifiesListeners(t *testing.T) { // A73
	p := legacyPeer("a").hasTools("x")
	p.capabilities = `{"tools":{}}`
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	k := u.listen()
	defer k.disconnect()
	if notified := g.Refresh("a"); notified != 1 {
		t.Errorf("%d clients were notified", notified)
	}
	k.nextOf("notifications/tools/list_changed")
	g.TemplatesChanged()
	k.nextOf("notifications/resources/list_changed")
	if got := g.Sessions()[access.Anonymous][access.Anonymous]; got != 1 {
		t.Errorf("%d sessions", got)
	}
}

func TestNotificationsReachTheirServer(t *testing.T) { // A58
	a, b := legacyPeer("a"), legacyPeer("b")
	configure := func(c *Config) {
		c.NotificationRoutes = []NotificationRoute{{Method: "vendor/one", Servers: []string{"b"}}}
	}
	u := newGateway(t, configure, a, b).legacy(t)
	u.notify("vendor/one", "")
	u.notify("vendor/all", "")
	a.waitFor(t, "vendor/all", 1)
	b.waitFor(t, "vendor/all", 1)
	b.waitFor(t, "vendor/one", 1)
	if a.count("vendor/one") != 0 {
		t.Error("the notification reached another server")
	}
}

func TestHostedResourcesTargetServers(t *testing.T) { // A67, A69
	p := legacyPeer("a").handle("resources/read", nil)
	p.capabilities = `{"resources":{}}`
	g := newGateway(t, oneRequest, p)
	g.hostTemplate("notes://{name}", "r://{name}")
	if _, got := g.legacy(t).targetOf("resources/read", `{"uri":"notes://1"}`); got != (mcp.Target{Server: "a",
		Kind: mcp.Resource, Name: "r://1"}) {
		t.Errorf("checked %+v", got)
	}
	if got := p.waitFor(t, "resources/read", 1); got.message.Text(jsonrpc.URI) != "r://1" {
		t.Errorf("the server got %s", got.message.Raw)
	}
}

// hostTemplate adds a template for resources of the server a.
func (g *testGateway) hostTemplate(uriTemplate, uri string) {
	g.t.Helper()
	if _, err := g.Templates.Put(resourcetemplate.Template{Name: "notes", URITemplate: uriTemplate, Server: "a",
		URI: uri}); err != nil {
		g.t.Fatal(err)
	}
}

func TestTasksNeedFullAccess(t *testing.T) { // A53, A54
	begin := func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"task":{"taskId":"`+a.Header.Get("X-Identity")+`","status":"working"}}`)
	}
	var peers []*fakeServer
	for _, name := range []string{"a", "b"} {
		p := legacyPeer(name).handle("tools/call", begin)
		p.capabilities = `{"tools":{},"tasks":{"list":{}}}`
		peers = append(peers, p.hasList("tasks/list", "tasks", `{"taskId":"ann","status":"working"}`,
			`{"taskId":"bob","status":"working"}`))
	}
	g := newGateway(t, func(c *Config) {
		c.Clients = []*access.Client{{Name: "ann"}, {Name: "*", Policy: rulesOf("allow tool:a::x", "deny a::*")}}
	}, peers...)
	for identity, want := range map[string][]string{"ann": {"a::ann", "b::ann"}, "bob": {"b::bob"}} {
		u := g.user(t, mcp.Legacy)
		u.identity = identity
		u.connect()
		for _, p := range peers {
			if s := u.ask("tools/call", `{"name":"`+p.name+`::x","task":{}}`); !strings.Contains(s.body, p.name+"::"+identity) {
				t.Errorf("%s cannot begin a task at %s: %s", identity, p.name, s.body)
			}
		}
		before := peers[0].count("tasks/list")
		if got := names(t, u.ask("tasks/list", ""), "tasks", "taskId"); !slices.Equal(got, want) {
			t.Errorf("%s was notified of %v", identity, got)
		}
		if asked := peers[0].count("tasks/list") > before; asked != (len(want) == 2) {
			t.Errorf("%s: request to server a: %t", identity, asked)
		}
	}
}

// Client names in conditions are those in logs.
func TestConditionOnClient(t *testing.T) {
	for identity, client := range map[string]string{"": access.Anonymous, "ann": "ann"} {
		both(t, func(c *Config) {
			when, err := condition.Compile(fmt.Sprintf("client == %q", client))
			if err != nil {
				t.Fatal(err)
			}
			policy, err := acl.New([]acl.Rule{{Action: acl.Deny, Pattern: "*", When: when}}, acl.Allow)
			if err != nil {
				t.Fatal(err)
			}
			c.Clients = []*access.Client{{Name: "*", Policy: policy}}
		}, peersWithX, func(t *testing.T, u *testClient, peers []*fakeServer) {
			u.identity = identity
			if u.era == mcp.Legacy {
				u.connect()
			}
			u.callRefused(peers[0], "x", "acl_denied")
		})
	}
}
