package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// An oauthGateway is a Caddy process that can be stopped, and started again with its stored data.
type oauthGateway struct {
	*caddyProcess
	url   string // origin for clients and browsers
	admin string
	home  string // directory of stored data

	options []string // further global options of Caddy
}

// newGateway returns a gateway, not yet started, that stores its data in home.
func newGateway(t *testing.T, home string) *oauthGateway {
	t.Helper()
	return &oauthGateway{url: "http://" + strings.Replace(freeAddress(t), "127.0.0.1", "localhost", 1),
		admin: freeAddress(t), home: home}
}

// startGateway starts a gateway with these lines that stores its data in home.
func startGateway(t *testing.T, home string, lines ...string) *oauthGateway {
	t.Helper()
	g := newGateway(t, home)
	g.start(t, lines...)
	return g
}

func (g *oauthGateway) start(t *testing.T, lines ...string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "Caddyfile")
	options := block("", append(g.options, "debug", "metrics",
		block("servers", "trusted_proxies static 127.0.0.1/32 ::1/128"))...)
	caddyfile := options + "\n" + site(strings.TrimPrefix(g.url, "http://"), "log",
		gateway(append(lines, "separator __")...))
	if err := os.WriteFile(config, []byte(withAdmin(caddyfile, g.admin)), 0o600); err != nil {
		t.Fatal(err)
	}
	g.caddyProcess = startCaddy(t, caddyrun.Command(context.WithoutCancel(t.Context()), binary(t), g.home, "run",
		"--config", config))
	t.Cleanup(func() {
		logged := g.stop(t)
		if t.Failed() {
			t.Logf("Caddy logged:\n%s", logged[max(0, len(logged)-20_000):])
		}
	})
}

// status returns the admin API's status of the server notes.
func (g *oauthGateway) status(t *testing.T) (s struct {
	Login    struct{ State, Issuer string }
	LoginURL string `json:"login_url"`
}) {
	t.Helper()
	got := askAdmin(t, g.admin, "GET", "/mcp_gateway/servers/notes", "")
	if err := json.Unmarshal([]byte(got.body), &s); err != nil || got.StatusCode != 200 {
		t.Fatalf("got %d %s, error %v", got.StatusCode, got.body, err)
	}
	return s
}

// loginURL waits until the server needs a login, and returns its URL.
func (g *oauthGateway) loginURL(t *testing.T) (address string) {
	t.Helper()
	await.Until(t, "the URL of the login", func() bool {
		address = g.status(t).LoginURL
		return address != ""
	})
	return address
}

// join starts a session of a client without capabilities.
func (g *oauthGateway) join(t *testing.T, headers ...string) *testClient {
	t.Helper()
	return newTestClient(t, joinedAt(g.url), false, `{}`, headers...)
}

// tools returns the sorted names of the tools that a client sees.
func tools(t *testing.T, c *testClient) (names []string) {
	t.Helper()
	var list struct{ Tools []struct{ Name string } }
	got := c.ask(t, "tools/list", `{}`)
	if err := json.Unmarshal(got.answer.Result, &list); err != nil {
		t.Fatalf("tools/list: got %s", got.answer.Raw)
	}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// awaitTools waits until a client sees exactly these tools.
func awaitTools(t *testing.T, c *testClient, want ...string) {
	t.Helper()
	var got []string
	if !await.Within(patience, func() bool { got = tools(t, c); return slices.Equal(got, want) }) {
		t.Errorf("got the tools %v, want %v", got, want)
	}
}

// accountTools returns the names of an account's tools.
func accountTools(account string) []string {
	return []string{"notes__greet_" + account, "notes__whoami", "notes__write_note"}
}

var loginAddress = regexp.MustCompile(`https?://[^\s"<>\\]+/mcp/oauth/login\?[^\s"<>\\]+`)

// expectLoginRequest checks that a call returns a text with the URL of a login, and returns the
// URL.
func expectLoginRequest(t *testing.T, c *testClient, tool string) (address string) {
	t.Helper()
	text := c.use(t, "notes", tool, `{}`)
	address = loginAddress.FindString(text)
	if address == "" {
		t.Fatalf("%s: got %s, want the URL of a login", tool, text)
	}
	return address
}

// expectResult checks that the server answers a call for this account.
func expectResult(t *testing.T, c *testClient, tool, account string) {
	t.Helper()
	if got := c.use(t, "notes", tool, `{}`); got != tool+" of "+account {
		t.Errorf("%s: got %s, want account %s", tool, got, account)
	}
}

// expectLoggedIn checks that a login succeeded.
func expectLoggedIn(t *testing.T, page webPage) {
	t.Helper()
	if page.status != 200 || !strings.Contains(page.text, "Logged in to notes") {
		t.Fatalf("the login ended at %s: %d %s", page.url, page.status, page.text)
	}
}

// command returns a `caddy mcp` command for the server notes.
func (g *oauthGateway) command(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return caddyrun.Command(ctx, binary(t), t.TempDir(), "mcp", name, "notes", "--address", g.admin)
}

// loginCommand starts `caddy mcp login`. It returns the URL that the command prints, and a
// function that waits for the command to end.
func (g *oauthGateway) loginCommand(t *testing.T) (address string, wait func()) {
	t.Helper()
	cmd := g.command(t, "login")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	var printed strings.Builder
	for address == "" && lines.Scan() {
		printed.WriteString(lines.Text() + "\n")
		address = loginAddress.FindString(lines.Text())
	}
	if address == "" {
		t.Fatalf("caddy mcp login printed %s%s, want a URL", &printed, &complaints)
	}
	return address, func() {
		t.Helper()
		for lines.Scan() {
			printed.WriteString(lines.Text() + "\n")
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("caddy mcp login: %v: %s%s", err, &printed, &complaints)
		}
	}
}

// The operator logs in with a real browser, for all clients.
func TestOAuthLogin(t *testing.T) {
	isolate(t)
	browser := newChromium(t)
	a := startAuthServer(t, nil)
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	c := g.join(t)
	stream := c.listenForChanges(t)
	awaitTools(t, c, "notes__login")
	remote := g.join(t, "X-Forwarded-For: 203.0.113.7")
	awaitTools(t, remote)
	if got := remote.ask(t, "tools/call", callOf("notes", "whoami", `{}`)).answer; got.Error == nil ||
		got.Error.Symbol() != "login_required" || loginAddress.MatchString(got.Raw) {
		t.Errorf("a remote client got %s, want an error without a URL", got.Raw)
	}

	_, wait := g.loginCommand(t)
	expectLoggedIn(t, browser.logIn(t, g.loginURL(t), "alice"))
	wait()
	stream.awaitMessage(t, "notifications/tools/list_changed")
	awaitTools(t, c, accountTools("alice")...)
	expectResult(t, c, "whoami", "alice")
	expectResult(t, remote, "whoami", "alice")
	if got := g.status(t); got.Login.State != "logged_in" || got.Login.Issuer != a.Issuer || got.LoginURL != "" {
		t.Errorf("got %+v, want logged_in", got)
	}

	if out, err := g.command(t, "logout").CombinedOutput(); err != nil {
		t.Errorf("caddy mcp logout: %v: %s", err, out)
	}
	awaitTools(t, c, "notes__login")
	if got := a.stats(t); got.Revoked != 1 {
		t.Errorf("the authorization server saw %+v, want one revoked grant", got)
	}
	address, wait := g.loginCommand(t)
	expectLoggedIn(t, newFormBrowser(t).logIn(t, address, "bob"))
	wait()
	awaitTools(t, c, accountTools("bob")...)
	expectResult(t, c, "whoami", "bob")

	stats := a.stats(t)
	if len(stats.Tokens) < 4 || stats.Logins != 2 || stats.Registrations != 1 {
		t.Errorf("the authorization server saw %+v, want access and refresh tokens of two logins, and one registration",
			stats)
	}
	hides := func(where, text string) {
		for _, token := range stats.Tokens {
			if strings.Contains(text, token) {
				t.Errorf("%s contains a token", where)
			}
		}
	}
	for _, path := range []string{"/config/", "/metrics", "/mcp_gateway/servers", "/mcp_gateway/clients",
		"/mcp_gateway/metrics"} {
		hides(path, askAdmin(t, g.admin, "GET", path, "").body)
	}
	hides("the log", g.stop(t))
	stored := 0
	err := filepath.WalkDir(g.home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		hides(path, string(text))
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 600", path, info.Mode())
		}
		stored++
		return err
	})
	if err != nil || stored == 0 {
		t.Errorf("%d files are stored, error %v", stored, err)
	}
}

// Without dynamic registration, the gateway uses the client that its operator has registered.
func TestOAuthConfiguredClient(t *testing.T) {
	isolate(t)
	const secret = "s3cret-AbCdEf0123456789-AbCdEf0123456789"
	for _, method := range []string{"client_secret_basic", "client_secret_post", "none"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, t.TempDir())
			registered := map[string]any{"client_id": "caddy", "redirect_uris": []string{g.url + "/mcp/oauth/callback"},
				"grant_types": []string{"authorization_code", "refresh_token"}, "token_endpoint_auth_method": method}
			lines := []string{"client_id caddy"}
			if method != "none" {
				registered["client_secret"] = secret
				lines = append(lines, "client_secret "+secret)
			}
			a := startAuthServer(t, map[string]any{"registration": false, "tokenMethods": []string{method},
				"clients": []any{registered}})
			g.start(t, a.line("oauth", lines...))
			c := g.join(t)
			expectLoggedIn(t, newFormBrowser(t).logIn(t, expectLoginRequest(t, c, "whoami"), "alice"))
			expectResult(t, c, "whoami", "alice")
		})
	}
	t.Run("no client", func(t *testing.T) {
		t.Parallel()
		a := startAuthServer(t, map[string]any{"registration": false})
		g := startGateway(t, t.TempDir(), a.line("oauth"))
		page := newFormBrowser(t).logIn(t, expectLoginRequest(t, g.join(t), "whoami"), "alice")
		if page.status < 400 || !strings.Contains(page.text, "client_id") {
			t.Errorf("got %d %s, want an error that names client_id", page.status, page.text)
		}
	})
}

const sessionKey = "session_key 0123456789abcdef0123456789abcdef"

func TestOAuthLoginSurvivesRestart(t *testing.T) {
	isolate(t)
	for name, lines := range map[string][]string{"with a session_key": {sessionKey}, "with a key file": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAuthServer(t, nil)
			lines := append(lines, a.line("oauth"))
			home := t.TempDir()
			first := startGateway(t, home, lines...)
			expectLoggedIn(t, newFormBrowser(t).logIn(t, expectLoginRequest(t, first.join(t), "whoami"), "alice"))
			expectResult(t, first.join(t), "whoami", "alice")
			first.stop(t)

			second := startGateway(t, home, lines...)
			c := second.join(t)
			awaitTools(t, c, accountTools("alice")...)
			expectResult(t, c, "whoami", "alice")
			if got := a.stats(t); got.Logins != 1 || got.Registrations != 1 {
				t.Errorf("the authorization server saw %+v, want one login", got)
			}
		})
	}
}

// Tokens of the gateway's clients.
const (
	aliceToken = "alice-AbCdEf0123456789"
	bobToken   = "bob-AbCdEf0123456789"
	carolToken = "carol-AbCdEf0123456789"
)

var threeClients = block("auth token", "alice "+aliceToken, "bob "+bobToken, "carol "+carolToken)

// A loginPeer is a client of an official SDK that can open a URL for a login.
type loginPeer struct {
	lines *bufio.Scanner
	err   *bytes.Buffer
}

// loginView is one line of a loginPeer's output.
type loginView struct {
	Tools       []string
	Elicitation *struct{ Mode, URL, Message, ElicitationID string }
	Result      *struct {
		Content []struct{ Text string }
		IsError bool
	}
	Error json.RawMessage
}

// startLoginPeer starts a client of an era, v1 or modern, that calls tools.
func startLoginPeer(t *testing.T, g *oauthGateway, era, token string, tools ...string) *loginPeer {
	t.Helper()
	cmd := peer(t, "login.mjs", joinedAt(g.url), era, token)
	var calls []map[string]any
	for _, tool := range tools {
		calls = append(calls, map[string]any{"name": "notes__" + tool, "arguments": map[string]any{}})
	}
	input, _ := json.Marshal(calls)
	cmd.Stdin = bytes.NewReader(input)
	p := &loginPeer{err: &bytes.Buffer{}}
	cmd.Stderr = p.err
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p.lines = bufio.NewScanner(out)
	return p
}

// next returns the next line of its output.
func (p *loginPeer) next(t *testing.T) (s loginView) {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the client exited: %s", p.err)
	}
	if err := json.Unmarshal(p.lines.Bytes(), &s); err != nil {
		t.Fatalf("the client printed %s: %v", p.lines.Text(), err)
	}
	return s
}

// expectLogin checks that the client receives a login URL, logs in, and checks that the same call
// succeeds.
func (p *loginPeer) expectLogin(t *testing.T, b browser, account, result string) {
	t.Helper()
	s := p.next(t)
	if s.Elicitation == nil || s.Elicitation.Mode != "url" || s.Elicitation.Message == "" ||
		!loginAddress.MatchString(s.Elicitation.URL) {
		t.Fatalf("the client sees %s, want a URL elicitation", p.lines.Text())
	}
	expectLoggedIn(t, b.logIn(t, s.Elicitation.URL, account))
	if s := p.next(t); s.Result == nil || s.Result.IsError || len(s.Result.Content) != 1 ||
		s.Result.Content[0].Text != result {
		t.Errorf("the client sees %s, want %s", p.lines.Text(), result)
	}
}

// Each client has its own account at the server.
func TestOAuthPerClient(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, nil)
	g := startGateway(t, t.TempDir(), threeClients, a.line("oauth per_client"))
	endpoint := joinedAt(g.url)

	t.Run("a client receives a login URL, and its call continues", func(t *testing.T) {
		alice := startLoginPeer(t, g, "v1", aliceToken, "whoami", "greet_ann")
		if got := alice.next(t); !slices.Equal(got.Tools, []string{"notes__login"}) {
			t.Errorf("alice sees the tools %v, want only the login tool", got.Tools)
		}
		alice.expectLogin(t, newFormBrowser(t), "ann", "whoami of ann")
		if got := alice.next(t); got.Result == nil || got.Result.IsError {
			t.Errorf("alice sees %s, want a result without another login", alice.lines.Text())
		}
	})
	t.Run("one client's login is not valid for another", func(t *testing.T) {
		bob := g.join(t, bearer(bobToken))
		awaitTools(t, bob, "notes__login")
		address := expectLoginRequest(t, bob, "whoami")
		if got := a.stats(t).Calls; got["ann"] != 2 || len(got) != 1 {
			t.Errorf("the server saw calls by %v, want two by ann", got)
		}
		b := newFormBrowser(t)
		first, _ := b.open(t, address)
		if !strings.Contains(first.text, "notes") || !strings.Contains(first.text, "bob") {
			t.Errorf("the page says %q, want the names of the server and the client", first.text)
		}
		expectLoggedIn(t, b.logIn(t, address, "ben"))
		awaitTools(t, bob, accountTools("ben")...)
		expectResult(t, bob, "whoami", "ben")
		alice := g.join(t, bearer(aliceToken))
		awaitTools(t, alice, accountTools("ann")...)
		expectResult(t, alice, "whoami", "ann")
		single := newTestClient(t, mcpAt(g.url, "notes"), false, `{}`, bearer(bobToken))
		if got := single.ask(t, "tools/call", `{"name":"whoami","arguments":{}}`).answer.Text(); got != "whoami of ben" {
			t.Errorf("at /mcp/{server}: got %s, want account ben", got)
		}
		if got := a.stats(t); got.ForeignSessions != 0 || got.Registrations != 1 {
			t.Errorf("the servers saw %+v, want no foreign sessions and one registration", got)
		}
	})

	// None of the following subtests but the last logs carol in.
	carol := g.join(t, bearer(carolToken))
	t.Run("requests other than tool calls at /mcp are refused with a login URL", func(t *testing.T) {
		for name, got := range map[string]mcpclient.Message{
			"prompts/get at /mcp": carol.ask(t, "prompts/get", `{"name":"notes__hello"}`).answer,
			"tools/call at /mcp/{server}": mcpclient.Parse(post(t, mcpAt(g.url, "notes"),
				rpc("tools/call", `{"name":"whoami","arguments":{}}`), acceptBoth, bearer(carolToken)).body),
			"tools/call at /rpc": mcpclient.Parse(post(t, rpcAt(g.url, "notes"),
				rpc("tools/call", `{"name":"whoami","arguments":{}}`), bearer(carolToken)).body),
		} {
			var data struct {
				Elicitations []struct{ Mode, URL, ElicitationID, Message string }
			}
			if got.Error == nil || got.Error.Code != -32042 || got.Error.Symbol() != "login_required" ||
				json.Unmarshal(got.Error.Data, &data) != nil || len(data.Elicitations) != 1 ||
				data.Elicitations[0].Mode != "url" || !loginAddress.MatchString(data.Elicitations[0].URL) {
				t.Errorf("%s: got %s, want error -32042 with a login URL", name, got.Raw)
			}
		}
	})
	// begin logs in up to the authorization server's redirect, and returns that URL.
	begin := func(t *testing.T, b *formBrowser) *url.URL {
		t.Helper()
		b.stopAt = g.url + "/mcp/oauth/callback"
		end := b.logIn(t, expectLoginRequest(t, carol, "whoami"), "eve")
		if end.url.Query().Get("code") == "" || end.url.Query().Get("state") == "" {
			t.Fatalf("the login ended at %s: %s", end.url, end.text)
		}
		b.stopAt = ""
		return end.url
	}
	refuses := func(t *testing.T, b *formBrowser, callback *url.URL) {
		t.Helper()
		before := a.stats(t).Grants
		if got, _ := b.open(t, callback.String()); got.status < 400 || strings.Contains(got.text, "Logged in") {
			t.Errorf("got %d %s, want a refusal", got.status, got.text)
		}
		if after := a.stats(t).Grants; after["authorization_code"] != before["authorization_code"] {
			t.Error("a token was issued")
		}
		expectLoginRequest(t, carol, "whoami")
	}
	t.Run("a login that another browser finishes is refused", func(t *testing.T) {
		refuses(t, newFormBrowser(t), begin(t, newFormBrowser(t)))
	})
	// withParam returns a copy of the callback URL with one parameter changed, or removed if value is
	// "".
	withParam := func(callback *url.URL, name, value string) *url.URL {
		query := callback.Query()
		query.Set(name, value)
		if value == "" {
			query.Del(name)
		}
		other := *callback
		other.RawQuery = query.Encode()
		return &other
	}
	t.Run("a login with the state of another login is refused", func(t *testing.T) {
		one, two := newFormBrowser(t), newFormBrowser(t)
		first, second := begin(t, one), begin(t, two)
		refuses(t, one, withParam(first, "state", second.Query().Get("state")))
		refuses(t, two, withParam(first, "state", second.Query().Get("state")))
		refuses(t, one, withParam(first, "state", "x"+first.Query().Get("state")))
		refuses(t, one, withParam(first, "state", ""))
		refuses(t, one, withParam(begin(t, one), "state", begin(t, one).Query().Get("state")))
	})
	t.Run("a callback from another authorization server is refused", func(t *testing.T) {
		b := newFormBrowser(t)
		refuses(t, b, withParam(begin(t, b), "iss", "https://evil.test"))
		refuses(t, b, withParam(begin(t, b), "iss", ""))
	})
	t.Run("a login URL without its ticket is refused", func(t *testing.T) {
		for _, ticket := range []string{"", "?ticket=", "?ticket=x"} {
			if got, form := newFormBrowser(t).open(t, endpoint+"/oauth/login"+ticket); got.status < 400 || got.status > 499 ||
				form != nil {
				t.Errorf("%q: got %d %s, want a refusal", ticket, got.status, got.text)
			}
		}
	})
	t.Run("a form on another site cannot start a login", func(t *testing.T) {
		address := expectLoginRequest(t, carol, "whoami")
		b := newFormBrowser(t)
		b.stopAt = a.Issuer
		b.open(t, address)
		ticket := address[strings.Index(address, "ticket="):]
		for _, headers := range [][]string{{"Origin: http://evil.test"}, {"Origin: null"}} {
			got, _ := b.do(t, request(t, t.Context(), "POST", address, ticket,
				append(headers, "Content-Type: application/x-www-form-urlencoded")...))
			if got.status < 400 || got.status > 499 {
				t.Errorf("%v: got %d %s, want a refusal", headers, got.status, got.url)
			}
		}
		got, _ := newFormBrowser(t).do(t, request(t, t.Context(), "POST", address, ticket, "Origin: "+g.url,
			"Content-Type: application/x-www-form-urlencoded"))
		if got.status < 400 || got.status > 499 {
			t.Errorf("without the cookie: got %d %s, want a refusal", got.status, got.url)
		}
	})
	t.Run("a login can be finished only once", func(t *testing.T) {
		b := newFormBrowser(t)
		callback := begin(t, b)
		got, _ := b.open(t, callback.String())
		expectLoggedIn(t, got)
		expectResult(t, carol, "whoami", "eve")
		if got, _ := b.open(t, callback.String()); got.status < 400 || got.status > 499 {
			t.Errorf("the second time: got %d %s, want a refusal", got.status, got.text)
		}
		expectResult(t, carol, "whoami", "eve")
	})
}

// A modern client gets the login URL in a result, and repeats its call.
func TestOAuthModernClient(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, nil)
	g := startGateway(t, t.TempDir(), threeClients, a.line("oauth per_client"))

	t.Run("an official client", func(t *testing.T) {
		alice := startLoginPeer(t, g, "modern", aliceToken, "whoami")
		if got := alice.next(t); !slices.Equal(got.Tools, []string{"notes__login"}) {
			t.Errorf("alice sees the tools %v, want only the login tool", got.Tools)
		}
		alice.expectLogin(t, newFormBrowser(t), "ann", "whoami of ann")
	})
	t.Run("a client that declines", func(t *testing.T) {
		bob := newTestClient(t, joinedAt(g.url), true, `{"elicitation":{"url":{}}}`, bearer(bobToken))
		params := callOf("notes", "whoami", `{}`)
		input := bob.ask(t, "tools/call", params).answer.Input(t)
		got := bob.ask(t, "tools/call",
			retryParams(params, input, func(string) string { return `{"action":"decline"}` })).answer
		if !strings.Contains(got.Raw, "isError") && got.Error == nil {
			t.Errorf("got %s, want an error", got.Raw)
		}
		if calls := a.stats(t).Calls; calls["ann"] != 1 || len(calls) != 1 {
			t.Errorf("the server saw calls by %v, want one by ann", calls)
		}
	})
}

// A call that needs another scope asks for another login with that scope.
func TestOAuthStepUp(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, nil)
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	c := g.join(t)
	b := newFormBrowser(t)
	expectLoggedIn(t, b.logIn(t, expectLoginRequest(t, c, "whoami"), "alice"))
	expectResult(t, c, "whoami", "alice")
	address := expectLoginRequest(t, c, "write_note")
	expectResult(t, c, "whoami", "alice") // the old tokens are still valid for it
	expectLoggedIn(t, b.logIn(t, address, "alice"))
	expectResult(t, c, "write_note", "alice")
	expectResult(t, c, "whoami", "alice")
	if got := a.stats(t); got.Forbidden > 2 || got.Grants["authorization_code"] != 2 {
		t.Errorf("the servers saw %+v, want a second login and few refusals", got)
	}
}
