package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A chromium is a real browser.
type chromium struct{ ctx context.Context }

// newChromium starts Chromium with a new profile.
func newChromium(t *testing.T) *chromium {
	t.Helper()
	path := chromiumPath(t)
	home := t.TempDir() // removed after the cleanup below
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(home), chromedp.Env("HOME="+home), chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // root cannot use the sandbox
	}
	// The cleanup stops it, so the end of the test's context must not kill it before.
	ctx, kill := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, _ = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		err := chromedp.Cancel(ctx)
		kill()
		if browser := chromedp.FromContext(ctx).Browser; browser != nil && browser.Process() != nil {
			_ = syscall.Kill(-browser.Process().Pid, syscall.SIGKILL) // remaining children
		}
		if err != nil {
			t.Errorf("stop Chromium: %v", err)
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return &chromium{ctx}
}

// chromiumPath returns the path of an installed Chromium.
func chromiumPath(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	skipMissing(t, "Chromium is not installed: run apt-get install chromium")
	return ""
}

// A tab is a Chromium tab that records faults of the pages of a site: violations of their
// Content-Security-Policy, exceptions, errors in the browser console, requests that fail or go to
// another site, and dialogs. Each fault fails the test at its end, unless expectFaults allowed it.
type tab struct {
	ctx          context.Context
	site         string    // address that all requests must go to
	ignoreFaults bool      // faults do not fail the test
	live         time.Time // when the page was last seen to be live

	mu     sync.Mutex
	faults []string
	marks  int // seen in the browser console, see takeFaults
}

// watchPolicy makes pages report all policy violations; Chromium logs only some.
const watchPolicy = `addEventListener("securitypolicyviolation", e => console.error("violates the policy: " +
	[e.effectiveDirective, e.blockedURI, e.sourceFile, e.lineNumber, e.sample].join(" ")))`

// mark is what the tab itself writes to the browser console.
const mark = "mark of the test"

// newTab opens a tab for the pages of a site, with a new profile.
func (c *chromium) newTab(t *testing.T, site string) *tab {
	t.Helper()
	return openTab(t, c.ctx, site, chromedp.WithNewBrowserContext())
}

// openSibling opens another tab with the same profile.
func (b *tab) openSibling(t *testing.T) *tab {
	t.Helper()
	return openTab(t, b.ctx, b.site)
}

func openTab(t *testing.T, parent context.Context, site string, options ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, _ := chromedp.NewContext(parent, options...)
	b := &tab{ctx: ctx, site: site}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	t.Cleanup(func() {
		for _, fault := range b.takeFaults(t) {
			if !b.ignoreFaults {
				t.Errorf("in the browser: %s", fault)
			}
		}
		_ = chromedp.Cancel(ctx)
	})
	messages, requests := chromedp.Console(ctx), chromedp.Events(ctx, network.RequestWillBeSent)
	failures, dialogs := chromedp.Events(ctx, network.LoadingFailed), chromedp.Events(ctx, cdppage.JavascriptDialogOpening)
	go func() {
		for m, err := range messages {
			switch {
			case err != nil:
				return
			case m.Text == mark:
				b.mu.Lock()
				b.marks++
				b.mu.Unlock()
			case m.IsException() || m.Type == chromedp.ConsoleError || m.Source == "security":
				b.addFault("%s %s (%s:%d)", strings.TrimSpace(m.Source+" "+string(m.Type)), m.Text, m.URL, m.Line)
			}
		}
	}()
	go func() {
		for r, err := range requests {
			if err != nil {
				return
			}
			if !strings.HasPrefix(r.Request.URL, b.site+"/") {
				b.addFault("request to %s", r.Request.URL)
			}
		}
	}()
	go func() {
		for f, err := range failures {
			if err != nil {
				return
			}
			if !f.Canceled { // a page load cancels the streams of the page before
				b.addFault("request failed: %s %s %s", f.Type, f.ErrorText, f.BlockedReason)
			}
		}
	}()
	go func() {
		for d, err := range dialogs {
			if err != nil {
				return
			}
			b.addFault("dialog: %s", d.Message)
			_, _ = chromedp.Call(ctx, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{})
		}
	}()
	if _, err := chromedp.Call(ctx, cdppage.AddScriptToEvaluateOnNewDocument,
		cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: watchPolicy}); err != nil {
		t.Fatal(err)
	}
	return b
}

// addFault records a fault. It ignores requests for an icon, which browsers may make at any time.
func (b *tab) addFault(format string, args ...any) {
	fault := fmt.Sprintf(format, args...)
	if strings.Contains(fault, "/favicon.ico") {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fault)
}

// takeFaults waits for all events so far, and returns and clears the faults.
func (b *tab) takeFaults(t *testing.T) (faults []string) {
	t.Helper()
	b.mu.Lock()
	before := b.marks
	b.mu.Unlock()
	if _, err := act(t, b, chromedp.Evaluate[bool](`console.debug(`+quote(mark)+`), true`)); err != nil {
		t.Errorf("the tab is gone: %v", err)
		return nil
	}
	await.Until(t, "the browser to report all events", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.marks > before
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	faults, b.faults = b.faults, nil
	return faults
}

// expectFaults drops the faults that contain one of these words.
func (b *tab) expectFaults(t *testing.T, words ...string) {
	t.Helper()
	for _, fault := range b.takeFaults(t) {
		if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(fault, word) }) {
			b.addFault("%s", fault)
		}
	}
}

// act runs an action, at most for patience.
func act[T any](t *testing.T, b *tab, action chromedp.Action[T]) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, action)
}

// do runs actions, which must succeed.
func (b *tab) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	for _, action := range actions {
		if _, err := act(t, b, action); err != nil {
			t.Fatalf("in the browser: %v\n%s", err, b.text())
		}
	}
}

// navigate runs actions that lead to another page, and returns its status.
func (b *tab) navigate(t *testing.T, actions ...chromedp.Action[chromedp.Void]) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	response, err := chromedp.RunResponse(ctx, actions...)
	if err != nil {
		t.Fatalf("in the browser: %v\n%s", err, b.text())
	}
	return int(response.Status)
}

// openStatus opens a page of the site and returns its status.
func (b *tab) openStatus(t *testing.T, path string) int {
	t.Helper()
	return b.navigate(t, chromedp.Navigate(b.site+path))
}

// open opens a page of the site, which must have status 200.
func (b *tab) open(t *testing.T, path string) {
	t.Helper()
	if status := b.openStatus(t, path); status != http.StatusOK {
		t.Fatalf("%s: status %d\n%s", path, status, b.text())
	}
}

// value returns the value of a JavaScript expression.
func value[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	v, err := act(t, b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until a JavaScript expression is true, on this page or one that follows.
func (b *tab) until(t *testing.T, what, expression string) {
	t.Helper()
	if !await.Within(patience, func() bool {
		is, err := act(t, b, chromedp.Evaluate[bool]("!!("+expression+")"))
		return err == nil && is
	}) {
		t.Fatalf("timeout waiting for: %s: %s\n%s", what, expression, b.text())
	}
}

// awaitText waits until the page contains a text.
func (b *tab) awaitText(t *testing.T, text string) {
	t.Helper()
	b.until(t, "the text "+text, `document.body.innerText.includes(`+quote(text)+`)`)
}

// text returns the visible text of the page.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, _ := chromedp.Run(ctx,
		chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 5000)`))
	return text
}

// path returns the path and query of the page.
func (b *tab) path(t *testing.T) string {
	t.Helper()
	return value[string](t, b, `location.pathname + location.search`)
}

// setView sets the width of the window, and the color scheme that its user prefers.
func (b *tab) setView(t *testing.T, width int64, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(t, chromedp.EmulateViewport(width, 900))
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}); err != nil {
		t.Fatal(err)
	}
}

// expectFits fails the test if the page is wider than the window.
func (b *tab) expectFits(t *testing.T) {
	t.Helper()
	const wider = `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 &&
		!e.parentElement.closest(".scroll, pre, details:not([open])")).slice(0, 5).map(e => e.outerHTML.slice(0, 200))`
	if got := value[int](t, b, `document.documentElement.scrollWidth - innerWidth`); got > 0 {
		t.Errorf("%s is %d pixels wider than the window: %q", b.path(t), got, value[[]string](t, b, wider))
	}
}

// axeSource is the accessibility checker.
var axeSource = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("peers/node_modules/axe-core/axe.min.js") })

// expectAccessible fails the test if the page has serious accessibility problems, by all rules or
// by these.
func (b *tab) expectAccessible(t *testing.T, rules ...string) {
	t.Helper()
	source, err := axeSource()
	if err != nil {
		skipMissing(t, "axe-core is not installed: run make -f xcaddy.mk test, with npm")
	}
	type violation struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	if len(rules) == 0 {
		rules = []string{"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"} // tags of rules
	}
	if !value[bool](t, b, `"axe" in window`) {
		value[bool](t, b, string(source)+`; true`)
	}
	found := value[string](t, b, `axe.run(document, {runOnly: ["`+strings.Join(rules, `","`)+
		`"], resultTypes: ["violations"]}).then(r =>
			JSON.stringify(r.violations.filter(v => v.impact == "serious" || v.impact == "critical")))`)
	var violations []violation
	if err := json.Unmarshal([]byte(found), &violations); err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		for _, node := range v.Nodes[:min(3, len(v.Nodes))] {
			t.Errorf("%s: %s (%s): %s\n%.300s\n%s", b.path(t), v.ID, v.Impact, v.Help, node.HTML, node.FailureSummary)
		}
	}
}

// skipMissing skips a test whose dependency is not installed. On CI it fails the test.
func skipMissing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// A tab records all faults, so tests of pages can rely on it.
func TestBrowserNotes(t *testing.T) {
	isolate(t)
	otherSite := "http://" + upstream(t, http.NotFoundHandler())
	tests := []struct{ name, policy, body, want string }{
		{"nothing", "default-src 'none'", "<p>hello", ""},
		{"a script", "default-src 'none'", "<script>hacked = 1</script>", "violates the policy: script-src-elem inline"},
		{"a handler", "default-src 'none'", "<img src=x onerror=hacked=1>", "violates the policy: img-src"},
		{"a load handler", "img-src 'self'; script-src 'none'", "<body onload=hacked=1>",
			"violates the policy: script-src-attr inline"},
		{"an exception", "script-src 'unsafe-inline'", "<script>throw new Error('oops')</script>",
			"exception Uncaught Error: oops"},
		{"an error", "script-src 'unsafe-inline'", "<script>console.error('oops')</script>", "error oops"},
		{"another site", "img-src *", "<img src=" + otherSite + "/x.png>", "request to " + otherSite + "/x.png"},
		{"a missing image", "img-src 'self'", "<img src=/missing>", "404"},
		{"a dialog", "script-src 'unsafe-inline'", "<script>alert('oops')</script>", "dialog: oops"},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for i, tt := range tests {
		mux.HandleFunc(fmt.Sprintf("/%d", i), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", tt.policy)
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<!doctype html>"+tt.body)
		})
	}
	b := newChromium(t).newTab(t, "http://"+upstream(t, mux))
	for i, tt := range tests {
		b.open(t, fmt.Sprintf("/%d", i))
		got := b.takeFaults(t)
		if found := slices.ContainsFunc(got, func(fault string) bool {
			return strings.Contains(fault, tt.want)
		}); tt.want == "" && len(got) > 0 || tt.want != "" && !found {
			t.Errorf("%s: got faults %q, want %q", tt.name, got, tt.want)
		}
	}
}
