package integration

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
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

// Texts that attack a page that does not escape them.
const (
	hostileImage  = `<img src=x onerror=window.hacked=1>`
	hostileScript = `"><script>window.hacked=1</script>`
	hostileQuote  = `' onmouseover=window.hacked=1 x='`
	hostileLink   = `javascript:window.hacked=1`
	hostileEnds   = `</textarea></pre></title></template></select>` + "`${window.hacked=1}`"
	hostileRest   = `{{.}} &lt;b&gt; %3Cb%3E ` + "\u202Edrawkcab\u2028"
)

var hostileAll = strings.Join([]string{hostileImage, hostileScript, hostileQuote, hostileLink, hostileEnds,
	hostileRest}, " ")

// expectHarmless fails the test if one of these texts became more than text on the page.
func (b *tab) expectHarmless(t *testing.T) {
	t.Helper()
	const made = `[...document.querySelectorAll("img[onerror], img[src='x'], [onmouseover], script:not([src]), b, [href^='javascript:' i]," +
		"[src^='javascript:' i], [action^='javascript:' i], iframe, object, embed, base, [style]")].map(e => e.outerHTML.slice(0, 300))`
	if got := value[[]string](t, b, made); len(got) > 0 {
		t.Errorf("%s has elements made from texts: %q", b.path(t), got)
	}
	// Trigger handlers that wait for the mouse or a click.
	value[bool](t, b, `document.querySelectorAll("main *").forEach(e => e.dispatchEvent(new MouseEvent("mouseover", `+
		`{bubbles: true}))), true`)
	if value[bool](t, b, `"hacked" in window`) {
		t.Errorf("%s was hacked", b.path(t))
	}
}

// minimalJSON returns a text as JSON with as few escapes as possible, like most servers.
func minimalJSON(text string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(quote(text))
}

// hostileSite serves a site whose server, client and route have hostile names and texts. It returns
// its address and its client.
func hostileSite(t *testing.T) (string, *testClient) {
	t.Helper()
	text := minimalJSON(hostileAll)
	schema := func(name string) string {
		return fmt.Sprintf(`{"name":%s,"title":%s,"description":%s,"annotations":{"title":%s,"readOnlyHint":true},"inputSchema":{"type":"object","description":%s,
			"properties":{%s:{"type":"string","title":%s,"description":%s,"default":%s},"choice":{"type":"string","enum":[%s,"b"],"description":%s},
			"many":{"type":"array","items":{"type":%s},"default":[%s]}},"required":[%s]}}`,
			minimalJSON(name), text, text, text, text, text, text, text, text, text, text, text, text, text)
	}
	hostile := serveScript(t, &mcptest.Script{
		Tools: []string{schema("tool"), schema(hostileImage), schema(hostileScript),
			schema("a/b?c#d%2Fe&f=" + hostileQuote)},
		Resources: []string{"file:///" + hostileImage, hostileLink},
		Replies: map[string]string{
			"initialize": fmt.Sprintf(`"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{}},`+
				`"instructions":%s,`+
				`"serverInfo":{"name":%s,"title":%s,"version":%s,"websiteUrl":%s}}`, text, text, text, text,
				minimalJSON(hostileLink)),
			"tool":       mcptest.Text(hostileAll),
			hostileImage: `"error":{"code":-32000,"message":` + text + `,"data":` + text + `}`,
			hostileScript: `"result":{"isError":true,"content":[{"type":"text","text":` + text + `},{"type":` + text +
				`},{"type":"image","mimeType":` + text + `,"data":"AAAA"}],"structuredContent":{` + text + `:` + text + `}}`,
		},
	})
	site := serve(t,
		"mcp_console",
		block("basic_auth /mcp*", strconv.Quote(hostileImage)+
			" $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq"),
		gateway("name "+strconv.Quote("g"+hostileScript), "separator __", "record on", "pin_tools on", "mask 200 20 20",
			hostile.line("hostile"), child("alpha")),
		modelRoute(t, strconv.Quote(hostileImage)))
	user := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(hostileImage+":alice"))
	c := newTestClient(t, joinedAt(site), false, `{}`, user)
	for _, tool := range []string{"tool", hostileImage, hostileScript, "no such " + hostileScript} {
		c.begin(t, "tools/call", callOf("hostile", tool, `{`+text+`:`+text+`}`)).Finish()
	}
	c.begin(t, "resources/read", `{"uri":`+quote("file:///"+hostileImage)+`}`).Finish()
	c.begin(t, "prompts/get", `{"name":`+text+`}`).Finish()
	c.use(t, "alpha", "stderr", `{"lines":3,"text":`+text+`}`)
	c.begin(t, "tools/call", callOf("alpha", "die", `{"code":3}`)).Finish()
	post(t, site+"/v1/chat/completions", b2Sent)
	control[struct{}](t, "GET", "/tools", "", 200) // pins the tools
	hostile.Change(func(s *mcptest.Script) {
		s.Tools[0] = strings.Replace(s.Tools[0], `"many"`, minimalJSON("more "+hostileScript), 1)
	})
	control[struct{}](t, "POST", "/servers/hostile/refresh", "", 200)
	return site, c
}

// Pages show hostile texts of servers, clients, configurations and URLs as text, without other
// effects.
func testConsoleHostile(t *testing.T, c *chromium) {
	site, agent := hostileSite(t)
	b := c.newTab(t, site)
	b.setView(t, 1280, false)
	paths := []string{"/console/", "/console/conversations", "/console/connect"}
	for _, list := range []string{"/console/servers", "/console/tools?server=hostile", "/console/calls"} {
		b.open(t, list)
		b.expectHarmless(t)
		before, _, _ := strings.Cut(list, "?")
		found := b.links(t, before+"/")
		if len(found) == 0 {
			t.Errorf("%s has no links", list)
		}
		paths = append(paths, found...)
	}
	seen := map[string]bool{} // kinds of pages that show a hostile text
	for _, path := range paths {
		if kind := strings.Split(path, "/")[2]; !seen[kind] {
			b.checkPage(t, path, false)
		} else {
			b.open(t, path)
		}
		b.expectHarmless(t)
		if value[bool](t, b, `document.body.innerText.includes(`+quote(hostileImage)+`) ||
			[...document.querySelectorAll("input, textarea")].some(e => (e.value + e.placeholder).includes(`+
			quote(hostileImage)+`))`) {
			seen[strings.Split(path, "/")[2]] = true
		}
	}
	for _, kind := range []string{"servers", "tools", "calls", "conversations"} {
		if !seen[kind] {
			t.Errorf("no page of %s shows %s", kind, hostileImage)
		}
	}

	b.open(t, "/console/servers/hostile")
	b.until(t, "the difference", `document.querySelector(".diff").innerText.includes(`+quote(`more `+`\"><script>`)+`)`)
	b.checkPage(t, "/console/servers/hostile", true)

	b.open(t, "/console/tools/hostile__"+url.PathEscape(hostileScript))
	b.press(t, "Call it")
	b.until(t, "the result", `document.querySelector("#result").innerText.includes(`+quote(hostileImage)+`)`)
	b.expectHarmless(t)

	b.open(t, "/console/calls")
	b.awaitLive(t)
	agent.begin(t, "tools/call", callOf("hostile", hostileImage+" now", `{}`)).Finish()
	b.until(t, "a new row", rowsWith(hostileImage+" now"))
	b.expectSamePage(t)
	b.expectHarmless(t)

	query, part := url.QueryEscape(hostileAll), url.PathEscape(hostileAll)
	for _, path := range []string{
		"/console/tools?q=" + query, "/console/tools?client=" + query, "/console/tools?server=" + query,
		"/console/?gateway=" + query,
		"/console/servers?gateway=" + query, "/console/servers?did=" + query, "/console/servers/alpha?did=" + query,
		"/console/calls?client=" + query + "&server=" + query + "&tool=" + query + "&outcome=" + query,
		"/console/connect?gateway=" + query,
		"/console/tools/hostile__tool?client=" + query, "/console/tools/hostile__tool?gateway=" + query, "/console/" + part,
		"/console/servers/" + part,
		"/console/tools/" + part, "/console/calls/" + part, "/console/calls/1/originals/" + part, "/console/assets/" + part,
		"/console/live/" + part,
	} {
		status := b.openStatus(t, path)
		if status >= 500 {
			t.Errorf("%s: status %d\n%s", path, status, b.text())
		}
		b.expectHarmless(t)
	}
	b.expectFaults(t, "the server responded with a status of 40") // of unknown pages
}
