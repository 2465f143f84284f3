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
	url := serve(t, gateway("separator __", block(child("alpha"), alpha.env()), block(child("beta"), beta.env()), far.line("far"),
		"route_notifications notifications/foo beta", "route_notifications notifications/vendor/* beta far"))
	c := newSpeaker(t, joinedAt(url), false, everyCapability)
	for _, server := range []string{"alpha", "beta"} {
		c.use(t, server, "pid", `{}`)
	}
	for _, method := range []string{"notifications/foo", "notifications/vendor/x", "notifications/vendor/y", "notifications/foobar"} {
		c.say(t, `{"jsonrpc":"2.0","method":`+quote(method)+`,"params":{"n":1.0,"t":"é\u00e9"}}`)
	}
	for _, tt := range []struct {
		name, method string
		want         []int // for alpha, beta and far
	}{
		{"A58 to the one that is named", "notifications/foo", []int{0, 1, 0}},
		{"A58 to those that are named for a pattern", "notifications/vendor/x", []int{0, 1, 1}},
		{"A58 all that fit the pattern", "notifications/vendor/y", []int{0, 1, 1}},
		{"A58 A27 all others to all", "notifications/foobar", []int{1, 1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := func() []int {
				return []int{len(alpha.entries(t, tt.method)), len(beta.entries(t, tt.method)), far.Count(tt.method)}
			}
			await.Until(t, tt.method, func() bool {
				now := got()
				return now[0] >= tt.want[0] && now[1] >= tt.want[1] && now[2] >= tt.want[2]
			})
			for _, server := range []string{"alpha", "beta"} { // which come after what was said before
				c.use(t, server, "pid", `{}`)
			}
			c.use(t, "far", "tool", `{}`)
			if now := got(); !slices.Equal(now, tt.want) {
				t.Errorf("heard %v times, want %v", now, tt.want)
			}
		})
	}
	if got := beta.messages(t, "notifications/foo")[0]; string(got.Params) != `{"n":1.0,"t":"é\u00e9"}` {
		t.Errorf("A58 beta got %s", got.Body)
	}
}

// answering are servers of all kinds and eras, and the tool by which they ask.
type answering struct {
	name, ask string
	line      string
	modern    bool // it knows no other era
	either    bool // it knows both
}

// asking are servers that ask for roots, with more lines about each.
func asking(t *testing.T, journal journal) []answering {
	t.Helper()
	all := []answering{
		{name: "old", line: block(child("old"), journal.env(), "isolation session")},
		{name: "shared", line: block(child("shared"), journal.env())},
		{name: "new", line: block(child("new", "--modern-only"), journal.env()), modern: true},
		{name: "both", line: block(child("both", "--modern"), journal.env(), "isolation session"), either: true},
	}
	for i := range all {
		all[i].ask = "ask-roots"
	}
	for _, remote := range []*mcptest.Remote{
		{Name: "farold", Legacy: true}, {Name: "farnew", Modern: true}, {Name: "farboth", Legacy: true, Modern: true},
	} {
		all = append(all, answering{name: remote.Name, ask: "ask", line: "server " + remote.Name + " http://" + upstream(t, remote) + "/mcp",
			modern: !remote.Legacy, either: remote.Legacy && remote.Modern})
		t.Cleanup(remote.Close)
	}
	return all
}

// asksClient reports whether a client was asked anything.
func (s said) asksClient() bool {
	return strings.Contains(s.answer.Raw, "inputRequests") || slices.ContainsFunc(s.events, func(m mcpclient.Message) bool { return m.ID != nil })
}

// failed reports whether the answer is an error, of the gateway or of the tool.
func (s said) failed() bool {
	var result struct{ IsError bool }
	_ = json.Unmarshal(s.answer.Result, &result)
	return s.answer.Error != nil || result.IsError
}

// doors are where a server can be called: where all are one, and where it is alone.
var doors = []struct {
	name  string
	at    func(url, server string) string
	named func(server, tool string) string
}{
	{"among all", func(url, _ string) string { return joinedAt(url) }, func(server, tool string) string { return server + "__" + tool }},
	{"alone", mcpAt, func(_, tool string) string { return tool }},
}

// forDoors runs a test with clients of both eras, that can be asked or not, at both
// doors of each server. Alone, a server serves the eras that it knows.
func forDoors(t *testing.T, url string, servers []answering, test func(t *testing.T, c *speaker, s answering, named func(server, tool string) string)) {
	for _, s := range servers {
		for _, era := range clientEras {
			for _, door := range doors {
				if door.name == "alone" && !s.either && s.modern != era.modern {
					continue
				}
				for can, capabilities := range map[string]string{"can answer": canAll, "cannot answer": `{}`} {
					t.Run(s.name+" "+door.name+" with a "+era.name+" that "+can, func(t *testing.T) {
						test(t, newSpeaker(t, door.at(url, s.name), era.modern, capabilities), s, door.named)
					})
				}
			}
		}
	}
}

func TestOperateAnswersHere(t *testing.T) {
	isolate(t)
	servers := asking(t, newJournal(t))
	lines := []string{"separator __", "response_timeout 20s"}
	for _, s := range servers {
		lines = append(lines, s.line, block("answer "+s.name+" roots/list", "roots file:///workspace file:///second"))
	}
	url := serve(t, gateway(lines...))
	forDoors(t, url, servers, func(t *testing.T, c *speaker, s answering, named func(string, string) string) {
		params := `{"name":` + quote(named(s.name, s.ask)) + `,"arguments":{"method":"roots/list","params":{}}}`
		for range 2 {
			got := c.ask(t, "tools/call", params)
			text := got.answer.Text()
			if !strings.Contains(text, `{"roots":[{"uri":"file:///workspace"`) || !strings.Contains(text, `"file:///second"`) || got.failed() {
				t.Errorf("A59 got %s", got.answer.Raw)
			}
			if got.asksClient() {
				t.Errorf("A59 the client was asked: %v %s", got.events, got.answer.Raw)
			}
		}
		// Anything else goes where it always has.
		if got := c.ask(t, "tools/call", `{"name":`+quote(named(s.name, "echo"))+`,"arguments":{"text":"x"}}`); got.failed() {
			t.Errorf("then %s", got.answer.Raw)
		}
	})
}

// What is asked outside of a call is answered as well, even before there is a client
// that could.
func TestOperateAnswersOutOfTheBlue(t *testing.T) {
	isolate(t)
	const roots = `"result":{"roots":[{"uri":"file:///workspace"`
	for name, ask := range map[string]func(t *testing.T, url string){
		"without a session": func(t *testing.T, url string) { pidAt(t, mcpAt(url, "early")) },
		"alone": func(t *testing.T, url string) {
			newSpeaker(t, mcpAt(url, "early"), false, `{}`).ask(t, "tools/call", `{"name":"pid","arguments":{}}`)
		},
		"among all": func(t *testing.T, url string) { newSpeaker(t, joinedAt(url), false, `{}`).use(t, "early", "pid", `{}`) },
		"among all, with a modern client": func(t *testing.T, url string) {
			newSpeaker(t, joinedAt(url), true, `{}`).use(t, "early", "pid", `{}`)
		},
		"with a client that listens": func(t *testing.T, url string) {
			c := newSpeaker(t, joinedAt(url), false, `{}`)
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
				t.Errorf("the server was told otherwise:\n%s", text)
			}
		})
	}
	far := newRemoteServer(t, "tool")
	url := serve(t, gateway("separator __", far.line("far"), block("answer far roots/list", "roots file:///workspace"),
		"answer far sampling/createMessage drop"))
	for _, door := range doors {
		t.Run("A59 on the stream of a session, "+door.name, func(t *testing.T) {
			c := newSpeaker(t, door.at(url, "far"), false, canAll)
			before, answers := far.Listeners(), far.Count("answer")
			stream := c.listen(t)
			await.Until(t, "the gateway to listen", func() bool { return far.Listeners() == before+1 })
			far.Say(`{"jsonrpc":"2.0","id":"r\u0031","method":"roots/list"}`)
			far.Say(`{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
			far.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("the client heard %s", m.Raw)
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
			stream.HangUp()
			await.Until(t, "the end of the stream", func() bool { return far.Listeners() == before })
		})
	}
}

// The question of one is answered here, that of the other is passed on.
func TestOperateAnswersForOne(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", block(child("alpha"), "isolation session"), block(child("beta"), "isolation session"),
		block("answer alpha roots/list", "roots file:///workspace"), "answer beta roots/list deliver"))
	c := newSpeaker(t, joinedAt(url), false, canAll)
	if got := c.ask(t, "tools/call", callOf("alpha", "ask-roots", `{}`)); got.asksClient() || !strings.Contains(got.answer.Text(), "file:///workspace") {
		t.Errorf("A59 alpha: %v %s", got.events, got.answer.Raw)
	}
	d := c.begin(t, "tools/call", callOf("beta", "ask-roots", `{}`))
	question := d.hears(t, "roots/list")
	c.replyTo(t, question, rootsAnswer)
	if got := d.finish(t).answer.Text(); got != rootsAnswer {
		t.Errorf("A59 beta: %s", got)
	}
	d = c.begin(t, "tools/call", callOf("alpha", "ask", `{"method":"sampling/createMessage","params":{}}`))
	c.replyTo(t, d.hears(t, "sampling/createMessage"), sampleAnswer)
	if got := d.finish(t).answer.Text(); got != sampleAnswer {
		t.Errorf("A59 what else alpha asks: %s", got)
	}
}

func TestOperateDropsQuestions(t *testing.T) {
	isolate(t)
	servers := asking(t, newJournal(t))
	// A call that hangs would do so for longer than the test waits.
	lines := []string{"separator __", "response_timeout 10m"}
	for _, s := range servers {
		lines = append(lines, s.line, "answer "+s.name+" roots/list drop")
	}
	url := serve(t, gateway(lines...))
	forDoors(t, url, servers, func(t *testing.T, c *speaker, s answering, named func(string, string) string) {
		got := c.ask(t, "tools/call", `{"name":`+quote(named(s.name, s.ask))+`,"arguments":{"method":"roots/list","params":{}}}`)
		if !got.failed() {
			t.Errorf("A59 the server is not told of an error: %s", got.answer.Raw)
		}
		if got.asksClient() {
			t.Errorf("A59 the client was asked: %v %s", got.events, got.answer.Raw)
		}
		if got := c.ask(t, "tools/call", `{"name":`+quote(named(s.name, "echo"))+`,"arguments":{"text":"x"}}`); got.failed() {
			t.Errorf("then %s", got.answer.Raw)
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
	for _, door := range doors {
		t.Run("A59 in a call, "+door.name, func(t *testing.T) {
			for _, server := range []string{"alpha", "beta"} {
				c := newSpeaker(t, door.at(url, server), false, `{}`)
				emits := func(method string) []mcpclient.Message {
					got := c.ask(t, "tools/call", `{"name":`+quote(door.named(server, "emit"))+`,"arguments":{"method":`+quote(method)+`,"params":{"level":"error","data":"x"}}}`)
					if got.answer.Text() != "emitted" {
						t.Errorf("%s: %s", server, got.answer.Raw)
					}
					return got.events
				}
				if got := heardIn(emits("notifications/message"), "notifications/message"); got != (server == "alpha") {
					t.Errorf("notifications/message of %s is heard: %t", server, got)
				}
				if !heardIn(emits("notifications/other"), "notifications/other") {
					t.Errorf("notifications/other of %s is not heard", server)
				}
			}
		})
		t.Run("A59 out of the blue, "+door.name, func(t *testing.T) {
			c := newSpeaker(t, door.at(url, "far"), false, `{}`)
			before := far.Listeners()
			stream := c.listen(t)
			await.Until(t, "the gateway to listen", func() bool { return far.Listeners() > before })
			far.Say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
			far.Say(`{"jsonrpc":"2.0","method":"vendor/after"}`)
			if m := stream.next(t); m.Method != "vendor/after" {
				t.Errorf("heard %s", m.Raw)
			}
		})
	}
}
