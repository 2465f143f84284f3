package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
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

// A gateway with its own client credentials needs no login by a person.
func TestOAuthClientCredentials(t *testing.T) {
	isolate(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	jwk := map[string]any{"kty": "EC", "crv": "P-256", "x": base64URL(point[1:33]), "y": base64URL(point[33:])}
	const secret = "s3cret-AbCdEf0123456789-AbCdEf0123456789"
	secretFile := filepath.Join(t.TempDir(), "secret") // Caddy itself logs the configuration at debug level
	if err := os.WriteFile(secretFile, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		line   string
		client map[string]any // registration at the authorization server
	}{
		"by secret": {"client_secret {file." + secretFile + "}", map[string]any{"client_secret": secret}},
		"by key": {"private_key " + file, map[string]any{"jwks": map[string]any{"keys": []any{jwk}},
			"token_endpoint_auth_method": "private_key_jwt", "token_endpoint_auth_signing_alg": "ES256"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.client["client_id"], tt.client["grant_types"], tt.client["redirect_uris"], tt.client["response_types"] = "robot",
				[]string{"client_credentials"}, []string{}, []string{}
			a := startAuthServer(t, map[string]any{"accessTokenSeconds": 2, "registration": false, "clients": []any{tt.client}})
			g := startGateway(t, t.TempDir(), a.line("oauth", "grant client_credentials", "client_id robot", tt.line))
			c := g.join(t)
			awaitTools(t, c, accountTools("robot")...)
			await.Until(t, "new tokens", func() bool {
				expectResult(t, c, "whoami", "robot")
				return a.stats(t).Grants["client_credentials"] >= 3
			})
			if logged := g.stop(t); strings.Contains(logged, secret) {
				t.Error("the log contains the secret")
			}
		})
	}
}

// The gateway exchanges the caller's token for a token for the server, at the identity
// provider that both use.
func TestOAuthTokenExchange(t *testing.T) {
	isolate(t)
	const (
		audience = "https://mcp.test/mcp"
		secret   = "s3cret-AbCdEf0123456789-AbCdEf0123456789"
	)
	a := startAuthServer(t, map[string]any{"audience": audience, "clients": []any{
		map[string]any{"client_id": "agent", "token_endpoint_auth_method": "none",
			"redirect_uris": []string{"http://127.0.0.1:1/callback"}},
		map[string]any{"client_id": "gateway", "client_secret": secret, "redirect_uris": []string{},
			"response_types": []string{},
			"grant_types":    []string{"urn:ietf:params:oauth:grant-type:token-exchange"}},
	}})
	g := startGateway(t, t.TempDir(),
		block("auth jwt", "issuer "+a.Issuer, "audience "+audience, "jwks "+a.Issuer+"/jwks"),
		a.line("oauth exchange", "client_id gateway", "client_secret "+secret))
	for _, account := range []string{"alice", "bob"} {
		theirs := a.login(t, "agent", account, audience, "gateway")
		c := g.join(t, bearer(theirs.Access))
		awaitTools(t, c, accountTools(account)...)
		for range 3 {
			expectResult(t, c, "whoami", account)
		}
	}
	if got := a.stats(t); got.Grants["urn:ietf:params:oauth:grant-type:token-exchange"] != 2 ||
		got.ForeignSessions != 0 || len(got.RefusedGrants) != 0 {
		t.Errorf("the authorization server saw %+v, want one token exchange per client", got)
	}
}

// callSteadily calls a tool calls times, perSecond times a second, and fails the test if a
// call fails. On a busy machine it calls less often: queued calls would outlive their tokens.
func callSteadily(t *testing.T, c *testClient, calls, perSecond int) {
	t.Helper()
	for range 50 { // warm up Node.js
		expectResult(t, c, "whoami", "alice")
	}
	pace := time.NewTicker(time.Second / time.Duration(perSecond))
	defer pace.Stop()
	var all sync.WaitGroup
	underWay := make(chan struct{}, 16) // more calls than wait during a token refresh
	for range calls {
		<-pace.C
		underWay <- struct{}{}
		all.Go(func() {
			defer func() { <-underWay }()
			got := c.Start(t.Context(), "tools/call", callOf("notes", "whoami", `{}`)).Finish()
			if got.Err != nil || got.Text() != "whoami of alice" {
				t.Errorf("got %d %s, error %v", got.Status, got.Body, got.Err)
			}
		})
	}
	all.Wait()
}

// fleeting configures an authorization server with a slow token endpoint and tokens that
// live for two seconds.
var fleeting = map[string]any{"accessTokenSeconds": 2, "tokenMilliseconds": 200}

// expectRefreshes checks that tokens were refreshed several times, and no refresh token was used
// twice.
func expectRefreshes(t *testing.T, a *authServer) {
	t.Helper()
	if got := a.stats(t); got.Grants["refresh_token"] < 3 || got.Reused != 0 || got.Logins != 1 ||
		len(got.RefusedGrants) != 0 {
		got.Tokens = nil
		t.Errorf("the authorization server saw %+v, want each refresh token used once", got)
	}
}

// No call fails while tokens expire, at 50 calls per second.
func TestOAuthRefresh(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, fleeting)
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	c := g.join(t)
	expectLoggedIn(t, newFormBrowser(t).logIn(t, expectLoginRequest(t, c, "whoami"), "alice"))
	callSteadily(t, c, 600, 50)
	expectRefreshes(t, a)
}

// Without refresh tokens a login lasts as long as its access token.
func TestOAuthLoginExpires(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, map[string]any{"accessTokenSeconds": 2, "refreshTokens": false})
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	c, b := g.join(t), newFormBrowser(t)
	address := expectLoginRequest(t, c, "whoami")
	for range 2 {
		expectLoggedIn(t, b.logIn(t, address, "alice"))
		await.Until(t, "the end of the login", func() bool {
			address = loginAddress.FindString(c.use(t, "notes", "whoami", `{}`))
			return address != ""
		})
	}
	if got := a.stats(t); got.Grants["refresh_token"] != 0 || len(got.RefusedGrants) != 0 || got.Calls["alice"] == 0 {
		t.Errorf("the servers saw %+v, want no refresh", got)
	}
}

// Two processes that share a login refresh its tokens one after the other.
func TestOAuthRefreshAcrossProcesses(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, fleeting)
	home := t.TempDir()
	first := startGateway(t, home, sessionKey, a.line("oauth"))
	expectLoggedIn(t, newFormBrowser(t).logIn(t, expectLoginRequest(t, first.join(t), "whoami"), "alice"))
	second := startGateway(t, home, sessionKey, a.line("oauth"))
	var both sync.WaitGroup
	for _, g := range []*oauthGateway{first, second} {
		c := g.join(t)
		both.Go(func() { callSteadily(t, c, 250, 25) })
	}
	both.Wait()
	expectRefreshes(t, a)
}

// The gateway does not retry forever with a server that refuses every token.
func TestOAuthRefused(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, map[string]any{"rejectAll": true})
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	c := g.join(t)
	expectLoggedIn(t, newFormBrowser(t).logIn(t, expectLoginRequest(t, c, "whoami"), "alice"))
	const calls = 10
	before := a.stats(t)
	for range calls {
		got := c.ask(t, "tools/call", callOf("notes", "whoami", `{}`)).answer
		if got.Error == nil || got.Error.Symbol() != "login_failed" || !strings.Contains(got.Error.Message,
			"the server does not accept the tokens of "+a.Issuer) {
			t.Errorf("got %s, want login_failed because the server accepts no token", got.Raw)
		}
	}
	after := a.stats(t)
	if n := after.Requests - before.Requests; n > calls {
		t.Errorf("%d calls made %d requests, want fewer", calls, n)
	}
	if n := after.Grants["refresh_token"]; n > calls/2 || after.Grants["authorization_code"] != 1 ||
		after.Registrations != 1 || after.Reused != 0 {
		t.Errorf("the authorization server saw %+v, want one login and few refreshes", after)
	}
}

// A hostileServer is an MCP server whose metadata point the gateway to other servers. Empty
// fields get honest values.
type hostileServer struct {
	url      string
	metadata string // URL of its metadata
	issuer   string // URL of its authorization server
	endpoint string // token and registration endpoint
	redirect string // redirect of the authorization server's metadata
}

func (s *hostileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	choose := func(hostile, honest string) string {
		if hostile == "" {
			return s.url + honest
		}
		return hostile
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource"):
		fmt.Fprintf(w, `{"resource":%q,"authorization_servers":[%q]}`, s.url+"/mcp", choose(s.issuer, ""))
	case strings.HasPrefix(r.URL.Path, "/.well-known/") && s.redirect != "":
		http.Redirect(w, r, s.redirect, http.StatusFound)
	case strings.HasPrefix(r.URL.Path, "/.well-known/"):
		fmt.Fprintf(w, `{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,"registration_endpoint":%q,`+
			`"response_types_supported":["code"],"code_challenge_methods_supported":["S256"]}`,
			s.url, s.url+"/auth", choose(s.endpoint, "/token"), choose(s.endpoint, "/register"))
	default:
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+choose(s.metadata,
			"/.well-known/oauth-protected-resource/mcp")+`"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// startHostileServer starts a server and returns its URL. place sets one of its URLs to to.
func startHostileServer(t *testing.T, place func(s *hostileServer, to string), to string) string {
	t.Helper()
	s := &hostileServer{}
	place(s, to)
	listener := httptest.NewUnstartedServer(s)
	s.url = "http://" + listener.Listener.Addr().String()
	listener.Start()
	t.Cleanup(listener.Close)
	return s.url + "/mcp"
}

// A watchedServer counts connections.
type watchedServer struct {
	*httptest.Server
	connections atomic.Int32
}

func startWatchedServer(t *testing.T, start func(*httptest.Server)) *watchedServer {
	t.Helper()
	w := &watchedServer{Server: httptest.NewUnstartedServer(http.NotFoundHandler())}
	w.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			w.connections.Add(1)
		}
	}
	start(w.Server)
	t.Cleanup(w.Close)
	return w
}

// A hostile server cannot make the gateway connect to other servers on this machine or to
// Caddy's admin API, or read files.
func TestOAuthHostileMetadata(t *testing.T) {
	isolate(t)
	const file = "file:///etc/passwd"
	type target struct{ url, name string } // name: text that the error must contain
	g := newGateway(t, t.TempDir())
	plain, secure := startWatchedServer(t, (*httptest.Server).Start), startWatchedServer(t, (*httptest.Server).StartTLS)
	byName := func(address string) string { return strings.Replace(address, "127.0.0.1", "localhost", 1) }
	places := map[string]func(s *hostileServer, to string){
		"metadata of the resource":             func(s *hostileServer, to string) { s.metadata = to },
		"an authorization server":              func(s *hostileServer, to string) { s.issuer = to },
		"endpoints":                            func(s *hostileServer, to string) { s.endpoint = to },
		"metadata of the authorization server": func(s *hostileServer, to string) { s.redirect = to },
	}
	targets := map[string]target{
		"at a loopback address":                {secure.URL, "127.0.0.1"},
		"at a host name of a loopback address": {byName(secure.URL), "localhost"},
		"at a loopback address without TLS":    {plain.URL, "127.0.0.1"},
		"at the admin API":                     {"http://" + g.admin + "/config/stolen", "127.0.0.1"},
		"in a file":                            {file, file},
	}
	type attack struct {
		name, server string
		target
	}
	var attacks []attack
	var lines []string
	for what, place := range places {
		for where, to := range targets {
			a := attack{what + " " + where, fmt.Sprintf("s%d", len(attacks)), to}
			attacks = append(attacks, a)
			lines = append(lines, block("server "+a.server+" "+startHostileServer(t, place, to.url), "oauth"))
		}
	}
	// The gateway does connect to trusted hosts.
	friend := startWatchedServer(t, (*httptest.Server).Start)
	for name, place := range places {
		lines = append(lines, block("server trusts_"+strings.ReplaceAll(name, " ", "_")+" "+startHostileServer(t, place,
			byName(friend.URL)), block("oauth", "trusted_hosts localhost")))
	}
	g.start(t, lines...)
	c := g.join(t)
	// logIn returns the error text of a login.
	logIn := func(t *testing.T, server string) string {
		t.Helper()
		answer := c.ask(t, "tools/call", callOf(server, "whoami", `{}`)).answer.Raw
		address := loginAddress.FindString(answer)
		if address == "" {
			return answer
		}
		page := newFormBrowser(t).logIn(t, address, "alice")
		if page.status < 400 {
			t.Errorf("the login went on to %s: %d %s", page.url, page.status, page.text)
		}
		return page.text
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			got := logIn(t, a.server)
			if !strings.Contains(got, a.target.name) || a.url != file && !strings.Contains(got, "trusted_hosts") {
				t.Errorf("got %s, want %s to be refused", got, a.url)
			}
			if n := plain.connections.Load() + secure.connections.Load(); n != 0 {
				t.Errorf("there were %d connections", n)
			}
		})
	}
	for name := range places {
		t.Run(name+" on a trusted host", func(t *testing.T) {
			before := friend.connections.Load()
			got := logIn(t, "trusts_"+strings.ReplaceAll(name, " ", "_"))
			if friend.connections.Load() == before {
				t.Errorf("got %s, and no connection to the trusted server", got)
			}
		})
	}
	askAdmin(t, g.admin, "GET", "/config/asked", "")
	var asked []string
	for line := range strings.Lines(g.stop(t)) {
		if strings.Contains(line, `"logger":"admin.api"`) && (strings.Contains(line, "stolen") || strings.Contains(line,
			"/config/asked")) {
			asked = append(asked, line)
		}
	}
	if len(asked) != 1 {
		t.Errorf("the admin API logged %q, want only the test's request", asked)
	}
}

// startReplica starts a gateway with its own home directory that shares a Redis with others.
func startReplica(t *testing.T, redis *replicastest.Redis, lines ...string) *oauthGateway {
	t.Helper()
	g := newGateway(t, t.TempDir())
	g.options = []string{block("mcp_store redis redis://"+redis.Addr, sessionKey, "timeout 2s")}
	g.start(t, append(lines, "name replicas")...)
	return g
}

// A roundRobin is a round-robin proxy: each page of a login comes from another gateway than the
// page before.
type roundRobin struct {
	url string

	mu      sync.Mutex
	targets []*url.URL
	count   atomic.Int64
}

func newRoundRobin(t *testing.T) *roundRobin {
	t.Helper()
	s := &roundRobin{}
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.SetURL(s.targets[int(s.count.Add(1))%len(s.targets)])
		r.SetXForwarded()
		r.Out.Host = r.In.Host
	}})
	t.Cleanup(server.Close)
	s.url = strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	return s
}

func (s *roundRobin) add(t *testing.T, g *oauthGateway) {
	t.Helper()
	u, err := url.Parse(g.url)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets = append(s.targets, u)
}

// A login whose pages come from three replicas is valid on all of them. They refresh its tokens one
// after the other.
func TestOAuthAcrossReplicas(t *testing.T) {
	isolate(t)
	redis := replicastest.StartRedis(t)
	a := startAuthServer(t, fleeting)
	front := newRoundRobin(t)
	var all []*oauthGateway
	for range 3 {
		g := startReplica(t, redis, "public_url "+front.url, a.line("oauth"))
		front.add(t, g)
		all = append(all, g)
	}
	address := expectLoginRequest(t, all[0].join(t), "whoami")
	expectLoggedIn(t, newFormBrowser(t).logIn(t, address, "alice"))
	if n := front.count.Load(); n < int64(len(all)) {
		t.Errorf("%d requests reached the gateways, want at least one each", n)
	}
	var running sync.WaitGroup
	for _, g := range all {
		c := g.join(t)
		awaitTools(t, c, accountTools("alice")...)
		running.Go(func() { callSteadily(t, c, 100, 12) })
	}
	running.Wait()
	expectRefreshes(t, a)
	if got := a.stats(t); got.Registrations != 1 {
		t.Errorf("%d registrations", got.Registrations)
	}

	// A logout on one replica takes effect on all.
	if out, err := all[1].command(t, "logout").CombinedOutput(); err != nil {
		t.Errorf("caddy mcp logout: %v: %s", err, out)
	}
	for _, g := range all {
		await.Until(t, "the login to be gone", func() bool { return g.status(t).Login.State != "logged_in" })
	}
}

// Tool descriptions approved on one replica are approved on all, also on a replica that starts
// later.
func TestPinsAcrossReplicas(t *testing.T) {
	isolate(t)
	redis := replicastest.StartRedis(t)
	far := newRemoteServer(t, "steady", "fickle")
	lines := []string{"pin_tools on", far.line("far")}
	first, second := startReplica(t, redis, lines...), startReplica(t, redis, lines...)
	whole, less := []string{"far__steady", "far__fickle"}, []string{"far__steady"}
	sees := func(g *oauthGateway, want []string) {
		t.Helper()
		c := newTestClient(t, joinedAt(g.url), false, `{}`)
		await.Until(t, strings.Join(want, " "), func() bool { return slices.Equal(toolNames(t, c), want) })
		if slices.Equal(want, less) {
			c.refuses(t, "tools/call", callOf("far", "fickle", `{}`), 403, "tool_changed")
		}
	}
	admin := func(g *oauthGateway, action string) {
		t.Helper()
		if got := askAdmin(t, g.admin, "POST", "/mcp_gateway/servers/far/"+action, ""); got.StatusCode != 200 {
			t.Errorf("%s: %d %s", action, got.StatusCode, got.body)
		}
	}
	change := func(description string) {
		far.Change(func(s *mcptest.Script) {
			s.Tools[1] = `{"name":"fickle","description":"` + description + `","inputSchema":{"type":"object"}}`
		})
	}
	sees(first, whole)
	sees(second, whole)
	change("It does more.")
	admin(first, "refresh")
	sees(first, less)
	sees(second, less)
	admin(second, "accept")
	sees(second, whole)
	sees(first, whole)
	change("It does still more.")
	third := startReplica(t, redis, lines...)
	sees(third, less)
	admin(third, "accept")
	for _, g := range []*oauthGateway{first, second, third} {
		admin(g, "refresh")
		sees(g, whole)
	}
}

// A client that runs the gateway over stdio logs in at an address that the process opens
// for logins.
func TestOAuthStdio(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, map[string]any{})
	p := startStdio(t, writeCaddyfile(t, site(freeAddress(t), gateway(a.line("oauth"), "separator __"))))
	ask := func(message string) string {
		t.Helper()
		p.send(t, message)
		return p.receive(t, "").Raw
	}
	ask(stdioHandshake)
	text := toolText(t, ask(toolCall{"notes__login", `{}`}.request()))
	address := loginAddress.FindString(text)
	if !strings.HasPrefix(address, "http://127.0.0.1:") {
		t.Fatalf("got %s, want a loopback address", text)
	}
	expectLoggedIn(t, newFormBrowser(t).logIn(t, address, "alice"))
	if got := toolText(t, ask(toolCall{"notes__whoami", `{}`}.request())); got != "whoami of alice" {
		t.Errorf("got %s", got)
	}
	// Only the login pages are served there.
	if page, _ := newFormBrowser(t).open(t, address[:strings.Index(address, "/oauth/")]); page.status == 200 &&
		page.text != "" {
		t.Errorf("the gateway itself is also served: %d %s", page.status, page.text)
	}
	p.close(t)
}
