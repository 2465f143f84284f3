package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// connectionClose goes with requests between reloads. A reload closes idle connections, maybe just
// when a client uses one again.
const connectionClose = "Connection: close"

const listChanged = "notifications/tools/list_changed"

// expectCallsSurvive makes a change while the client has two calls in flight, and expects both
// results. One call takes some milliseconds, the other waits for the answer to a server request.
func (c *testClient) expectCallsSurvive(t *testing.T, journal journal, milliseconds int, change func()) {
	t.Helper()
	params := callOf("far", "ask", `{"method":"roots/list","params":{}}`)
	d := c.begin(t, "tools/call", params)
	serverRequest := d.next(t)
	seen := len(journal.entries(t, "tools/call"))
	slow := c.begin(t, "tools/call", callOf("kept", "slow", fmt.Sprintf(`{"ms":%d}`, milliseconds)))
	await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > seen })
	change()
	if got := slow.finish(t).answer.Text(); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	if c.Modern {
		d = c.begin(t, "tools/call", retryParams(params, serverRequest.Input(t), func(string) string { return rootsAnswer }))
	} else {
		c.respond(t, serverRequest, rootsAnswer)
	}
	if got := d.finish(t).answer; !isAnswer(got.Text(), rootsAnswer) {
		t.Errorf("got %s", got.Raw)
	}
}

// Clients, their streams and their calls survive reloads (A60).
func TestAggregateReloadsUnderClients(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	added := block(child("new"), journal.env())
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
			far := "server far http://" + upstream(t, remote) + "/mcp"
			t.Cleanup(remote.Close)
			address := freeAddress(t)
			config := func(more ...string) string {
				return site(address, gateway(append([]string{"separator __", block(child("kept", "--modern"), journal.env()), far},
					more...)...))
			}
			load(t, config())
			c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, connectionClose)
			stream := c.listenForChanges(t)
			pid := c.use(t, "kept", "pid", `{}`)
			// A stream subscribes to all servers when it begins, but does not wait long for them.
			await.Until(t, "the stream of the remote server", func() bool {
				return len(remote.Seen("stream"))+len(remote.Seen("subscriptions/listen")) > 0
			})
			goesOn := func(t *testing.T) {
				t.Helper()
				if again := c.use(t, "kept", "pid", `{}`); again != pid {
					t.Errorf("%s became %s", pid, again)
				}
				c.use(t, "far", "change", `{}`)
				if m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != "far" {
					t.Errorf("got %s", m.Raw)
				}
				if n := len(remote.Seen("initialize")); n > 1 {
					t.Errorf("the remote server was initialized %d times", n)
				}
			}
			t.Run("A60 nothing changes for the servers", func(t *testing.T) {
				load(t, config()+site(freeAddress(t), "respond x"))
				stream.expectSilence(t)
				goesOn(t)
			})
			t.Run("A60 a call in flight completes", func(t *testing.T) {
				c.expectCallsSurvive(t, journal, 300, func() { load(t, config()+site(freeAddress(t), "respond y")) })
				goesOn(t)
			})
			t.Run("A60 a server is added", func(t *testing.T) {
				load(t, config(added))
				stream.awaitMessage(t, listChanged)
				if got := toolNames(t, c); !slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") ||
					!slices.Contains(got, "far__echo") {
					t.Errorf("listed %v", got)
				}
				c.use(t, "new", "add-tool", `{"name":"more"}`)
				for m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != "new"; m = stream.awaitMessage(t,
					listChanged) {
				}
				goesOn(t)
			})
			t.Run("A61 a broken configuration changes nothing", func(t *testing.T) {
				for _, broken := range []string{config("server new http://127.0.0.1:1", "server new http://127.0.0.1:1"),
					config() + "\n{", site(address, gateway())} {
					expectConfigError(t, "text/caddyfile", withAdmin(broken, adminAddress(t)), "")
				}
				stream.expectSilence(t)
				if got := toolNames(t, c); !slices.Contains(got, "new__pid") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("A60 a server is removed", func(t *testing.T) {
				load(t, config())
				stream.awaitMessage(t, listChanged)
				if got := toolNames(t, c); slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") {
					t.Errorf("listed %v", got)
				}
				if got := c.ask(t, "tools/call", callOf("new", "pid", `{}`)); got.answer.Error == nil ||
					got.answer.Error.Code != -32602 {
					t.Errorf("got %s", got.answer.Raw)
				}
				goesOn(t)
			})
			t.Run("A60 many reloads in a row", func(t *testing.T) {
				for range 5 {
					load(t, config(added))
					load(t, config())
				}
				await.Until(t, "the list", func() bool { return !slices.Contains(toolNames(t, c), "new__pid") })
				for len(stream.Messages) > 0 {
					stream.next(t)
				}
				goesOn(t)
			})
			t.Run("A60 the gateway is removed", func(t *testing.T) {
				load(t, site(address, "respond x"))
				stream.awaitEnd(t)
			})
		})
	}
	t.Run("A39 no child remains", func(t *testing.T) {
		await.Until(t, "the end of the children", func() bool {
			return !slices.ContainsFunc(journal.entries(t, "start"), func(e entry) bool { return processRuns(e.PID) })
		})
	})
}

// A namedServer is an HTTP server whose tool and notifications contain its name. Its clients have
// their own credentials.
type namedServer struct {
	*remoteServer
	name string
}

func newNamedServer(t *testing.T, name string) *namedServer {
	t.Helper()
	return &namedServer{newRemoteServer(t, "tool_of_"+name), name}
}

// foreignCredentials returns the credentials received from clients of other servers.
func (s *namedServer) foreignCredentials() (all []string) {
	for _, r := range s.Received() {
		if credentials := r.HTTP.Header.Get("Authorization"); credentials != "Bearer of-"+s.name {
			all = append(all, credentials)
		}
	}
	return all
}

// A namedListener is a client that listens to a namedServer.
type namedListener struct {
	server *namedServer
	client *testClient
	stream *exchange
}

// awaitOwnMessage waits for a notification from the client's own server, and expects none from
// others. If a reload ended the stream, the client opens it again.
func (l *namedListener) awaitOwnMessage(t *testing.T) {
	t.Helper()
	own := "vendor/" + l.server.name
	await.Until(t, "a stream of "+l.server.name, func() bool {
		l.server.Say(`{"jsonrpc":"2.0","method":"` + own + `"}`)
		for {
			select {
			case m, ok := <-l.stream.Messages:
				switch {
				case !ok:
					l.stream = l.client.listen(t)
					return false
				case m.Method == own:
					return true
				case strings.HasPrefix(m.Method, "vendor/"):
					t.Errorf("the client of %s received %s", l.server.name, m.Raw)
				}
			default:
				return false
			}
		}
	})
}

// Two unnamed gateways on two sites are independent: their clients get no messages from servers of
// the other, and servers no credentials of its clients.
func TestAggregateReloadsOfTwoGateways(t *testing.T) {
	isolate(t)
	one, two := newNamedServer(t, "one"), newNamedServer(t, "two")
	addresses := map[*namedServer]string{one: freeAddress(t), two: freeAddress(t)}
	config := func(moreOfOne, moreOfTwo string) string {
		return site(addresses[one], gateway("separator __", "forward_auth_header on", one.line("shared"), moreOfOne)) +
			site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"), moreOfTwo))
	}
	load(t, config("", ""))
	var listeners []*namedListener
	for _, s := range []*namedServer{one, two} {
		l := &namedListener{server: s, client: newTestClient(t, joinedAt("http://"+addresses[s]), false, `{}`,
			connectionClose, "Authorization: Bearer of-"+s.name)}
		l.stream = l.client.listen(t)
		listeners = append(listeners, l)
		await.Until(t, "the stream", func() bool { return s.Listeners() == 1 })
	}
	extra := func(name string) string { return "server " + name + " http://127.0.0.1:1" }
	steps := []struct {
		name, config string
		lasts        bool // the streams survive, too
	}{
		{"nothing changes", config("", "") + site(freeAddress(t), "respond x"), true},
		{"nothing changes again", config("", ""), true},
		{"sites in another order", site(addresses[two], gateway("separator __", "forward_auth_header on",
			two.line("shared"))) + site(addresses[one], gateway("separator __", "forward_auth_header on", one.line("shared"))),
			true},
		{"the first gets a server", config(extra("more"), ""), false},
		{"both change", config("", extra("other")), false},
		{"both change again", config(extra("x"), extra("y")), false},
	}
	for _, step := range steps {
		t.Run("A60 "+step.name, func(t *testing.T) {
			load(t, step.config)
			for _, l := range listeners {
				if !step.lasts {
					l.awaitOwnMessage(t)
					continue
				}
				l.server.Say(`{"jsonrpc":"2.0","method":"vendor/` + l.server.name + `"}`)
				if m := l.stream.next(t); m.Method != "vendor/"+l.server.name {
					t.Errorf("the client of %s received %s", l.server.name, m.Raw)
				}
			}
			for _, l := range listeners {
				if got := toolNames(t, l.client); !slices.Equal(got, []string{"shared__tool_of_" + l.server.name}) {
					t.Errorf("the client of %s sees %v", l.server.name, got)
				}
				if got := l.server.foreignCredentials(); len(got) > 0 {
					t.Errorf("%s received the credentials %q", l.server.name, got)
				}
			}
		})
	}
	t.Run("A60 one is removed", func(t *testing.T) {
		load(t, site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"), extra("y"))))
		listeners[0].stream.awaitEnd(t)
		l := listeners[1]
		if got := toolNames(t, l.client); !slices.Equal(got, []string{"shared__tool_of_two"}) {
			t.Errorf("got %v", got)
		}
		for _, l := range listeners {
			if got := l.server.foreignCredentials(); len(got) > 0 {
				t.Errorf("%s received the credentials %q", l.server.name, got)
			}
		}
	})
}

// Old configurations release their memory and connections to servers, even under open streams.
func TestAggregateReloadsLeaveNothingBehind(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	lines := []string{"separator __"}
	for i := range 8 {
		remote := &mcptest.Remote{Name: fmt.Sprint("far", i), Legacy: true}
		t.Cleanup(remote.Close)
		lines = append(lines, fmt.Sprintf("server far%d http://%s/mcp", i, upstream(t, remote)))
	}
	config := func(servers int) string { return site(address, gateway(lines[:1+servers]...)) }
	load(t, config(2))
	for range 10 {
		newTestClient(t, joinedAt("http://"+address), false, `{}`, connectionClose).listenForChanges(t)
	}
	r := caddyOf(t).caddy
	files := func() int { return len(openFiles(t, r.Process.Pid)) }
	t.Run("connections", func(t *testing.T) {
		before := files()
		for range 15 {
			load(t, config(8))
			load(t, config(2))
		}
		await.Until(t, "connections to servers to close", func() bool { return files() < before+20 })
	})
	t.Run("memory", func(t *testing.T) {
		more := func(i int) string { return config(2) + site(freeAddress(t), fmt.Sprintf("respond %d", i)) }
		for i := range 10 {
			load(t, more(i))
		}
		before := memoryInUse(t)
		for i := range 150 {
			load(t, more(i))
		}
		await.Until(t, "configurations to be collected", func() bool { return memoryInUse(t) <= before+2 })
	})
}
