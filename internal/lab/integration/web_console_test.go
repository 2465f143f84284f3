package integration

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
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
	details    int    // pages to check of each list
	whole      bool   // check all pages, at every width, also in dark
}

var consoleStates = []consoleState{
	{"continuous calls", func(t *testing.T) string {
		url := serve(t, busySite(t)...)
		alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
		bob := newTestClient(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))
		roundOfTraffic(t.Context(), url, alice, bob, 0)
		traffic(t, url, 20*time.Millisecond)
		return url
	}, "/console/calls", "read_log", 2, true},
	{"no server", func(t *testing.T) string {
		file := filepath.Join(t.TempDir(), "mcp.json")
		if err := os.WriteFile(file, []byte(`{"mcpServers":{}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return serve(t, "mcp_console", gateway("separator __", "servers_from "+file))
	}, "/console/servers", "No servers yet", 0, false},
	{"dead servers", func(t *testing.T) string {
		url := serve(t, "mcp_console", gateway("separator __", "server gone http://127.0.0.1:1/mcp",
			`server dying stdio sh -c "echo 'no key is set' >&2; exit 3"`))
		post(t, rpcAt(url, "gone"), toolCall{"any", `{}`}.request())
		post(t, rpcAt(url, "dying"), toolCall{"any", `{}`}.request())
		return url
	}, "/console/servers/dying", "no key is set", 1, false},
	{"1,000 tools", func(t *testing.T) string {
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprintf(`{"name":"tool_%d","description":"Does what tool %d does, and nothing else.",`+
				`"inputSchema":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}`, i, i))
		}
		url := serve(t, "mcp_console", gateway("separator __", newLenientServer(t, names...).line("large")))
		post(t, rpcAt(url, "large"), toolCall{"tool_7", `{"path":"x"}`}.request())
		return url
	}, "/console/tools", "1,000 tools", 1, false},
}

// links returns the targets of the page's links that begin with prefix.
func (b *tab) links(t *testing.T, prefix string) []string {
	t.Helper()
	return value[[]string](t, b, `[...new Set([...document.links].filter(a => a.pathname.startsWith(`+quote(prefix)+
		`) && a.origin == location.origin).map(a => a.pathname + a.search))]`)
}

// checkPage opens a page and checks that it is readable: on a phone, or if whole, at every width, in
// light and dark.
func (b *tab) checkPage(t *testing.T, path string, whole bool) {
	t.Helper()
	b.open(t, path)
	if got := value[int](t, b, `document.querySelectorAll("h1").length`); got != 1 {
		t.Errorf("%s: got %d headings, want 1", path, got)
	}
	// A live page whose elements change reloads itself, which would end the checks.
	value[bool](t, b, `document.getElementById("pause")?.click(), true`)
	b.expectAccessible(t)
	widths := []int64{400}
	if whole {
		b.setView(t, 1280, true)
		b.expectAccessible(t, "color-contrast")
		widths = append(widths, 2000, 1280)
	}
	for _, width := range widths {
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
		{"leaving", testConsoleLeaving},
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

// Every page is readable and accessible at every width, in light and dark, and on a phone in all states.
func testConsolePages(t *testing.T, c *chromium) {
	for _, state := range consoleStates {
		t.Run(state.name, func(t *testing.T) {
			isolate(t)
			url := state.serve(t)
			b := c.newTab(t, url)
			b.setView(t, 1280, false)
			b.open(t, state.path)
			b.awaitText(t, state.text)
			b.checkPage(t, "/console/", state.whole)
			for _, list := range []string{"/console/servers", "/console/tools", "/console/calls"} {
				b.checkPage(t, list, state.whole)
				found := b.links(t, list+"/")
				for _, path := range found[:min(state.details, len(found))] {
					b.checkPage(t, path, state.whole)
				}
			}
			if state.whole {
				b.checkPage(t, "/console/conversations", true)
				b.checkPage(t, "/console/connect", true)
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

// button returns a JavaScript expression for the button, link or summary with this text.
func button(text string) string {
	return `[...document.querySelectorAll("button, a, summary")].find(e => e.innerText.trim() == ` + quote(text) + `)`
}

// click clicks the element with this text, and stays on the page.
func (b *tab) click(t *testing.T, text string) {
	t.Helper()
	b.until(t, "there is "+text, button(text))
	value[bool](t, b, button(text)+`.click(), true`)
}

// press clicks the element with this text, which leads to another page, and returns its status.
func (b *tab) press(t *testing.T, text string) int {
	t.Helper()
	b.until(t, "there is "+text, button(text))
	return b.navigate(t, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Evaluate[bool](button(text)+`.click(), true`)(ctx, target)
		return chromedp.Void{}, err
	})
}

// fill enters a text into the field whose label begins with label, or selects the option with this
// text.
func (b *tab) fill(t *testing.T, label, text string) {
	t.Helper()
	field := `(l => l.control || document.getElementById(l.htmlFor))([...document.querySelectorAll("label")].find(l ` +
		`=> l.innerText.trim().startsWith(` + quote(label) + `)))`
	b.until(t, "there is a field "+label, field)
	value[bool](t, b, `(e => {
		const text = `+quote(text)+`;
		e.value = e.localName == "select" ? [...e.options].find(o => o.text == text).value : text;
		e.dispatchEvent(new Event("input", {bubbles: true}));
		e.dispatchEvent(new Event("change", {bubbles: true}));
	})(`+field+`), true`)
}

// Servers can be checked, refreshed and restarted.
func testConsoleServers(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	pid := alice.use(t, "alpha", "pid", `{}`)
	b := c.newTab(t, url)
	b.open(t, "/console/servers")
	if got := b.press(t, "alpha"); got != 200 {
		t.Fatalf("status %d", got)
	}
	b.awaitText(t, "process "+pid)

	alice.use(t, "alpha", "add-tool", `{"name":"quiet-one","quiet":true}`)
	b.press(t, "Refresh its lists")
	if lists := tools(t, alice); !strings.Contains(strings.Join(lists, " "), "alpha__quiet-one") {
		t.Errorf("tools after a refresh: %q", lists)
	}
	b.press(t, "Check now")
	b.awaitText(t, "up")
	b.click(t, "Restart…")
	b.press(t, "Restart")
	if got := alice.use(t, "alpha", "pid", `{}`); got == pid {
		t.Errorf("the process is still %s", pid)
	} else {
		b.awaitText(t, "process "+got)
	}
	if got := value[string](t, b, `location.search`); strings.Contains(got, pid) || strings.Contains(b.path(t),
		"/restart") {
		t.Errorf("got page %s", b.path(t))
	}
}

// Tools can be tried: the form has their arguments, and the result is shown as agents get it and as
// the server sent it.
func testConsoleTry(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	b := c.newTab(t, url)

	b.open(t, "/console/tools?q=read+log")
	b.press(t, "sample__read_log")
	b.awaitText(t, "Returns the log of an imaginary order service")
	b.fill(t, "lines", "500")
	b.press(t, "Call it")
	b.awaitText(t, "As the agent gets it")
	b.awaitText(t, "As the server sent it")
	sizes := value[[]int](t, b, `[...document.querySelectorAll("#result .pair > section")].map(s => `+
		`s.querySelector("[role=region]").innerText.length)`)
	if len(sizes) != 2 || sizes[0] >= sizes[1] || sizes[1] < 10_000 {
		t.Errorf("got panes with %v characters, want fewer for the agent", sizes)
	}
	if got := value[int](t, b, `document.querySelectorAll("#result .pair > section mark").length`); got != 1 {
		t.Errorf("got %d gaps, want 1", got)
	}
	if got := value[string](t, b, `document.querySelector("input[type=number]").value`); got != "500" {
		t.Errorf("got %q in the form, want the entered value", got)
	}
	b.expectAccessible(t)

	b.fill(t, "lines", "0") // less than the schema allows
	b.press(t, "Call it")
	b.until(t, "the error", `document.querySelector("[role=alert]").innerText.includes("lines")`)

	b.open(t, "/console/tools/far__typed")
	if value[bool](t, b, `document.querySelector("form.try").checkValidity()`) {
		t.Error("the form can be sent without required fields")
	}
	b.fill(t, "n", "7")
	b.fill(t, "way", "down")
	b.fill(t, "sure", "false")
	b.fill(t, "more", "{\"a\": [1]}")
	b.press(t, "Call it")
	// the tool returns its arguments
	for _, want := range []string{`"n":7`, `"way":"down"`, `"sure":false`, `"more":{"a":`} {
		b.until(t, "the arguments at the server",
			`document.querySelector("#result").innerText.replaceAll(" ", "").includes(`+quote(want)+`)`)
	}
	b.fill(t, "more", "[1")
	b.press(t, "Call it")
	b.until(t, "the error", `document.querySelector("[role=alert]").innerText.includes("more")`)

	b.open(t, "/console/tools/sample__echo")
	b.fill(t, "text", "line 1\nline 2 <b>")
	b.press(t, "Call it")
	b.awaitText(t, "line 2 <b>")

	b.fill(t, "Call it as", "bob")
	b.press(t, "Call it")
	b.until(t, "an error for bob", `document.querySelector("[role=alert]").innerText.length > 0`)

	b.open(t, "/console/tools/sample__echo")
	for _, decision := range []struct{ client, action string }{{"alice", "allow"}, {"bob", "deny"}} {
		b.fill(t, "Decision for", decision.client)
		b.press(t, "Show")
		b.until(t, "the decision", `[...document.querySelectorAll("section .badge")].some(e => e.innerText == `+
			quote(decision.action)+`)`)
	}
	b.awaitText(t, "sample::echo") // the rule

	b.open(t, "/console/tools/alpha__die") // not marked as read-only
	if got := value[bool](t, b, `document.querySelector("[name=sure]").required && `+
		`!document.querySelector("form.try").checkValidity()`); !got {
		t.Error("a tool that is not read-only is called without confirmation")
	}
}

// Calls are shown with the masked result and the original.
func testConsoleCall(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	alice.use(t, "sample", "read_log", `{"lines":500}`)
	alice.begin(t, "tools/call", callOf("far", "failing", `{}`)).Finish()
	b := c.newTab(t, url)
	b.open(t, "/console/calls")
	b.fill(t, "Tool", "read_log")
	b.press(t, "Filter")
	if got := value[int](t, b, `document.querySelectorAll("#rows tr").length`); got != 1 {
		t.Fatalf("got %d calls, want 1:\n%s", got, b.text())
	}
	b.navigate(t, chromedp.Click(chromedp.CSS("#rows tr a")))
	b.awaitText(t, `"lines": 500`)
	if got := value[int](t, b, `document.querySelectorAll("mark").length`); got != 1 {
		t.Errorf("got %d gaps, want 1:\n%s", got, b.text())
	}
	if got := b.navigate(t, chromedp.Click(chromedp.CSS("main li a"))); got != 200 {
		t.Errorf("original: status %d", got)
	}
	if got := value[int](t, b, `document.querySelector("pre").innerText.split("\n").length`); got < 500 {
		t.Errorf("got %d lines of the original, want 500", got)
	}
	b.expectAccessible(t)
}

// Changed definitions of servers are shown as a diff, and can be accepted.
func testConsoleAccept(t *testing.T, c *chromium) {
	address := freeAddress(t)
	load(t, block("", storedIn(t.TempDir()))+"\n"+site(address, "mcp_console", gateway("name pinned", "separator __",
		"pin_tools on", child("alpha"))))
	url := "http://" + address
	agent := newTestClient(t, joinedAt(url), false, `{}`)
	stream := agent.listenForChanges(t)
	for _, weather := range []string{weatherAtFirst, weatherLater} {
		agent.use(t, "alpha", "add-tool", weather)
		stream.awaitMessage(t, listChanged)
		tools(t, agent)
	}
	if got := changes(t); len(got) != 1 {
		t.Fatalf("changed: %q", got)
	}
	b := c.newTab(t, url)
	b.open(t, "/console/servers")
	b.awaitText(t, "1 tool changed")
	b.press(t, "alpha")
	lines := value[[]string](t, b, `[...document.querySelectorAll(".diff span")].map(e => `+
		`e.innerText.trim()).filter(l => l.startsWith("+") || l.startsWith("-") || l.startsWith("−"))`)
	if len(lines) != 2 || !strings.Contains(lines[0], "Tells the weather.") || !strings.Contains(lines[1],
		"send them along") {
		t.Errorf("got diff %q", lines)
	}
	b.expectAccessible(t)
	b.press(t, "Accept this definition")
	if got := changes(t); len(got) > 0 {
		t.Errorf("not accepted: %q", got)
	}
	if got := agent.use(t, "alpha", "weather", `{}`); got != "weather" {
		t.Errorf("got tool description %q", got)
	}
}

// The page of a server links to its login, and shows when it is done.
func testConsoleLogin(t *testing.T, c *chromium) {
	a := startAuthServer(t, nil)
	address := freeAddress(t)
	load(t, block("", storedIn(t.TempDir()))+"\n"+site(address, "mcp_console", gateway(a.line("oauth"), "separator __")))
	url := "http://" + strings.Replace(address, "127.0.0.1", "localhost", 1)
	awaitTools(t, newTestClient(t, joinedAt(url), false, `{}`), "notes__login")
	b := c.newTab(t, url)
	b.open(t, "/console/servers/notes")
	b.awaitText(t, "login required")
	expectLoggedIn(t, c.logIn(t, value[string](t, b, button("Log in")+`.href`), "alice"))
	b.until(t, "the login", button("Log out…"))
	b.click(t, "Log out…")
	b.press(t, "Log out")
	b.awaitText(t, "login required")
	// A page that is hidden until the login is done shows it, too.
	if _, err := chromedp.Call(b.ctx, cdppage.AddScriptToEvaluateOnNewDocument,
		cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: `Object.defineProperty(document, "visibilityState", ` +
			`{get: () => sessionStorage.shown ? "visible" : "hidden"})`}); err != nil {
		t.Fatal(err)
	}
	b.open(t, "/console/servers/notes")
	expectLoggedIn(t, c.logIn(t, value[string](t, b, button("Log in")+`.href`), "alice"))
	value[bool](t, b, `(sessionStorage.shown = true) && document.dispatchEvent(new Event("visibilitychange"))`)
	b.until(t, "the login", button("Log out…"))
}

// The console can be used without a mouse.
func testConsoleKeyboard(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	b := c.newTab(t, url)
	b.setView(t, 1280, false)
	b.open(t, "/console/")
	const focused = `(e => e.innerText.trim())(document.activeElement)`
	b.do(t, chromedp.KeyEvent(kb.Tab))
	if got := value[string](t, b, focused); got != "Skip to content" {
		t.Errorf("the first Tab goes to %q, want the skip link", got)
	}
	if got := value[bool](t, b, `(r => r.top >= 0 && r.left >= 0 && r.width > `+
		`1)(document.activeElement.getBoundingClientRect())`); !got {
		t.Error("the skip link is invisible with focus")
	}
	b.do(t, chromedp.KeyEvent(kb.Enter))
	b.until(t, "the focus on the content", `document.activeElement.id == "main"`)

	b.open(t, "/console/")
	for range 20 {
		b.do(t, chromedp.KeyEvent(kb.Tab))
		if value[string](t, b, focused) == "Tools" {
			break
		}
	}
	if got := value[string](t, b, `(s => s.outlineStyle + " " + parseFloat(s.outlineWidth) + " " + `+
		`s.boxShadow)(getComputedStyle(document.activeElement))`); strings.HasPrefix(got, "none") || strings.Contains(got,
		" 0 none") {
		t.Errorf("the focus is invisible: %s", got)
	}
	if got := b.navigate(t, chromedp.KeyEvent(kb.Enter)); got != 200 || !strings.HasPrefix(b.path(t), "/console/tools") {
		t.Errorf("Enter leads to %s, status %d", b.path(t), got)
	}
	b.open(t, "/console/connect")
	b.do(t, chromedp.Focus(chromedp.CSS("button[data-copy]")), chromedp.KeyEvent(kb.Enter))
	b.until(t, "the message that it is copied", `document.getElementById("said").textContent != ""`)
	// All clickable elements can have focus, and have a name.
	for _, path := range []string{"/console/", "/console/servers/alpha", "/console/tools/sample__echo", "/console/calls",
		"/console/connect"} {
		b.open(t, path)
		if got := value[[]string](t, b,
			`[...document.querySelectorAll("main a, main button, main input:not([type=hidden]), main select, main textarea, main summary")]
			.filter(e => e.checkVisibility() && e.tabIndex < 0).map(e => e.outerHTML.slice(0, 200))`); len(got) > 0 {
			t.Errorf("%s has elements without keyboard access: %q", path, got)
		}
	}
}

// 1,000 tools can be searched, and are not all shown at once.
func testConsoleSearch(t *testing.T, c *chromium) {
	b := c.newTab(t, consoleStates[3].serve(t))
	b.open(t, "/console/tools")
	count := func() int { return len(b.links(t, "/console/tools/")) }
	if got := count(); got != 200 {
		t.Errorf("got %d tools, want 200", got)
	}
	b.awaitText(t, "800 more")
	b.press(t, "show all")
	if got := count(); got != 1000 {
		t.Errorf("got %d tools, want all", got)
	}
	b.open(t, "/console/tools")
	b.fill(t, "Search", "tool_99")
	b.press(t, "Show")
	if got := count(); got != 11 { // 99 and 990 to 999
		t.Errorf("found %d tools, want 11", got)
	}
	b.press(t, "large__tool_99")
	b.awaitText(t, "Does what tool 99 does")
}

// awaitLive waits until the page gets live updates, and marks it to detect a later page load.
func (b *tab) awaitLive(t *testing.T) {
	t.Helper()
	b.until(t, "the page to be live", `document.getElementById("live").textContent == "Live" && (window.marked = true)`)
	b.live = time.Now()
}

// expectSamePage fails the test if the page was loaded again since it was live. On another day that
// is fine: there is one more day to show.
func (b *tab) expectSamePage(t *testing.T) {
	t.Helper()
	if !value[bool](t, b, `window.marked === true`) && b.live.UTC().Day() == time.Now().UTC().Day() {
		t.Errorf("%s was loaded again", b.path(t))
	}
}

// rowsWith returns a JavaScript expression for the number of listed calls with a text.
func rowsWith(text string) string {
	return `[...document.querySelectorAll("#rows tr")].filter(tr => tr.innerText.includes(` + quote(text) + `)).length`
}

// openStreams returns the number of live pages at Caddy.
func openStreams(t *testing.T) float64 {
	t.Helper()
	return metrics(t)[`kept_entries{kind="console_streams"}`]
}

// All tabs show new events at once.
func testConsoleLive(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	alice := newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	bob := newTestClient(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))
	alice.use(t, "alpha", "pid", `{}`)

	all := c.newTab(t, url)
	all.open(t, "/console/calls")
	all.awaitLive(t)
	bobs := all.openSibling(t)
	bobs.open(t, "/console/calls?client=bob&outcome=acl_denied")
	bobs.awaitLive(t)

	t.Run("calls", func(t *testing.T) {
		alice.use(t, "sample", "read_log", `{}`)
		bob.begin(t, "tools/call", callOf("sample", "echo", `{"text":"x"}`)).Finish()
		bob.use(t, "sample", "list_files", `{}`)
		for _, tool := range []string{"read_log", "echo", "list_files"} {
			all.until(t, "a new call of "+tool, rowsWith(tool)+" == 1")
		}
		all.expectSamePage(t)
		if got := value[string](t, all, `document.querySelector("#rows tr").innerText`); !strings.Contains(got,
			"list_files") {
			t.Errorf("got first row %q, want the last call", got)
		}
	})

	t.Run("filtered", func(t *testing.T) {
		bobs.until(t, "the refusal", rowsWith("echo")+" == 1")
		bobs.expectSamePage(t)
		if got := value[int](t, bobs, `document.querySelectorAll("#rows tr").length`); got != 1 {
			t.Errorf("got %d rows, want 1: %s", got, bobs.text())
		}
	})

	t.Run("paused", func(t *testing.T) {
		bobs.do(t, chromedp.Click(chromedp.CSS("#pause")))
		bobs.until(t, "the page to be paused", `document.getElementById("live").textContent == "Paused"`)
		await.Until(t, "the end of its stream", func() bool { return openStreams(t) == 1 })
		bob.begin(t, "tools/call", callOf("sample", "echo", `{"text":"y"}`)).Finish()
		all.until(t, "the call", rowsWith("echo")+" == 2")
		if got := value[int](t, bobs, rowsWith("echo")); got != 1 {
			t.Errorf("got %d rows on the paused page, want 1", got)
		}
		bobs.do(t, chromedp.Click(chromedp.CSS("#pause")))
		bobs.until(t, "the missed call", rowsWith("echo")+" == 2")
	})

	t.Run("hidden", func(t *testing.T) {
		bobs.open(t, bobs.path(t)) // else it would reload soon, because it was paused
		bobs.awaitLive(t)
		await.Until(t, "both pages to be live", func() bool { return openStreams(t) == 2 })
		bobs.hide(t, true)
		await.Until(t, "the end of the hidden tab's stream", func() bool { return openStreams(t) == 1 })
		bob.begin(t, "tools/call", callOf("sample", "echo", `{"text":"z"}`)).Finish()
		all.until(t, "the call", rowsWith("echo")+" == 3")
		if got := value[int](t, bobs, rowsWith("echo")); got != 2 {
			t.Errorf("got %d rows on the hidden page, want 2", got)
		}
		bobs.hide(t, false)
		bobs.until(t, "the missed call", rowsWith("echo")+" == 3")
	})

	t.Run("overview", func(t *testing.T) {
		all.open(t, "/console/")
		all.awaitLive(t)
		before := value[string](t, all, `document.getElementById("calls").textContent + " " + `+
			`document.getElementById("tokens").textContent`)
		for range 3 {
			alice.use(t, "sample", "read_log", `{}`)
		}
		all.until(t, "the numbers to change", `document.getElementById("calls").textContent + " " + `+
			`document.getElementById("tokens").textContent != `+quote(before))
		all.expectSamePage(t)
	})

	t.Run("servers", func(t *testing.T) {
		all.open(t, "/console/servers")
		all.awaitLive(t)
		row := func(column string) string {
			return `[...document.querySelectorAll("tbody tr")].find(tr => tr.innerText.includes("alpha")).querySelector("[id$=-` + column + `]").textContent`
		}
		if got := value[string](t, all, row("restarts")); got != "0" {
			t.Errorf("restarts: %q", got)
		}
		alice.begin(t, "tools/call", callOf("alpha", "die", `{"code":1}`)).Finish()
		alice.use(t, "alpha", "pid", `{}`)
		all.until(t, "the restart", row("restarts")+` == "1"`)
		all.until(t, "the server to be up", row("state")+` == "up"`)
		all.expectSamePage(t)
	})
}

// hide hides the window, or shows it again.
func (b *tab) hide(t *testing.T, hidden bool) {
	t.Helper()
	state, want := cdpbrowser.WindowStateNormal, "visible"
	if hidden {
		state, want = cdpbrowser.WindowStateMinimized, "hidden"
	}
	window, err := chromedp.Call(b.ctx, cdpbrowser.GetWindowForTarget, cdpbrowser.GetWindowForTargetParams{})
	if err == nil {
		_, err = chromedp.Call(b.ctx, cdpbrowser.SetWindowBounds, cdpbrowser.SetWindowBoundsParams{
			WindowID: window.WindowID, Bounds: &cdpbrowser.Bounds{WindowState: state},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.until(t, "the tab to be "+want, `document.visibilityState == `+quote(want))
}

// A configuration reload does not wait for open pages, and they continue with the new
// configuration.
func testConsoleReload(t *testing.T, c *chromium) {
	address := freeAddress(t)
	lines := busySite(t)
	load(t, site(address, lines...))
	url := "http://" + address
	servers := c.newTab(t, url)
	servers.open(t, "/console/servers")
	servers.awaitLive(t)
	calls := servers.openSibling(t)
	calls.open(t, "/console/calls")
	calls.awaitLive(t)
	value[bool](t, calls, `new MutationObserver(() => sessionStorage.said = (sessionStorage.said || "") + document.getElementById("live").textContent + " ")
		.observe(document.getElementById("live"), {childList: true, characterData: true, subtree: true}), true`)

	// returns when the old configuration has ended
	load(t, site(address, append(lines, gateway("name other", "mcp_path /other", "rpc_path /other-rpc",
		block("server another", "mcp_sample")))...))
	servers.until(t, "the new server", `document.querySelector("main").innerText.includes("another")`)
	servers.awaitLive(t)
	calls.until(t, "the message on the page", `(sessionStorage.said || "").includes("Disconnected")`)
	calls.awaitLive(t)
	newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice)).use(t, "sample", "echo", `{"text":"x"}`)
	calls.until(t, "a call after the reload", rowsWith("echo")+" == 1")
	for _, b := range []*tab{servers, calls} {
		b.expectFaults(t, "net::ERR_") // while no server listened
	}
}

// A page does not reload itself while the user waits for the next page, or else that would not come.
func testConsoleLeaving(t *testing.T, c *chromium) {
	b := c.newTab(t, serve(t, "mcp_console", gateway(child("alpha"))))
	b.open(t, "/console/servers")
	// A page wants to reload when its stream begins again, at once if it is old enough.
	const again = `(() => {
		const live = document.getElementById("live");
		const turn = (state) => {
			Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
			document.dispatchEvent(new Event("visibilitychange"));
		};
		performance.now = () => 1e9;
		live.textContent = "";
		new MutationObserver((_, observer) => {
			observer.disconnect();
			setTimeout(() => setTimeout(() => live.id = "was-live"));
		}).observe(live, {childList: true});
		turn("hidden");
		turn("visible");
		return true;
	})()`
	b.awaitLive(t)
	value[bool](t, b, `dispatchEvent(new Event("beforeunload")), `+again)
	b.until(t, "the new stream", `document.getElementById("was-live") || !window.marked`)
	b.expectSamePage(t)
	value[bool](t, b, `dispatchEvent(new Event("pageshow")), document.getElementById("was-live").id = "live", `+again)
	b.until(t, "another page", "!window.marked")
}

// A pageMemory is the memory use of a page in the browser.
type pageMemory struct{ Heap, Nodes, Listeners int64 }

// memoryUse returns the memory use of the page after garbage collection.
func (b *tab) memoryUse(t *testing.T) (w pageMemory) {
	t.Helper()
	for range 3 { // one round may make others collectable
		if _, err := chromedp.Call(b.ctx, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	counters, err := chromedp.Call(b.ctx, memory.GetDOMCounters, cdp.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	heap, err := chromedp.Call(b.ctx, runtime.GetHeapUsage, cdp.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return pageMemory{int64(heap.UsedSize), counters.Nodes, counters.JsEventListeners}
}

// Pages that are open for a long time do not grow. $CONSOLE_SOAK is the duration.
func testConsoleMemory(t *testing.T, c *chromium) {
	var soak time.Duration
	if text := os.Getenv("CONSOLE_SOAK"); text != "" {
		var err error
		if soak, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	url := serve(t, busySite(t)...)
	traffic(t, url, 5*time.Millisecond)
	tabs := map[string]*tab{"calls": c.newTab(t, url), "overview": c.newTab(t, url)}
	tabs["calls"].open(t, "/console/calls")
	tabs["overview"].open(t, "/console/")
	before := map[string]pageMemory{}
	tabs["calls"].until(t, "a full table", `document.querySelectorAll("#rows tr").length == 200`)
	for name, b := range tabs {
		b.awaitLive(t)
		before[name] = b.memoryUse(t)
	}
	for ended := time.Now().Add(soak); time.Now().Before(ended); {
		time.Sleep(min(soak, time.Minute))
		for name, b := range tabs {
			t.Logf("%s: %+v", name, b.memoryUse(t))
		}
	}
	for range 5 {
		first := value[string](t, tabs["calls"], `document.querySelector("#rows tr").id`)
		tabs["calls"].until(t, "new rows only", `!document.getElementById(`+quote(first)+`)`)
	}
	for name, b := range tabs {
		b.expectSamePage(t)
		was, is := before[name], pageMemory{}
		if !await.Within(patience, func() bool { // removed rows may still be counted
			is = b.memoryUse(t)
			return is.Nodes <= was.Nodes*11/10 && is.Listeners <= was.Listeners && is.Heap <= was.Heap*11/10+1<<20
		}) {
			t.Errorf("%s has grown: was %+v, is %+v", name, was, is)
		}
		t.Logf("%s: was %+v, is %+v", name, was, is)
	}
}

// screenshotTools are the tools of the servers in the screenshots.
var screenshotTools = []struct {
	server, tool, description, arguments string
	lines                                int // of its result
}{
	{"files", "read_file", "Reads a text file.", `{"path":"internal/orders/store.go"}`, 700},
	{"files", "list_directory", "Lists what is in a directory.", `{"path":"internal/orders"}`, 12},
	{"github", "list_issues", "Lists the issues of a repository.", `{"path":"orders"}`, 280},
	{"files", "read_file", "", `{"path":"internal/orders/handler.go"}`, 0}, // the most frequent call of agents
	{"files", "search_files", "Finds the files whose text fits a pattern.", `{"path":"internal"}`, 450},
	{"database", "query", "Runs a query that only reads.", `{"path":"select * from orders"}`, 1100},
	{"github", "get_pull_request", "Shows a pull request with its comments.", `{"path":"orders/412"}`, 160},
}

// screenshotServer returns one of the servers in the screenshots.
func screenshotServer(t *testing.T, name string) string {
	t.Helper()
	script := &mcptest.Script{Replies: map[string]string{}}
	for _, p := range screenshotTools {
		if p.server != name || p.lines == 0 {
			continue
		}
		script.Tools = append(script.Tools, fmt.Sprintf(`{"name":%q,"description":%q,"annotations":{"readOnlyHint":true},`+
			`"inputSchema":{"type":"object",`+
			`"properties":{"path":{"type":"string","description":"Where to look."},"limit":{"type":"integer",`+
			`"description":"How many lines at most.","default":1000}},"required":["path"]}}`,
			p.tool, p.description))
		var text strings.Builder
		for i := range p.lines {
			fmt.Fprintf(&text, "%4d  case state%d: return s.order(ctx, %d)\n", i+1, i+1, i+1)
		}
		script.Replies[p.tool] = mcptest.Text(text.String())
	}
	script.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
		if r.Tool() == "" {
			return false
		}
		n := script.Count("tools/call")
		time.Sleep(time.Duration(3+n%5*n%7*9) * time.Millisecond) // like a server that does some work
		if r.Tool() != "query" || n%9 != 0 {
			return false
		}
		r.Answer(w, `"result":{"isError":true,"content":[{"type":"text","text":"canceling statement due to statement `+
			`timeout"}]}`)
		return true
	}
	return serveScript(t, script).line(name)
}

// The screenshots of the documentation can be taken. $UPDATE_SCREENSHOTS updates them, which takes
// ten minutes: the period that one of them shows.
func testConsoleScreenshots(t *testing.T, c *chromium) {
	url := serve(t, block("mcp_console", "price 3"),
		gateway("name local", "separator __", "record on", block("mask", "json on"),
			block("client cline", "token "+tokenOfAlice), block("client codex", "token "+tokenOfBob, "deny database::*"),
			screenshotServer(t, "files"), screenshotServer(t, "github"), screenshotServer(t, "database")),
		modelRoute(t, "coding"))
	agents := []*testClient{newTestClient(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice)),
		newTestClient(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))}
	update := os.Getenv("UPDATE_SCREENSHOTS") != ""
	began := time.Now()
	for i := 0; i < 30 || update && time.Since(began) < 10*time.Minute; i++ {
		p := screenshotTools[i%len(screenshotTools)]
		agents[i/5%2].Start(t.Context(), "tools/call", callOf(p.server, p.tool, p.arguments)).Finish()
		if update { // more or less load, like real users
			time.Sleep(time.Duration(300+200*math.Sin(float64(i)/40)+90*math.Sin(float64(i)/7)) * time.Millisecond)
		}
		if i%10 == 0 {
			post(t, url+"/v1/chat/completions", b2Sent)
		}
	}
	b := c.newTab(t, url)
	b.setView(t, 1280, false)
	for _, tt := range []struct {
		name string
		show func()
	}{
		{"overview", func() { b.open(t, "/console/"); b.awaitLive(t) }},
		{"calls", func() { b.open(t, "/console/calls"); b.awaitLive(t) }},
		{"tool", func() {
			b.open(t, "/console/tools/files__read_file")
			b.fill(t, "path", "internal/orders/store.go")
			b.press(t, "Call it")
			b.until(t, "the gap", `document.querySelector("#result mark")`)
			value[bool](t, b, `document.querySelector("#result mark").scrollIntoView({block: "center"}),
				scrollTo(0, document.querySelector("#result").offsetTop - 430), document.activeElement.blur(), true`)
		}},
	} {
		tt.show()
		got, err := act(t, b, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.DecodeConfig(bytes.NewReader(got))
		if err != nil || picture.Width != 1280 || picture.Height != 900 || len(got) > 200_000 {
			t.Errorf("%s: %d by %d pixels, %d bytes, %v", tt.name, picture.Width, picture.Height, len(got), err)
		}
		if update {
			if err := os.WriteFile(filepath.Join("../../../docs", "console-"+tt.name+".png"), got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
