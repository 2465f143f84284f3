package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
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
		if got := namesIn(t, u.ask("tasks/list", ""), "tasks", "taskId"); !slices.Equal(got, want) {
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

func updateOf(uri string) string {
	return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
}

// openStream opens a stream of a client of either era.
func (u *testClient) openStream(wants string) *liveReply {
	u.t.Helper()
	if u.era == mcp.Legacy {
		return u.listen()
	}
	k := u.startRequest(mcp.MethodListen, `{"notifications":{"toolsListChanged":true,"promptsListChanged":true,`+
		`"resourcesListChanged":true`+wants+`}}`)
	k.nextOf("notifications/subscriptions/acknowledged")
	return k
}

// streamSenders makes the server keep GET streams open. It returns a function for each that sends a
// message.
func (p *fakeServer) streamSenders() <-chan func(message string) {
	streams := make(chan func(string), 4)
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		messages := make(chan string)
		streams <- func(message string) { messages <- message }
		for {
			select {
			case message := <-messages:
				a.send(w, message)
			case <-a.Context().Done():
				return
			}
		}
	})
	return streams
}

// headerAuth is an Authenticator that trusts the header X-Identity. Clients whose name begins with
// "guest" have no secret.
type headerAuth struct{ fingerprint string }

func (headerAuth) BodyNeeded(*http.Request) int64 { return 0 }

func (headerAuth) Authenticate(r *http.Request, _ bool, _ []byte, _ string) (string, error) {
	name, realm := r.Header.Get("X-Identity"), "a secret of it"
	switch {
	case name == "":
		return "", nil
	case strings.HasPrefix(name, "guest"):
		realm = ""
	}
	return access.Identity(name, realm), nil
}

func (headerAuth) Challenge(http.Header, *http.Request, error) int { return http.StatusUnauthorized }

func (headerAuth) CredentialHeaders() []string { return []string{"X-Identity"} }

func (b headerAuth) Fingerprint() string { return b.fingerprint }

func TestStreamsOfClientsWithoutAccess(t *testing.T) { // A30, A60
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := legacyPeer("a").hasTools("x")
		if era == mcp.Modern {
			p = modernPeer("a").hasTools("x")
			p.acceptListen()
		} else {
			p.keepStreams()
		}
		letIn := func(fingerprint string, clients ...string) func(*Config) {
			return func(c *Config) {
				c.Auth = headerAuth{fingerprint}
				for _, name := range clients {
					c.Clients = append(c.Clients, &access.Client{Name: name})
				}
			}
		}
		g := newGateway(t, letIn("1", "ann", "bob"), p)
		streams := map[string]*liveReply{}
		for _, identity := range []string{"ann", "bob", "guest"} {
			u := g.user(t, era)
			u.identity = identity
			if era == mcp.Legacy {
				u.connect()
			}
			streams[identity] = u.openStream("")
		}
		goOn := func(names ...string) {
			t.Helper()
			if notified := g.Refresh("a"); notified != len(names) {
				t.Errorf("notified %d clients, want %v", notified, names)
			}
			for _, name := range names {
				streams[name].nextOf("notifications/tools/list_changed")
			}
		}
		goOn("ann", "bob", "guest")
		g.replace(letIn("1", "ann", "bob"), p)
		streams["guest"].waitEnd() // only a new request can prove that it is still admitted
		goOn("ann", "bob")
		g.replace(letIn("1", "ann"), p)
		streams["bob"].waitEnd() // has another entry in the configuration
		goOn("ann")
		g.replace(letIn("2", "ann"), p)
		streams["ann"].waitEnd()
	}
}

func TestStreamsFollowCurrentRules(t *testing.T) { // A55, A56, A60
	p := legacyPeer("a").hasTools("x")
	p.keepStreams()
	view := func(text string) func(*Config) {
		return func(c *Config) { c.Clients = []*access.Client{{Name: "*", View: text}} }
	}
	g := newGateway(t, view("one"), p)
	stream := g.legacy(t).listen()
	before := p.waitFor(t, "GET", 1)
	g.replace(view("one"), p)
	g.replace(view("another"), p)
	p.waitFor(t, "GET", 2) // from the new handler, which filters
	await.Until(t, "the old stream to end", func() bool { return before.Context().Err() != nil })
	stream.nextOf("notifications/tools/list_changed")
}

func TestUpdatesOfDeniedResources(t *testing.T) { // A55, A60, A68
	hears := func(denied string) func(*Config) { return rulesForAll("deny resource:a::" + denied) }
	t.Run("by GET", func(t *testing.T) {
		p := legacyPeer("a")
		last := p.streamSenders()
		g := newGateway(t, hears("docs://secret/"), p)
		u := g.legacy(t)
		stream := u.listen()
		say := <-last
		u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "docs://public/1")+`"}`)
		say(updateOf("docs://secret/1"))
		say(updateOf("docs://public/1"))
		if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data,
			mcp.ResourceURI("a", "docs://public/1")) {
			t.Errorf("got %s", e.data)
		}
		g.replace(hears("docs://public/"), p)
		say = <-last
		say(updateOf("docs://public/1"))
		say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
		for e := stream.next(); e.method() != "vendor/after"; e = stream.next() {
			if e.method() == "notifications/resources/updated" {
				t.Errorf("got %s", e.data)
			}
		}
	})
	t.Run("by subscriptions/listen", func(t *testing.T) {
		p := modernPeer("a")
		say := p.acceptListen()
		u := newGateway(t, hears("docs://secret/"), p).modern(t)
		stream := u.openStream(`,"resourceSubscriptions":["` + mcp.ResourceURI("a", "docs://secret/1") + `","` +
			mcp.ResourceURI("a", "docs://public/1") + `"]`)
		if got := p.waitFor(t, mcp.MethodListen, 1); strings.Contains(got.body, "secret") ||
			!strings.Contains(got.body, "docs://public/1") {
			t.Errorf("the server got %s", got.body)
		}
		say(updateOf("docs://secret/1"))
		say(updateOf("docs://public/1"))
		if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data,
			mcp.ResourceURI("a", "docs://public/1")) {
			t.Errorf("got %s", e.data)
		}
	})
}

func TestUpdatesOfDeniedResourcesDuringCalls(t *testing.T) { // A55, A68
	update := updateOf("docs://secret/1")
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, update)
		a.send(w, strings.Replace(update, "resources/", `resources\/`, 1))
		a.send(w, strings.Replace(update, "updated", `up\u0064ated`, 1))
		a.send(w, updateOf("docs://public/1"))
		a.finish(w, `{"content":[]}`)
	})
	u := newGateway(t, rulesForAll("deny resource:a::docs://secret/"), p).legacy(t)
	s := u.call("a::x")
	if n := strings.Count(s.body, `"uri"`); n != 1 || !strings.Contains(s.body, mcp.ResourceURI("a", "docs://public/1")) {
		t.Errorf("got %s", s.body)
	}
}

// Responses in listen streams are ignored: they belong to calls.
func TestResponsesOnListenStreams(t *testing.T) { // A54
	p := legacyPeer("a")
	say := p.keepStreams()
	u := newGateway(t, nil, p).legacy(t)
	u.header = http.Header{"Last-Event-Id": {u.event("listen/a/1")}}
	stream := u.listen()
	p.waitFor(t, "GET", 1)
	say(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"x"}]}}`)
	say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
	if e := stream.next(); e.method() != "vendor/after" {
		t.Errorf("got %s", e.data)
	}
}

func TestHeldCallsContinueUnchanged(t *testing.T) { // A54
	p := legacyPeer("a").handle("tools/call", askingTool(1)).handle("prompts/get", askingTool(1)).
		handle("resources/read", askingTool(1))
	g := newGateway(t, nil, p)
	for name, call := range map[string][2]string{
		"a tool":     {"tools/call", `"name":"a::x"`},
		"a prompt":   {"prompts/get", `"name":"a::x"`},
		"a resource": {"resources/read", `"uri":"` + mcp.ResourceURI("a", "x://a") + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			u := g.modern(t)
			in, key := readInput(t, u.ask(call[0], `{`+call[1]+`}`))
			goOn := func(method, named string) reply {
				return u.ask(method, `{`+named+`,"inputResponses":{"`+key+`":{}},"requestState":"`+in.RequestState+`"}`)
			}
			for _, other := range [][2]string{
				{"tools/call", `"name":"a::other"`}, {"prompts/get", `"name":"a::other"`}, {"tools/call", `"name":"a::x"`},
				{"prompts/get", `"name":"a::x"`},
				{"resources/read", `"uri":"` + mcp.ResourceURI("a", "x://b") + `"`},
			} {
				if other == call {
					continue
				}
				if s := goOn(other[0], other[1]); strings.Contains(s.body, `"answers"`) || s.code() != jsonrpc.CodeInvalidParams {
					t.Errorf("%s %s continues the call: %s", other[0], other[1], s.body)
				}
			}
			if s := goOn(call[0], call[1]); !strings.Contains(s.body, `"answers"`) {
				t.Errorf("got %s", s.body)
			}
		})
	}
}

func TestSessionsEndAtDeniedServers(t *testing.T) { // A53, A60
	a, b := legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("y")
	g := newGateway(t, rulesForAll(), a, b)
	u := g.legacy(t)
	u.ask("tools/list", "")
	g.replace(rulesForAll("deny b::*"), a, b)
	response, err := u.do(t.Context(), http.MethodDelete, "")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	for _, p := range []*fakeServer{a, b} {
		if p.count("DELETE") != 1 {
			t.Errorf("%s got %d DELETE requests", p.name, p.count("DELETE"))
		}
	}
}

// hostNotes adds a template with the URI notes:// for a server.
func (g *testGateway) hostNotes() *testGateway {
	g.hostTemplate("notes://{name}", "x://{name}")
	return g
}

// gatewayKinds are the configurations of a gateway with several servers and of a transparent one.
var gatewayKinds = map[string]func(*Config){
	"several servers": nil,
	"transparent":     func(c *Config) { c.Naming = mcp.Naming{} },
}

func TestHostedResourcesAreRenamed(t *testing.T) { // A67, A68
	contents := func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"contents":[{"uri":"`+a.message.Text(jsonrpc.URI)+
			`","text":"see x://b"},{"uri":"x://other","text":""}]}`)
	}
	for name, configure := range gatewayKinds {
		t.Run(name, func(t *testing.T) {
			both(t, configure, func() []*fakeServer { return []*fakeServer{newPeer("a").handle("resources/read", contents)} },
				func(t *testing.T, u *testClient, peers []*fakeServer) {
					u.g.hostNotes()
					s := u.ask("resources/read", `{"uri":"notes://1"}`)
					if got := peers[0].waitFor(t, "resources/read", 1).message.Text(jsonrpc.URI); got != "x://1" {
						t.Errorf("the server got %s", got)
					}
					var result struct{ Contents []struct{ URI string } }
					_ = json.Unmarshal(s.Result, &result)
					if len(result.Contents) != 2 || result.Contents[0].URI != "notes://1" ||
						strings.Contains(string(s.Result), mcp.ResourceURI("a", "x://1")) {
						t.Errorf("got %s", s.body)
					}
				})
		})
	}
}

func TestUpdatesOfHostedResources(t *testing.T) { // A67, A68
	for name, configure := range gatewayKinds {
		t.Run(name+": resources/subscribe", func(t *testing.T) {
			p := legacyPeer("a")
			say := p.keepStreams()
			u := newGateway(t, configure, p).hostNotes().legacy(t)
			stream := u.listen()
			p.waitFor(t, "GET", 1)
			if s := u.ask("resources/subscribe", `{"uri":"notes://1"}`); s.code() != 0 {
				t.Fatalf("got %s", s.body)
			}
			if got := p.waitFor(t, "resources/subscribe", 1).message.Text(jsonrpc.URI); got != "x://1" {
				t.Errorf("the server got %s", got)
			}
			say(updateOf("x://1"))
			if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"notes://1"`) {
				t.Errorf("got %s", e.data)
			}
		})
		t.Run(name+": subscriptions/listen", func(t *testing.T) {
			p := modernPeer("a")
			say := p.acceptListen()
			u := newGateway(t, configure, p).hostNotes().modern(t)
			stream := u.openStream(`,"resourceSubscriptions":["notes://1"]`)
			if got := p.waitFor(t, mcp.MethodListen, 1); !strings.Contains(got.body, `"x://1"`) {
				t.Fatalf("the server got %s", got.body)
			}
			say(updateOf("x://1"))
			if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"notes://1"`) {
				t.Errorf("got %s", e.data)
			}
		})
	}
}

func TestRequestsWithoutIDsAreNotForwarded(t *testing.T) { // A54, A58
	a, b := legacyPeer("a"), legacyPeer("b")
	u := newGateway(t, nil, a, b).legacy(t)
	for method, params := range map[string]string{
		"tools/call": `{"name":"x"}`, "prompts/get": `{"name":"x"}`, "resources/read": `{"uri":"x://a"}`, "tools/list": `{}`,
		"tasks/cancel": `{"taskId":"1"}`, "logging/setLevel": `{"level":"debug"}`,
	} {
		u.notify(method, params)
		for _, p := range []*fakeServer{a, b} {
			if p.count(method) > 0 {
				t.Errorf("%s received %s", p.name, method)
			}
		}
	}
	u.notify("notifications/vendor", "")
	a.waitFor(t, "notifications/vendor", 1)
	b.waitFor(t, "notifications/vendor", 1)
}

func TestHeldCallsContinueTheirToolOnly(t *testing.T) { // A54, A60
	p := legacyPeer("a").hasTools("x", "y").handle("tools/call", askingTool(1))
	discovery := func(c *Config) { c.Discovery = true }
	for name, tt := range map[string]struct{ by, other string }{
		"by name":      {`"name":"a::x"`, `"name":"a::y"`},
		"by call_tool": {`"name":"call_tool","arguments":{"name":"a::x"}`, `"name":"call_tool","arguments":{"name":"a::y"}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, discovery, p)
			u := g.modern(t)
			in, key := readInput(t, u.ask("tools/call", `{`+tt.by+`}`))
			g.replace(discovery, p)
			taken := fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept"}},"requestState":%q}`, key, in.RequestState)
			if s := u.ask("tools/call", `{`+tt.other+taken); s.code() != jsonrpc.CodeInvalidParams ||
				strings.Contains(s.body, `"answers"`) {
				t.Errorf("another tool: %s", s.body)
			}
			if s := u.ask("tools/call", `{`+tt.by+taken); !strings.Contains(string(s.Result), `"answers"`) {
				t.Errorf("same tool: %s", s.body)
			}
		})
	}
}

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
	if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::write"}) {
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
			if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
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

// A rule on arguments holds for the headers that repeat them, too: a program in front of the server
// may decide by these.
func TestRulesOnArgumentsInHeaders(t *testing.T) {
	when, err := condition.Compile(`arguments.region == "us"`)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := acl.New([]acl.Rule{{Action: acl.Deny, Pattern: "a::x", When: when}}, acl.Allow)
	if err != nil {
		t.Fatal(err)
	}
	definition := func(name string) string {
		return `{"name":"` + name + `","inputSchema":{"type":"object","properties":{"region":` +
			`{"type":"string","x-mcp-header":"Region"}}}}`
	}
	for _, kind := range []upstream.EndpointKind{upstream.Aggregate, upstream.Single, upstream.RPC} {
		for _, test := range []struct{ tool, region, header, other, want string }{
			{tool: "x", region: "eu", header: "eu", want: "ok"},
			{tool: "x", region: "eu", header: "=?base64?ZXU=?=", want: "ok"},
			{tool: "x", region: "us", header: "us", want: "acl_denied"},
			{tool: "x", region: "eu", header: "us", want: "header_mismatch"},
			{tool: "x", region: "eu", other: "us", want: "header_mismatch"},
			{tool: "y", region: "eu", header: "us", want: "ok"}, // no rule reads its arguments
		} {
			p := modernPeer("a").hasList("tools/list", "tools", definition("x"), definition("y"))
			g := newGateway(t, func(c *Config) {
				c.Clients = []*access.Client{{Name: "*", Policy: policy, View: policy.Fingerprint()}}
			}, p)
			name := test.tool
			if kind == upstream.Aggregate {
				name = "a::" + name
			}
			r := g.modern(t).serverRequest("tools/call", `{"name":"`+name+`","arguments":{"region":"`+test.region+`"}}`)
			for header, value := range map[string]string{"Mcp-Param-Region": test.header, "Mcp-Param-Other": test.other} {
				if value != "" {
					r.Header.Set(header, value)
				}
			}
			w := httptest.NewRecorder()
			g.NewRequest(w, r, inbound.Endpoint{Kind: kind, Server: "a"}, inbound.Peer{Address: "192.0.2.1"}).Serve()
			want := `"code":"` + test.want + `"`
			if test.want == "ok" {
				want = `"result"`
			}
			if got := w.Body.String(); !strings.Contains(got, want) || p.count("tools/call") != 0 != (test.want == "ok") {
				t.Errorf("endpoint %d: %+v: %s", kind, test, got)
			}
		}
	}
}
