package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// tasksCapabilities are the capabilities of a client that supports the tasks extension.
const tasksCapabilities = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// taskServer returns a modern server whose calls become tasks, all with the id 1.
func taskServer(name string) *fakeServer {
	p := modernPeer(name)
	p.capabilities = `{"tools":{},"resources":{},"extensions":{"io.modelcontextprotocol/tasks":{"` + name + `":true}}}`
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"resultType":"task","taskId":"1","status":"working","ttlMs":null}`)
	})
	p.handle("tasks/get", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"resultType":"complete","taskId":"1","status":"completed","result":{"content":[`+
			`{"type":"resource_link","uri":"x://a"},{"type":"resource","resource":{"uri":"x://b"}},{"type":"text",`+
			`"text":"x://a"}]},"_meta":{"taskId":"1"}}`)
	})
	for _, method := range []string{"tasks/update", "tasks/cancel", "tasks/more"} {
		p.handle(method, func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"resultType":"complete"}`) })
	}
	return p
}

func TestTasksOfTheExtension(t *testing.T) {
	peers := []*fakeServer{taskServer("a"), taskServer("b")}
	u := newGateway(t, nil, peers...).modern(t)
	u.capabilities = tasksCapabilities
	for _, p := range peers {
		id := p.name + "::1"
		if s := u.call(p.name + "::x"); string(s.Result) != `{"resultType":"task","taskId":"`+id+
			`","status":"working","ttlMs":null}` {
			t.Errorf("got %s", s.body)
		}
		want := fmt.Sprintf(`{"resultType":"complete","taskId":%q,"status":"completed","result":{"content":[`+
			`{"type":"resource_link","uri":%q},{"type":"resource","resource":{"uri":%q}},{"type":"text","text":"x://a"}]},`+
			`"_meta":{"taskId":"1"}}`,
			id, mcp.ResourceURI(p.name, "x://a"), mcp.ResourceURI(p.name, "x://b"))
		if s := u.ask("tasks/get", `{"taskId":"`+id+`"}`); string(s.Result) != want {
			t.Errorf("got %s, want %s", s.Result, want)
		}
		// Unknown methods of the extension are forwarded in the same way.
		for _, method := range []string{"tasks/update", "tasks/cancel", "tasks/more"} {
			const more = `"inputResponses":{"1":{"action":"accept"}},"requestState":"as it is"`
			if s := u.ask(method, `{"taskId":"`+id+`",`+more+`}`); string(s.Result) != `{"resultType":"complete"}` {
				t.Errorf("%s: got %s", method, s.body)
			}
			got := p.waitFor(t, method, 1)
			if got.message.Text(jsonrpc.TaskID) != "1" || !strings.Contains(got.body, more) ||
				method != "tasks/more" && got.Header.Get("Mcp-Name") != "1" {
				t.Errorf("got %s %s", got.Header, got.body)
			}
		}
		for _, method := range []string{"tasks/list", "tasks/result"} { // not in the extension
			if s := u.ask(method, `{"taskId":"`+id+`"}`); s.code() != jsonrpc.CodeMethodNotFound ||
				s.status != http.StatusNotFound || p.count(method) != 0 {
				t.Errorf("%s: got %d %s", method, s.status, s.body)
			}
		}
	}
	for _, id := range []string{"1", "c::1", "a:1", ""} {
		if s := u.ask("tasks/get", `{"taskId":"`+id+`"}`); s.code() == 0 {
			t.Errorf("%q: got %s", id, s.body)
		}
	}
}

// The capabilities of servers are merged with their extensions. Legacy tasks are for legacy
// clients.
func TestExtensionsAreDeclared(t *testing.T) {
	old := legacyPeer("old")
	old.capabilities = `{"tools":{},"tasks":{"list":{}},"extensions":{"vendor/x":{"n":1}}}`
	g := newGateway(t, nil, taskServer("a"), taskServer("b"), old)
	for _, u := range []*testClient{g.legacy(t), g.modern(t)} {
		answer := u.hello.Result
		if u.era == mcp.Modern {
			answer = u.ask("server/discover", "").Result
		}
		var result struct {
			Capabilities struct {
				Tasks      any
				Extensions json.RawMessage
			}
		}
		if err := json.Unmarshal(answer, &result); err != nil {
			t.Fatal(err)
		}
		if got, want := string(result.Capabilities.Extensions), `{"io.modelcontextprotocol/tasks":{"a":true,"b":true},`+
			`"vendor/x":{"n":1}}`; got != want {
			t.Errorf("era %d: got %s, want %s", u.era, got, want)
		}
		if (result.Capabilities.Tasks != nil) != (u.era == mcp.Legacy) {
			t.Errorf("era %d: got %s", u.era, answer)
		}
	}
	want := `"extensions":{"vendor/y":{}}`
	u := g.modern(t)
	u.capabilities = "{" + want + "}"
	u.ask("tools/list", "")
	if got := g.modernPeerOf("a").requests("tools/list"); !strings.Contains(got[len(got)-1].body, want) {
		t.Errorf("the server did not get the client's extensions: %s", got[len(got)-1].body)
	}
}

// modernPeerOf returns the fakeServer of a server.
func (g *testGateway) modernPeerOf(name string) *fakeServer {
	return g.servers[name].Routes.(fakeRoutes).fakeServer
}

func taskNotification(id string) string {
	return `{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"` + id +
		`","status":"completed","result":{"content":[{"uri":"x://a"}]}}}`
}

func TestListeningToTasks(t *testing.T) {
	a, b, c := taskServer("a"), taskServer("b"), modernPeer("c")
	sayA, sayB := a.acceptListen(), b.acceptListen()
	agreeing := b.on[mcp.MethodListen]
	b.handle(mcp.MethodListen, func(w http.ResponseWriter, r *incoming) { // acknowledges one of two
		body := strings.ReplaceAll(r.body, `["1","2"]`, `["1"]`)
		_ = r.message.Read([]byte(body))
		agreeing(w, r)
	})
	u := newGateway(t, nil, a, b, c).modern(t)
	const wants = `{"notifications":{"taskIds":["a::1","b::1","b::2","c::1","d::1","1"]}}`
	if s := u.ask(mcp.MethodListen, wants); s.code() != -32021 ||
		!strings.Contains(s.body, `"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
		t.Errorf("a client without tasks: got %s", s.body)
	}
	u.capabilities = tasksCapabilities
	stream := u.startRequest(mcp.MethodListen, wants)
	var ack struct {
		Params struct{ Notifications interests }
	}
	if first := stream.next(); json.Unmarshal([]byte(first.data), &ack) != nil ||
		first.method() != "notifications/subscriptions/acknowledged" {
		t.Fatalf("got %s", first.data)
	}
	got := ack.Params.Notifications
	if slices.Sort(got.Tasks); !slices.Equal(got.Tasks, []string{"a::1", "b::1"}) || got.Tools {
		t.Errorf("got %+v", got)
	}
	for p, want := range map[*fakeServer]string{a: `{"taskIds":["1"]}`, b: `{"taskIds":["1","2"]}`} {
		if got := p.waitFor(t, mcp.MethodListen, 1).message.Literal(jsonrpc.Notifications); p == a && string(got) != want {
			t.Errorf("%s: got %s", p.name, got)
		}
	}
	sayA(taskNotification("2")) // another task
	for i, say := range []func(string){sayA, sayB} {
		name := []string{"a", "b"}[i]
		say(taskNotification("1"))
		e := stream.next()
		if e.method() != mcp.MethodTask || !strings.Contains(e.data, `"taskId":"`+name+`::1"`) ||
			!strings.Contains(e.data, mcp.ResourceURI(name, "x://a")) {
			t.Errorf("got %s", e.data)
		}
	}
	if n := c.count(mcp.MethodListen); n != 0 {
		t.Errorf("a server without tasks got %d requests", n)
	}
}

// A task belongs to the client that began it, also in listen streams.
func TestListeningToTasksOfOthers(t *testing.T) {
	p := taskServer("a")
	say := p.acceptListen()
	configure := func(c *Config) { c.Clients = []*access.Client{{Name: "*", Policy: rulesOf()}} }
	g := newGateway(t, configure, p)
	ann, bob := g.modern(t), g.modern(t)
	ann.capabilities, bob.capabilities, ann.identity, bob.identity = tasksCapabilities, tasksCapabilities, "ann", "bob"
	if s := ann.call("a::x"); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	const wants = `{"notifications":{"taskIds":["a::1"]}}`
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel", "tasks/more"} {
		if s := bob.ask(method, `{"taskId":"a::1"}`); s.code() != jsonrpc.CodeInvalidParams || p.count(method) != 0 {
			t.Errorf("%s: got %s", method, s.body)
		}
	}
	if s := bob.ask(mcp.MethodListen, wants); strings.Contains(s.body, "a::1") ||
		!strings.Contains(s.answer, "complete") || p.count(mcp.MethodListen) != 0 {
		t.Errorf("got %s", s.body)
	}
	stream := ann.startRequest(mcp.MethodListen, wants)
	if e := stream.next(); !strings.Contains(e.data, `"taskIds":["a::1"]`) {
		t.Fatalf("got %s", e.data)
	}
	say(taskNotification("1"))
	if e := stream.next(); !strings.Contains(e.data, "a::1") {
		t.Errorf("got %s", e.data)
	}
	// A client that may not use everything of a server has no tasks there.
	restricted := newGateway(t, rulesForAll("allow tool:a::x", "deny a::*"), p).modern(t)
	restricted.capabilities = tasksCapabilities
	if s := restricted.ask(mcp.MethodListen, wants); strings.Contains(s.body, "a::1") {
		t.Errorf("got %s", s.body)
	}
}

// Legacy messages name their related task, in both directions.
func TestMessagesThatBelongToTasks(t *testing.T) {
	const related = `{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"%s"}}}`
	p := legacyPeer("a")
	answered := make(chan string, 1)
	p.handle("tasks/result", func(w http.ResponseWriter, a *incoming) {
		answered <- a.ask(w, "7", "elicitation/create", fmt.Sprintf(related, "1"))
		a.finish(w, fmt.Sprintf(related, "1"))
	})
	u := newGateway(t, nil, legacyPeer("b"), p).legacy(t)
	call := u.startRequest("tasks/result", `{"taskId":"a::1"}`)
	question := call.next()
	if !strings.Contains(question.data, fmt.Sprintf(related, "a::1")[1:20]) ||
		!strings.Contains(question.data, `"taskId":"a::1"`) {
		t.Errorf("got %s", question.data)
	}
	u.respond(question, fmt.Sprintf(related, "a::1"))
	if got := <-answered; !strings.Contains(got, fmt.Sprintf(related, "1")) {
		t.Errorf("the server gets %s", got)
	}
	if e := call.next(); !strings.Contains(e.data, fmt.Sprintf(related, "a::1")) {
		t.Errorf("got %s", e.data)
	}
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) { a.reply(w, `{}`) })
	for given, want := range map[string]string{"a::1": "1", "b::1": "b::1", "1": "1"} {
		n := p.count("tools/call")
		u.ask("tools/call", `{"name":"a::x",`+fmt.Sprintf(related, given)[1:])
		if got := p.waitFor(t, "tools/call", n+1).body; !strings.Contains(got, fmt.Sprintf(related, want)[1:]) {
			t.Errorf("%s: the server gets %s", given, got)
		}
	}
}

// skillServer returns a server with a skill and its own responses to each method for skills.
func skillServer(name string) *fakeServer {
	p := newPeer(name)
	p.capabilities = `{"resources":{"subscribe":true},"extensions":{"io.modelcontextprotocol/skills":{}}}`
	skill := `{"uri":"skill://x/` + name + `/SKILL.md","frontmatter":{"name":"` + name +
		`"},"resources":[{"uri":"skill://x/` + name + `/SKILL.md","size":1},{"uri":"skill://x/` + name + `/a.md","size":2}]}`
	p.hasList("skills/list", "skills", skill, `{"uri":"git://x/y/SKILL.md","resources":"dynamic"}`, `{"frontmatter":{}}`)
	p.hasList("resources/list", "resources", `{"uri":"skill://x/`+name+`/SKILL.md","name":"s"}`,
		`{"uri":"x://a","name":"a"}`)
	p.handle("skills/get", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"skill":`+skill+`,"ttlMs":1,"cacheScope":"public"}`)
	})
	p.handle("resources/directory/read", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"resources":[{"uri":"skill://x/`+name+`/a.md"},{"uri":"skill://x/`+name+
			`/b","mimeType":"inode/directory"}],"nextCursor":"`+name+`"}`)
	})
	p.handle("resources/read", func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"contents":[{"uri":`+string(a.message.Literal(jsonrpc.URI))+`,"text":""}]}`)
	})
	return p
}

func TestSkills(t *testing.T) {
	librarians := func() []*fakeServer { return []*fakeServer{skillServer("a"), skillServer("b"), newPeer("c")} }
	both(t, nil, librarians, func(t *testing.T, u *testClient, peers []*fakeServer) {
		root := func(name string) string { return "proxy://template/" + name + "/skill://x/" + name }
		list := u.ask("skills/list", "")
		want := []string{root("a") + "/SKILL.md", "proxy://template/a/git://x/y/SKILL.md", root("b") + "/SKILL.md",
			"proxy://template/b/git://x/y/SKILL.md"}
		if got := namesIn(t, list, "skills", "uri"); !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
		if n := strings.Count(list.body, `"uri":"`+root("a")+"/a.md\""); n != 1 ||
			!strings.Contains(list.body, `"resources":"dynamic"`) {
			t.Errorf("got %s", list.body)
		}
		if peers[2].count("skills/list") != 0 {
			t.Error("a server without skills got a request for them")
		}
		// A11
		if got := namesIn(t, u.ask("resources/list", ""), "resources", "uri"); got[0] != mcp.ResourceURI("a",
			"skill://x/a/SKILL.md") {
			t.Errorf("got %v", got)
		}
		for _, name := range []string{"a", "b"} {
			uri := root(name) + "/SKILL.md"
			if s := u.ask("skills/get", `{"uri":"`+uri+`"}`); strings.Count(s.body, `"uri":"`+uri+`"`) != 2 ||
				strings.Count(s.body, root(name)+"/a.md") != 1 {
				t.Errorf("got %s", s.body)
			}
			directory := u.ask("resources/directory/read", `{"uri":"`+root(name)+`","cursor":"of the server"}`)
			if got := namesIn(t, directory, "resources", "uri"); !slices.Equal(got,
				[]string{root(name) + "/a.md", root(name) + "/b"}) || !strings.Contains(directory.body, `"nextCursor":"`+name+`"`) {
				t.Errorf("got %s", directory.body)
			}
			// A client builds this URI from a reference in the skill.
			// A12
			if s := u.ask("resources/read", `{"uri":"`+root(name)+`/b/c.md"}`); !strings.Contains(s.body,
				mcp.ResourceURI(name, "skill://x/"+name+"/b/c.md")) {
				t.Errorf("got %s", s.body)
			}
		}
		for i, method := range []string{"skills/get", "resources/directory/read"} {
			want := `"uri":"skill://x/a` + []string{"/SKILL.md", ""}[i] + `"`
			if got := peers[0].waitFor(t, method, 1); !strings.Contains(got.body, want) ||
				i == 1 && !strings.Contains(got.body, `"cursor":"of the server"`) {
				t.Errorf("the server gets %s", got.body)
			}
			for _, uri := range []string{"skill://x/unknown/SKILL.md", "proxy://template/d/skill://x", ""} {
				if s := u.ask(method, `{"uri":"`+uri+`"}`); s.code() != jsonrpc.CodeInvalidParams {
					t.Errorf("%s of %q: got %s", method, uri, s.body)
				}
			}
		}
	})
}

// A skill consists of files. These are resources, to which rules apply.
func TestSkillsThatAClientMayNotRead(t *testing.T) {
	librarians := func() []*fakeServer { return []*fakeServer{skillServer("a"), newPeer("c")} }
	configure := rulesForAll("deny resource:a::skill://x/a/SKILL.md", "deny resource:a::skill://x/a/b",
		"deny resource:a::skill://x/hidden")
	both(t, configure, librarians, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if got := namesIn(t, u.ask("skills/list", ""), "skills", "uri"); !slices.Equal(got,
			[]string{"proxy://template/a/git://x/y/SKILL.md"}) {
			t.Errorf("got %v", got)
		}
		if s := u.ask("skills/get", `{"uri":"proxy://template/a/skill://x/a/SKILL.md"}`); s.symbol() != "acl_denied" ||
			peers[0].count("skills/get") != 0 {
			t.Errorf("got %s", s.body)
		}
		s := u.ask("resources/directory/read", `{"uri":"proxy://template/a/skill://x/hidden"}`)
		if s.symbol() != "acl_denied" ||
			peers[0].count("resources/directory/read") != 0 {
			t.Errorf("got %s", s.body)
		}
		directory := u.ask("resources/directory/read", `{"uri":"proxy://template/a/skill://x/a"}`)
		if got := namesIn(t, directory, "resources", "uri"); !slices.Equal(got,
			[]string{"proxy://template/a/skill://x/a/a.md"}) {
			t.Errorf("got %v", got)
		}
	})
}

// An unknown method is forwarded to the server of the resource that it names, if the client may use
// everything of that server.
func TestMethodsOfOtherExtensions(t *testing.T) {
	uri := mcp.ResourceURI("a", "x://a")
	make := func() []*fakeServer {
		p := newPeer("a").handle("vendor/x", func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"more":1}`) })
		return []*fakeServer{p, newPeer("b")}
	}
	both(t, nil, make, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if s := u.ask("vendor/x", `{"uri":"`+uri+`","more":2}`); !strings.Contains(s.body, `"more":1`) {
			t.Errorf("got %s", s.body)
		}
		if got := peers[0].waitFor(t, "vendor/x", 1); got.message.Text(jsonrpc.URI) != "x://a" ||
			!strings.Contains(got.body, `"more":2`) {
			t.Errorf("got %s", got.body)
		}
		for _, params := range []string{`{}`, `{"uri":"x://a"}`, `{"uri":1}`, `{"taskId":"a::1"}`} {
			if s := u.ask("vendor/x", params); s.code() != jsonrpc.CodeMethodNotFound {
				t.Errorf("%s: got %s", params, s.body)
			}
		}
		if n := peers[0].count("vendor/x") + peers[1].count("vendor/x"); n != 1 {
			t.Errorf("servers received %d requests", n)
		}
	})
	both(t, rulesForAll("allow resource:a::*", "deny a::*"), make, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if s := u.ask("vendor/x", `{"uri":"`+uri+`"}`); s.symbol() != "acl_denied" || peers[0].count("vendor/x") != 0 {
			t.Errorf("got %s", s.body)
		}
	})
}

// The spelling of a resource URI does not change the rights of a client, and does not turn a known
// method into a method of an extension.
func TestMethodsOfOtherExtensionsByOwnURI(t *testing.T) {
	const own = `{"uri":"x://a"}`
	proxy := `{"uri":"` + mcp.ResourceURI("a", "x://a") + `"}`
	make := func() []*fakeServer {
		p := newPeer("a").hasList("resources/list", "resources", `{"uri":"x://a","name":"a"}`)
		for _, method := range []string{"vendor/x", "roots/list", "sampling/createMessage", "notifications/tasks"} {
			p.handle(method, func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"more":1}`) })
		}
		return []*fakeServer{p, newPeer("b")}
	}
	both(t, nil, make, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if s := u.ask("vendor/x", own); !strings.Contains(s.body, `"more":1`) {
			t.Errorf("got %s", s.body)
		}
		for _, method := range []string{"roots/list", "sampling/createMessage", "notifications/tasks"} {
			if s := u.ask(method, proxy); s.code() != jsonrpc.CodeMethodNotFound || peers[0].count(method) != 0 {
				t.Errorf("%s: got %s", method, s.body)
			}
		}
	})
	both(t, rulesForAll("allow resource:a::*", "deny a::*"), make, func(t *testing.T, u *testClient, peers []*fakeServer) {
		if s := u.ask("vendor/x", own); s.symbol() != "acl_denied" || peers[0].count("vendor/x") != 0 {
			t.Errorf("got %s", s.body)
		}
	})
}
