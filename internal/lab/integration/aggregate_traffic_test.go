package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func TestAggregateServersAsk(t *testing.T) {
	isolate(t)
	for _, isolation := range []string{"session", "shared"} {
		t.Run(isolation, func(t *testing.T) {
			alpha := newJournal(t)
			url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation "+isolation), block(child("beta"), "isolation "+isolation)))
			c := joinAll(t, url, everyCapability)

			t.Run("A23 roots", func(t *testing.T) {
				c := c.in(t)
				c.answer(func(asked mcpclient.Message) string { return `"result":{"roots":[{"uri":"file:///w"}]}` })
				if got := c.use("alpha::ask-roots", `{}`); got != `{"roots":[{"uri":"file:///w"}]}` {
					t.Errorf("got %q, want %q", got, `{"roots":[{"uri":"file:///w"}]}`)
				}
				asked := c.heardOf("roots/list")
				if len(asked) != 1 || asked[0].Params.Proxy.Server != "alpha" || !strings.HasPrefix(string(asked[0].ID), `"alpha`) {
					t.Fatalf("asked %v", asked)
				}
			})
			t.Run("A23 params stay as they are", func(t *testing.T) {
				c := c.in(t)
				c.answer(func(asked mcpclient.Message) string { return `"result":{"role":"assistant","n":1.0,"t":"é\u00e9"}` })
				if got := c.use("beta::ask", `{"method":"sampling/createMessage","params":{"maxTokens":1e2,"messages":[],"x":"\u00e9","big":12345678901234567890}}`); got != `{"role":"assistant","n":1.0,"t":"é\u00e9"}` {
					t.Errorf("got %q, want %q", got, `{"role":"assistant","n":1.0,"t":"é\u00e9"}`)
				}
				asked := c.heardOf("sampling/createMessage")
				if len(asked) != 1 || asked[0].Params.Proxy.Server != "beta" {
					t.Fatalf("asked %v", asked)
				}
				if !strings.Contains(string(asked[0].Params.Raw), `"maxTokens":1e2,"messages":[],"x":"\u00e9","big":12345678901234567890`) {
					t.Errorf("asked %s", asked[0].Raw)
				}
			})
			t.Run("A23 a proxy member of the server's own", func(t *testing.T) {
				c := c.in(t)
				c.answer(func(asked mcpclient.Message) string { return `"result":{"action":"accept"}` })
				c.use("beta::ask", `{"method":"elicitation/create","params":{"message":"?","proxy":{"server":"alpha"}}}`)
				asked := c.heardOf("elicitation/create")
				if len(asked) != 1 || asked[0].Params.Proxy.Server != "beta" {
					t.Fatalf("asked %v", asked)
				}
			})
			t.Run("A23 an error of the client", func(t *testing.T) {
				c := c.in(t)
				c.answer(func(asked mcpclient.Message) string {
					return `"error":{"code":-1,"message":"user rejected","data":{"n":1.0}}`
				})
				got := c.ask("tools/call", `{"name":"alpha::ask","arguments":{"method":"sampling/createMessage","params":{}}}`)
				if !strings.Contains(string(got.Result), `user rejected`) || !strings.Contains(string(got.Result), `1.0`) {
					t.Errorf("got %s, want the client's error in the result", got.Raw)
				}
			})
			t.Run("A24 equal ids of two servers at once", func(t *testing.T) {
				c := c.in(t)
				release := make(chan struct{})
				before := len(c.heardOf("roots/list"))
				c.answer(func(asked mcpclient.Message) string {
					<-release
					return `"result":{"roots":[{"uri":"file:///for-` + asked.Params.Proxy.Server + `"}]}`
				})
				pending := map[string]<-chan mcpclient.Answer{}
				for _, server := range []string{"alpha", "beta"} {
					pending[server] = c.beginCall(server+"::ask-roots", `{}`)
				}
				asked := c.hears("roots/list", before+2)
				if string(asked[before].ID) == string(asked[before+1].ID) {
					t.Errorf("both have asked with %s", asked[before].ID)
				}
				for _, server := range []string{"alpha", "beta"} { // while they wait
					if got := c.use(server+"::slow", `{"ms":0}`); got != "slept" {
						t.Errorf("got %q, want %q", got, "slept")
					}
				}
				close(release)
				for server, p := range pending {
					if got := c.await(p); !strings.Contains(got.Raw, "file:///for-"+server) {
						t.Errorf("%s got %s", server, got.Raw)
					}
				}
			})
			t.Run("A24 many questions of one server at once", func(t *testing.T) {
				c := c.in(t)
				c.answer(func(asked mcpclient.Message) string {
					return `"result":{"was":` + quote(strings.Trim(asked.Param("n"), `"`)) + `}`
				})
				var pending []<-chan mcpclient.Answer
				for i := range 20 {
					pending = append(pending, c.beginCall([]string{"alpha", "beta"}[i%2]+"::ask", fmt.Sprintf(`{"method":"sampling/createMessage","params":{"n":"q%d"}}`, i)))
				}
				for i, p := range pending {
					if got := c.await(p); !strings.Contains(got.Raw, fmt.Sprintf(`{\"was\":\"q%d\"}`, i)) {
						t.Errorf("%d got %s", i, got.Raw)
					}
				}
			})
			t.Run("A24 two clients", func(t *testing.T) {
				other := joinAll(t, url, everyCapability)
				clients := []*legacyClient{c.in(t), other}
				for i, c := range clients {
					c.answer(func(mcpclient.Message) string { return fmt.Sprintf(`"result":{"client":%d}`, i) })
				}
				for range 5 {
					var pending []<-chan mcpclient.Answer
					for _, c := range clients {
						pending = append(pending, c.begin(`"same"`, "tools/call", `{"name":"alpha::ask","arguments":{"method":"sampling/createMessage","params":{}}}`))
					}
					for i, p := range pending {
						got := c.in(t).await(p)
						if isolation == "shared" && strings.Contains(got.Raw, `"isError":true`) && strings.Contains(got.Raw, "several clients") {
							continue // who is meant cannot be known, and nobody else gets it
						}
						if !strings.Contains(got.Raw, fmt.Sprintf(`{\"client\":%d}`, i)) || string(got.ID) != `"same"` {
							t.Errorf("client %d got %s", i, got.Raw)
						}
					}
				}
			})
			t.Run("A23 answers to what nobody asked", func(t *testing.T) {
				c := c.in(t)
				for _, id := range []string{`"alpha/0"`, `"alpha"`, `5`, `"zeta/1"`, `"alpha/"`, `""`, `null`} {
					if got := c.await(c.send(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)); got.Err != nil || got.Status/100 == 5 {
						t.Errorf("%s: %v %d %s", id, got.Err, got.Status, got.Body)
					}
				}
				if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
					t.Errorf("got %q, want %q", got, "slept")
				}
			})
		})
	}
}

func TestAggregateAsksNobodyWhoCannot(t *testing.T) {
	isolate(t)
	for _, isolation := range []string{"session", "shared"} {
		t.Run("A25 "+isolation, func(t *testing.T) {
			journal := newJournal(t)
			url := serve(t, gateway(block(child("early", "--roots-at-init"), journal.env(), "isolation "+isolation), block(child("alpha"), "isolation "+isolation)))
			mute := joinAll(t, url, `{}`)
			got := mute.ask("tools/call", `{"name":"alpha::ask-roots","arguments":{}}`)
			if !strings.Contains(string(got.Result), `"isError":true`) || !strings.Contains(got.Text(), `"code":-32601`) {
				t.Errorf("got %s, want a result of the server that it was told error -32601", got.Raw)
			}
			if asked := mute.heardOf("roots/list"); len(asked) != 0 {
				t.Errorf("asked all the same: %v", asked)
			}
			// What was asked before anybody was ready hinders nobody.
			able := joinAll(t, url, `{"roots":{}}`)
			able.answer(func(mcpclient.Message) string { return `"result":{"roots":[{"uri":"file:///w"}]}` })
			for _, server := range []string{"early", "alpha"} {
				if got := able.use(server+"::ask-roots", `{}`); !strings.Contains(got, "file:///w") {
					t.Errorf("%s: %s", server, got)
				}
				if got := mute.use(server+"::slow", `{"ms":0}`); got != "slept" {
					t.Errorf("got %q, want %q", got, "slept")
				}
			}
		})
	}
	t.Run("A25 of one capability the other does not follow", func(t *testing.T) {
		url := serve(t, gateway(block(child("alpha"), "isolation session")))
		c := joinAll(t, url, `{"roots":{}}`)
		got := c.ask("tools/call", `{"name":"alpha::ask","arguments":{"method":"sampling/createMessage","params":{}}}`)
		if !strings.Contains(string(got.Result), `"isError":true`) || !strings.Contains(got.Text(), `"code":-32601`) {
			t.Errorf("got %s, want a result of the server that it was told error -32601", got.Raw)
		}
		if asked := c.heardOf("sampling/createMessage"); len(asked) != 0 {
			t.Errorf("asked all the same: %v", asked)
		}
	})
}

func TestAggregateNotificationsOfServers(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway(child("alpha"), child("beta"), remote.line("remote")))
	c := joinAll(t, url, `{}`)
	t.Run("A26 in a call", func(t *testing.T) {
		c := c.in(t)
		for i, server := range []string{"alpha", "beta"} {
			if got := c.use(server+"::emit", `{"method":"notifications/message","params":{"level":"error","data":{"n":1.0,"t":"é\u00e9"},"logger":"x"}}`); got != "emitted" {
				t.Errorf("got %q, want %q", got, "emitted")
			}
			heard := c.hears("notifications/message", i+1)[i]
			if heard.Params.Proxy.Server != server || !strings.Contains(string(heard.Params.Raw), `"level":"error","data":{"n":1.0,"t":"é\u00e9"},"logger":"x"`) {
				t.Errorf("got %s, want the params of alpha to the byte, with its name", heard.Raw)
			}
		}
	})
	t.Run("A26 without params", func(t *testing.T) {
		c := c.in(t)
		c.use("alpha::emit", `{"method":"notifications/x"}`)
		if heard := c.hears("notifications/x", 1)[0]; heard.Params.Proxy.Server != "alpha" {
			t.Errorf("got %s, want the name of alpha", heard.Raw)
		}
	})
	t.Run("A26 with empty params", func(t *testing.T) {
		c := c.in(t)
		c.use("alpha::emit", `{"method":"notifications/y","params":{ }}`)
		if heard := c.hears("notifications/y", 1)[0]; heard.Params.Proxy.Server != "alpha" {
			t.Errorf("got %s, want the name of alpha", heard.Raw)
		}
	})
	t.Run("A26 out of the blue", func(t *testing.T) {
		c := c.in(t)
		await.Until(t, "the gateway to listen", func() bool { return remote.Listeners() > 0 })
		remote.Say(`{"jsonrpc":"2.0","method":"notifications/z","params":{"a":1.0}}`)
		heard := c.hears("notifications/z", 1)[0]
		if heard.Params.Proxy.Server != "remote" || !strings.Contains(string(heard.Params.Raw), `"a":1.0`) {
			t.Errorf("got %s, want the params of remote, with its name", heard.Raw)
		}
	})
	t.Run("A23 a question out of the blue", func(t *testing.T) {
		c := joinAll(t, url, `{"roots":{}}`)
		c.answer(func(mcpclient.Message) string { return `"result":{"roots":[{"uri":"file:///w","n":1.0}]}` })
		await.Until(t, "the gateway to listen for both clients", func() bool { return remote.Listeners() == 2 })
		remote.Say(`{"jsonrpc":"2.0","id":"q\u0031","method":"roots/list","params":{"x":1.0}}`)
		asked := c.hears("roots/list", 1)[0]
		if asked.Params.Proxy.Server != "remote" || asked.Param("x") != "1.0" || !strings.HasPrefix(string(asked.ID), `"remote`) {
			t.Errorf("asked %s", asked.Raw)
		}
		// Of the two clients one cannot answer, which is an answer, too.
		await.Until(t, "the answers", func() bool { return remote.Count("answer") >= 2 })
		results := 0
		for _, m := range remote.Received("answer") {
			if string(m.ID) != `"q\u0031"` {
				t.Errorf("answered %s", m.Body)
			}
			if string(m.Result) == `{"roots":[{"uri":"file:///w","n":1.0}]}` {
				results++
			}
		}
		if results != 1 {
			t.Errorf("answered %v", remote.Received("answer"))
		}
	})
	t.Run("A26 once, however many streams there are", func(t *testing.T) {
		c := joinAll(t, url, `{}`)
		c.listen()
		before := len(c.heardOf("notifications/tools/list_changed"))
		c.use("beta::add-tool", `{"name":"once"}`)
		c.use("beta::add-tool", `{"name":"twice"}`)
		c.hears("notifications/tools/list_changed", before+1)
		await.Until(t, "both tools", func() bool { return c.has("beta::once") && c.has("beta::twice") })
		if heard := c.heardOf("notifications/tools/list_changed")[before:]; len(heard) > 2 {
			t.Errorf("heard %v", heard)
		}
	})
	t.Run("A26 a list that has changed", func(t *testing.T) {
		c := c.in(t)
		other := joinAll(t, url, `{}`)
		before := len(c.heardOf("notifications/tools/list_changed"))
		c.use("beta::add-tool", `{"name":"fresh"}`)
		c.hears("notifications/tools/list_changed", before+1)
		other.hears("notifications/tools/list_changed", 1)
		for _, c := range []*legacyClient{c, other} {
			if !c.has("beta::fresh") {
				t.Errorf("listed %v", c.list("tools/list", "name"))
			}
			if got := c.use("beta::fresh", `{}`); got != "fresh" {
				t.Errorf("got %q, want %q", got, "fresh")
			}
		}
	})
}

func TestAggregateNotificationsOfClients(t *testing.T) {
	isolate(t)
	alpha, beta, remote := newJournal(t), newJournal(t), newRemoteServer(t, "tool")
	url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation session"), block(child("beta"), beta.env()), remote.line("remote")))
	c := newLegacyClient(t, url, everyCapability)
	t.Run("A27 R23 unknown ones go to all", func(t *testing.T) {
		c := c.in(t)
		c.notify("notifications/foo", `{"n":1.0,"t":"é\u00e9"}`)
		c.notify("notifications/bar", "")
		for _, method := range []string{"notifications/foo", "notifications/bar"} {
			await.Until(t, method, func() bool {
				return len(alpha.entries(t, method)) == 1 && len(beta.entries(t, method)) == 1 && remote.Count(method) == 1
			})
		}
		for _, got := range []*mcptest.Received{alpha.messages(t, "notifications/foo")[0], beta.messages(t, "notifications/foo")[0], remote.Received("notifications/foo")[0]} {
			if string(got.Params) != `{"n":1.0,"t":"é\u00e9"}` {
				t.Errorf("got the params %s, want them as they were sent", got.Params)
			}
		}
	})
	t.Run("roots that have changed", func(t *testing.T) {
		const method = "notifications/roots/list_changed"
		c.in(t).notify(method, "")
		await.Until(t, method, func() bool { return len(alpha.entries(t, method)) == 1 && remote.Count(method) == 1 })
	})
	t.Run("A28 initialized is not sent twice", func(t *testing.T) {
		c := c.in(t)
		c.notify("notifications/initialized", "")
		c.notify("notifications/after", "")
		await.Until(t, "what came after", func() bool {
			return len(alpha.entries(t, "notifications/after")) == 1 && len(beta.entries(t, "notifications/after")) == 1 && remote.Count("notifications/after") == 1
		})
		if a, b, r := len(alpha.entries(t, "notifications/initialized")), len(beta.entries(t, "notifications/initialized")), remote.Count("notifications/initialized"); a != 1 || b != 1 || r != 1 {
			t.Errorf("sent %d, %d and %d times", a, b, r)
		}
	})
	t.Run("A28 progress goes to who has asked", func(t *testing.T) {
		c := newLegacyClient(t, url, everyCapability)
		release := make(chan struct{})
		c.answer(func(asked mcpclient.Message) string {
			<-release
			return `"result":{}`
		})
		call := c.beginCall("alpha::ask", `{"method":"sampling/createMessage","params":{"_meta":{"progressToken":"tok"}}}`)
		asked := c.hears("sampling/createMessage", 1)[0]
		var meta struct{ ProgressToken json.RawMessage }
		if err := json.Unmarshal([]byte(asked.Param("_meta")), &meta); err != nil || meta.ProgressToken == nil {
			t.Fatalf("%v: %s", err, asked.Raw)
		}
		c.notify("notifications/progress", `{"progressToken":`+string(meta.ProgressToken)+`,"progress":1.0,"total":2}`)
		await.Until(t, "progress", func() bool { return len(alpha.entries(t, "notifications/progress")) == 1 })
		if got := alpha.messages(t, "notifications/progress")[0]; got.Param("progressToken") != `"tok"` || got.Param("progress") != `1.0` {
			t.Errorf("got %s, want the token and the progress to the byte", got.Body)
		}
		c.notify("notifications/progress", `{"progressToken":"nobody's","progress":1}`)
		close(release)
		c.await(call)
		c.use("beta::pid", `{}`)
		if a, b, r := len(alpha.entries(t, "notifications/progress")), len(beta.entries(t, "notifications/progress")), remote.Count("notifications/progress"); a != 1 || b != 0 || r != 0 {
			t.Errorf("R23 sent %d, %d and %d times", a, b, r)
		}
	})
	t.Run("A28 a server cancels what it has asked", func(t *testing.T) {
		c := joinAll(t, url, everyCapability)
		c.beginCall("alpha::ask", `{"method":"sampling/createMessage","params":{}}`)
		asked := c.hears("sampling/createMessage", 1)[0]
		// Its ids count from 0, and it is a child of this session.
		c.use("alpha::emit", `{"method":"notifications/cancelled","params":{"requestId":0,"reason":"x"}}`)
		got := c.hears("notifications/cancelled", 1)[0]
		if got.Param("requestId") != string(asked.ID) || got.Param("reason") != `"x"` {
			t.Errorf("of %s it says %s", asked.ID, got.Raw)
		}
		<-c.send(`{"jsonrpc":"2.0","id":` + string(asked.ID) + `,"result":{}}`) // too late
		if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
	})
}

func TestAggregateCancellation(t *testing.T) {
	isolate(t)
	for _, isolation := range []string{"shared", "session"} {
		t.Run("A28 "+isolation, func(t *testing.T) {
			alpha, beta := newJournal(t), newJournal(t)
			url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation "+isolation), block(child("beta"), beta.env())))
			one, two := newLegacyClient(t, url, `{}`), newLegacyClient(t, url, `{}`)
			hang := func(c *legacyClient) <-chan mcpclient.Answer {
				return c.begin("7", "tools/call", `{"name":"alpha::hang","arguments":{}}`)
			}
			first, second := hang(one), hang(two)
			await.Until(t, "the calls", func() bool { return len(alpha.entries(t, "tools/call")) == 2 })
			one.notify("notifications/cancelled", `{"requestId":7,"reason":"no more"}`)
			await.Until(t, "the cancellation", func() bool { return len(alpha.entries(t, "cancelled")) == 1 })
			if got := one.await(first); got.Result != nil {
				t.Errorf("what was cancelled got %s", got.Raw)
			}
			one.notify("notifications/cancelled", `{"requestId":7}`)    // not any more
			one.notify("notifications/cancelled", `{"requestId":"7"}`)  // never
			one.notify("notifications/cancelled", `{"requestId":1}`)    // not any more
			two.notify("notifications/cancelled", `{"requestId":8}`)    // never
			two.notify("notifications/cancelled", `{"requestId":null}`) // never
			two.notify("notifications/cancelled", `{}`)
			for _, c := range []*legacyClient{one, two} {
				if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
					t.Errorf("got %q, want %q", got, "slept")
				}
				c.use("beta::pid", `{}`)
			}
			if got := alpha.entries(t, "cancelled"); len(got) != 1 {
				t.Errorf("%d calls are cancelled", len(got))
			}
			select {
			case got := <-second:
				t.Errorf("the other client got %s", got.Body)
			default:
			}
			two.notify("notifications/cancelled", `{"requestId":7}`)
			await.Until(t, "the cancellation", func() bool { return len(alpha.entries(t, "cancelled")) == 2 })
			two.await(second)
			notes := alpha.messages(t, "notifications/cancelled")
			if len(notes) != 2 || notes[0].Param("reason") != `"no more"` {
				t.Errorf("alpha was told %v", notes)
			}
			if got := beta.entries(t, "notifications/cancelled"); len(got) != 0 {
				t.Errorf("beta was told %v", got)
			}
		})
	}
}

func TestAggregateProgress(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(child("alpha"), child("beta")))
	one, two := newLegacyClient(t, url, `{}`), newLegacyClient(t, url, `{}`)
	for _, token := range []string{`5`, `"5"`, `12345678901234567890`, `"a\u0062"`} {
		t.Run("A28 "+token, func(t *testing.T) {
			one, two := one.in(t), two.in(t)
			steps := map[*legacyClient]int{one: 3, two: 7}
			before := map[*legacyClient]int{}
			pending := map[*legacyClient]<-chan mcpclient.Answer{}
			for c, n := range steps {
				before[c] = len(c.heardOf("notifications/progress"))
				pending[c] = c.begin("9", "tools/call", fmt.Sprintf(`{"_meta":{"progressToken":%s},"name":"alpha::progress","arguments":{"steps":%d}}`, token, n))
			}
			for c, n := range steps {
				if got := c.await(pending[c]); toolText(t, got.Raw) != "done" {
					t.Errorf("got %s, want the text done", got.Raw)
				}
				heard := c.heardOf("notifications/progress")[before[c]:]
				if len(heard) != n {
					t.Fatalf("%d steps and not %d", len(heard), n)
				}
				for i, m := range heard {
					if m.Param("progressToken") != token || m.Param("progress") != fmt.Sprint(i+1) || m.Param("total") != fmt.Sprint(n) || m.Params.Proxy.Server != "alpha" {
						t.Errorf("%d: %s", i, m.Raw)
					}
				}
			}
		})
	}
}

// No call waits for another, of the same client or another, of the same server or another.
func TestAggregateConcurrency(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("alpha"), journal.env()), child("beta")))
	one, two := newLegacyClient(t, url, `{}`), newLegacyClient(t, url, `{}`)
	for range 20 {
		one.beginCall("alpha::hang", `{}`)
	}
	await.Until(t, "the calls", func() bool { return len(journal.entries(t, "tools/call")) == 20 })
	for _, c := range []*legacyClient{one, two} {
		for _, server := range []string{"alpha", "beta"} {
			if got := c.use(server+"::slow", `{"ms":0}`); got != "slept" {
				t.Errorf("A29 %s", got)
			}
		}
		c.list("tools/list", "name")
	}
	var pending []<-chan mcpclient.Answer
	for i := range 200 {
		pending = append(pending, []*legacyClient{one, two}[i%2].begin(fmt.Sprint(1000+i/2), "tools/call", fmt.Sprintf(`{"name":"%s::echo","arguments":{"i":"call %d."}}`, []string{"alpha", "beta"}[i/2%2], i)))
	}
	for i, p := range pending {
		if got := one.await(p); string(got.ID) != fmt.Sprint(1000+i/2) || !strings.Contains(got.Raw, fmt.Sprintf("call %d.", i)) {
			t.Errorf("G22 %d: %v %s", i, got.Err, got.Body)
		}
	}
}

func TestAggregateTimeout(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	var silent atomic.Bool
	remote.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		if m.Method == "tools/call" && silent.Load() {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": \n\n")
			_ = http.NewResponseController(w).Flush()
			<-over
		}
		return false
	}
	url := serve(t, gateway("response_timeout 2s", child("alpha"), remote.line("remote")))
	c := joinAll(t, url, `{}`)
	silent.Store(true)
	for _, tool := range []string{"alpha::hang", "remote::tool"} {
		waiting := c.begin(`"h\u0061ng"`, "tools/call", `{"name":`+quote(tool)+`,"arguments":{}}`)
		if got := c.use("alpha::slow", `{"ms":10}`); got != "slept" {
			t.Errorf("A38 %s", got)
		}
		server, _, _ := strings.Cut(tool, "::")
		if got := c.await(waiting); got.Error == nil || got.Error.Code != -32002 || got.Error.Symbol() != "timeout" || got.Error.Server() != server || string(got.ID) != `"h\u0061ng"` || got.Status != 200 {
			t.Errorf("A38 %s: %v %d %s", tool, got.Err, got.Status, got.Body)
		}
	}
	silent.Store(false)
	if got := c.use("alpha::late", `{"ms":1}`); got != "in time" {
		t.Errorf("A38 %s", got)
	}
	if got := c.use("alpha::slow", `{"ms":10}`) + c.use("remote::tool", `{}`); !strings.HasPrefix(got, "slept{") {
		t.Errorf("A38 %s", got)
	}
}

func TestAggregateMasking(t *testing.T) {
	isolate(t)
	long := strings.Repeat("x", 10000)
	masked := cut("x", 10000, 2000, 2000)
	for _, tt := range []struct {
		name  string
		lines []string
		alpha string
		beta  string
	}{
		{"A44 off by default", []string{child("alpha"), child("beta")}, long, long},
		{"A44 on", []string{"mask 4000 2000 2000", child("alpha"), child("beta")}, masked, masked},
		{"A44 on for one", []string{block(child("alpha"), "mask 100 10 10"), child("beta")}, cut("x", 10000, 10, 10), long},
		{"A44 off for one", []string{"mask 4000 2000 2000", block(child("alpha"), "mask off"), child("beta")}, long, masked},
		{"A44 off", []string{"mask off", child("alpha"), child("beta")}, long, long},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newLegacyClient(t, serve(t, gateway(tt.lines...)), `{}`)
			for server, want := range map[string]string{"alpha": tt.alpha, "beta": tt.beta} {
				got := c.result("tools/call", `{"name":"`+server+`::big","arguments":{"n":10000}}`)
				same(t, got, `{"content":[{"type":"text","text":"`+want+`"}]}`)
				var read struct {
					Contents []struct{ Text json.RawMessage }
				}
				got = c.result("resources/read", `{"uri":`+quote(proxied(server, "file://"+server+"/"+strings.Repeat("x", 10000)+".txt"))+`}`)
				if err := json.Unmarshal([]byte(got), &read); err != nil || len(read.Contents) != 1 {
					t.Fatalf("%v: %.300s", err, got)
				}
				if text := string(read.Contents[0].Text); strings.Contains(text, "KIMI_PROXY_OBSERVATION_MASKED") != (want != long) {
					t.Errorf("%s: %.100s…", server, text)
				}
			}
			// Names and URIs are no observations.
			if !c.has("alpha::echo") {
				t.Error("no tools")
			}
		})
	}
}

func TestAggregateSubscriptions(t *testing.T) {
	isolate(t)
	for _, isolation := range []string{"shared", "session"} {
		t.Run("A68 "+isolation, func(t *testing.T) {
			alpha, beta := newJournal(t), newJournal(t)
			url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation "+isolation), block(child("beta"), beta.env(), "isolation "+isolation)))
			const data = "file://alpha/data.txt"
			uri := quote(proxied("alpha", data))
			subscriber, second, other := joinAll(t, url, `{}`), joinAll(t, url, `{}`), joinAll(t, url, `{}`)
			const updated = "notifications/resources/updated"

			// touch has alpha say that something was updated, to all of its clients, and
			// returns when they have heard what it said then.
			marks := 0
			touch := func(uri string) {
				t.Helper()
				marks++
				for _, c := range []*legacyClient{subscriber, second, other} {
					if isolation == "shared" && c != other {
						continue
					}
					c.use("alpha::touch", `{"uri":`+quote(uri)+`}`)
				}
				for _, c := range []*legacyClient{subscriber, second, other} {
					c.use("alpha::add-tool", fmt.Sprintf(`{"name":"mark-%d"}`, marks))
				}
				for _, c := range []*legacyClient{subscriber, second, other} {
					c.hears("notifications/tools/list_changed", marks)
				}
			}
			counts := func() string {
				return fmt.Sprint(len(subscriber.heardOf(updated)), len(second.heardOf(updated)), len(other.heardOf(updated)))
			}
			subscriber.result("resources/subscribe", `{"uri":`+uri+`}`)
			if got := alpha.messages(t, "resources/subscribe"); len(got) != 1 || got[0].Param("uri") != quote(data) {
				t.Errorf("alpha got %v", got)
			}
			touch(data)
			subscriber.hears(updated, 1)
			touch("file://alpha/other.txt")
			if got := counts(); got != "1 0 0" {
				t.Fatalf("heard by %s", got)
			}
			if got := subscriber.heardOf(updated)[0]; got.Param("uri") != uri || got.Params.Proxy.Server != "alpha" {
				t.Errorf("got %s, want the uri as the client knows it, and the name of alpha", got.Raw)
			}
			second.result("resources/subscribe", `{"uri":`+uri+`}`)
			touch(data)
			subscriber.hears(updated, 2)
			second.hears(updated, 1)
			subscriber.result("resources/unsubscribe", `{"uri":`+uri+`}`)
			touch(data)
			second.hears(updated, 2)
			touch("file://alpha/other.txt")
			if got := counts(); got != "2 2 0" {
				t.Errorf("heard by %s", got)
			}
			second.result("resources/unsubscribe", `{"uri":`+uri+`}`)
			await.Until(t, "the end of the subscription", func() bool { return len(alpha.entries(t, "resources/unsubscribe")) > 0 })
			touch(data)
			if got := counts(); got != "2 2 0" {
				t.Errorf("heard by %s", got)
			}
			if got := len(beta.entries(t, "resources/subscribe")); got != 0 {
				t.Errorf("beta was asked %d times", got)
			}
		})
	}
}
