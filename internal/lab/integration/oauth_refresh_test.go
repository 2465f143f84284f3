package integration

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

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
