package integration

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

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
	await.Until(t, "the login", func() bool {
		b.open(t, "/console/servers/notes")
		return value[bool](t, b, `!`+button("Log in"))
	})
	b.click(t, "Log out…")
	b.press(t, "Log out")
	b.awaitText(t, "login required")
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
