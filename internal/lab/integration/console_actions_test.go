package integration

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// button is the button, link or summary that says something, in JavaScript.
func button(text string) string {
	return `[...document.querySelectorAll("button, a, summary")].find(e => e.innerText.trim() == ` + quote(text) + `)`
}

// click clicks what says this, and stays on the page.
func (b *tab) click(t *testing.T, text string) {
	t.Helper()
	b.until(t, "there is "+text, button(text))
	value[bool](t, b, button(text)+`.click(), true`)
}

// press clicks what says this, which leads to another page, and returns its status.
func (b *tab) press(t *testing.T, text string) int {
	t.Helper()
	b.until(t, "there is "+text, button(text))
	return b.goes(t, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Evaluate[bool](button(text)+`.click(), true`)(ctx, target)
		return chromedp.Void{}, err
	})
}

// fill puts a text into the field with a label that begins like this, or chooses what says so.
func (b *tab) fill(t *testing.T, label, text string) {
	t.Helper()
	field := `(l => l.control || document.getElementById(l.htmlFor))([...document.querySelectorAll("label")].find(l => l.innerText.trim().startsWith(` + quote(label) + `)))`
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
	alice := newSpeaker(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	pid := alice.use(t, "alpha", "pid", `{}`)
	b := c.newTab(t, url)
	b.open(t, "/console/servers")
	if got := b.press(t, "alpha"); got != 200 {
		t.Fatalf("status %d", got)
	}
	b.says(t, "process "+pid)

	alice.use(t, "alpha", "add-tool", `{"name":"quiet-one","quiet":true}`)
	b.press(t, "Refresh its lists")
	if lists := tools(t, alice); !strings.Contains(strings.Join(lists, " "), "alpha__quiet-one") {
		t.Errorf("after a refresh there are the tools %q", lists)
	}
	b.press(t, "Check now")
	b.says(t, "up")
	b.click(t, "Restart…")
	b.press(t, "Restart")
	if got := alice.use(t, "alpha", "pid", `{}`); got == pid {
		t.Errorf("the process is still %s", pid)
	} else {
		b.says(t, "process "+got)
	}
	if got := value[string](t, b, `location.search`); strings.Contains(got, pid) || strings.Contains(b.path(t), "/restart") {
		t.Errorf("the page is at %s", b.path(t))
	}
}

// Tools can be tried: the form has their arguments, and the result is shown as agents get it and as the server sent it.
func testConsoleTry(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	b := c.newTab(t, url)

	b.open(t, "/console/tools?q=read+log")
	b.press(t, "sample__read_log")
	b.says(t, "Returns the log of an imaginary order service")
	b.fill(t, "lines", "500")
	b.press(t, "Call it")
	b.says(t, "As the agent gets it")
	b.says(t, "As the server sent it")
	sizes := value[[]int](t, b, `[...document.querySelectorAll("#result .pair > section")].map(s => s.querySelector("[role=region]").innerText.length)`)
	if len(sizes) != 2 || sizes[0] >= sizes[1] || sizes[1] < 10_000 {
		t.Errorf("the panes have %v characters, want less for the agent", sizes)
	}
	if got := value[int](t, b, `document.querySelectorAll("#result .pair > section mark").length`); got != 1 {
		t.Errorf("%d gaps are marked, want 1", got)
	}
	if got := value[string](t, b, `document.querySelector("input[type=number]").value`); got != "500" {
		t.Errorf("the form says %q, want what was entered", got)
	}
	b.isAccessible(t)

	b.fill(t, "lines", "0") // less than the schema allows
	b.press(t, "Call it")
	b.until(t, "the error", `document.querySelector("[role=alert]").innerText.includes("lines")`)

	b.open(t, "/console/tools/far__typed")
	if value[bool](t, b, `document.querySelector("form.try").checkValidity()`) {
		t.Error("the form can be sent without what is required")
	}
	b.fill(t, "n", "7")
	b.fill(t, "way", "down")
	b.fill(t, "sure", "false")
	b.fill(t, "more", "{\"a\": [1]}")
	b.press(t, "Call it")
	for _, want := range []string{`"n":7`, `"way":"down"`, `"sure":false`, `"more":{"a":`} { // it says what it was called with
		b.until(t, "the arguments as the server got them", `document.querySelector("#result").innerText.replaceAll(" ", "").includes(`+quote(want)+`)`)
	}
	b.fill(t, "more", "[1")
	b.press(t, "Call it")
	b.until(t, "the error", `document.querySelector("[role=alert]").innerText.includes("more")`)

	b.open(t, "/console/tools/sample__echo")
	b.fill(t, "text", "line 1\nline 2 <b>")
	b.press(t, "Call it")
	b.says(t, "line 2 <b>")

	b.fill(t, "Call it as", "bob")
	b.press(t, "Call it")
	b.until(t, "bob is refused", `document.querySelector("[role=alert]").innerText.length > 0`)

	b.open(t, "/console/tools/sample__echo")
	for _, decision := range []struct{ client, action string }{{"alice", "allow"}, {"bob", "deny"}} {
		b.fill(t, "Decision for", decision.client)
		b.press(t, "Show")
		b.until(t, "the decision", `[...document.querySelectorAll("section .badge")].some(e => e.innerText == `+quote(decision.action)+`)`)
	}
	b.says(t, "sample::echo") // the rule

	b.open(t, "/console/tools/alpha__die") // does not say that it only reads
	if got := value[bool](t, b, `document.querySelector("[name=sure]").required && !document.querySelector("form.try").checkValidity()`); !got {
		t.Error("a tool that may change something is called without asking")
	}
}

// Calls are shown with what was cut, and the whole.
func testConsoleCall(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	alice := newSpeaker(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	alice.use(t, "sample", "read_log", `{"lines":500}`)
	alice.begin(t, "tools/call", callOf("far", "failing", `{}`)).Finish()
	b := c.newTab(t, url)
	b.open(t, "/console/calls")
	b.fill(t, "Tool", "read_log")
	b.press(t, "Filter")
	if got := value[int](t, b, `document.querySelectorAll("#rows tr").length`); got != 1 {
		t.Fatalf("%d calls, want 1:\n%s", got, b.text())
	}
	b.goes(t, chromedp.Click(chromedp.CSS("#rows tr a")))
	b.says(t, `"lines": 500`)
	if got := value[int](t, b, `document.querySelectorAll("mark").length`); got != 1 {
		t.Errorf("%d gaps are marked, want 1:\n%s", got, b.text())
	}
	if got := b.goes(t, chromedp.Click(chromedp.CSS("main li a"))); got != 200 {
		t.Errorf("the whole text: status %d", got)
	}
	if got := value[int](t, b, `document.querySelector("pre").innerText.split("\n").length`); got < 500 {
		t.Errorf("the whole text has %d lines, want 500", got)
	}
	b.isAccessible(t)
}

// What servers define anew is shown as a difference, and can be accepted.
func testConsoleAccept(t *testing.T, c *chromium) {
	address := freeAddress(t)
	load(t, block("", storedIn(t.TempDir()))+"\n"+site(address, "mcp_console", gateway("name pinned", "separator __", "pin_tools on", child("alpha"))))
	url := "http://" + address
	agent := newSpeaker(t, joinedAt(url), false, `{}`)
	stream := agent.listens(t)
	for _, weather := range []string{weatherAtFirst, weatherLater} {
		agent.use(t, "alpha", "add-tool", weather)
		stream.hears(t, listChanged)
		tools(t, agent)
	}
	if got := changes(t); len(got) != 1 {
		t.Fatalf("changed: %q", got)
	}
	b := c.newTab(t, url)
	b.open(t, "/console/servers")
	b.says(t, "1 tool changed")
	b.press(t, "alpha")
	lines := value[[]string](t, b, `[...document.querySelectorAll(".diff span")].map(e => e.innerText.trim()).filter(l => l.startsWith("+") || l.startsWith("-") || l.startsWith("−"))`)
	if len(lines) != 2 || !strings.Contains(lines[0], "Tells the weather.") || !strings.Contains(lines[1], "send them along") {
		t.Errorf("the difference is %q", lines)
	}
	b.isAccessible(t)
	b.press(t, "Accept this definition")
	if got := changes(t); len(got) > 0 {
		t.Errorf("not accepted: %q", got)
	}
	if got := agent.use(t, "alpha", "weather", `{}`); got != "weather" {
		t.Errorf("the tool says %q", got)
	}
}

// The page of a server leads to its login, and shows that it is done.
func testConsoleLogin(t *testing.T, c *chromium) {
	a := startAuthServer(t, nil)
	address := freeAddress(t)
	load(t, block("", storedIn(t.TempDir()))+"\n"+site(address, "mcp_console", gateway(a.line("oauth"), "separator __")))
	url := "http://" + strings.Replace(address, "127.0.0.1", "localhost", 1)
	lists(t, newSpeaker(t, joinedAt(url), false, `{}`), "notes__login")
	b := c.newTab(t, url)
	b.open(t, "/console/servers/notes")
	b.says(t, "login required")
	isLoggedIn(t, c.logIn(t, value[string](t, b, button("Log in")+`.href`), "alice"))
	await.Until(t, "the login", func() bool {
		b.open(t, "/console/servers/notes")
		return value[bool](t, b, `!`+button("Log in"))
	})
	b.click(t, "Log out…")
	b.press(t, "Log out")
	b.says(t, "login required")
}

// The console can be used without a mouse.
func testConsoleKeyboard(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	b := c.newTab(t, url)
	b.looks(t, 1280, false)
	b.open(t, "/console/")
	const focused = `(e => e.innerText.trim())(document.activeElement)`
	b.do(t, chromedp.KeyEvent(kb.Tab))
	if got := value[string](t, b, focused); got != "Skip to content" {
		t.Errorf("Tab goes to %q first, want the link that skips the navigation", got)
	}
	if got := value[bool](t, b, `(r => r.top >= 0 && r.left >= 0 && r.width > 1)(document.activeElement.getBoundingClientRect())`); !got {
		t.Error("the link that skips the navigation cannot be seen when it has the focus")
	}
	b.do(t, chromedp.KeyEvent(kb.Enter))
	b.until(t, "the focus is on the content", `document.activeElement.id == "main"`)

	b.open(t, "/console/")
	for range 20 {
		b.do(t, chromedp.KeyEvent(kb.Tab))
		if value[string](t, b, focused) == "Tools" {
			break
		}
	}
	if got := value[string](t, b, `(s => s.outlineStyle + " " + parseFloat(s.outlineWidth) + " " + s.boxShadow)(getComputedStyle(document.activeElement))`); strings.HasPrefix(got, "none") || strings.Contains(got, " 0 none") {
		t.Errorf("the focus cannot be seen: %s", got)
	}
	if got := b.goes(t, chromedp.KeyEvent(kb.Enter)); got != 200 || !strings.HasPrefix(b.path(t), "/console/tools") {
		t.Errorf("Enter leads to %s, status %d", b.path(t), got)
	}
	b.open(t, "/console/connect")
	b.do(t, chromedp.Focus(chromedp.CSS("button[data-copy]")), chromedp.KeyEvent(kb.Enter))
	b.until(t, "it says that it is copied", `document.getElementById("said").textContent != ""`)
	// All that can be clicked can have the focus, and has a name.
	for _, path := range []string{"/console/", "/console/servers/alpha", "/console/tools/sample__echo", "/console/calls", "/console/connect"} {
		b.open(t, path)
		if got := value[[]string](t, b, `[...document.querySelectorAll("main a, main button, main input:not([type=hidden]), main select, main textarea, main summary")]
			.filter(e => e.checkVisibility() && e.tabIndex < 0).map(e => e.outerHTML.slice(0, 200))`); len(got) > 0 {
			t.Errorf("%s has elements that the keyboard cannot reach: %q", path, got)
		}
	}
}

// 1,000 tools can be searched, and are not all shown at once.
func testConsoleSearch(t *testing.T, c *chromium) {
	b := c.newTab(t, consoleStates[3].serve(t))
	b.open(t, "/console/tools")
	count := func() int { return len(b.links(t, "/console/tools/")) }
	if got := count(); got != 200 {
		t.Errorf("%d tools are shown, want 200", got)
	}
	b.says(t, "800 more")
	b.press(t, "show all")
	if got := count(); got != 1000 {
		t.Errorf("%d tools are shown, want all", got)
	}
	b.open(t, "/console/tools")
	b.fill(t, "Search", "tool_99")
	b.press(t, "Show")
	if got := count(); got != 11 { // 99 and 990 to 999
		t.Errorf("%d tools are found, want 11", got)
	}
	b.press(t, "large__tool_99")
	b.says(t, "Does what tool 99 does")
}
