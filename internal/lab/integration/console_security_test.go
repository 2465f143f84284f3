package integration

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// restartForm returns a page of another site with a form that would restart a server.
func restartForm(site string) string {
	return `<!doctype html><form method=post action="` + site +
		`/console/servers/alpha/restart"><input name=token value=x><button>Win a prize</button></form>`
}

// Pages of other sites can neither read nor use the console.
func testConsoleOtherSites(t *testing.T, c *chromium) {
	site := serve(t, busySite(t)...)
	alice := newTestClient(t, joinedAt(site), false, `{}`, bearer(tokenOfAlice))
	pid := alice.use(t, "alpha", "pid", `{}`)
	evil := "http://" + upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/frame":
			fmt.Fprintf(w, `<!doctype html><iframe src="%s/console/"></iframe>`, site)
		case "/link":
			fmt.Fprintf(w, `<!doctype html><a href="%s/console/">a link</a>`, site)
		default:
			fmt.Fprint(w, restartForm(site))
		}
	}))
	visit := func(t *testing.T, path string) *tab {
		b := c.newTab(t, evil)
		b.ignoreFaults = true
		b.open(t, path)
		return b
	}

	t.Run("a frame", func(t *testing.T) {
		b := visit(t, "/frame")
		b.until(t, "an empty frame", `(d => !d || !d.body || !d.body.innerText.includes("MCP `+
			`gateway"))(document.querySelector("iframe").contentDocument)`)
		if faults := strings.Join(b.takeFaults(t), "\n"); !strings.Contains(faults, "frame-ancestors") &&
			!strings.Contains(faults, "403") && !strings.Contains(faults, "BLOCKED_BY_RESPONSE") {
			t.Errorf("got %q, want an error about framing", faults)
		}
	})
	t.Run("a fetch", func(t *testing.T) {
		b := visit(t, "/")
		for _, options := range []string{`{}`, `{credentials: "include"}`, `{mode: "no-cors"}`} {
			got := value[string](t, b, `fetch("`+site+`/console/", `+options+
				`).then(async r => r.type + " " + r.status + " " + (await r.text()).length, e => "refused")`)
			if got != "refused" && got != "opaque 0 0" {
				t.Errorf("fetch with %s: %s", options, got)
			}
		}
		got := value[string](t, b, `new Promise(done => { const s = new EventSource("`+site+
			`/console/live/calls"); s.onopen = () => done("open"); s.onerror = () => { s.close(); done("refused") } })`)
		if got != "refused" {
			t.Errorf("got stream %s", got)
		}
	})
	t.Run("a form", func(t *testing.T) {
		b := visit(t, "/")
		if got := b.navigate(t, chromedp.Click(chromedp.CSS("button"))); got != http.StatusForbidden {
			t.Errorf("status %d, want 403", got)
		}
		if got := alice.use(t, "alpha", "pid", `{}`); got != pid {
			t.Errorf("the process %s was restarted", pid)
		}
	})
	t.Run("a link", func(t *testing.T) { // followed by the user
		b := visit(t, "/link")
		if got := b.navigate(t, chromedp.Click(chromedp.CSS("a"))); got != http.StatusOK {
			t.Errorf("status %d, want 200", got)
		}
	})
	t.Run("another name of this machine", func(t *testing.T) {
		for _, host := range []string{"console.example.com", "127.0.0.1.example.com", "localhost.example.com"} {
			req := request(t, t.Context(), "GET", site+"/console/", "")
			req.Host = host
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("%s: status %d, want 403", host, res.StatusCode)
			}
		}
	})
}

// ownAddress returns a non-loopback address of this machine.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if prefix, ok := address.(*net.IPNet); ok && prefix.IP.To4() != nil && !prefix.IP.IsLoopback() {
			return prefix.IP.String()
		}
	}
	t.Skip("this machine has only loopback addresses")
	return ""
}

// On other addresses than loopback, the console needs an authenticated user, and is read-only
// unless configured otherwise.
func testConsoleBeyondLoopback(t *testing.T, c *chromium) {
	_, port, _ := net.SplitHostPort(freeAddress(t))
	site := "http://" + net.JoinHostPort(ownAddress(t), port)
	serveAt := func(t *testing.T, lines ...string) {
		t.Helper()
		load(t, block(":"+port, append(lines, gateway("separator __", "auth none", child("alpha"),
			block("server sample", "mcp_sample")))...)+"\n")
	}
	pages := []string{"/console/servers/alpha", "/console/tools/sample__echo"}

	t.Run("without a user", func(t *testing.T) {
		serveAt(t, "mcp_console")
		b := c.newTab(t, site)
		for _, path := range append(pages, "/console/live/calls", "/console/assets/console.js", "/console/none") {
			if got := b.openStatus(t, path); got != http.StatusForbidden {
				t.Errorf("%s: status %d, want 403", path, got)
			}
		}
		b.expectFaults(t, "status of 403")
	})
	tokens := map[string]string{} // of forms, by user
	for _, tt := range []struct {
		name, console string
		readOnly      bool
	}{{"a user", "mcp_console", true}, {"a user with write access", block("mcp_console", "read_only off"), false}} {
		t.Run(tt.name, func(t *testing.T) {
			serveAt(t, basicAuthAccounts, tt.console)
			for _, user := range []string{"alice", "bob"} {
				b := c.newTab(t, site)
				b.answerLogin(t, user)
				for _, path := range pages {
					b.open(t, path)
					b.awaitText(t, user)
					if got := value[int](t, b,
						`document.querySelectorAll("form[method=post], [formaction]").length`); (got == 0) != tt.readOnly {
						t.Errorf("%s: got %d forms, read-only: %t", path, got, tt.readOnly)
					}
				}
				if !tt.readOnly {
					tokens[user] = value[string](t, b, `document.querySelector("[name=token]").value`)
				}
				b.open(t, "/console/calls")
				b.awaitLive(t)
			}
			got := send(t, client, "POST", site+"/console/servers/alpha/restart", "token=x",
				"Content-Type: application/x-www-form-urlencoded", "Origin: "+site, basicAuthHeader("alice"))
			if got.StatusCode != http.StatusForbidden {
				t.Errorf("with a wrong token: status %d, want 403", got.StatusCode)
			}
		})
	}
	t.Run("tokens", func(t *testing.T) {
		if tokens["alice"] == "" || tokens["alice"] == tokens["bob"] {
			t.Fatalf("tokens: %q", tokens)
		}
		pid := func() string {
			return newTestClient(t, joinedAt(site), false, `{}`, basicAuthHeader("alice")).use(t, "alpha", "pid", `{}`)
		}
		before := pid()
		restart := func(user, token string) int {
			noRedirect := &http.Client{Timeout: patience, CheckRedirect: func(*http.Request,
				[]*http.Request) error {
				return http.ErrUseLastResponse
			}}
			return send(t, noRedirect, "POST", site+"/console/servers/alpha/restart", url.Values{"token": {token}}.Encode(),
				"Content-Type: application/x-www-form-urlencoded", "Origin: "+site, basicAuthHeader(user)).StatusCode
		}
		if got := restart("bob", tokens["alice"]); got != http.StatusForbidden || pid() != before {
			t.Errorf("bob with the token of alice: status %d, want 403", got)
		}
		if got := restart("alice", tokens["alice"]); got != http.StatusSeeOther || pid() == before {
			t.Errorf("alice with her token: status %d, want 303", got)
		}
	})
}

// answerLogin makes the browser answer requests for a name and password.
func (b *tab) answerLogin(t *testing.T, user string) {
	t.Helper()
	if _, err := chromedp.Call(b.ctx, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{
		Headers: network.Headers{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+user))},
	}); err != nil {
		t.Fatal(err)
	}
}

var scriptSource = regexp.MustCompile(`(?:src|href)="([^"]+)"`)

// Each response of the console has a policy that allows only its own files.
func TestConsolePolicy(t *testing.T) {
	isolate(t)
	site := serve(t, busySite(t)...)
	first := send(t, client, "GET", site+"/console/", "")
	paths := []string{"/console/", "/console/servers", "/console/none", "/console/calls/none"}
	for _, found := range scriptSource.FindAllStringSubmatch(first.body, -1) {
		if strings.HasPrefix(found[1], "/") {
			paths = append(paths, found[1])
		}
	}
	for _, path := range paths {
		got := send(t, client, "GET", site+path, "")
		policy := got.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'",
			"require-trusted-types-for 'script'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: got policy %q, want %s", path, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") ||
			got.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", path, got.Header)
		}
	}
}

// Behind forward_auth, users are those that it names. Requests cannot bypass it or choose their own
// user.
func TestConsoleBehindForwardAuth(t *testing.T) {
	isolate(t)
	judge := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Pass") != "of ann" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Remote-User", "ann")
	}))
	base := serve(t, block("forward_auth /console* "+judge, "uri /verify", "copy_headers Remote-User"),
		block("mcp_console", "user {http.request.header.Remote-User}"), gateway(block("server sample", "mcp_sample")))
	for _, tt := range []struct {
		name, path string
		headers    []string
		status     int
	}{
		{"with credentials", "/console/", []string{"X-Pass: of ann"}, http.StatusOK},
		{"without credentials", "/console/", nil, http.StatusUnauthorized},
		{"with a forged user name", "/console/", []string{"Remote-User: eve"}, http.StatusUnauthorized},
		{"with a path that matchers read differently", "/console/tools/x%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fy",
			[]string{"Remote-User: eve"}, http.StatusBadRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := send(t, client, "GET", base+tt.path, "", tt.headers...)
			if got.StatusCode != tt.status {
				t.Errorf("status %d, want %d: %s", got.StatusCode, tt.status, got.body)
			}
			if tt.status == http.StatusOK && (!strings.Contains(got.body, "ann") || strings.Contains(got.body,
				"<form method=\"post\"")) {
				t.Errorf("want the read-only console of ann: %s", got.body)
			}
		})
	}
}

// The Caddyfile at the root of the project serves an index at / and the console.
func TestConsoleOfTheRootCaddyfile(t *testing.T) {
	isolate(t)
	served := run(t, "../../../Caddyfile")
	base := "http://" + served.address
	start := send(t, client, "GET", base+"/", "")
	if got := start.Header.Get("Content-Type"); start.StatusCode != http.StatusOK || got != "text/html; charset=utf-8" {
		t.Errorf("/: %d %s", start.StatusCode, got)
	}
	links := regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(start.body, -1)
	if len(links) < 3 {
		t.Errorf("got links %q on /", links)
	}
	for _, link := range links {
		if got := send(t, client, "GET", base+link[1], ""); got.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", link[1], got.StatusCode, got.body)
		}
	}
}
