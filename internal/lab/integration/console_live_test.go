package integration

import (
	"os"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

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
	soak := 15 * time.Second
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
	first := value[string](t, tabs["calls"], `document.querySelector("#rows tr").id`)
	for ended := time.Now().Add(soak); time.Now().Before(ended); {
		time.Sleep(min(soak, time.Minute))
		for name, b := range tabs {
			t.Logf("%s: %+v", name, b.memoryUse(t))
		}
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
	tabs["calls"].until(t, "new rows only", `!document.getElementById(`+quote(first)+`)`)
}
