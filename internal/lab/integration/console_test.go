package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Tokens of two clients of a gateway. One may do everything, the other may not call echo.
const (
	tokenOfAlice = "alice-0123456789abcdef0123456789abcdef"
	tokenOfBob   = "bob-0123456789abcdef0123456789abcdef"
)

// twoClients returns these clients in the configuration of a gateway.
func twoClients() string {
	return block("client alice", "token "+tokenOfAlice) + "\n" + block("client bob", "token "+tokenOfBob,
		"deny sample::echo")
}

// modelRoute returns the route to a model in the configuration of a site.
func modelRoute(t *testing.T, name string) string {
	t.Helper()
	return block("handle /v1/*", conversationMask("window_turns 1", "route "+name), proxy(upstream(t, &mcptest.Chat{})))
}

// busySite returns a site with servers of all kinds, two clients and a model.
func busySite(t *testing.T) []string {
	t.Helper()
	remote := newLenientServer(t, "failing", "broken",
		`{"name":"typed","description":"Wants a number.","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object",`+
			`"properties":{"n":{"type":"integer","description":"How many."},"way":{"enum":["up","down"]},`+
			`"sure":{"type":"boolean"},"more":{"type":"object"}},"required":["n"]}}`)
	remote.Replies = map[string]string{
		"failing": `"result":{"isError":true,"content":[{"type":"text","text":"the disk is full"}]}`,
		"broken":  `"error":{"code":-32603,"message":"out of order"}`,
	}
	return []string{
		block("mcp_console", "price 3"),
		gateway("name local", "separator __", "record on", block("mask", "json on"), twoClients(),
			block("server sample", "mcp_sample"), child("alpha"), remote.line("far")),
		modelRoute(t, "coding"),
	}
}

// traffic sends requests through a busy site until the end of the test: masked results, errors,
// denials and conversations.
func traffic(t *testing.T, url string, pause time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	bob := newTestClient(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))
	done.Go(func() {
		for ctx.Err() == nil {
			roundOfTraffic(ctx, url, alice, bob, pause)
		}
	})
}

// roundOfTraffic sends one request of each kind.
func roundOfTraffic(ctx context.Context, url string, alice, bob *testClient, pause time.Duration) {
	for _, call := range []struct {
		who                     *testClient
		server, tool, arguments string
	}{
		{alice, "sample", "read_log", `{"lines":300}`},
		{bob, "sample", "echo", `{"text":"may I?"}`},
		{alice, "far", "failing", `{}`},
		{bob, "sample", "list_files", `{}`},
		{alice, "far", "broken", `{}`},
		{alice, "alpha", "big", `{"n":20000}`},
		{alice, "sample", "echo", `{"text":"hello"}`},
	} {
		call.who.Start(ctx, "tools/call", callOf(call.server, call.tool, call.arguments)).Finish()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
	if req, err := mcpclient.NewRequest(ctx, "POST", url+"/v1/chat/completions", b2Sent); err == nil {
		if res, err := streamClient.Do(req); err == nil {
			res.Body.Close()
		}
	}
}

// A consoleState is a state of the gateway that the console shows.
type consoleState struct {
	name string

	// serve serves a site in this state and returns its address.
	serve func(t *testing.T) string

	path, text string // a page, and a text on it
}

var consoleStates = []consoleState{
	{"continuous calls", func(t *testing.T) string {
		url := serve(t, busySite(t)...)
		alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
		bob := newTestClient(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))
		roundOfTraffic(t.Context(), url, alice, bob, 0)
		traffic(t, url, 20*time.Millisecond)
		return url
	}, "/console/calls", "read_log"},
	{"no server", func(t *testing.T) string {
		file := filepath.Join(t.TempDir(), "mcp.json")
		if err := os.WriteFile(file, []byte(`{"mcpServers":{}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return serve(t, "mcp_console", gateway("separator __", "servers_from "+file))
	}, "/console/servers", "No servers yet"},
	{"dead servers", func(t *testing.T) string {
		url := serve(t, "mcp_console", gateway("separator __", "server gone http://127.0.0.1:1/mcp",
			`server dying stdio sh -c "echo 'no key is set' >&2; exit 3"`))
		post(t, rpcAt(url, "gone"), toolCall{"any", `{}`}.request())
		post(t, rpcAt(url, "dying"), toolCall{"any", `{}`}.request())
		return url
	}, "/console/servers/dying", "no key is set"},
	{"1,000 tools", func(t *testing.T) string {
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprintf(`{"name":"tool_%d","description":"Does what tool %d does, and nothing else.",`+
				`"inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}`, i, i))
		}
		url := serve(t, "mcp_console", gateway("separator __", newLenientServer(t, names...).line("large")))
		post(t, rpcAt(url, "large"), toolCall{"tool_7", `{"path":"x"}`}.request())
		return url
	}, "/console/tools", "1,000 tools"},
}

// links returns the targets of the page's links that begin with prefix.
func (b *tab) links(t *testing.T, prefix string) []string {
	t.Helper()
	return value[[]string](t, b, `[...new Set([...document.links].filter(a => a.pathname.startsWith(`+quote(prefix)+
		`) && a.origin == location.origin).map(a => a.pathname + a.search))]`)
}

// checkPage opens a page and checks that it is readable at every width, in light and dark.
func (b *tab) checkPage(t *testing.T, path string) {
	t.Helper()
	b.open(t, path)
	if got := value[int](t, b, `document.querySelectorAll("h1").length`); got != 1 {
		t.Errorf("%s: got %d headings, want 1", path, got)
	}
	b.expectAccessible(t)
	b.setView(t, 1280, true)
	b.expectAccessible(t, "color-contrast")
	for _, width := range []int64{400, 2000, 1280} {
		b.setView(t, width, false)
		b.expectFits(t)
	}
}

// The console tests share a browser, because it takes longer to start than most of them.
func TestConsole(t *testing.T) {
	isolate(t)
	c := newChromium(t)
	for _, tt := range []struct {
		name string
		test func(*testing.T, *chromium)
	}{
		{"hostile texts", testConsoleHostile},
		{"memory", testConsoleMemory},
		{"pages", testConsolePages},
		{"live", testConsoleLive},
		{"reload", testConsoleReload},
		{"servers", testConsoleServers},
		{"try", testConsoleTry},
		{"a call", testConsoleCall},
		{"accept", testConsoleAccept},
		{"login", testConsoleLogin},
		{"keyboard", testConsoleKeyboard},
		{"search", testConsoleSearch},
		{"other sites", testConsoleOtherSites},
		{"beyond loopback", testConsoleBeyondLoopback},
		{"screenshots", testConsoleScreenshots},
	} {
		t.Run(tt.name, func(t *testing.T) {
			isolate(t)
			tt.test(t, c)
		})
	}
}

// Every page is readable and accessible at every width, in light and dark, in all states.
func testConsolePages(t *testing.T, c *chromium) {
	for _, state := range consoleStates {
		t.Run(state.name, func(t *testing.T) {
			isolate(t)
			url := state.serve(t)
			b := c.newTab(t, url)
			b.setView(t, 1280, false)
			b.open(t, state.path)
			b.awaitText(t, state.text)
			for _, path := range []string{"/console/", "/console/conversations", "/console/connect"} {
				b.checkPage(t, path)
			}
			for _, list := range []string{"/console/servers", "/console/tools", "/console/calls"} {
				b.checkPage(t, list)
				found := b.links(t, list+"/")
				for _, path := range found[:min(2, len(found))] {
					b.checkPage(t, path)
				}
			}
		})
	}
}

// Pages are complete without JavaScript.
func TestConsoleWithoutScript(t *testing.T) {
	isolate(t)
	url := serve(t, busySite(t)...)
	alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	alice.use(t, "sample", "echo", `{"text":"hello"}`)
	post(t, url+"/v1/chat/completions", b2Sent)
	for path, want := range map[string]string{
		"/console/": "sample", "/console/servers": "alpha", "/console/tools": "sample__echo", "/console/calls": "alice",
		"/console/connect": url + "/mcp", "/console/conversations": "coding",
	} {
		got := send(t, client, "GET", url+path, "")
		if got.StatusCode != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d, want %q in %s", path, got.StatusCode, want, got.body)
		}
		if strings.Contains(got.body, tokenOfAlice) {
			t.Errorf("%s shows the token of a client", path)
		}
	}
}
