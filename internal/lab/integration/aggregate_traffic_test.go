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
			url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation "+isolation),
				block(child("beta"), "isolation "+isolation)))
			c := newListeningClient(t, url, everyCapability)

			t.Run("A23 roots", func(t *testing.T) {
				c := c.withTest(t)
				c.setAnswers(func(serverRequest mcpclient.Message) string { return `"result":{"roots":[{"uri":"file:///w"}]}` })
				if got := c.use("alpha::ask-roots", `{}`); got != `{"roots":[{"uri":"file:///w"}]}` {
					t.Errorf("got %q, want %q", got, `{"roots":[{"uri":"file:///w"}]}`)
				}
				serverRequests := c.receivedMessages("roots/list")
				if len(serverRequests) != 1 || serverRequests[0].Params.Proxy.Server != "alpha" ||
					!strings.HasPrefix(string(serverRequests[0].ID), `"alpha`) {
					t.Fatalf("got server requests %v", serverRequests)
				}
			})
			t.Run("A23 params are unchanged", func(t *testing.T) {
				c := c.withTest(t)
				c.setAnswers(func(serverRequest mcpclient.Message) string {
					return `"result":{"role":"assistant","n":1.0,"t":"é\u00e9"}`
				})
				if got := c.use("beta::ask", `{"method":"sampling/createMessage","params":{"maxTokens":1e2,"messages":[],`+
					`"x":"\u00e9","big":12345678901234567890}}`); got != `{"role":"assistant","n":1.0,"t":"é\u00e9"}` {
					t.Errorf("got %q, want %q", got, `{"role":"assistant","n":1.0,"t":"é\u00e9"}`)
				}
				serverRequests := c.receivedMessages("sampling/createMessage")
				if len(serverRequests) != 1 || serverRequests[0].Params.Proxy.Server != "beta" {
					t.Fatalf("got server requests %v", serverRequests)
				}
				if !strings.Contains(string(serverRequests[0].Params.Raw),
					`"maxTokens":1e2,"messages":[],"x":"\u00e9","big":12345678901234567890`) {
					t.Errorf("got server request %s", serverRequests[0].Raw)
				}
			})
			t.Run("A23 a proxy member set by the server", func(t *testing.T) {
				c := c.withTest(t)
				c.setAnswers(func(serverRequest mcpclient.Message) string { return `"result":{"action":"accept"}` })
				c.use("beta::ask", `{"method":"elicitation/create","params":{"message":"?","proxy":{"server":"alpha"}}}`)
				serverRequests := c.receivedMessages("elicitation/create")
				if len(serverRequests) != 1 || serverRequests[0].Params.Proxy.Server != "beta" {
					t.Fatalf("got server requests %v", serverRequests)
				}
			})
			t.Run("A23 an error of the client", func(t *testing.T) {
				c := c.withTest(t)
				c.setAnswers(func(serverRequest mcpclient.Message) string {
					return `"error":{"code":-1,"message":"user rejected","data":{"n":1.0}}`
				})
				got := c.ask("tools/call", `{"name":"alpha::ask","arguments":{"method":"sampling/createMessage","params":{}}}`)
				if !strings.Contains(string(got.Result), `user rejected`) || !strings.Contains(string(got.Result), `1.0`) {
					t.Errorf("got %s, want the client's error in the result", got.Raw)
				}
			})
			t.Run("A24 equal ids of two servers at once", func(t *testing.T) {
				c := c.withTest(t)
				release := make(chan struct{})
				before := len(c.receivedMessages("roots/list"))
				c.setAnswers(func(serverRequest mcpclient.Message) string {
					<-release
					return `"result":{"roots":[{"uri":"file:///for-` + serverRequest.Params.Proxy.Server + `"}]}`
				})
				pending := map[string]<-chan mcpclient.Response{}
				for _, server := range []string{"alpha", "beta"} {
					pending[server] = c.beginCall(server+"::ask-roots", `{}`)
				}
				serverRequests := c.awaitMessages("roots/list", before+2)
				if string(serverRequests[before].ID) == string(serverRequests[before+1].ID) {
					t.Errorf("both server requests have id %s", serverRequests[before].ID)
				}
				for _, server := range []string{"alpha", "beta"} { // while their requests are open
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
			t.Run("A24 many server requests of one server at once", func(t *testing.T) {
				c := c.withTest(t)
				c.setAnswers(func(serverRequest mcpclient.Message) string {
					return `"result":{"was":` + quote(strings.Trim(serverRequest.Param("n"), `"`)) + `}`
				})
				var pending []<-chan mcpclient.Response
				for i := range 20 {
					pending = append(pending, c.beginCall([]string{"alpha", "beta"}[i%2]+"::ask",
						fmt.Sprintf(`{"method":"sampling/createMessage","params":{"n":"q%d"}}`, i)))
				}
				for i, p := range pending {
					if got := c.await(p); !strings.Contains(got.Raw, fmt.Sprintf(`{\"was\":\"q%d\"}`, i)) {
						t.Errorf("%d got %s", i, got.Raw)
					}
				}
			})
			t.Run("A24 two clients", func(t *testing.T) {
				other := newListeningClient(t, url, everyCapability)
				clients := []*legacyClient{c.withTest(t), other}
				for i, c := range clients {
					c.setAnswers(func(mcpclient.Message) string { return fmt.Sprintf(`"result":{"client":%d}`, i) })
				}
				for range 5 {
					var pending []<-chan mcpclient.Response
					for _, c := range clients {
						pending = append(pending, c.begin(`"same"`, "tools/call",
							`{"name":"alpha::ask","arguments":{"method":"sampling/createMessage","params":{}}}`))
					}
					for i, p := range pending {
						got := c.withTest(t).await(p)
						if isolation == "shared" && strings.Contains(got.Raw, `"isError":true`) && strings.Contains(got.Raw,
							"several clients") {
							continue // the client is ambiguous, and no other client gets the request
						}
						if !strings.Contains(got.Raw, fmt.Sprintf(`{\"client\":%d}`, i)) || string(got.ID) != `"same"` {
							t.Errorf("client %d got %s", i, got.Raw)
						}
					}
				}
			})
			t.Run("A23 responses without a request", func(t *testing.T) {
				c := c.withTest(t)
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

func TestAggregateRespectsCapabilities(t *testing.T) {
	isolate(t)
	for _, isolation := range []string{"session", "shared"} {
		t.Run("A25 "+isolation, func(t *testing.T) {
			journal := newJournal(t)
			url := serve(t, gateway(block(child("early", "--roots-at-init"), journal.env(), "isolation "+isolation),
				block(child("alpha"), "isolation "+isolation)))
			mute := newListeningClient(t, url, `{}`)
			got := mute.ask("tools/call", `{"name":"alpha::ask-roots","arguments":{}}`)
			if !strings.Contains(string(got.Result), `"isError":true`) || !strings.Contains(got.Text(), `"code":-32601`) {
				t.Errorf("got %s, want a result saying that the server got error -32601", got.Raw)
			}
			if serverRequests := mute.receivedMessages("roots/list"); len(serverRequests) != 0 {
				t.Errorf("the client got %v", serverRequests)
			}
			// A server request before any client was ready has no effect on later ones.
			able := newListeningClient(t, url, `{"roots":{}}`)
			able.setAnswers(func(mcpclient.Message) string { return `"result":{"roots":[{"uri":"file:///w"}]}` })
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
	t.Run("A25 one capability does not imply another", func(t *testing.T) {
		url := serve(t, gateway(block(child("alpha"), "isolation session")))
		c := newListeningClient(t, url, `{"roots":{}}`)
		got := c.ask("tools/call", `{"name":"alpha::ask","arguments":{"method":"sampling/createMessage","params":{}}}`)
		if !strings.Contains(string(got.Result), `"isError":true`) || !strings.Contains(got.Text(), `"code":-32601`) {
			t.Errorf("got %s, want a result saying that the server got error -32601", got.Raw)
		}
		if serverRequests := c.receivedMessages("sampling/createMessage"); len(serverRequests) != 0 {
			t.Errorf("the client got %v", serverRequests)
		}
	})
}

func TestAggregateNotificationsOfServers(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway(child("alpha"), child("beta"), remote.line("remote")))
	c := newListeningClient(t, url, `{}`)
	t.Run("A26 in a call", func(t *testing.T) {
		c := c.withTest(t)
		for i, server := range []string{"alpha", "beta"} {
			if got := c.use(server+"::emit", `{"method":"notifications/message","params":{"level":"error","data":{"n":1.0,`+
				`"t":"é\u00e9"},"logger":"x"}}`); got != "emitted" {
				t.Errorf("got %q, want %q", got, "emitted")
			}
			received := c.awaitMessages("notifications/message", i+1)[i]
			if received.Params.Proxy.Server != server || !strings.Contains(string(received.Params.Raw),
				`"level":"error","data":{"n":1.0,"t":"é\u00e9"},"logger":"x"`) {
				t.Errorf("got %s, want the unchanged params of alpha, with its name", received.Raw)
			}
		}
	})
	t.Run("A26 without params", func(t *testing.T) {
		c := c.withTest(t)
		c.use("alpha::emit", `{"method":"notifications/x"}`)
		if received := c.awaitMessages("notifications/x", 1)[0]; received.Params.Proxy.Server != "alpha" {
			t.Errorf("got %s, want the name of alpha", received.Raw)
		}
	})
	t.Run("A26 with empty params", func(t *testing.T) {
		c := c.withTest(t)
		c.use("alpha::emit", `{"method":"notifications/y","params":{ }}`)
		if received := c.awaitMessages("notifications/y", 1)[0]; received.Params.Proxy.Server != "alpha" {
			t.Errorf("got %s, want the name of alpha", received.Raw)
		}
	})
	t.Run("A26 unsolicited", func(t *testing.T) {
		c := c.withTest(t)
		await.Until(t, "the gateway to subscribe", func() bool { return remote.Listeners() > 0 })
		remote.Say(`{"jsonrpc":"2.0","method":"notifications/z","params":{"a":1.0}}`)
		received := c.awaitMessages("notifications/z", 1)[0]
		if received.Params.Proxy.Server != "remote" || !strings.Contains(string(received.Params.Raw), `"a":1.0`) {
			t.Errorf("got %s, want the params of remote, with its name", received.Raw)
		}
	})
	t.Run("A23 an unsolicited server request", func(t *testing.T) {
		c := newListeningClient(t, url, `{"roots":{}}`)
		c.setAnswers(func(mcpclient.Message) string { return `"result":{"roots":[{"uri":"file:///w","n":1.0}]}` })
		await.Until(t, "the gateway to subscribe for both clients", func() bool { return remote.Listeners() == 2 })
		remote.Say(`{"jsonrpc":"2.0","id":"q\u0031","method":"roots/list","params":{"x":1.0}}`)
		serverRequest := c.awaitMessages("roots/list", 1)[0]
		if serverRequest.Params.Proxy.Server != "remote" || serverRequest.Param("x") != "1.0" ||
			!strings.HasPrefix(string(serverRequest.ID), `"remote`) {
			t.Errorf("got server request %s", serverRequest.Raw)
		}
		// One of the two clients cannot answer, which also sends a response.
		await.Until(t, "the answers", func() bool { return remote.Count("answer") >= 2 })
		results := 0
		for _, m := range remote.Received("answer") {
			if string(m.ID) != `"q\u0031"` {
				t.Errorf("the server received %s", m.Body)
			}
			if string(m.Result) == `{"roots":[{"uri":"file:///w","n":1.0}]}` {
				results++
			}
		}
		if results != 1 {
			t.Errorf("the server received %v", remote.Received("answer"))
		}
	})
	t.Run("A26 once for any number of streams", func(t *testing.T) {
		c := newListeningClient(t, url, `{}`)
		c.listen()
		before := len(c.receivedMessages("notifications/tools/list_changed"))
		c.use("beta::add-tool", `{"name":"once"}`)
		c.use("beta::add-tool", `{"name":"twice"}`)
		c.awaitMessages("notifications/tools/list_changed", before+1)
		await.Until(t, "both tools", func() bool { return c.listsTool("beta::once") && c.listsTool("beta::twice") })
		if received := c.receivedMessages("notifications/tools/list_changed")[before:]; len(received) > 2 {
			t.Errorf("got %v", received)
		}
	})
	t.Run("A26 a list that has changed", func(t *testing.T) {
		c := c.withTest(t)
		other := newListeningClient(t, url, `{}`)
		before := len(c.receivedMessages("notifications/tools/list_changed"))
		c.use("beta::add-tool", `{"name":"fresh"}`)
		c.awaitMessages("notifications/tools/list_changed", before+1)
		other.awaitMessages("notifications/tools/list_changed", 1)
		for _, c := range []*legacyClient{c, other} {
			if !c.listsTool("beta::fresh") {
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
	url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation session"), block(child("beta"), beta.env()),
		remote.line("remote")))
	c := newLegacyClient(t, url, everyCapability)
	t.Run("A27 R23 unknown notifications go to all servers", func(t *testing.T) {
		c := c.withTest(t)
		c.notify("notifications/foo", `{"n":1.0,"t":"é\u00e9"}`)
		c.notify("notifications/bar", "")
		for _, method := range []string{"notifications/foo", "notifications/bar"} {
			await.Until(t, method, func() bool {
				return len(alpha.entries(t, method)) == 1 && len(beta.entries(t, method)) == 1 && remote.Count(method) == 1
			})
		}
		for _, got := range []*mcptest.Received{alpha.messages(t, "notifications/foo")[0],
			beta.messages(t, "notifications/foo")[0], remote.Received("notifications/foo")[0]} {
			if string(got.Params) != `{"n":1.0,"t":"é\u00e9"}` {
				t.Errorf("got params %s, want them unchanged", got.Params)
			}
		}
	})
	t.Run("roots that have changed", func(t *testing.T) {
		const method = "notifications/roots/list_changed"
		c.withTest(t).notify(method, "")
		await.Until(t, method, func() bool { return len(alpha.entries(t, method)) == 1 && remote.Count(method) == 1 })
	})
	t.Run("A28 initialized is not sent twice", func(t *testing.T) {
		c := c.withTest(t)
		c.notify("notifications/initialized", "")
		c.notify("notifications/after", "")
		await.Until(t, "the next notification", func() bool {
			return len(alpha.entries(t, "notifications/after")) == 1 && len(beta.entries(t, "notifications/after")) == 1 &&
				remote.Count("notifications/after") == 1
		})
		if a, b, r := len(alpha.entries(t, "notifications/initialized")), len(beta.entries(t, "notifications/initialized")),
			remote.Count("notifications/initialized"); a != 1 || b != 1 || r != 1 {
			t.Errorf("sent %d, %d and %d times", a, b, r)
		}
	})
	t.Run("A28 progress goes to the server that asked", func(t *testing.T) {
		c := newLegacyClient(t, url, everyCapability)
		release := make(chan struct{})
		c.setAnswers(func(serverRequest mcpclient.Message) string {
			<-release
			return `"result":{}`
		})
		call := c.beginCall("alpha::ask", `{"method":"sampling/createMessage","params":{"_meta":{"progressToken":"tok"}}}`)
		asked := c.awaitMessages("sampling/createMessage", 1)[0]
		var meta struct{ ProgressToken json.RawMessage }
		if err := json.Unmarshal([]byte(asked.Param("_meta")), &meta); err != nil || meta.ProgressToken == nil {
			t.Fatalf("%v: %s", err, asked.Raw)
		}
		c.notify("notifications/progress", `{"progressToken":`+string(meta.ProgressToken)+`,"progress":1.0,"total":2}`)
		await.Until(t, "progress", func() bool { return len(alpha.entries(t, "notifications/progress")) == 1 })
		if got := alpha.messages(t, "notifications/progress")[0]; got.Param("progressToken") != `"tok"` ||
			got.Param("progress") != `1.0` {
			t.Errorf("got %s, want the unchanged token and progress", got.Body)
		}
		c.notify("notifications/progress", `{"progressToken":"unknown","progress":1}`)
		close(release)
		c.await(call)
		c.use("beta::pid", `{}`)
		if a, b, r := len(alpha.entries(t, "notifications/progress")), len(beta.entries(t, "notifications/progress")),
			remote.Count("notifications/progress"); a != 1 || b != 0 || r != 0 {
			t.Errorf("R23 sent %d, %d and %d times", a, b, r)
		}
	})
	t.Run("A28 a server cancels its request", func(t *testing.T) {
		c := newListeningClient(t, url, everyCapability)
		c.beginCall("alpha::ask", `{"method":"sampling/createMessage","params":{}}`)
		serverRequest := c.awaitMessages("sampling/createMessage", 1)[0]
		// Its ids start at 0, and this session has its own child.
		c.use("alpha::emit", `{"method":"notifications/cancelled","params":{"requestId":0,"reason":"x"}}`)
		got := c.awaitMessages("notifications/cancelled", 1)[0]
		if got.Param("requestId") != string(serverRequest.ID) || got.Param("reason") != `"x"` {
			t.Errorf("for %s got %s", serverRequest.ID, got.Raw)
		}
		<-c.send(`{"jsonrpc":"2.0","id":` + string(serverRequest.ID) + `,"result":{}}`) // too late
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
			url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation "+isolation),
				block(child("beta"), beta.env())))
			one, two := newLegacyClient(t, url, `{}`), newLegacyClient(t, url, `{}`)
			hang := func(c *legacyClient) <-chan mcpclient.Response {
				return c.begin("7", "tools/call", `{"name":"alpha::hang","arguments":{}}`)
			}
			first, second := hang(one), hang(two)
			await.Until(t, "the calls", func() bool { return len(alpha.entries(t, "tools/call")) == 2 })
			one.notify("notifications/cancelled", `{"requestId":7,"reason":"no more"}`)
			await.Until(t, "the cancellation", func() bool { return len(alpha.entries(t, "cancelled")) == 1 })
			if got := one.await(first); got.Result != nil {
				t.Errorf("the cancelled call got %s", got.Raw)
			}
			one.notify("notifications/cancelled", `{"requestId":7}`)    // no longer in flight
			one.notify("notifications/cancelled", `{"requestId":"7"}`)  // never used
			one.notify("notifications/cancelled", `{"requestId":1}`)    // no longer in flight
			two.notify("notifications/cancelled", `{"requestId":8}`)    // never used
			two.notify("notifications/cancelled", `{"requestId":null}`) // never used
			two.notify("notifications/cancelled", `{}`)
			for _, c := range []*legacyClient{one, two} {
				if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
					t.Errorf("got %q, want %q", got, "slept")
				}
				c.use("beta::pid", `{}`)
			}
			if got := alpha.entries(t, "cancelled"); len(got) != 1 {
				t.Errorf("%d calls were cancelled", len(got))
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
				t.Errorf("alpha received %v", notes)
			}
			if got := beta.entries(t, "notifications/cancelled"); len(got) != 0 {
				t.Errorf("beta received %v", got)
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
			one, two := one.withTest(t), two.withTest(t)
			steps := map[*legacyClient]int{one: 3, two: 7}
			before := map[*legacyClient]int{}
			pending := map[*legacyClient]<-chan mcpclient.Response{}
			for c, n := range steps {
				before[c] = len(c.receivedMessages("notifications/progress"))
				pending[c] = c.begin("9", "tools/call",
					fmt.Sprintf(`{"_meta":{"progressToken":%s},"name":"alpha::progress","arguments":{"steps":%d}}`, token, n))
			}
			for c, n := range steps {
				if got := c.await(pending[c]); toolText(t, got.Raw) != "done" {
					t.Errorf("got %s, want the text done", got.Raw)
				}
				received := c.receivedMessages("notifications/progress")[before[c]:]
				if len(received) != n {
					t.Fatalf("got %d steps, want %d", len(received), n)
				}
				for i, m := range received {
					if m.Param("progressToken") != token || m.Param("progress") != fmt.Sprint(i+1) ||
						m.Param("total") != fmt.Sprint(n) || m.Params.Proxy.Server != "alpha" {
						t.Errorf("%d: %s", i, m.Raw)
					}
				}
			}
		})
	}
}

// No call waits for another, of any client or server.
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
	var pending []<-chan mcpclient.Response
	for i := range 200 {
		pending = append(pending, []*legacyClient{one, two}[i%2].begin(fmt.Sprint(1000+i/2), "tools/call",
			fmt.Sprintf(`{"name":"%s::echo","arguments":{"i":"call %d."}}`, []string{"alpha", "beta"}[i/2%2], i)))
	}
	for i, p := range pending {
		if got := one.await(p); string(got.ID) != fmt.Sprint(1000+i/2) || !strings.Contains(got.Raw,
			fmt.Sprintf("call %d.", i)) {
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
	c := newListeningClient(t, url, `{}`)
	silent.Store(true)
	for _, tool := range []string{"alpha::hang", "remote::tool"} {
		waiting := c.begin(`"h\u0061ng"`, "tools/call", `{"name":`+quote(tool)+`,"arguments":{}}`)
		if got := c.use("alpha::slow", `{"ms":10}`); got != "slept" {
			t.Errorf("A38 %s", got)
		}
		server, _, _ := strings.Cut(tool, "::")
		if got := c.await(waiting); got.Error == nil || got.Error.Code != -32002 || got.Error.Symbol() != "timeout" ||
			got.Error.Server() != server || string(got.ID) != `"h\u0061ng"` || got.Status != 200 {
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
				got = c.result("resources/read",
					`{"uri":`+quote(proxiedURI(server, "file://"+server+"/"+strings.Repeat("x", 10000)+".txt"))+`}`)
				if err := json.Unmarshal([]byte(got), &read); err != nil || len(read.Contents) != 1 {
					t.Fatalf("%v: %.300s", err, got)
				}
				if text := string(read.Contents[0].Text); strings.Contains(text,
					"KIMI_PROXY_OBSERVATION_MASKED") != (want != long) {
					t.Errorf("%s: %.100s…", server, text)
				}
			}
			// Names and URIs are not masked.
			if !c.listsTool("alpha::echo") {
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
			url := serve(t, gateway(block(child("alpha"), alpha.env(), "isolation "+isolation), block(child("beta"), beta.env(),
				"isolation "+isolation)))
			const data = "file://alpha/data.txt"
			uri := quote(proxiedURI("alpha", data))
			subscriber, second, other := newListeningClient(t, url, `{}`), newListeningClient(t, url, `{}`),
				newListeningClient(t, url, `{}`)
			const updated = "notifications/resources/updated"

			// touch makes alpha send an update to all its clients, and returns when they have received all
			// that it sent.
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
					c.awaitMessages("notifications/tools/list_changed", marks)
				}
			}
			counts := func() string {
				return fmt.Sprint(len(subscriber.receivedMessages(updated)), len(second.receivedMessages(updated)),
					len(other.receivedMessages(updated)))
			}
			subscriber.result("resources/subscribe", `{"uri":`+uri+`}`)
			if got := alpha.messages(t, "resources/subscribe"); len(got) != 1 || got[0].Param("uri") != quote(data) {
				t.Errorf("alpha received %v", got)
			}
			touch(data)
			subscriber.awaitMessages(updated, 1)
			touch("file://alpha/other.txt")
			if got := counts(); got != "1 0 0" {
				t.Fatalf("received by %s", got)
			}
			if got := subscriber.receivedMessages(updated)[0]; got.Param("uri") != uri || got.Params.Proxy.Server != "alpha" {
				t.Errorf("got %s, want the proxy URI and the name of alpha", got.Raw)
			}
			second.result("resources/subscribe", `{"uri":`+uri+`}`)
			touch(data)
			subscriber.awaitMessages(updated, 2)
			second.awaitMessages(updated, 1)
			subscriber.result("resources/unsubscribe", `{"uri":`+uri+`}`)
			touch(data)
			second.awaitMessages(updated, 2)
			touch("file://alpha/other.txt")
			if got := counts(); got != "2 2 0" {
				t.Errorf("received by %s", got)
			}
			second.result("resources/unsubscribe", `{"uri":`+uri+`}`)
			await.Until(t, "the end of the subscription",
				func() bool { return len(alpha.entries(t, "resources/unsubscribe")) > 0 })
			touch(data)
			if got := counts(); got != "2 2 0" {
				t.Errorf("received by %s", got)
			}
			if got := len(beta.entries(t, "resources/subscribe")); got != 0 {
				t.Errorf("beta received %d requests", got)
			}
		})
	}
}
