package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
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

// A pollingServer stores the events of its calls, and ends each stream after a few of them.
type pollingServer struct {
	*remoteServer
	steps, atOnce int
	retry         int  // milliseconds
	breaks        bool // break some connections within an event instead of ending them
	forgetsEvents bool // reject all event ids

	mu    sync.Mutex
	calls []*mcptest.Received
}

func newPollingServer(t *testing.T) *pollingServer {
	t.Helper()
	s := &pollingServer{remoteServer: newRemoteServer(t, "work"), steps: 100, atOnce: 5, retry: 50}
	s.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		last := m.HTTP.Header.Get("Last-Event-Id")
		switch {
		case m.Method == "tools/call":
			s.mu.Lock()
			s.calls = append(s.calls, m)
			call := len(s.calls) - 1
			s.mu.Unlock()
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "id: %d-0\nretry: %d\ndata: \n\n", call, s.retry)
			s.sendEvents(w, call, 0)
		case m.Method == "GET" && last != "" && s.forgetsEvents:
			w.WriteHeader(http.StatusNotFound)
		case m.Method == "GET" && last != "":
			var call, n int
			if _, err := fmt.Sscanf(last, "%d-%d", &call, &n); err != nil {
				http.Error(w, "no such event", http.StatusBadRequest)
				return true
			}
			w.Header().Set("Content-Type", "text/event-stream")
			s.sendEvents(w, call, n)
		default:
			return false
		}
		return true
	}
	return s
}

// sendEvents sends the next events of a call after the last one received.
func (s *pollingServer) sendEvents(w http.ResponseWriter, call, last int) {
	s.mu.Lock()
	m := s.calls[call]
	s.mu.Unlock()
	var meta struct{ ProgressToken json.RawMessage }
	_ = json.Unmarshal([]byte(m.Param("_meta")), &meta)
	for n := last + 1; n <= min(last+s.atOnce, s.steps); n++ {
		fmt.Fprintf(w, "id: %d-%d\n%s", call, n, event(fmt.Sprintf(
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`,
			meta.ProgressToken, n)))
	}
	switch {
	case last+s.atOnce > s.steps:
		fmt.Fprintf(w, "id: %d-%d\n%s", call, s.steps+1, event(`{"jsonrpc":"2.0","id":`+string(m.ID)+`,`+
			mcptest.Text("done")+`}`))
	case s.breaks && last%2 == 0:
		fmt.Fprintf(w, "id: %d-%d\ndata: {\"jsonrpc\":", call, last+s.atOnce+1)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// resumptions returns how often the gateway resumed a stream.
func (s *pollingServer) resumptions() (n int) {
	for _, m := range s.Received("GET") {
		if m.HTTP.Header.Get("Last-Event-Id") != "" {
			n++
		}
	}
	return n
}

const progressToken = `"_meta":{"progressToken":"mine"}`

// progressSteps returns the progress in a reply. It fails the test if some belongs to another call.
func progressSteps(t *testing.T, got reply) (steps []string) {
	t.Helper()
	for _, m := range got.events {
		if m.Method == "notifications/progress" && string(m.Params.ProgressToken) == `"mine"` {
			steps = append(steps, fmt.Sprint(m.Params.Progress))
		}
	}
	return steps
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i+1))
	}
	return all
}

// A server ends the stream of a call repeatedly, or its connections break. The client gets one
// response, and all progress once and in order.
func TestAggregateResumesCalls(t *testing.T) {
	isolate(t)
	for _, breaks := range []bool{false, true} {
		for _, era := range clientEras {
			t.Run(fmt.Sprintf("%s, breaks: %t", era.name, breaks), func(t *testing.T) {
				s := newPollingServer(t)
				s.breaks = breaks
				c := newTestClient(t, joinedAt(serve(t, gateway("separator __", block(s.line("remote"), "timeout 5s"),
					child("alpha")))), era.modern, `{}`)
				d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
				got := d.finish(t)
				if steps := progressSteps(t, got); !slices.Equal(steps, numbers(s.steps)) || got.answer.Text() != "done" ||
					string(got.answer.ID) != d.ID {
					t.Errorf("got %v and %s", steps, got.answer.Raw)
				}
				for m := range d.Messages {
					t.Errorf("got %s after the response", m.Raw)
				}
				if calls, resumed := len(s.Received("tools/call")), s.resumptions(); calls != 1 || resumed != s.steps/s.atOnce {
					t.Errorf("got %d calls, %d resumptions", calls, resumed)
				}
			})
		}
	}
}

// A client loses its connection and resumes a call, while the server still ends its stream
// repeatedly.
func TestAggregateResumesResumedCalls(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	url := serve(t, gateway("separator __", s.line("remote"), child("alpha")))
	c := newLegacyClient(t, url, `{}`)
	res := open(t, client, "POST", c.URL, `{"jsonrpc":"2.0","id":99,"method":"tools/call","params":`+
		callOf("remote", "work", `{}`, progressToken)+`}`, c.Session, acceptBoth)
	read := make([]byte, 0, 64<<10)
	for strings.Count(string(read), "\n\n") < 12 { // then it disconnects
		n, err := res.Body.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		if err != nil {
			t.Fatal(err)
		}
	}
	res.Body.Close()
	events := strings.SplitAfter(string(read), "\n\n")
	seen := strings.Join(events[:12], "")
	_, last, _ := strings.Cut(events[11], "id: ")
	last, _, _ = strings.Cut(last, "\n")
	other := newLegacyClient(t, url, `{}`)
	if got := send(t, client, "GET", other.URL, "", other.Session, "Accept: text/event-stream", "Last-Event-Id: "+
		last); got.StatusCode != 400 {
		t.Errorf("another session got %d %s", got.StatusCode, got.body)
	}
	rest := send(t, client, "GET", c.URL, "", c.Session, "Accept: text/event-stream", "Last-Event-Id: "+last)
	var steps []string
	for line := range strings.Lines(seen + rest.body) {
		if _, n, ok := strings.Cut(line, `"progress":`); ok {
			n, _, _ = strings.Cut(n, ",")
			steps = append(steps, strings.TrimRight(n, "}\n"))
		}
	}
	if !slices.Equal(steps, numbers(s.steps)) || toolText(t, answerIn(rest.body)) != "done" ||
		len(s.Received("tools/call")) != 1 {
		t.Errorf("got %v, %d calls: %.300s", steps, len(s.Received("tools/call")), rest.body)
	}
}

// The official server ends the streams of its calls, and sends server requests in them.
func TestAggregateResumesAtPeers(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	start(t, peer(t, "polling.mjs", port), "listening on port")
	url := serve(t, gateway("separator __", "server polling http://"+address+"/mcp", child("alpha")))
	const steps = 10
	check := func(t *testing.T, got []string, text string) {
		t.Helper()
		if !slices.Equal(got, numbers(steps)) || text != "done by peer" {
			t.Errorf("got %v and %s", got, text)
		}
	}
	arguments := fmt.Sprintf(`{"steps":%d}`, steps)
	t.Run("the official client", func(t *testing.T) {
		outcome := runJSON[peerOutcome](t, peer(t, "call.mjs", joinedAt(url)), []toolCall{{"polling__work", arguments}})
		var got []string
		for _, n := range outcome.Calls[0].Progress {
			got = append(got, fmt.Sprint(n))
		}
		check(t, got, outcome.Calls[0].Result.Content[0].Text)
	})
	const name = `{"action":"accept","content":{"name":"peer"}}`
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, `{"elicitation":{}}`)
			params := callOf("polling", "work", arguments, progressToken)
			d := c.begin(t, "tools/call", params)
			var before reply
			if era.modern {
				before = d.finish(t)
				d = c.begin(t, "tools/call", retryParams(params, before.answer.Input(t), func(string) string { return name }))
			} else {
				m := d.next(t)
				for ; m.Method != "elicitation/create"; m = d.next(t) {
					before.events = append(before.events, m)
				}
				c.respond(t, m, name)
			}
			got := d.finish(t)
			got.events = append(before.events, got.events...)
			check(t, progressSteps(t, got), got.answer.Text())
		})
	}
	var seen []struct{ Method, Last string }
	if err := json.Unmarshal([]byte(send(t, client, "GET", "http://"+address+"/seen", "").body), &seen); err != nil {
		t.Fatal(err)
	}
	calls, resumed := 0, 0
	for _, m := range seen {
		if m.Method == "tools/call" {
			calls++
		}
		if m.Last != "" {
			resumed++
		}
	}
	if calls != 3 || resumed < 3 {
		t.Errorf("got %d calls, %d resumptions", calls, resumed)
	}
}

// A server ends a stream and never continues it. The call fails and is not retried.
func TestAggregateGivesUpResuming(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	s.forgetsEvents = true
	url := serve(t, gateway("separator __", s.line("remote"), child("alpha")))
	for i, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, `{}`)
			got := c.ask(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
			if f := got.answer.Error; f == nil || !strings.Contains(string(f.Data), `"connect_error"`) ||
				!strings.Contains(f.Message, "may have been executed") {
				t.Errorf("got %s", got.answer.Raw)
			}
			if calls, resumed := len(s.Received("tools/call")), s.resumptions(); calls != i+1 || resumed != i+1 {
				t.Errorf("got %d calls, %d resumptions", calls, resumed)
			}
		})
	}
}

// A client that disconnects while the gateway waits leaves nothing behind. A reload does not
// disturb a client that stays.
func TestAggregateWaitsToResume(t *testing.T) {
	isolate(t)
	s := newPollingServer(t)
	s.retry = 30_000
	address := freeAddress(t)
	load(t, site(address, gateway("separator __", s.line("remote"), child("alpha"))))
	waiting := func() bool {
		return strings.Contains(admin(t, "GET", "/debug/pprof/goroutine?debug=2", "").body, "upstream.(*resumption).pause")
	}
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt("http://"+address), era.modern, `{}`)
			d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
			for range s.atOnce {
				d.awaitMessage(t, "notifications/progress")
			}
			await.Until(t, "a pause", waiting)
			d.Cancel()
			await.Until(t, "the end of the call", func() bool { return !waiting() })
		})
	}
	if n := s.resumptions(); n != 0 {
		t.Errorf("got %d resumptions", n)
	}
	s.retry = 1000
	c := newTestClient(t, joinedAt("http://"+address), false, `{}`)
	d := c.begin(t, "tools/call", callOf("remote", "work", `{}`, progressToken))
	for range s.atOnce {
		d.awaitMessage(t, "notifications/progress")
	}
	load(t, site(address, gateway("separator __", s.line("remote"), child("alpha"), child("beta"))))
	if got := d.finish(t); got.answer.Text() != "done" {
		t.Errorf("after a reload: got %s", got.answer.Raw)
	}
}

// A client that loses its connection in a call of a child resumes it, and gets the missed messages
// and the response. With isolated children it gets server requests, too.
func TestAggregateResumesCallsOfChildren(t *testing.T) {
	isolate(t)
	for isolation, ask := range map[string]string{"shared": "", "session": "elicitation/create"} {
		capabilities, steps, want := `{}`, 6, []float64{3, 4, 5, 6}
		if ask != "" {
			capabilities, steps = `{"elicitation":{}}`, 3
		}
		server := block(child("alpha"), "isolation "+isolation)
		url := serve(t, gateway("separator __", server, newRemoteServer(t, "tool").line("beta")))
		for endpoint, name := range map[string]string{joinedAt(url): "alpha__progress", mcpAt(url, "alpha"): "progress"} {
			t.Run(isolation+" "+name, func(t *testing.T) {
				c := newTestClient(t, endpoint, false, capabilities)
				call := fmt.Sprintf(`{"name":%q,"arguments":{"steps":%d,"ask":%q},"_meta":{"progressToken":7}}`, name, steps, ask)
				d := c.begin(t, "tools/call", call)
				d.next(t)
				last := d.next(t).EventID // the third step is lost
				d.Cancel()

				other := newTestClient(t, endpoint, false, capabilities)
				if got := send(t, client, "GET", endpoint, "", other.Session, "Accept: text/event-stream", "Last-Event-Id: "+
					last); got.StatusCode != 400 {
					t.Errorf("another client got %d %s", got.StatusCode, got.body)
				}
				c.Headers = append(c.Headers, "Last-Event-Id: "+last)
				rest := c.Listen(t.Context())
				c.Headers = c.Headers[:len(c.Headers)-1]
				var steps []float64
				var answer string
				for m := range rest.Messages {
					switch {
					case m.Method == "elicitation/create":
						c.respond(t, m, `{"action":"accept","content":{}}`)
					case m.Method == "notifications/progress":
						steps = append(steps, m.Params.Progress)
					case m.Method == "":
						answer = m.Raw
						rest.Cancel()
					}
				}
				if !slices.Equal(steps, want) || !strings.Contains(answer, `"text":"done"`) || !strings.Contains(answer,
					`"id":`+d.ID) {
					t.Errorf("got %v and %s", steps, answer)
				}
			})
		}
	}
}
