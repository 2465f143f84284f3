package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// closes is sent with requests between which configurations are replaced: Caddy closes
// connections then, maybe just when they are used again.
const closes = "Connection: close"

const listChanged = "notifications/tools/list_changed"

// callsOutlast makes a change while the client has two calls in flight, which are answered after it. One takes some
// milliseconds, in the other the client was asked before the change.
func (c *speaker) callsOutlast(t *testing.T, journal journal, milliseconds int, change func()) {
	t.Helper()
	params := callOf("far", "ask", `{"method":"roots/list","params":{}}`)
	d := c.begin(t, "tools/call", params)
	question := d.next(t)
	seen := len(journal.entries(t, "tools/call"))
	slow := c.begin(t, "tools/call", callOf("kept", "slow", fmt.Sprintf(`{"ms":%d}`, milliseconds)))
	await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > seen })
	change()
	if got := slow.finish(t).answer.Text(); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	if c.Modern {
		d = c.begin(t, "tools/call", retried(params, question.Input(t), func(string) string { return rootsAnswer }))
	} else {
		c.replyTo(t, question, rootsAnswer)
	}
	if got := d.finish(t).answer; !reached(got.Text(), rootsAnswer) {
		t.Errorf("got %s", got.Raw)
	}
}

// Clients, their streams and their calls go on when the configuration is replaced (A60).
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
				return site(address, gateway(append([]string{"separator __", block(child("kept", "--modern"), journal.env()), far}, more...)...))
			}
			load(t, config())
			c := newSpeaker(t, joinedAt("http://"+address), era.modern, canAll, closes)
			stream := c.listens(t)
			pid := c.use(t, "kept", "pid", `{}`)
			// A stream begins when the servers have been asked, but it does not wait for long.
			await.Until(t, "the stream of the far server", func() bool {
				return len(remote.Seen("stream"))+len(remote.Seen("subscriptions/listen")) > 0
			})
			goesOn := func(t *testing.T) {
				t.Helper()
				if again := c.use(t, "kept", "pid", `{}`); again != pid {
					t.Errorf("%s has become %s", pid, again)
				}
				c.use(t, "far", "change", `{}`)
				if m := stream.hears(t, listChanged); m.Params.Proxy.Server != "far" {
					t.Errorf("heard %s", m.Raw)
				}
				if n := len(remote.Seen("initialize")); n > 1 {
					t.Errorf("the far server was initialized %d times", n)
				}
			}
			t.Run("A60 nothing has changed for them", func(t *testing.T) {
				load(t, config()+site(freeAddress(t), "respond x"))
				stream.silent(t)
				goesOn(t)
			})
			t.Run("A60 a call in flight is answered", func(t *testing.T) {
				c.callsOutlast(t, journal, 300, func() { load(t, config()+site(freeAddress(t), "respond y")) })
				goesOn(t)
			})
			t.Run("A60 a server is added", func(t *testing.T) {
				load(t, config(added))
				stream.hears(t, listChanged)
				if got := toolsOf(t, c); !slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") || !slices.Contains(got, "far__echo") {
					t.Errorf("listed %v", got)
				}
				c.use(t, "new", "add-tool", `{"name":"more"}`)
				for m := stream.hears(t, listChanged); m.Params.Proxy.Server != "new"; m = stream.hears(t, listChanged) {
				}
				goesOn(t)
			})
			t.Run("A61 a broken configuration changes nothing", func(t *testing.T) {
				for _, broken := range []string{config("server new http://127.0.0.1:1", "server new http://127.0.0.1:1"), config() + "\n{", site(address, gateway())} {
					refused(t, "text/caddyfile", withAdmin(broken, adminAddress(t)), "")
				}
				stream.silent(t)
				if got := toolsOf(t, c); !slices.Contains(got, "new__pid") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("A60 a server is taken away", func(t *testing.T) {
				load(t, config())
				stream.hears(t, listChanged)
				if got := toolsOf(t, c); slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") {
					t.Errorf("listed %v", got)
				}
				if got := c.ask(t, "tools/call", callOf("new", "pid", `{}`)); got.answer.Error == nil || got.answer.Error.Code != -32602 {
					t.Errorf("got %s", got.answer.Raw)
				}
				goesOn(t)
			})
			t.Run("A60 many configurations in a row", func(t *testing.T) {
				for range 5 {
					load(t, config(added))
					load(t, config())
				}
				await.Until(t, "the list", func() bool { return !slices.Contains(toolsOf(t, c), "new__pid") })
				for len(stream.Messages) > 0 {
					stream.next(t)
				}
				goesOn(t)
			})
			t.Run("A60 the gateway is taken away", func(t *testing.T) {
				load(t, site(address, "respond x"))
				stream.ended(t)
			})
		})
	}
	t.Run("A39 no child is left", func(t *testing.T) {
		await.Until(t, "the end of the children", func() bool {
			return !slices.ContainsFunc(journal.entries(t, "start"), func(e entry) bool { return processRuns(e.PID) })
		})
	})
}

// A spy is a server over HTTP that has its name in its tool, and in what it says to all who
// listen. Its clients have credentials of their own.
type spy struct {
	*remoteServer
	name string
}

func newSpy(t *testing.T, name string) *spy {
	t.Helper()
	return &spy{newRemoteServer(t, "tool_of_"+name), name}
}

// strangers returns the credentials that are not for this server.
func (s *spy) strangers() (all []string) {
	for _, r := range s.Received() {
		if credentials := r.HTTP.Header.Get("Authorization"); credentials != "Bearer of-"+s.name {
			all = append(all, credentials)
		}
	}
	return all
}

// A listener is a client of a gateway that listens to its spy.
type listener struct {
	of *spy
	c  *speaker
	d  *dialogue
}

// hearsAgain waits until the client hears its own server, and no other. Its stream may
// have ended, because nobody knew where it belongs: then it comes back, as clients do.
func (l *listener) hearsAgain(t *testing.T) {
	t.Helper()
	own := "vendor/" + l.of.name
	await.Until(t, "a stream of "+l.of.name, func() bool {
		l.of.Say(`{"jsonrpc":"2.0","method":"` + own + `"}`)
		for {
			select {
			case m, ok := <-l.d.Messages:
				switch {
				case !ok:
					l.d = l.c.listen(t)
					return false
				case m.Method == own:
					return true
				case strings.HasPrefix(m.Method, "vendor/"):
					t.Errorf("the client of %s heard %s", l.of.name, m.Raw)
				}
			default:
				return false
			}
		}
	})
}

// Two gateways without a name on two sites have nothing in common: no client of the one
// ever hears a server of the other, and no server of the other gets its credentials.
func TestAggregateReloadsOfTwoGateways(t *testing.T) {
	isolate(t)
	one, two := newSpy(t, "one"), newSpy(t, "two")
	addresses := map[*spy]string{one: freeAddress(t), two: freeAddress(t)}
	config := func(moreOfOne, moreOfTwo string) string {
		return site(addresses[one], gateway("separator __", "forward_auth_header on", one.line("shared"), moreOfOne)) + site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"), moreOfTwo))
	}
	load(t, config("", ""))
	var listeners []*listener
	for _, s := range []*spy{one, two} {
		l := &listener{of: s, c: newSpeaker(t, joinedAt("http://"+addresses[s]), false, `{}`, closes, "Authorization: Bearer of-"+s.name)}
		l.d = l.c.listen(t)
		listeners = append(listeners, l)
		await.Until(t, "the stream", func() bool { return s.Listeners() == 1 })
	}
	extra := func(name string) string { return "server " + name + " http://127.0.0.1:1" }
	steps := []struct {
		name, config string
		lasts        bool // the streams do, too
	}{
		{"nothing has changed", config("", "") + site(freeAddress(t), "respond x"), true},
		{"nor now", config("", ""), true},
		{"in another order", site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"))) + site(addresses[one], gateway("separator __", "forward_auth_header on", one.line("shared"))), true},
		{"the first has one more", config(extra("more"), ""), false},
		{"both have changed", config("", extra("other")), false},
		{"and again", config(extra("x"), extra("y")), false},
	}
	for _, step := range steps {
		t.Run("A60 "+step.name, func(t *testing.T) {
			load(t, step.config)
			for _, l := range listeners {
				if !step.lasts {
					l.hearsAgain(t)
					continue
				}
				l.of.Say(`{"jsonrpc":"2.0","method":"vendor/` + l.of.name + `"}`)
				if m := l.d.next(t); m.Method != "vendor/"+l.of.name {
					t.Errorf("the client of %s heard %s", l.of.name, m.Raw)
				}
			}
			for _, l := range listeners {
				if got := toolsOf(t, l.c); !slices.Equal(got, []string{"shared__tool_of_" + l.of.name}) {
					t.Errorf("the client of %s sees %v", l.of.name, got)
				}
				if got := l.of.strangers(); len(got) > 0 {
					t.Errorf("%s got the credentials %q", l.of.name, got)
				}
			}
		})
	}
	t.Run("A60 one is taken away", func(t *testing.T) {
		load(t, site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"), extra("y"))))
		listeners[0].d.ended(t)
		l := listeners[1]
		if got := toolsOf(t, l.c); !slices.Equal(got, []string{"shared__tool_of_two"}) {
			t.Errorf("got %v", got)
		}
		for _, l := range listeners {
			if got := l.of.strangers(); len(got) > 0 {
				t.Errorf("%s got the credentials %q", l.of.name, got)
			}
		}
	})
}

// What was needed for configurations that have come and gone under open streams is given back:
// memory, and connections to servers.
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
		newSpeaker(t, joinedAt("http://"+address), false, `{}`, closes).listens(t)
	}
	r := loaderOf(t).caddy
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
		before := inUse(t)
		for i := range 150 {
			load(t, more(i))
		}
		await.Until(t, "configurations to be collected", func() bool { return inUse(t) <= before+2 })
	})
}
