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

// A chromium is a browser that people use.
type chromium struct{ ctx context.Context }

// newChromium starts Chromium with a profile of its own.
func newChromium(t *testing.T) *chromium {
	t.Helper()
	path := chromiumPath(t)
	home := t.TempDir() // removed after the cleanup below
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(home), chromedp.Env("HOME="+home), chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which root cannot have
	}
	// It is stopped below, and must not be killed before that by the end of the test's context.
	ctx, kill := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, _ = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		err := chromedp.Cancel(ctx)
		kill()
		if browser := chromedp.FromContext(ctx).Browser; browser != nil && browser.Process() != nil {
			_ = syscall.Kill(-browser.Process().Pid, syscall.SIGKILL) // children that are left
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
	missing(t, "Chromium is not installed: run apt-get install chromium")
	return ""
}

// A tab is a tab of Chromium that notes what must not happen on the pages of a site: violations of their
// Content-Security-Policy, exceptions, errors in the console of the browser, requests that fail or go to another site,
// and dialogs. Each of these fails the test at its end, unless it was expected.
type tab struct {
	ctx  context.Context
	site string    // the address that all requests go to
	lax  bool      // nothing fails the test
	live time.Time // when the page was last seen to be live

	mu     sync.Mutex
	faults []string
	marks  int // that the browser has passed on, see settled
}

// watchPolicy has pages tell of violations, of which Chromium logs only some.
const watchPolicy = `addEventListener("securitypolicyviolation", e => console.error("violates the policy: " +
	[e.effectiveDirective, e.blockedURI, e.sourceFile, e.lineNumber, e.sample].join(" ")))`

// mark is what the tab itself writes to the console of the browser.
const mark = "mark of the test"

// newTab opens a tab for the pages of a site, in a profile of its own.
func (c *chromium) newTab(t *testing.T, site string) *tab {
	t.Helper()
	return openTab(t, c.ctx, site, chromedp.WithNewBrowserContext())
}

// beside opens another tab with the same profile.
func (b *tab) beside(t *testing.T) *tab {
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
		for _, fault := range b.settled(t) {
			if !b.lax {
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
				b.note("%s %s (%s:%d)", strings.TrimSpace(m.Source+" "+string(m.Type)), m.Text, m.URL, m.Line)
			}
		}
	}()
	go func() {
		for r, err := range requests {
			if err != nil {
				return
			}
			if !strings.HasPrefix(r.Request.URL, b.site+"/") {
				b.note("request to %s", r.Request.URL)
			}
		}
	}()
	go func() {
		for f, err := range failures {
			if err != nil {
				return
			}
			if !f.Canceled { // as streams are by the next page
				b.note("request failed: %s %s %s", f.Type, f.ErrorText, f.BlockedReason)
			}
		}
	}()
	go func() {
		for d, err := range dialogs {
			if err != nil {
				return
			}
			b.note("dialog: %s", d.Message)
			_, _ = chromedp.Call(ctx, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{})
		}
	}()
	if _, err := chromedp.Call(ctx, cdppage.AddScriptToEvaluateOnNewDocument,
		cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: watchPolicy}); err != nil {
		t.Fatal(err)
	}
	return b
}

// note notes a fault. Browsers ask for an icon at any time if an answer is not a page that names one.
func (b *tab) note(format string, args ...any) {
	fault := fmt.Sprintf(format, args...)
	if strings.Contains(fault, "/favicon.ico") {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fault)
}

// settled returns what was noted of all that has happened until now, and forgets it.
func (b *tab) settled(t *testing.T) (faults []string) {
	t.Helper()
	b.mu.Lock()
	before := b.marks
	b.mu.Unlock()
	if _, err := act(t, b, chromedp.Evaluate[bool](`console.debug(`+quote(mark)+`), true`)); err != nil {
		t.Errorf("the tab is gone: %v", err)
		return nil
	}
	await.Until(t, "the browser passes on what has happened", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.marks > before
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	faults, b.faults = b.faults, nil
	return faults
}

// expects takes back what was noted with one of these words in it.
func (b *tab) expects(t *testing.T, words ...string) {
	t.Helper()
	for _, fault := range b.settled(t) {
		if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(fault, word) }) {
			b.note("%s", fault)
		}
	}
}

// act runs an action, with patience.
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

// goes runs actions that lead to another page, and returns its status.
func (b *tab) goes(t *testing.T, actions ...chromedp.Action[chromedp.Void]) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	response, err := chromedp.RunResponse(ctx, actions...)
	if err != nil {
		t.Fatalf("in the browser: %v\n%s", err, b.text())
	}
	return int(response.Status)
}

// opens opens a page of the site and returns its status.
func (b *tab) opens(t *testing.T, path string) int {
	t.Helper()
	return b.goes(t, chromedp.Navigate(b.site+path))
}

// open opens a page of the site, which must be there.
func (b *tab) open(t *testing.T, path string) {
	t.Helper()
	if status := b.opens(t, path); status != http.StatusOK {
		t.Fatalf("%s: status %d\n%s", path, status, b.text())
	}
}

// value returns the value of an expression in JavaScript.
func value[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	v, err := act(t, b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression in JavaScript is true, also of a page that comes later.
func (b *tab) until(t *testing.T, what, expression string) {
	t.Helper()
	if !await.Within(patience, func() bool {
		is, err := act(t, b, chromedp.Evaluate[bool]("!!("+expression+")"))
		return err == nil && is
	}) {
		t.Fatalf("waited in vain: %s: %s\n%s", what, expression, b.text())
	}
}

// says waits until a text is on the page.
func (b *tab) says(t *testing.T, text string) {
	t.Helper()
	b.until(t, "the page says "+text, `document.body.innerText.includes(`+quote(text)+`)`)
}

// text returns what can be read on the page.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 5000)`))
	return text
}

// path returns that of the page, with its query.
func (b *tab) path(t *testing.T) string {
	t.Helper()
	return value[string](t, b, `location.pathname + location.search`)
}

// looks sets the width of the window, and whether its user prefers the dark.
func (b *tab) looks(t *testing.T, width int64, dark bool) {
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

// fits wants the page not to be wider than the window.
func (b *tab) fits(t *testing.T) {
	t.Helper()
	const wider = `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 &&
		!e.parentElement.closest(".scroll, pre, details:not([open])")).slice(0, 5).map(e => e.outerHTML.slice(0, 200))`
	if got := value[int](t, b, `document.documentElement.scrollWidth - innerWidth`); got > 0 {
		t.Errorf("%s is %d pixels wider than the window: %q", b.path(t), got, value[[]string](t, b, wider))
	}
}

// axeSource is the program that finds what keeps people from using a page.
var axeSource = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("peers/node_modules/axe-core/axe.min.js") })

// isAccessible wants the page to have nothing that seriously keeps people from using it, by all rules or by these.
func (b *tab) isAccessible(t *testing.T, rules ...string) {
	t.Helper()
	source, err := axeSource()
	if err != nil {
		missing(t, "axe-core is not installed: run make -f xcaddy.mk test, with npm")
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
	found := value[string](t, b, `axe.run(document, {runOnly: ["`+strings.Join(rules, `","`)+`"], resultTypes: ["violations"]}).then(r =>
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

// missing skips a test that needs what is not installed, which CI has.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// The tab notes what must not happen, so that the tests of pages can rely on it.
func TestBrowserNotes(t *testing.T) {
	isolate(t)
	elsewhere := "http://" + upstream(t, http.NotFoundHandler())
	tests := []struct{ name, policy, body, want string }{
		{"nothing", "default-src 'none'", "<p>hello", ""},
		{"a script", "default-src 'none'", "<script>hacked = 1</script>", "violates the policy: script-src-elem inline"},
		{"a handler", "default-src 'none'", "<img src=x onerror=hacked=1>", "violates the policy: img-src"},
		{"a handler of what loads", "img-src 'self'; script-src 'none'", "<body onload=hacked=1>", "violates the policy: script-src-attr inline"},
		{"an exception", "script-src 'unsafe-inline'", "<script>throw new Error('oops')</script>", "exception Uncaught Error: oops"},
		{"an error", "script-src 'unsafe-inline'", "<script>console.error('oops')</script>", "error oops"},
		{"another site", "img-src *", "<img src=" + elsewhere + "/x.png>", "request to " + elsewhere + "/x.png"},
		{"what is not there", "img-src 'self'", "<img src=/missing>", "404"},
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
		got := b.settled(t)
		if found := slices.ContainsFunc(got, func(fault string) bool { return strings.Contains(fault, tt.want) }); tt.want == "" && len(got) > 0 || tt.want != "" && !found {
			t.Errorf("%s: noted %q, want %q", tt.name, got, tt.want)
		}
	}
}
