package integration

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func TestOperateRoutesNotifications(t *testing.T) {
	isolate(t)
	alpha, beta, far := newJournal(t), newJournal(t), newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", block(child("alpha"), alpha.env()), block(child("beta"), beta.env()),
		far.line("far"),
		"route_notifications notifications/foo beta", "route_notifications notifications/vendor/* beta far"))
	c := newTestClient(t, joinedAt(url), false, everyCapability)
	for _, server := range []string{"alpha", "beta"} {
		c.use(t, server, "pid", `{}`)
	}
	for _, method := range []string{"notifications/foo", "notifications/vendor/x", "notifications/vendor/y",
		"notifications/foobar"} {
		c.post(t, `{"jsonrpc":"2.0","method":`+quote(method)+`,"params":{"n":1.0,"t":"é\u00e9"}}`)
	}
	for _, tt := range []struct {
		name, method string
		want         []int // number received by alpha, beta and far
	}{
		{"A58 to the named server", "notifications/foo", []int{0, 1, 0}},
		{"A58 to the servers named for a pattern", "notifications/vendor/x", []int{0, 1, 1}},
		{"A58 every method that matches the pattern", "notifications/vendor/y", []int{0, 1, 1}},
		{"A58 A27 all other methods to all servers", "notifications/foobar", []int{1, 1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := func() []int {
				return []int{len(alpha.entries(t, tt.method)), len(beta.entries(t, tt.method)), far.Count(tt.method)}
			}
			await.Until(t, tt.method, func() bool {
				now := got()
				return now[0] >= tt.want[0] && now[1] >= tt.want[1] && now[2] >= tt.want[2]
			})
			for _, server := range []string{"alpha", "beta"} { // servers process messages in order
				c.use(t, server, "pid", `{}`)
			}
			c.use(t, "far", "tool", `{}`)
			if now := got(); !slices.Equal(now, tt.want) {
				t.Errorf("received %v times, want %v", now, tt.want)
			}
		})
	}
	if got := beta.messages(t, "notifications/foo")[0]; string(got.Params) != `{"n":1.0,"t":"é\u00e9"}` {
		t.Errorf("A58 beta got %s", got.Body)
	}
}

// A requestingServer is a server and the tool that makes it send a server request.
type requestingServer struct {
	name, tool string
	line       string
	modern     bool // supports only the modern era
	either     bool // supports both eras
}

// newRequestingServers returns servers of all kinds and eras that request roots.
func newRequestingServers(t *testing.T, journal journal) []requestingServer {
	t.Helper()
	all := []requestingServer{
		{name: "old", line: block(child("old"), journal.env(), "isolation session")},
		{name: "shared", line: block(child("shared"), journal.env())},
		{name: "new", line: block(child("new", "--modern-only"), journal.env()), modern: true},
		{name: "both", line: block(child("both", "--modern"), journal.env(), "isolation session"), either: true},
	}
	for i := range all {
		all[i].tool = "ask-roots"
	}
	for _, remote := range []*mcptest.Remote{
		{Name: "farold", Legacy: true}, {Name: "farnew", Modern: true}, {Name: "farboth", Legacy: true, Modern: true},
	} {
		all = append(all, requestingServer{name: remote.Name, tool: "ask", line: "server " + remote.Name + " http://" +
			upstream(t, remote) + "/mcp",
			modern: !remote.Legacy, either: remote.Legacy && remote.Modern})
		t.Cleanup(remote.Close)
	}
	return all
}

// requestsInput reports whether the client received a server request.
func (s reply) requestsInput() bool {
	return strings.Contains(s.answer.Raw, "inputRequests") || slices.ContainsFunc(s.events,
		func(m mcpclient.Message) bool { return m.ID != nil })
}

// failed reports whether the response is an error, of the gateway or of the tool.
func (s reply) failed() bool {
	var result struct{ IsError bool }
	_ = json.Unmarshal(s.answer.Result, &result)
	return s.answer.Error != nil || result.IsError
}

// endpointKinds are the endpoints of a server: the aggregate, and its own.
var endpointKinds = []struct {
	name  string
	at    func(url, server string) string
	named func(server, tool string) string
}{
	{"at the aggregate", func(url, _ string) string { return joinedAt(url) },
		func(server, tool string) string { return server + "__" + tool }},
	{"at its own endpoint", mcpAt, func(_, tool string) string { return tool }},
}

// forEndpoints runs a test with clients of both eras, with and without capabilities, at both
// endpoints of each server. At its own endpoint, a server serves only the eras that it supports.
func forEndpoints(t *testing.T, url string, servers []requestingServer, test func(t *testing.T, c *testClient,
	s requestingServer, named func(server, tool string) string)) {
	for _, s := range servers {
		for _, era := range clientEras {
			for _, endpoint := range endpointKinds {
				if endpoint.name == "at its own endpoint" && !s.either && s.modern != era.modern {
					continue
				}
				for can, capabilities := range map[string]string{"has capabilities": fullCapabilities, "lacks capabilities": `{}`} {
					t.Run(s.name+" "+endpoint.name+" with a "+era.name+" that "+can, func(t *testing.T) {
						test(t, newTestClient(t, endpoint.at(url, s.name), era.modern, capabilities), s, endpoint.named)
					})
				}
			}
		}
	}
}

func TestOperateConfiguredAnswers(t *testing.T) {
	isolate(t)
	servers := newRequestingServers(t, newJournal(t))
	lines := []string{"separator __", "response_timeout 20s"}
	for _, s := range servers {
		lines = append(lines, s.line, block("answer "+s.name+" roots/list", "roots file:///workspace file:///second"))
	}
	url := serve(t, gateway(lines...))
	forEndpoints(t, url, servers, func(t *testing.T, c *testClient, s requestingServer,
		named func(string, string) string) {
		params := `{"name":` + quote(named(s.name, s.tool)) + `,"arguments":{"method":"roots/list","params":{}}}`
		for range 2 {
			got := c.ask(t, "tools/call", params)
			text := got.answer.Text()
			if !strings.Contains(text, `{"roots":[{"uri":"file:///workspace"`) || !strings.Contains(text, `"file:///second"`) ||
				got.failed() {
				t.Errorf("A59 got %s", got.answer.Raw)
			}
			if got.requestsInput() {
				t.Errorf("A59 the client received a server request: %v %s", got.events, got.answer.Raw)
			}
		}
		// Other calls are unaffected.
		if got := c.ask(t, "tools/call", `{"name":`+quote(named(s.name, "echo"))+`,"arguments":{"text":"x"}}`); got.failed() {
			t.Errorf("then echo got %s", got.answer.Raw)
		}
	})
}

// Server requests outside of a call are answered as well, even before a client connects
// that could answer them.
func TestOperateAnswersOutsideOfCalls(t *testing.T) {
	isolate(t)
	const roots = `"result":{"roots":[{"uri":"file:///workspace"`
	for name, ask := range map[string]func(t *testing.T, url string){
		"without a session": func(t *testing.T, url string) { pidAt(t, mcpAt(url, "early")) },
		"at its own endpoint": func(t *testing.T, url string) {
			newTestClient(t, mcpAt(url, "early"), false, `{}`).ask(t, "tools/call", `{"name":"pid","arguments":{}}`)
		},
		"at the aggregate": func(t *testing.T, url string) {
			newTestClient(t, joinedAt(url), false, `{}`).use(t, "early", "pid", `{}`)
		},
		"at the aggregate, with a modern client": func(t *testing.T, url string) {
			newTestClient(t, joinedAt(url), true, `{}`).use(t, "early", "pid", `{}`)
		},
		"with a client that listens": func(t *testing.T, url string) {
			c := newTestClient(t, joinedAt(url), false, `{}`)
			c.listen(t)
			c.use(t, "early", "pid", `{}`)
		},
	} {
		t.Run("A59 as soon as the server is initialized, "+name, func(t *testing.T) {
			journal := newJournal(t)
			url := serve(t, gateway("separator __", block(child("early", "--roots-at-init"), journal.env()),
				block("answer early roots/list", "roots file:///workspace")))
			ask(t, url)
			await.Until(t, "the answer", func() bool {
				text, _ := os.ReadFile(string(journal))
				return strings.Contains(string(text), `"id":0,"`)
			})
			if text, _ := os.ReadFile(string(journal)); !strings.Contains(string(text), roots) {
				t.Errorf("the server received another answer:\n%s", text)
			}
		})
	}
	far := newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", far.line("far"), block("answer far roots/list", "roots file:///workspace"),
		"answer far sampling/createMessage drop"))
	for _, endpoint := range endpointKinds {
		t.Run("A59 on the stream of a session, "+endpoint.name, func(t *testing.T) {
			c := newTestClient(t, endpoint.at(url, "far"), false, fullCapabilities)
			before, answers := far.Listeners(), far.Count("answer")
			stream := c.listen(t)
			await.Until(t, "the gateway to listen", func() bool { return far.Listeners() == before+1 })
			far.Say(`{"jsonrpc":"2.0","id":"r\u0031","method":"roots/list"}`)
			far.Say(`{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
			far.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("the client received %s", m.Raw)
			}
			await.Until(t, "both answers", func() bool { return far.Count("answer") >= answers+2 })
			for _, m := range far.Received("answer")[answers:] {
				switch string(m.ID) {
				case `"r\u0031"`:
					if !strings.Contains(m.Body, roots) {
						t.Errorf("answered %s", m.Body)
					}
				case `2`:
					if m.Error == nil {
						t.Errorf("answered %s", m.Body)
					}
				default:
					t.Errorf("answered %s", m.Body)
				}
			}
			stream.Cancel()
			await.Until(t, "the end of the stream", func() bool { return far.Listeners() == before })
		})
	}
}

// The gateway answers one server's requests, and passes on those of the other.
func TestOperateAnswersForOneServer(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", block(child("alpha"), "isolation session"),
		block(child("beta"), "isolation session"),
		block("answer alpha roots/list", "roots file:///workspace"), "answer beta roots/list deliver"))
	c := newTestClient(t, joinedAt(url), false, fullCapabilities)
	if got := c.ask(t, "tools/call", callOf("alpha", "ask-roots", `{}`)); got.requestsInput() ||
		!strings.Contains(got.answer.Text(), "file:///workspace") {
		t.Errorf("A59 alpha: %v %s", got.events, got.answer.Raw)
	}
	d := c.begin(t, "tools/call", callOf("beta", "ask-roots", `{}`))
	question := d.awaitMessage(t, "roots/list")
	c.respond(t, question, rootsAnswer)
	if got := d.finish(t).answer.Text(); got != rootsAnswer {
		t.Errorf("A59 beta: %s", got)
	}
	d = c.begin(t, "tools/call", callOf("alpha", "ask", `{"method":"sampling/createMessage","params":{}}`))
	c.respond(t, d.awaitMessage(t, "sampling/createMessage"), sampleAnswer)
	if got := d.finish(t).answer.Text(); got != sampleAnswer {
		t.Errorf("A59 another request of alpha: %s", got)
	}
}

func TestOperateDropsServerRequests(t *testing.T) {
	isolate(t)
	servers := newRequestingServers(t, newJournal(t))
	// The long timeout makes a call that hangs fail the test.
	lines := []string{"separator __", "response_timeout 10m"}
	for _, s := range servers {
		lines = append(lines, s.line, "answer "+s.name+" roots/list drop")
	}
	url := serve(t, gateway(lines...))
	forEndpoints(t, url, servers, func(t *testing.T, c *testClient, s requestingServer,
		named func(string, string) string) {
		got := c.ask(t, "tools/call", `{"name":`+quote(named(s.name, s.tool))+
			`,"arguments":{"method":"roots/list","params":{}}}`)
		if !got.failed() {
			t.Errorf("A59 the server received no error: %s", got.answer.Raw)
		}
		if got.requestsInput() {
			t.Errorf("A59 the client received a server request: %v %s", got.events, got.answer.Raw)
		}
		if got := c.ask(t, "tools/call", `{"name":`+quote(named(s.name, "echo"))+`,"arguments":{"text":"x"}}`); got.failed() {
			t.Errorf("then echo got %s", got.answer.Raw)
		}
	})
}

func TestOperateDropsNotifications(t *testing.T) {
	isolate(t)
	far := newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", child("alpha"), child("beta"), far.line("far"),
		"answer beta notifications/message drop", "answer far notifications/* drop"))
	heardIn := func(events []mcpclient.Message, method string) bool {
		return slices.ContainsFunc(events, func(m mcpclient.Message) bool { return m.Method == method })
	}
	for _, endpoint := range endpointKinds {
		t.Run("A59 in a call, "+endpoint.name, func(t *testing.T) {
			for _, server := range []string{"alpha", "beta"} {
				c := newTestClient(t, endpoint.at(url, server), false, `{}`)
				emits := func(method string) []mcpclient.Message {
					got := c.ask(t, "tools/call", `{"name":`+quote(endpoint.named(server, "emit"))+`,"arguments":{"method":`+
						quote(method)+`,"params":{"level":"error","data":"x"}}}`)
					if got.answer.Text() != "emitted" {
						t.Errorf("%s: %s", server, got.answer.Raw)
					}
					return got.events
				}
				if got := heardIn(emits("notifications/message"), "notifications/message"); got != (server == "alpha") {
					t.Errorf("notifications/message of %s was received: %t", server, got)
				}
				if !heardIn(emits("notifications/other"), "notifications/other") {
					t.Errorf("notifications/other of %s was not received", server)
				}
			}
		})
		t.Run("A59 outside of a call, "+endpoint.name, func(t *testing.T) {
			c := newTestClient(t, endpoint.at(url, "far"), false, `{}`)
			before := far.Listeners()
			stream := c.listen(t)
			await.Until(t, "the gateway to listen", func() bool { return far.Listeners() > before })
			far.Say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
			far.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("received %s", m.Raw)
			}
		})
	}
}
