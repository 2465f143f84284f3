package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// joinedAt returns the endpoint of all servers of a gateway.
func joinedAt(url string) string { return url + "/mcp" }

// messages returns the full messages with a method that a child received.
func (j journal) messages(t *testing.T, method string) (found []*mcptest.Received) {
	t.Helper()
	text, err := os.ReadFile(string(j))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e struct{ Message json.RawMessage }
		if json.Unmarshal(line, &e) != nil || e.Message == nil {
			continue // an event
		}
		if m := mcptest.NewReceived(e.Message); m.Method == method {
			found = append(found, m)
		}
	}
	return found
}

func TestAggregateHandshake(t *testing.T) {
	isolate(t)
	alpha, beta := newJournal(t), newJournal(t)
	url := serve(t, gateway(block(child("alpha"), alpha.env()), block(child("beta"), beta.env())))
	if starts := alpha.entries(t, "start"); len(starts) > 0 {
		t.Errorf("started without a request: %v", starts)
	}
	first, second := newListeningClient(t, url, everyCapability),
		newLegacyClient(t, url, `{"elicitation":{},"sampling":{}}`)
	first.notify("notifications/initialized", "") // repeated
	for _, c := range []*legacyClient{first, second} {
		for _, server := range []string{"alpha", "beta"} {
			c.use(server+"::pid", `{}`)
		}
		c.list("tools/list", "name")
	}
	for server, journal := range map[string]journal{"alpha": alpha, "beta": beta} {
		for _, method := range []string{"start", "initialize", "notifications/initialized"} {
			if got := journal.entries(t, method); len(got) != 1 {
				t.Errorf("A3 %s: %d × %s", server, len(got), method)
			}
		}
	}
}

func TestAggregateHandshakeOfChildrenOfSessions(t *testing.T) {
	isolate(t)
	journal, remote := newJournal(t), newRemoteServer(t, "tool")
	url := serve(t, gateway(block(child("alpha"), journal.env(), "isolation session"), block(child("beta"), journal.env(),
		"isolation session"), remote.line("remote")))
	one, two := newListeningClient(t, url, `{"roots":{}}`), newListeningClient(t, url, `{"sampling":{}}`)
	pids := map[string]bool{}
	for _, c := range []*legacyClient{one, two} {
		c.notify("notifications/initialized", "") // repeated
		for _, tool := range []string{"alpha::pid", "beta::pid"} {
			pids[c.use(tool, `{}`)] = true
		}
	}
	if len(pids) != 4 {
		t.Errorf("children: %v", pids)
	}
	if inits, initialized := remote.Count("initialize"), remote.Count("notifications/initialized"); inits != 2 ||
		initialized != 2 {
		t.Errorf("A3 the remote server received %d × initialize, %d × initialized", inits, initialized)
	}
	for _, method := range []string{"initialize", "notifications/initialized"} {
		byPID := map[int]int{}
		for _, e := range journal.entries(t, method) {
			byPID[e.PID]++
		}
		if len(byPID) != 4 || len(journal.entries(t, method)) != 4 {
			t.Errorf("A3 %s: %v", method, byPID)
		}
	}
	capabilities := map[string]int{}
	for _, m := range append(journal.messages(t, "initialize"), remote.Received("initialize")...) {
		capabilities[m.Param("capabilities")]++
	}
	if capabilities[`{"roots":{}}`] != 3 || capabilities[`{"sampling":{}}`] != 3 {
		t.Errorf("A3 got client capabilities %v", capabilities)
	}
}

// The gateway asks all servers concurrently: here each responds only when all have been asked.
func TestAggregateAsksAllAtOnce(t *testing.T) {
	isolate(t)
	for _, method := range []string{"initialize", "tools/list"} {
		t.Run("A3 A22 "+method, func(t *testing.T) {
			const servers = 5
			var lines []string
			var asked sync.WaitGroup
			asked.Add(servers)
			for i := range servers {
				s := newRemoteServer(t, "tool")
				var once sync.Once
				s.Handle = func(_ http.ResponseWriter, m *mcptest.Received) bool {
					if m.Method == method {
						once.Do(asked.Done)
						asked.Wait()
					}
					return false
				}
				lines = append(lines, s.line(fmt.Sprintf("s%d", i)))
			}
			// If requests were sequential, the test would time out.
			url := serve(t, gateway(append(lines, "join_timeout 10m", "response_timeout 10m")...))
			c := newLegacyClient(t, url, `{}`)
			if got := c.list("tools/list", "name"); len(got) != servers {
				t.Errorf("listed %v", got)
			}
		})
	}
}

func TestAggregateServerInfo(t *testing.T) {
	isolate(t)
	introduce := func(t *testing.T, lines ...string) (capabilities map[string]json.RawMessage) {
		c := newLegacyClient(t, serve(t, gateway(lines...)), `{}`)
		var hello struct {
			ProtocolVersion string
			ServerInfo      struct{ Name, Version string }
			Capabilities    map[string]json.RawMessage
		}
		if err := json.Unmarshal(c.initialized.Result, &hello); err != nil || hello.ProtocolVersion != "2025-11-25" ||
			hello.ServerInfo.Name == "" || hello.ServerInfo.Version == "" {
			t.Errorf("A4 %v: %s", err, c.initialized.Result)
		}
		for name, value := range hello.Capabilities {
			if !strings.HasPrefix(string(value), "{") {
				t.Errorf("A4 %s: got %s", name, value)
			}
		}
		return hello.Capabilities
	}
	t.Run("A4 an empty object is a capability", func(t *testing.T) {
		got := introduce(t, child("alpha", "--caps-empty"))
		if got["tools"] == nil || got["prompts"] != nil || got["resources"] != nil || got["logging"] != nil {
			t.Errorf("got %s, want the capability tools alone", got)
		}
	})
	t.Run("A4 capabilities are the union of all servers", func(t *testing.T) {
		got := introduce(t, child("alpha", "--caps-empty"), child("beta"))
		for _, name := range []string{"tools", "prompts", "resources", "logging", "completions"} {
			if got[name] == nil {
				t.Errorf("%s is missing in %s", name, got)
			}
		}
		if !strings.Contains(string(got["resources"]), `"subscribe":true`) {
			t.Errorf("got %s, want resources with subscribe", got)
		}
	})
}

func TestAggregateVersions(t *testing.T) {
	isolate(t)
	old := newRemoteServer(t, "tool")
	old.Replies = map[string]string{"initialize": `"result":{"protocolVersion":"2024-11-05",` +
		`"capabilities":{"tools":{}},"serverInfo":{"name":"old","version":"1"}}`}
	url := serve(t, gateway(child("alpha"), old.line("old")))
	supported := []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}
	for _, version := range append([]string{"1999-01-01", "2099-01-01", ""}, supported...) {
		t.Run("A5 "+version, func(t *testing.T) {
			c := newUninitializedClient(t, url, `{}`)
			c.initialize(version)
			var hello struct{ ProtocolVersion string }
			if err := json.Unmarshal(c.initialized.Result, &hello); err != nil || !slices.Contains(supported,
				hello.ProtocolVersion) ||
				slices.Contains(supported, version) && hello.ProtocolVersion != version {
				t.Errorf("%v: %s", err, c.initialized.Result)
			}
			if got := c.use("old::tool", `{"a":1}`); !strings.Contains(got, `{"a":1}`) {
				t.Errorf("got %s, want %s in it", got, `{"a":1}`)
			}
			if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
				t.Errorf("got %q, want %q", got, "slept")
			}
		})
	}
}

func TestAggregateGoesOnWithoutSome(t *testing.T) {
	isolate(t)
	// One server is not reachable yet, and one is slow.
	absent := freeAddress(t)
	late := newRemoteServer(t, "tool")
	var awake atomic.Bool
	late.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		if !awake.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	url := serve(t, gateway("join_timeout 2s",
		"server missing stdio /nonexistent/program",
		child("mute", "--hang-init"),
		"server down http://127.0.0.1:1",
		child("quits", "--exit-at-start", "3"),
		child("good"),
		"server absent http://"+absent+"/mcp",
		late.line("late")))
	pidAt(t, mcpAt(url, "good")) // it has started, so it responds faster than the others
	c := newListeningClient(t, url, `{}`)
	for _, name := range c.list("tools/list", "name") {
		if !strings.HasPrefix(name, "good::") {
			t.Errorf("A6 listed %s", name)
		}
	}
	if got := c.use("good::slow", `{"ms":1}`); got != "slept" {
		t.Errorf("A6 %s", got)
	}
	for _, server := range []string{"missing", "down", "quits"} {
		got := c.ask("tools/call", `{"name":"`+server+`::echo"}`)
		if got.Error == nil || got.Status != 200 || got.Error.Symbol() != "connect_error" || got.Error.Server() != server {
			t.Errorf("A6 %s: %d %s", server, got.Status, got.Raw)
		}
	}
	c.result("ping", "")

	t.Run("A6 slow servers are retried", func(t *testing.T) {
		c := c.withTest(t)
		before := len(c.receivedMessages("notifications/tools/list_changed"))
		awake.Store(true)
		c.awaitMessages("notifications/tools/list_changed", before+1)
		await.Until(t, "its tool", func() bool { return c.listsTool("late::tool") })
		if got := c.use("late::tool", `{"a":1}`); !strings.Contains(got, `{"a":1}`) {
			t.Errorf("got %s, want %s in it", got, `{"a":1}`)
		}
	})
	t.Run("A6 unreachable servers are retried", func(t *testing.T) {
		c := c.withTest(t)
		before := len(c.receivedMessages("notifications/tools/list_changed"))
		s := newRemoteServer(t, "tool")
		present := &http.Server{Addr: absent, Handler: s}
		go func() { _ = present.ListenAndServe() }()
		t.Cleanup(func() { present.Close() })
		c.awaitMessages("notifications/tools/list_changed", before+1)
		await.Until(t, "its tool", func() bool { return c.listsTool("absent::tool") })
		if got := s.Count("notifications/initialized"); got != s.Count("initialize") {
			t.Errorf("%d × initialize, %d × initialized", s.Count("initialize"), got)
		}
	})
}

func TestAggregateRefusesConfigurations(t *testing.T) {
	isolate(t)
	load(t, "")
	for _, tt := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"A2 no server", nil, "server"},
		{"A2 no command", []string{"server a stdio"}, "command"},
		{"A2 a duplicate id", []string{"server a http://127.0.0.1:1", "server a http://127.0.0.1:2"}, `"a"`},
		{"A2 an id with ::", []string{"server a::b http://127.0.0.1:1"}, "a::b"},
		{"A2 an id with the separator", []string{"separator __", "server a__b http://127.0.0.1:1"}, "a__b"},
		{"A2 an alias with the separator", []string{"separator __", block("server a http://127.0.0.1:1", "alias a__b")},
			"a__b"},
		{"A2 a negative timeout", []string{"join_timeout -1s", "server a http://127.0.0.1:1"}, "join_timeout"},
		{"A2 no response_timeout", []string{"response_timeout 0s", "server a http://127.0.0.1:1"}, "response_timeout"},
		{"A2 no join_timeout", []string{"join_timeout 0s", "server a http://127.0.0.1:1"}, "join_timeout"},
		{"A2 no start_timeout", []string{block(child("a"), "start_timeout 0s")}, "start_timeout"},
		{"A2 a negative max_name_length", []string{"max_name_length -1", "server a http://127.0.0.1:1"}, "max_name_length"},
		{"A2 a negative max_sessions", []string{"max_sessions -1", "server a http://127.0.0.1:1"}, "max_sessions"},
		{"A2 a short session_key", []string{"session_key secret", "server a http://127.0.0.1:1"}, "session_key"},
		{"R11 no separator between several servers", []string{"separator none", "server a http://127.0.0.1:1",
			"server b http://127.0.0.1:2"}, "separator"},
		{"A2 an empty expose", []string{block("server a http://127.0.0.1:1", "expose")}, "expose"},
		{"A2 discovery that is neither on nor off", []string{"discovery maybe", "server a http://127.0.0.1:1"}, "discovery"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expectConfigError(t, "text/caddyfile", withAdmin(site(freeAddress(t), gateway(tt.lines...)), adminAddress(t)),
				tt.want)
		})
	}
}

func TestAggregateSessions(t *testing.T) {
	isolate(t)
	alpha, remote := newJournal(t), newRemoteServer(t, "tool")
	here, there := freeAddress(t), freeAddress(t)
	load(t, site(here, gateway(block(child("alpha"), alpha.env()), remote.line("remote")))+
		site(there, gateway("session_key 0123456789abcdef0123456789abcdef", child("alpha"))))
	url := "http://" + here
	endpoint := joinedAt(url)
	c, foreign := newLegacyClient(t, url, `{}`), newLegacyClient(t, "http://"+there, `{}`)
	id := strings.TrimPrefix(c.Session, "Mcp-Session-Id: ")
	for _, r := range id {
		if r < 0x21 || r > 0x7e {
			t.Errorf("got session id %q", id)
		}
	}
	ping := rpc("ping", `{}`)
	for _, tt := range []struct {
		name, session string
		want          int
	}{
		{"of the client", c.Session, 200},
		{"missing", "", 400},
		{"of another gateway", foreign.Session, 404},
		{"that is made up", "Mcp-Session-Id: 12345", 404},
		{"with one more character", c.Session + "A", 404},
		{"with one character less", c.Session[:len(c.Session)-1], 404},
		{"with one letter changed", "Mcp-Session-Id: " + changeLetter(id, len(id)/2), 404},
		{"with its first letter changed", "Mcp-Session-Id: " + changeLetter(id, 0), 404},
		{"that is long", "Mcp-Session-Id: " + strings.Repeat("A", 8<<10), 404},
		{"of non-ASCII bytes", "Mcp-Session-Id: \xff\xfe", 404},
	} {
		t.Run("a session id "+tt.name, func(t *testing.T) {
			calls := len(alpha.entries(t, "tools/call")) + remote.Count("tools/call")
			for _, message := range []string{ping, rpc("tools/list", `{}`), toolCall{"alpha::pid", `{}`}.request(),
				toolCall{"remote::tool", `{}`}.request(), `{"jsonrpc":"2.0","method":"notifications/foo"}`} {
				want := tt.want
				if want == 200 && !strings.Contains(message, `"id"`) {
					want = 202
				}
				got := post(t, endpoint, message, tt.session, acceptBoth)
				if got.StatusCode != want {
					t.Errorf("POST %s: %d %s", message, got.StatusCode, got.body)
				}
			}
			wantGET := tt.want
			if tt.session == "" {
				wantGET = 405
			}
			if res := open(t, client, "GET", endpoint, "", tt.session, "Accept: text/event-stream"); res.StatusCode != wantGET {
				t.Errorf("GET: %d", res.StatusCode)
			} else if wantGET == 405 && res.Header.Get("Allow") == "" {
				t.Errorf("GET: %v", res.Header)
			}
			if tt.want != 200 {
				if got := len(alpha.entries(t, "tools/call")) + remote.Count("tools/call"); got != calls {
					t.Errorf("the servers received %d calls", got-calls)
				}
				if got := send(t, client, "DELETE", endpoint, "", tt.session); got.StatusCode != tt.want {
					t.Errorf("DELETE: %d %s", got.StatusCode, got.body)
				}
			}
		})
	}
	t.Run("DELETE ends a session", func(t *testing.T) {
		c := c.withTest(t)
		other := newLegacyClient(t, url, `{}`)
		c.use("remote::tool", `{}`)
		if got := send(t, client, "DELETE", endpoint, "", c.Session); got.StatusCode != 200 && got.StatusCode != 204 {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
		if got := post(t, endpoint, ping, c.Session, acceptBoth); got.StatusCode != 404 {
			t.Errorf("afterwards: got %d %s, want 404", got.StatusCode, got.body)
		}
		if res := open(t, client, "GET", endpoint, "", c.Session, "Accept: text/event-stream"); res.StatusCode != 404 {
			t.Errorf("afterwards: GET got %d", res.StatusCode)
		}
		await.Until(t, "the end of the upstream's session", func() bool { return remote.Count("DELETE") > 0 })
		if got := other.use("alpha::slow", `{"ms":0}`) + other.use("remote::tool", `{}`); !strings.HasPrefix(got, "slept") {
			t.Errorf("another session got %s", got)
		}
	})
}

// changeLetter replaces the letter at an index of a text.
func changeLetter(text string, index int) string {
	b := []byte(text)
	if b[index] == 'A' {
		b[index] = 'B'
	} else {
		b[index] = 'A'
	}
	return string(b)
}

func TestAggregateRequests(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(child("alpha")))
	endpoint := joinedAt(url)
	c := newLegacyClient(t, url, `{}`)
	for _, tt := range []struct {
		name, body   string
		headers      []string
		status, code int
	}{
		{"A43 a foreign Origin", rpc("ping", `{}`), []string{"Origin: http://evil.test"}, 403, -32600},
		{"A43 a foreign Origin that begins a session",
			rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`), []string{"Origin: http://evil.test"}, 403,
			-32600},
		{"a batch", "[" + rpc("ping", `{}`) + "]", nil, 400, -32600},
		{"no JSON", "{", nil, 400, -32700},
		{"nothing", "", nil, 400, -32700},
		{"a body that is too large", strings.Repeat(" ", 10<<20+1), nil, 413, -32600},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := post(t, endpoint, tt.body, append(tt.headers, c.Session, acceptBoth)...)
			if f := gatewayErrorOf(t, got); f.Status != tt.status || f.Code != tt.code || f.Symbol == "" {
				t.Errorf("%+v", f)
			}
		})
	}
	t.Run("a local Origin", func(t *testing.T) {
		if got := post(t, endpoint, rpc("ping", `{}`), "Origin: http://localhost:3000", c.Session,
			acceptBoth); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
		}
	})
	t.Run("an unknown version", func(t *testing.T) {
		if got := post(t, endpoint, rpc("ping", `{}`), "Mcp-Protocol-Version: 1999-01-01", c.Session,
			acceptBoth); got.StatusCode != 400 {
			t.Errorf("got %d %s, want 400", got.StatusCode, got.body)
		}
	})
	t.Run("other methods", func(t *testing.T) {
		for _, method := range []string{"PUT", "PATCH", "OPTIONS"} {
			if got := send(t, client, method, endpoint, "", c.Session); got.StatusCode != 405 || got.Header.Get("Allow") == "" {
				t.Errorf("%s: %d %v", method, got.StatusCode, got.Header)
			}
		}
	})
	t.Run("ids are unchanged", func(t *testing.T) {
		c := c.withTest(t)
		for _, id := range []string{`0`, `12345678901234567890`, `1.0`, `"a\u0062\/é"`, `""`, `-1`, `1e2`} {
			for _, params := range []string{`"ping"`, `"tools/list"`, `"tools/call","params":{"name":"alpha::pid"}`,
				`"tools/call","params":{"name":"zeta::pid"}`} {
				got := c.await(c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":` + params + `}`))
				if string(got.ID) != id {
					t.Errorf("G4 %s %s: %s", id, params, got.Raw)
				}
			}
		}
	})
	for _, body := range []string{
		`{"jsonrpc":"2.0"}`, `{}`, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, `{"id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":5}`, `{"jsonrpc":"2.0","id":{},"method":"ping"}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":""}`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"x"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["alpha::echo"]}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"alpha::echo","name":"alpha::die"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":5}`,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"alpha::echo"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + strings.Repeat("[", 20_000) + strings.Repeat("]",
			20_000) + `}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize"}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":5,"capabilities":[]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"x":"` +
			strings.Repeat("A", 100_000) + `"},"clientInfo":{}}}`,
	} {
		t.Run("odd "+body[:min(len(body), 80)], func(t *testing.T) {
			got := post(t, endpoint, body, c.Session, acceptBoth)
			if got.StatusCode/100 != 2 && got.StatusCode/100 != 4 {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			if got.body != "" && !json.Valid([]byte(answerIn(got.body))) {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
			if text := c.withTest(t).use("alpha::slow", `{"ms":0}`); text != "slept" {
				t.Errorf("got %q, want %q", text, "slept")
			}
		})
	}
	t.Run("a client with large capabilities", func(t *testing.T) {
		noise := make([]byte, 6000)
		for i := range noise { // random, so it does not compress
			noise[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[(i*i*31+i*17+i>>3)%64]
		}
		c := newLegacyClient(t, url, `{"roots":{},"experimental":{"x":{"y":"`+string(noise)+`"}}}`)
		c.setAnswers(func(mcpclient.Message) string { return `"result":{"roots":[]}` })
		if got := c.use("alpha::ask-roots", `{}`); got != `{"roots":[]}` {
			t.Errorf("got %q, want %q", got, `{"roots":[]}`)
		}
	})
	t.Run("A16 ping", func(t *testing.T) {
		c := c.withTest(t)
		if got := c.result("ping", ""); !strings.HasPrefix(got, "{") {
			t.Errorf("got %s, want an object", got)
		}
	})
	t.Run("A17 unknown methods", func(t *testing.T) {
		c := c.withTest(t)
		c.expectError("foo/bar", "", -32601)
		c.expectError("tools/burn", `{"name":"alpha::echo"}`, -32601)
		c.result("ping", "")
	})
}

// Invalid responses of a server affect no other server.
func TestAggregateFaults(t *testing.T) {
	isolate(t)
	faults := map[string]func(w http.ResponseWriter, id string){
		"garbage": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{{{")
		},
		"garbage in events": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {{{\n\ndata\n:\n\n")
		},
		"no response in events": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": nothing\n\n")
		},
		"a Content-Length that is too large": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100000")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
		},
		"500": func(w http.ResponseWriter, _ string) { http.Error(w, "broken", 500) },
		"401": func(w http.ResponseWriter, _ string) { http.Error(w, "who?", http.StatusUnauthorized) },
		"400 with an error": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32000,"message":"no"}}`)
		},
		"302": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(302)
		},
		"202": func(w http.ResponseWriter, _ string) { w.WriteHeader(202) },
		"204": func(w http.ResponseWriter, _ string) { w.WriteHeader(204) },
		"HTML": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html><p>")
		},
		"nothing":               func(w http.ResponseWriter, _ string) { w.Header().Set("Content-Type", "application/json") },
		"an aborted connection": func(http.ResponseWriter, string) { panic(http.ErrAbortHandler) },
		"a response that breaks off": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{"tools":[`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"an event that breaks off": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":`+id+`,"result":{"tools":[`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"an array": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `[{"jsonrpc":"2.0","id":`+id+`,"result":{}}]`)
		},
		"an object that is not JSON-RPC": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"ok":true}`)
		},
		"a response with another id": func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"unknown","result":{"tools":[{"name":"false"}],"content":[]}}`)
		},
		"a result of another shape": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+id+`,"result":[1]}`)
		},
	}
	symbols := []string{"timeout", "connect_error", "invalid_json", "invalid_response", "http_error", "unauthorized"}
	good, bad := newRemoteServer(t, "tool"), newRemoteServer(t, "tool")
	var fault atomic.Value // string
	var faulty atomic.Value
	fault.Store("")
	faulty.Store("")
	bad.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		if m.Method == faulty.Load() {
			faults[fault.Load().(string)](w, string(m.ID))
			return true
		}
		return false
	}
	url := serve(t, gateway("join_timeout 2s", "response_timeout 5s", bad.line("bad"), good.line("good")))
	for _, method := range []string{"initialize", "tools/list", "tools/call"} {
		for name := range faults {
			t.Run(method+" gets "+name, func(t *testing.T) {
				fault.Store(name)
				faulty.Store(method)
				// Each client needs a new session with the server.
				c := newLegacyClient(t, url, fmt.Sprintf(`{"experimental":{%q:{}}}`, t.Name()))
				names := c.list("tools/list", "name")
				if !slices.Contains(names, "good::tool") || slices.Contains(names, "bad::false") ||
					(method == "tools/call") != slices.Contains(names, "bad::tool") {
					t.Errorf("A6 A22 listed %v", names)
				}
				if method != "tools/list" && !(method == "tools/call" && name == "a result of another shape") {
					got := c.ask("tools/call", `{"name":"bad::tool"}`)
					switch {
					case got.Error == nil || got.Status != 200:
						t.Errorf("R13 %d %s", got.Status, got.Raw)
					case name == "400 with an error":
						// The server's own error is fine, too.
					case !slices.Contains(symbols, got.Error.Symbol()):
						t.Errorf("R13 %s", got.Raw)
					}
				}
				if got := c.use("good::tool", `{"a":1}`); !strings.Contains(got, `{"a":1}`) {
					t.Errorf("got %s, want %s in it", got, `{"a":1}`)
				}
				faulty.Store("")
				if method == "tools/list" && name != "500" {
					// The gateway does not retry a failed server at once.
					c = newLegacyClient(t, url, fmt.Sprintf(`{"experimental":{%q:{}}}`, t.Name()+" again"))
				}
				await.Until(t, "its recovery", func() bool { return c.listsTool("bad::tool") })
				if got := c.use("bad::tool", `{"a":1}`); !strings.Contains(got, `{"a":1}`) {
					t.Errorf("got %s, want %s in it", got, `{"a":1}`)
				}
			})
		}
	}
}

// If a server has lost its session, the gateway initializes again, once, and makes no call twice.
func TestAggregateRecoversSessions(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway(remote.line("remote"), child("alpha")))
	c := newListeningClient(t, url, `{"roots":{}}`)
	c.use("remote::tool", `{}`)
	t.Run("of one call", func(t *testing.T) {
		c := c.withTest(t)
		inits, calls := remote.Count("initialize"), remote.Count("tools/call")
		remote.Forget()
		if got := c.use("remote::tool", `{"n":1}`); !strings.Contains(got, `{"n":1}`) {
			t.Errorf("got %s, want %s in it", got, `{"n":1}`)
		}
		if got := remote.Count("initialize") - inits; got != 1 {
			t.Errorf("initialized %d times", got)
		}
		if got := remote.Count("tools/call") - calls; got != 2 { // one of them was refused
			t.Errorf("got %d calls", got)
		}
		last := remote.Received("initialize")
		first, latest := remote.Received("initialize")[0], last[len(last)-1]
		if first.Param("capabilities") != latest.Param("capabilities") ||
			first.Param("clientInfo") != latest.Param("clientInfo") {
			t.Errorf("A37 first %s\nlast %s", first.Body, last[len(last)-1].Body)
		}
		if got := remote.Count("notifications/initialized"); got != inits+1 {
			t.Errorf("%d × initialized", got)
		}
	})
	t.Run("of many calls", func(t *testing.T) {
		c := c.withTest(t)
		inits := remote.Count("initialize")
		remote.Forget()
		var pending []<-chan mcpclient.Response
		for i := range 20 {
			pending = append(pending, c.beginCall("remote::tool", fmt.Sprintf(`{"call":"many-%d-"}`, i)))
		}
		for i, p := range pending {
			if got := c.await(p); got.Error != nil || !strings.Contains(got.Raw, fmt.Sprintf(`many-%d-`, i)) {
				t.Errorf("%d: %s", i, got.Raw)
			}
		}
		if got := remote.Count("initialize") - inits; got != 1 {
			t.Errorf("initialized %d times", got)
		}
	})
	t.Run("of a list", func(t *testing.T) {
		c := c.withTest(t)
		remote.Forget()
		if !c.listsTool("remote::tool") || !c.listsTool("alpha::echo") {
			t.Error(c.list("tools/list", "name"))
		}
	})
	t.Run("A6 a server that loses each session at once", func(t *testing.T) {
		c := c.withTest(t)
		inits := remote.Count("initialize")
		remote.Change(func(s *mcptest.Script) {
			s.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
				if m.Method == "tools/call" {
					http.NotFound(w, nil)
				}
				return m.Method == "tools/call"
			}
		})
		if got := c.ask("tools/call", `{"name":"remote::tool"}`); got.Error == nil || got.Status != 200 {
			t.Errorf("%d %s", got.Status, got.Raw)
		}
		if got := remote.Count("initialize") - inits; got > 2 {
			t.Errorf("initialized %d times", got)
		}
		if got := c.use("alpha::slow", `{"ms":0}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
	})
}

// Gateways with the same key serve the same sessions.
func TestAggregateReplicas(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	one, two := freeAddress(t), freeAddress(t)
	lines := []string{"session_key 0123456789abcdef0123456789abcdef", remote.line("remote")}
	// With the same name they would share more than the key.
	load(t, site(one, gateway(append(lines, "name one")...))+site(two, gateway(append(lines, "name two")...)))
	c := newLegacyClient(t, "http://"+one, `{"roots":{}}`)
	for i := range 10 {
		c.URL = joinedAt("http://" + []string{one, two}[i%2])
		if got := c.use("remote::tool", fmt.Sprintf(`{"i":%d}`, i)); !strings.Contains(got, fmt.Sprintf(`{"i":%d}`, i)) {
			t.Errorf("got %s, want the params", got)
		}
		if !c.listsTool("remote::tool") {
			t.Errorf("no tool at %s", c.URL)
		}
	}
	if got := remote.Count("initialize"); got != 1 {
		t.Errorf("initialized %d times", got)
	}
	remote.Forget()
	for i := range 4 {
		c.URL = joinedAt("http://" + []string{one, two}[i%2])
		c.use("remote::tool", `{}`)
	}
	// Each gateway may find out by itself that the session was lost.
	if got := remote.Count("initialize"); got > 3 {
		t.Errorf("initialized %d times", got)
	}
	if got := send(t, client, "DELETE", joinedAt("http://"+two), "", c.Session); got.StatusCode/100 != 2 {
		t.Errorf("DELETE: %d %s", got.StatusCode, got.body)
	}
	await.Until(t, "the end of the upstream's session", func() bool { return remote.Count("DELETE") > 0 })
}

// A server request sent through one gateway may be answered through another.
func TestAggregateReplicasAsk(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	answers := make(chan *mcptest.Received, 1)
	remote.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		switch m.Method {
		case "tools/call":
			m.Stream(w, `{"jsonrpc":"2.0","id":12345678901234567890,"method":"roots/list"}`)
			select {
			case answer := <-answers:
				m.Stream(w, m.Message(mcptest.Text(answer.Body)))
			case <-m.HTTP.Context().Done():
			}
			return true
		case "answer":
			answers <- m
		}
		return false
	}
	one, two := freeAddress(t), freeAddress(t)
	lines := []string{"session_key 0123456789abcdef0123456789abcdef", remote.line("remote")}
	load(t, site(one, gateway(append(lines, "name one")...))+site(two, gateway(append(lines, "name two")...)))
	c := newLegacyClient(t, "http://"+one, `{"roots":{}}`)
	call := c.beginCall("remote::tool", `{}`)
	serverRequest := c.awaitMessages("roots/list", 1)[0]
	got := post(t, joinedAt("http://"+two), `{"jsonrpc":"2.0","id":`+string(serverRequest.ID)+`,"result":{"roots":[]}}`,
		c.Session, acceptBoth)
	if got.StatusCode != 202 {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	if text := toolText(t, c.await(call).Raw); !strings.Contains(text, `"id":12345678901234567890`) ||
		!strings.Contains(text, `"result":{"roots":[]}`) {
		t.Errorf("the server received %s", text)
	}
}

// A server may close a stream and respond later: to the gateway, or to a client that has lost its
// connection.
func TestAggregateResumes(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	remote.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		last := m.HTTP.Header.Get("Last-Event-Id")
		switch {
		case m.Method == "GET" && last != "":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: 6/x\ndata: {\"jsonrpc\":\"2.0\",\"id\":99,"+mcptest.Text("after "+last)+"}\n\n")
		case m.Method == "tools/call":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: 5/é\nretry: 10\ndata:\n\n")
		default:
			return false
		}
		return true
	}
	url := serve(t, gateway(remote.line("remote"), child("alpha")))
	c := newLegacyClient(t, url, `{}`)
	stream := post(t, c.URL, `{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"remote::tool"}}`,
		c.Session, acceptBoth).body
	_, id, ok := strings.Cut(stream, "id: ")
	id, _, _ = strings.Cut(id, "\n")
	if !ok || !strings.HasPrefix(id, "call:") || toolText(t, answerIn(stream)) != "after 5/é" {
		t.Fatalf("got stream %q", stream)
	}
	again := send(t, client, "GET", c.URL, "", c.Session, "Accept: text/event-stream", "Last-Event-Id: "+id)
	if text := toolText(t, answerIn(again.body)); again.StatusCode != 200 || text != "after 5/é" {
		t.Errorf("%d %s", again.StatusCode, again.body)
	}
	for _, id := range []string{"call:MQ/zeta/5", "call:MQ/remote", "5", "call/", "\xff"} {
		if res := open(t, client, "GET", c.URL, "", c.Session, "Accept: text/event-stream", "Last-Event-Id: "+
			id); res.StatusCode/100 == 5 {
			t.Errorf("%q: %d", id, res.StatusCode)
		}
	}
}

// The session id has all that the gateway needs to restore a session that it dropped.
func TestAggregateRestoresDroppedSessions(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway("max_sessions 1", "session_key "+strings.Repeat("k", 32), remote.line("remote"),
		child("alpha")))
	var clients []*legacyClient
	for range 5 {
		clients = append(clients, newLegacyClient(t, url, `{}`))
	}
	for range 3 {
		for _, c := range clients {
			if got := c.use("alpha::slow", `{"ms":0}`) + c.use("remote::tool",
				`{}`); got != `slept{"name":"tool","arguments":{}}` {
				t.Errorf("got %q, want %q", got, `slept{"name":"tool","arguments":{}}`)
			}
			if !c.listsTool("remote::tool") || !c.listsTool("alpha::echo") {
				t.Error("tools are missing")
			}
		}
	}
	if got := remote.Count("initialize"); got != len(clients) {
		t.Errorf("initialized %d times", got)
	}
}

// DELETE ends everything that belongs to a session: its stream, calls and children.
func TestAggregateEndsSessions(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("alpha"), journal.env(), "isolation session"), block(child("beta"), journal.env(),
		"isolation session")))
	c, other := newLegacyClient(t, url, `{}`), newLegacyClient(t, url, `{}`)
	other.use("alpha::pid", `{}`)
	stream := open(t, streamClient, "GET", c.URL, "", c.Session, "Accept: text/event-stream")
	waiting := c.beginCall("alpha::hang", `{}`)
	await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) == 2 })
	pids := map[int]bool{}
	for _, e := range journal.entries(t, "start") {
		pids[e.PID] = true
	}
	if got := send(t, client, "DELETE", c.URL, "", c.Session); got.StatusCode/100 != 2 {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	if got := c.await(waiting); got.Result != nil {
		t.Errorf("the call got %s", got.Body)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stream.Body)
		close(ended)
	}()
	wait(t, ended, "the end of the stream")
	await.Until(t, "the end of its children", func() bool {
		running := 0
		for pid := range pids {
			if processRuns(pid) {
				running++
			}
		}
		return running == len(pids)-2
	})
	if got := other.use("alpha::slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
}

// Servers of all kinds work at /mcp: without sessions, Caddy handlers, and behind handlers that
// refuse requests.
func TestAggregateKindsOfServers(t *testing.T) {
	isolate(t)
	stateless := upstream(t, mcpsample.NewServer())
	url := serve(t, gateway(
		"server plain http://"+stateless+"/mcp",
		block("server here", "mcp_sample"),
		block("server guarded http://"+stateless+"/mcp", "error 401"),
		block("server limited http://"+stateless+"/mcp", "@call vars {http.mcp.method} tools/call", "header Retry-After 7",
			"error @call 429"),
	))
	c := newListeningClient(t, url, `{}`)
	names := c.list("tools/list", "name")
	for _, server := range []string{"plain", "here", "limited"} {
		if !slices.Contains(names, server+"::echo") {
			t.Errorf("A1 listed %v", names)
		}
	}
	for _, server := range []string{"plain", "here"} {
		if got := c.use(server+"::echo", `{"text":"é\u00e9"}`); got != "éé" {
			t.Errorf("A1 %s", got)
		}
	}
	for server, symbol := range map[string]string{"guarded": "unauthorized", "limited": "rate_limited"} {
		if got := c.ask("tools/call", `{"name":"`+server+`::echo","arguments":{"text":"x"}}`); got.Error == nil ||
			got.Error.Symbol() != symbol || got.Status != 200 {
			t.Errorf("R13 %d %s", got.Status, got.Raw)
		}
	}
}

func TestAggregateLargeMessages(t *testing.T) {
	isolate(t)
	const size = 9 << 20
	c := newLegacyClient(t, serve(t, gateway(child("alpha"))), `{}`)
	if got := c.use("alpha::big", fmt.Sprintf(`{"n":%d}`, size)); got != strings.Repeat("x", size) {
		t.Errorf("A41 %d bytes, %.100s", len(got), got)
	}
	arguments := `{"text":"` + strings.Repeat("y", size) + `"}`
	if got := c.use("alpha::echo", arguments); got != `{"name":"echo","arguments":`+arguments+`}` {
		t.Errorf("A41 %d bytes, %.100s", len(got), got)
	}
}

func TestAggregateDeath(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("mortal"), journal.env(), "timeout 10m"), child("other")))
	c := newListeningClient(t, url, `{}`)
	pid := c.use("mortal::pid", `{}`)
	waiting := c.beginCall("mortal::hang", `{}`)
	await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) == 2 })
	for _, got := range []mcpclient.Response{c.await(c.beginCall("mortal::die", `{"code":3}`)), c.await(waiting)} {
		if got.Error == nil || got.Error.Code != -32002 || got.Error.Symbol() != "connect_error" || got.Status != 200 {
			t.Errorf("A37 %d %s", got.Status, got.Raw)
		}
	}
	if got := c.use("other::slow", `{"ms":1}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	if again := c.use("mortal::pid", `{}`); again == pid {
		t.Errorf("A37 the killed child has responded")
	}
	c.awaitMessages("notifications/tools/list_changed", 1)
	if !c.listsTool("mortal::echo") {
		t.Error("A37 its tools are gone")
	}
}

func TestAggregateReloads(t *testing.T) {
	isolate(t)
	journal, address := newJournal(t), freeAddress(t)
	config := func(more ...string) string {
		return site(address, gateway(append([]string{block(child("kept"), journal.env()), block(child("own"), journal.env(),
			"isolation session")}, more...)...))
	}
	load(t, config())
	c := newListeningClient(t, "http://"+address, `{}`)
	pid, own := c.use("kept::pid", `{}`), c.use("own::pid", `{}`)
	t.Run("A60 a server is added", func(t *testing.T) {
		c := c.withTest(t)
		calls := len(journal.entries(t, "tools/call"))
		waiting := c.beginCall("kept::slow", `{"ms":500}`)
		await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > calls })
		load(t, config(child("new")))
		c.awaitMessages("notifications/tools/list_changed", 1)
		if !c.listsTool("new::echo") || !c.listsTool("kept::echo") {
			t.Errorf("listed %v", c.list("tools/list", "name"))
		}
		if got := c.use("new::slow", `{"ms":0}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
		if again := c.use("kept::pid", `{}`); again != pid {
			t.Errorf("%s became %s", pid, again)
		}
		if again := c.use("own::pid", `{}`); again != own {
			t.Errorf("%s became %s", own, again)
		}
		if got := c.await(waiting); got.Result == nil {
			t.Errorf("the call in flight got %v %s", got.Err, got.Body)
		}
	})
	t.Run("A61 a broken configuration changes nothing", func(t *testing.T) {
		c := c.withTest(t)
		expectConfigError(t, "text/caddyfile", withAdmin(config(child("new"), "server a::b http://127.0.0.1:1"),
			adminAddress(t)), "a::b")
		if again := c.use("kept::pid", `{}`); again != pid {
			t.Errorf("%s became %s", pid, again)
		}
		if !c.listsTool("new::echo") {
			t.Errorf("listed %v", c.list("tools/list", "name"))
		}
	})
	t.Run("A60 a server is removed", func(t *testing.T) {
		c := c.withTest(t)
		before := len(c.receivedMessages("notifications/tools/list_changed"))
		load(t, config())
		c.awaitMessages("notifications/tools/list_changed", before+1)
		if c.listsTool("new::echo") {
			t.Errorf("listed %v", c.list("tools/list", "name"))
		}
		c.expectError("tools/call", `{"name":"new::echo"}`, -32602)
		if again := c.use("kept::pid", `{}`); again != pid {
			t.Errorf("%s became %s", pid, again)
		}
	})
	t.Run("A60 a server is changed", func(t *testing.T) {
		c := c.withTest(t)
		load(t, site(address, gateway(block(child("kept", "--tools", "1"), journal.env()))))
		await.Until(t, "its new tool", func() bool { return c.listsTool("kept::t1") })
		if again := c.use("kept::pid", `{}`); again == pid {
			t.Errorf("the process is still %s", pid)
		}
	})
	t.Run("A39 no child remains", func(t *testing.T) {
		load(t, site(address, "respond x"))
		for _, e := range journal.entries(t, "start") {
			await.Until(t, "the end of a child", func() bool { return syscall.Kill(e.PID, 0) != nil })
		}
	})
}

// Two processes with the same key serve one client alternately. Each reads the state of the session
// from its id.
func TestAggregateProcesses(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	config := filepath.Join(t.TempDir(), "Caddyfile")
	caddyfile := site(":8080", "bind 127.0.0.1", gateway("session_key 0123456789abcdef0123456789abcdef",
		remote.line("remote")))
	if err := os.WriteFile(config, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	processes := []*caddyProcess{run(t, config), run(t, config)}
	c := newLegacyClient(t, "http://"+processes[0].address, `{}`)
	for i := range 6 {
		c.URL = joinedAt("http://" + processes[i%2].address)
		if got := c.use("remote::tool", `{}`); !strings.Contains(got, "tool") {
			t.Errorf("call %d of %s: got %s, want the params", i, c.URL, got)
		}
	}
	if n := remote.Count("initialize"); n != 1 {
		t.Errorf("the server was initialized %d times", n)
	}
}
