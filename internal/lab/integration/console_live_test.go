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

// isLive waits until the page is kept up to date, and marks it, so that one that is loaded again can be told apart.
func (b *tab) isLive(t *testing.T) {
	t.Helper()
	b.until(t, "the page is live", `document.getElementById("live").textContent == "Live" && (window.marked = true)`)
	b.live = time.Now()
}

// isSame wants the page to be the one that was live. On another day it may have been loaded again: there is one more day
// to show.
func (b *tab) isSame(t *testing.T) {
	t.Helper()
	if !value[bool](t, b, `window.marked === true`) && b.live.UTC().Day() == time.Now().UTC().Day() {
		t.Errorf("%s was loaded again", b.path(t))
	}
}

// rowsWith is how many calls are listed with a text, in JavaScript.
func rowsWith(text string) string {
	return `[...document.querySelectorAll("#rows tr")].filter(tr => tr.innerText.includes(` + quote(text) + `)).length`
}

// openStreams returns how many pages Caddy keeps up to date.
func openStreams(t *testing.T) float64 {
	t.Helper()
	return metrics(t)[`kept_entries{kind="console_streams"}`]
}

// What happens is on the pages at once, in every tab that shows it.
func testConsoleLive(t *testing.T, c *chromium) {
	url := serve(t, busySite(t)...)
	alice := newSpeaker(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice))
	bob := newSpeaker(t, joinedAt(url), true, `{}`, bearer(tokenOfBob))
	alice.use(t, "alpha", "pid", `{}`)

	all := c.newTab(t, url)
	all.open(t, "/console/calls")
	all.isLive(t)
	bobs := all.beside(t)
	bobs.open(t, "/console/calls?client=bob&outcome=acl_denied")
	bobs.isLive(t)

	t.Run("calls", func(t *testing.T) {
		alice.use(t, "sample", "read_log", `{}`)
		bob.begin(t, "tools/call", callOf("sample", "echo", `{"text":"x"}`)).Finish()
		bob.use(t, "sample", "list_files", `{}`)
		for _, tool := range []string{"read_log", "echo", "list_files"} {
			all.until(t, "a new call of "+tool, rowsWith(tool)+" == 1")
		}
		all.isSame(t)
		if got := value[string](t, all, `document.querySelector("#rows tr").innerText`); !strings.Contains(got, "list_files") {
			t.Errorf("the first row is %q, want the last call", got)
		}
	})

	t.Run("filtered", func(t *testing.T) {
		bobs.until(t, "the refusal", rowsWith("echo")+" == 1")
		bobs.isSame(t)
		if got := value[int](t, bobs, `document.querySelectorAll("#rows tr").length`); got != 1 {
			t.Errorf("%d rows, want the one that was asked for: %s", got, bobs.text())
		}
	})

	t.Run("paused", func(t *testing.T) {
		bobs.do(t, chromedp.Click(chromedp.CSS("#pause")))
		bobs.until(t, "it is paused", `document.getElementById("live").textContent == "Paused"`)
		await.Until(t, "its stream ends", func() bool { return openStreams(t) == 1 })
		bob.begin(t, "tools/call", callOf("sample", "echo", `{"text":"y"}`)).Finish()
		all.until(t, "the call", rowsWith("echo")+" == 2")
		if got := value[int](t, bobs, rowsWith("echo")); got != 1 {
			t.Errorf("the paused page has %d rows, want 1", got)
		}
		bobs.do(t, chromedp.Click(chromedp.CSS("#pause")))
		bobs.until(t, "it goes on with what was missed", rowsWith("echo")+" == 2")
	})

	t.Run("hidden", func(t *testing.T) {
		bobs.open(t, bobs.path(t)) // else it would soon be loaded again, because it was paused
		bobs.isLive(t)
		await.Until(t, "both are live", func() bool { return openStreams(t) == 2 })
		bobs.hide(t, true)
		await.Until(t, "the stream of the hidden tab ends", func() bool { return openStreams(t) == 1 })
		bob.begin(t, "tools/call", callOf("sample", "echo", `{"text":"z"}`)).Finish()
		all.until(t, "the call", rowsWith("echo")+" == 3")
		if got := value[int](t, bobs, rowsWith("echo")); got != 2 {
			t.Errorf("the hidden page has %d rows, want 2", got)
		}
		bobs.hide(t, false)
		bobs.until(t, "it comes back with what was missed", rowsWith("echo")+" == 3")
	})

	t.Run("overview", func(t *testing.T) {
		all.open(t, "/console/")
		all.isLive(t)
		before := value[string](t, all, `document.getElementById("calls").textContent + " " + document.getElementById("tokens").textContent`)
		for range 3 {
			alice.use(t, "sample", "read_log", `{}`)
		}
		all.until(t, "the numbers move", `document.getElementById("calls").textContent + " " + document.getElementById("tokens").textContent != `+quote(before))
		all.isSame(t)
	})

	t.Run("servers", func(t *testing.T) {
		all.open(t, "/console/servers")
		all.isLive(t)
		row := func(column string) string {
			return `[...document.querySelectorAll("tbody tr")].find(tr => tr.innerText.includes("alpha")).querySelector("[id$=-` + column + `]").textContent`
		}
		if got := value[string](t, all, row("restarts")); got != "0" {
			t.Errorf("restarts: %q", got)
		}
		alice.begin(t, "tools/call", callOf("alpha", "die", `{"code":1}`)).Finish()
		alice.use(t, "alpha", "pid", `{}`)
		all.until(t, "the restart", row("restarts")+` == "1"`)
		all.until(t, "it is up again", row("state")+` == "up"`)
		all.isSame(t)
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
	b.until(t, "the tab is "+want, `document.visibilityState == `+quote(want))
}

// A reload of the configuration does not wait for pages that are open, and these go on with what is there then.
func testConsoleReload(t *testing.T, c *chromium) {
	address := freeAddress(t)
	lines := busySite(t)
	load(t, site(address, lines...))
	url := "http://" + address
	servers := c.newTab(t, url)
	servers.open(t, "/console/servers")
	servers.isLive(t)
	calls := servers.beside(t)
	calls.open(t, "/console/calls")
	calls.isLive(t)
	value[bool](t, calls, `new MutationObserver(() => sessionStorage.said = (sessionStorage.said || "") + document.getElementById("live").textContent + " ")
		.observe(document.getElementById("live"), {childList: true, characterData: true, subtree: true}), true`)

	load(t, site(address, append(lines, gateway("name other", "mcp_path /other", "rpc_path /other-rpc", block("server another", "mcp_sample")))...)) // returns when the old one has ended
	servers.until(t, "the new server", `document.querySelector("main").innerText.includes("another")`)
	servers.isLive(t)
	calls.until(t, "the page has said so", `(sessionStorage.said || "").includes("Disconnected")`)
	calls.isLive(t)
	newSpeaker(t, joinedAt(url), false, `{}`, bearer(tokenOfAlice)).use(t, "sample", "echo", `{"text":"x"}`)
	calls.until(t, "a call after it", rowsWith("echo")+" == 1")
	for _, b := range []*tab{servers, calls} {
		b.expects(t, "net::ERR_") // while no server listened
	}
}

// A weight is what a page takes in the browser.
type weight struct{ Heap, Nodes, Listeners int64 }

// weigh returns what the page takes after everything is thrown away that can be.
func (b *tab) weigh(t *testing.T) (w weight) {
	t.Helper()
	for range 3 { // what the first round frees lets go of others
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
	return weight{int64(heap.UsedSize), counters.Nodes, counters.JsEventListeners}
}

// Pages that are open for long do not grow, however many calls there are. $CONSOLE_SOAK says how long.
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
	before := map[string]weight{}
	tabs["calls"].until(t, "the table is full", `document.querySelectorAll("#rows tr").length == 200`)
	for name, b := range tabs {
		b.isLive(t)
		before[name] = b.weigh(t)
	}
	first := value[string](t, tabs["calls"], `document.querySelector("#rows tr").id`)
	for ended := time.Now().Add(soak); time.Now().Before(ended); {
		time.Sleep(min(soak, time.Minute))
		for name, b := range tabs {
			t.Logf("%s: %+v", name, b.weigh(t))
		}
	}
	for name, b := range tabs {
		b.isSame(t)
		was, is := before[name], weight{}
		if !await.Within(patience, func() bool { // rows that have just left are still counted
			is = b.weigh(t)
			return is.Nodes <= was.Nodes*11/10 && is.Listeners <= was.Listeners && is.Heap <= was.Heap*11/10+1<<20
		}) {
			t.Errorf("%s has grown: was %+v, is %+v", name, was, is)
		}
		t.Logf("%s: was %+v, is %+v", name, was, is)
	}
	tabs["calls"].until(t, "all rows are others", `!document.getElementById(`+quote(first)+`)`)
}
