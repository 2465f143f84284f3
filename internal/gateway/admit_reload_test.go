package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

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
