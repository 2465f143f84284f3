package oauth

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestTokensAreRefreshedBeforeTheyExpire(t *testing.T) {
	for name, row := range map[string]struct {
		lifetime  int
		after     time.Duration
		refreshes int
	}{
		"not early in a lifetime of two seconds":  {2, 700 * time.Millisecond, 0},
		"after one of two seconds":                {2, time.Second, 1},
		"not after 59 minutes of an hour":         {3600, 59 * time.Minute, 0},
		"half a minute before the end of an hour": {3600, 59*time.Minute + 31*time.Second, 1},
		"never without expiry":                    {0, 10000 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.lifetime = row.lifetime
			a := w.server().Account("")
			w.login(a)
			w.wait(row.after)
			if got := w.token(a); got != w.current() {
				t.Errorf("token %q, want %q", got, w.current())
			}
			forms := w.issuer.requests()
			if len(forms) != row.refreshes {
				t.Fatalf("%d refreshes, want %d", len(forms), row.refreshes)
			}
			if row.refreshes > 0 &&
				(forms[0].Get("grant_type") != "refresh_token" ||
					forms[0].Get("resource") != w.resource.URL+"/mcp") {
				t.Errorf("refreshed by %v", forms[0])
			}
		})
	}
}

func TestUnrotatedRefreshTokenIsKept(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	for range 2 {
		w.issuer.change(func() { w.issuer.refreshes = false })
		w.wait(2 * time.Hour)
		if got := w.token(a); got != w.current() {
			t.Errorf("token %q, want %q", got, w.current())
		}
	}
}

func TestTokenWithoutRefreshTokenExpires(t *testing.T) {
	w := newWorld(t)
	w.issuer.refreshes = false
	a := w.loggedIn()
	w.wait(3595 * time.Second)
	if got := w.token(a); got != w.current() {
		t.Errorf("token %q, want %q", got, w.current())
	}
	w.wait(6 * time.Second)
	if _, err := a.Token(t.Context()); !errors.Is(err, ErrLoginRequired) {
		t.Errorf("error %v", err)
	}
}

func TestFailedRefresh(t *testing.T) {
	answer := func(status int, code string) func(*world) {
		return func(w *world) { w.issuer.fail = func(url.Values) (int, string) { return status, code } }
	}
	for name, row := range map[string]struct {
		fail     func(*world)
		login    bool // a person must log in
		forgets  bool // the tokens
		register bool // the registration is forgotten
	}{
		"an invalid grant ends the login":               {answer(400, "invalid_grant"), true, true, false},
		"an unknown client ends login and registration": {answer(401, "invalid_client"), true, true, true},
		"an invalid scope requires a login":             {answer(400, "invalid_scope"), true, false, false},
		"a server error is temporary":                   {answer(500, "server_error"), false, false, false},
		"a busy server is temporary":                    {answer(429, "slow_down"), false, false, false},
		"a refusal by a proxy is temporary":             {answer(403, ""), false, false, false},
		"a network failure is temporary": {func(w *world) {
			w.issuer.CloseClientConnections()
			w.issuer.Listener.Close()
		}, false, false, false},
		"a response that is not JSON is temporary": {func(w *world) {
			w.issuer.page("/token", func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "text/plain")
				_, _ = rw.Write([]byte("access_token=evil&token_type=bearer"))
			})
		}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.loggedIn()
			old, secret := w.current(), w.issuer.refresh
			w.issuer.change(func() { row.fail(w) })
			w.wait(3580 * time.Second) // refreshed early, and still valid
			token, err := a.Token(t.Context())
			if row.login {
				if !errors.Is(err, ErrLoginRequired) || token != "" {
					t.Errorf("token %q, error %v", token, err)
				}
			} else if err != nil || token != old {
				t.Errorf("token %q, error %v, want the old token", token, err)
			}
			w.wait(30 * time.Second)
			token, err = a.Token(t.Context())
			if token != "" || (err == nil) != row.forgets || errors.Is(err, ErrLoginRequired) != (row.login && !row.forgets) {
				t.Errorf("token %q, error %v after the old one has expired", token, err)
			}
			if text := a.Status(t.Context()).Err; text == nil || strings.Contains(text.Error(), secret) ||
				strings.Contains(text.Error(), "registered-secret") {
				t.Errorf("status %v", text)
			}
			if got := len(w.store.keys("clients")) == 0; got != row.register {
				t.Errorf("registration forgotten: %t, want %t", got, row.register)
			}
			if row.forgets {
				return
			}
			w.wait(retryTime)
			w.issuer.change(func() { w.issuer.fail = nil })
			w.issuer.page("/token", w.issuer.serveToken)
			if strings.Contains(name, "network") {
				return
			}
			if got := w.token(a); got != w.current() || got == old {
				t.Errorf("token %q after the failure, want %q", got, w.current())
			}
		})
	}
}

// While an authorization server is down, calls do not send requests to it.
func TestFailedRefreshIsNotRepeatedAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	w.issuer.change(func() { w.issuer.fail = func(url.Values) (int, string) { return 500, "" } })
	w.wait(3599*time.Second + 500*time.Millisecond) // servers count in whole seconds
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if token, err := a.Token(t.Context()); err == nil || errors.Is(err, ErrLoginRequired) {
				t.Errorf("token %q, error %v", token, err)
			}
		})
	}
	calls.Wait()
	if got := len(w.issuer.requests()); got != 1 {
		t.Errorf("%d requests", got)
	}
}

func TestWrongConfiguredCredentials(t *testing.T) {
	w := newWorld(t)
	w.config.ClientID, w.config.ClientSecret = "a", "b-secret"
	a := w.loggedIn()
	w.issuer.change(func() { w.issuer.fail = func(url.Values) (int, string) { return 401, "invalid_client" } })
	w.wait(2 * time.Hour)
	_, err := a.Token(t.Context())
	if errors.Is(err, ErrLoginRequired) {
		t.Error("a login is required, but would not help")
	}
	wantError(t, err, "invalid_client")
}

// A caller that leaves during a refresh does not lose the rotated token.
func TestRefreshContinuesWithoutItsCaller(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	ctx, cancel := context.WithCancel(t.Context())
	w.issuer.change(func() {
		w.issuer.fail = func(url.Values) (int, string) { cancel(); return 0, "" }
	})
	w.wait(2 * time.Hour)
	if _, err := a.Token(ctx); err != nil {
		t.Error(err)
	}
	if got := w.token(w.server().Account("")); got != w.current() {
		t.Errorf("token %q, want %q", got, w.current())
	}
}

// A caller that leaves while it waits does not prevent others from refreshing.
func TestCanceledRefreshIsNotAFailure(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	w.wait(2 * time.Hour)
	if err := w.store.Lock(t.Context(), a.key); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Token(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if err := w.store.Unlock(t.Context(), a.key); err != nil {
		t.Fatal(err)
	}
	if got := w.token(a); got != w.current() {
		t.Errorf("token %q, want %q", got, w.current())
	}
}

// During a refresh, other calls use the token that is still valid.
func TestTokenIsUsedDuringItsRefresh(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	old := w.token(a)
	asked, answer := make(chan struct{}), make(chan struct{})
	w.issuer.change(func() {
		w.issuer.fail = func(url.Values) (int, string) { close(asked); <-answer; return 0, "" }
	})
	w.wait(3580 * time.Second)
	done := make(chan string)
	go func() { done <- w.token(a) }()
	<-asked
	if got := w.token(a); got != old {
		t.Errorf("token %q, want %q", got, old)
	}
	close(answer)
	if got := <-done; got == old {
		t.Error("not refreshed")
	}
}

// A token in memory remains usable if the Store fails.
func TestTokenThatCannotBeStoredIsUsed(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	w.store.mu.Lock()
	w.store.fail = errors.New("disk full")
	w.store.mu.Unlock()
	w.wait(2 * time.Hour)
	if got := w.token(a); got != w.current() {
		t.Errorf("token %q, want %q", got, w.current())
	}
	wantError(t, a.Status(t.Context()).Err, "disk full")
	w.wait(2 * time.Hour)
	w.token(a)
	w.store.mu.Lock()
	w.store.fail = nil
	w.store.mu.Unlock()
	w.wait(2 * time.Hour)
	w.token(a)
	if got := w.token(w.server().Account("")); got != w.current() || len(w.issuer.reused) > 0 {
		t.Errorf("token %q, want %q; used twice: %q", got, w.current(), w.issuer.reused)
	}
}

// Two processes share a refresh token that is valid once. The access tokens expire and are revoked
// repeatedly. No refresh token is used twice, and no call fails.
func TestTwoProcessesShareARotatingToken(t *testing.T) {
	t.Run("in a storage", func(t *testing.T) {
		w := newWorld(t)
		w.loggedIn()
		shareRotatingToken(t, w, w.server(), w.server())
	})
	t.Run("of replicas", func(t *testing.T) {
		w, engine := newWorld(t), replicastest.New()
		servers := []*Server{w.replica(engine), w.replica(engine)}
		w.login(servers[0].Account(""))
		shareRotatingToken(t, w, servers...)
	})
}

func shareRotatingToken(t *testing.T, w *world, servers ...*Server) {
	const rounds, workers = 20, 8
	for round := range rounds {
		if round%2 == 0 {
			w.wait(2 * time.Hour) // the token has expired
		} else {
			w.issuer.change(func() { w.issuer.access = "revoked" })
		}
		var calls sync.WaitGroup
		for i := range workers {
			a := servers[i%len(servers)].Account("")
			calls.Go(func() {
				token, err := a.Token(t.Context())
				if err == nil && token != w.current() {
					token, err = a.Rejected(t.Context(), token, http.StatusUnauthorized, nil)
				}
				if err != nil || token != w.current() {
					t.Errorf("round %d: token %q, want %q, error %v", round, token, w.current(), err)
				}
				a.Accepted(t.Context(), token)
			})
		}
		calls.Wait()
		if got := len(w.issuer.requests()); got != 1 {
			t.Errorf("round %d: %d refreshes", round, got)
		}
	}
	if len(w.issuer.reused) > 0 {
		t.Errorf("used twice: %q", w.issuer.reused)
	}
}

// Accounts that were evicted from memory are still logged in.
func TestEvictedAccountsAreLoggedIn(t *testing.T) {
	w := newWorld(t)
	s := w.server()
	s.accounts = newLRU[string, *Account](1)
	a := s.Account("ann")
	w.login(a)
	if s.Account("ann") != a {
		t.Error("two accounts for one id")
	}
	s.Account("bob")
	if b := s.Account("ann"); b == a || w.token(b) != w.current() {
		t.Error("not logged in")
	}
}

// A login is not used if its client is no longer configured.
func TestLoginOfAnotherClient(t *testing.T) {
	w := newWorld(t)
	w.loggedIn()
	w.config.ClientID = "my-client"
	if got := w.token(w.server().Account("")); got != "" {
		t.Errorf("token %q", got)
	}
	w.config.ClientID, w.config.Grant = "", ClientCredentials
	if got := w.token(w.server().Account("")); got != "" {
		t.Errorf("token %q of another grant", got)
	}
}

// newExchange returns a world for token exchange, and its account.
func newExchange(t *testing.T) (*world, *Account) {
	w := newWorld(t)
	w.config.Grant, w.config.ClientID, w.config.ClientSecret = TokenExchange, "me", "my-secret"
	w.config.Scopes = []string{"a"}
	w.issuer.refreshes = false
	return w, w.server().Account("")
}

func TestExchange(t *testing.T) {
	w, a := newExchange(t)
	if got := w.token(a); got != "" {
		t.Errorf("token %q", got)
	}
	first, err := a.Exchange(t.Context(), "token-of-ann")
	if err != nil || first != w.current() {
		t.Fatalf("token %q, error %v", first, err)
	}
	form := w.issuer.requests()[0]
	for name, want := range map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": "token-of-ann",
		"subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
		"resource":           w.resource.URL + "/mcp", "audience": w.resource.URL + "/mcp", "scope": "a",
		"basic_secret": "my-secret",
	} {
		if got := form.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}

	second, err := a.Exchange(t.Context(), "token-of-bob")
	if err != nil || second == first {
		t.Errorf("token %q, error %v for another caller", second, err)
	}
	if again, err := a.Exchange(t.Context(), "token-of-ann"); err != nil || again != first {
		t.Errorf("token %q, error %v, want %q from the cache", again, err, first)
	}
	w.wait(2 * time.Hour)
	if third, err := a.Exchange(t.Context(), "token-of-ann"); err != nil || third == first || third != w.current() {
		t.Errorf("token %q, error %v after it has expired", third, err)
	}
	if len(w.store.values) > 0 {
		t.Error("exchanged tokens are stored")
	}
}

func TestFailedExchangeIsNotRepeatedAtOnce(t *testing.T) {
	w, a := newExchange(t)
	w.issuer.fail = func(url.Values) (int, string) { return 503, "" }
	for range 3 {
		_, err := a.Exchange(t.Context(), "token-of-ann")
		wantError(t, err, "503")
	}
	if got := len(w.issuer.requests()); got != 1 {
		t.Errorf("%d requests", got)
	}
	w.issuer.change(func() { w.issuer.fail = nil })
	w.wait(retryTime)
	if token, err := a.Exchange(t.Context(), "token-of-ann"); err != nil || token != w.current() {
		t.Errorf("token %q, error %v", token, err)
	}
}

func TestConcurrentExchanges(t *testing.T) {
	w, a := newExchange(t)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if token, err := a.Exchange(t.Context(), "token-of-ann"); err != nil || token != w.current() {
				t.Errorf("token %q, error %v", token, err)
			}
		})
	}
	calls.Wait()
	if got := len(w.issuer.requests()); got != 1 {
		t.Errorf("%d requests", got)
	}
}

func TestRefusedExchangedTokens(t *testing.T) {
	w, a := newExchange(t)
	exchange := func() string {
		t.Helper()
		token, err := a.Exchange(t.Context(), "token-of-ann")
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	token := exchange()
	for range 2 {
		if _, err := w.refuse(a, token); err != nil {
			t.Fatal(err)
		}
		// Another call with the same token is refused later.
		if _, err := w.refuse(a, token); err != nil {
			t.Fatal(err)
		}
		next := exchange()
		if next == token {
			t.Fatal("got the same token again")
		}
		token = next
		a.Accepted(t.Context(), token)
	}
	if _, err := w.refuse(a, token); err != nil {
		t.Fatal(err)
	}
	if _, err := w.refuse(a, exchange()); err == nil || errors.Is(err, ErrLoginRequired) {
		t.Errorf("error %v, want the limit", err)
	}
}

func TestExchangeWithMoreScopes(t *testing.T) {
	w, _ := newExchange(t)
	w.config.Scopes = nil
	w.prm["scopes_supported"] = []string{"a"}
	a := w.server().Account("")
	demand := []string{`Bearer error="insufficient_scope", scope="b"`}
	token, err := a.Exchange(t.Context(), "token-of-ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Rejected(t.Context(), token, http.StatusForbidden, demand); err != nil {
		t.Fatal(err)
	}
	w.issuer.requests()
	if token, err = a.Exchange(t.Context(), "token-of-ann"); err != nil || w.issuer.requests()[0].Get("scope") != "a b" {
		t.Errorf("error %v", err)
	}
	if _, err := a.Rejected(t.Context(), token, http.StatusForbidden, demand); err == nil {
		t.Error("no limit")
	}
}

// The tokens of callers are sent only to an issuer that the resource names.
func TestTokensOfCallersAreNotSentToAGuessedServer(t *testing.T) {
	w, _ := newExchange(t)
	w.config.Resource = mustParse(w.issuer.name + "/mcp")
	_, err := w.server().Account("").Exchange(t.Context(), "token-of-ann")
	wantError(t, err, "publishes no metadata")
	if slices.Contains(w.issuer.paths(), "/token") {
		t.Error("the token was sent")
	}
}

func TestFailedExchange(t *testing.T) {
	w, a := newExchange(t)
	w.issuer.fail = func(url.Values) (int, string) { return 400, "invalid_request" }
	_, err := a.Exchange(t.Context(), "token-of-ann")
	wantError(t, err, "invalid_request")
	if text := err.Error(); strings.Contains(text, "token-of-ann") || strings.Contains(text, "my-secret") {
		t.Error(text)
	}
	wantError(t, a.Status(t.Context()).Err, "invalid_request")
}

func TestExchangeFollowsTheResourceToAnotherIssuer(t *testing.T) {
	w, a := newExchange(t)
	token, err := a.Exchange(t.Context(), "token-of-ann")
	if err != nil {
		t.Fatal(err)
	}
	w.issuer = newIssuer(t, "")
	w.resource.document(
		"/moved.json",
		map[string]any{"resource": w.resource.URL + "/mcp",
			"authorization_servers": []string{w.issuer.name}},
	)
	if _, err := w.refuse(a, token, `Bearer resource_metadata="`+w.resource.URL+`/moved.json"`); err != nil {
		t.Fatal(err)
	}
	if token, err = a.Exchange(t.Context(), "token-of-ann"); err != nil || token != w.current() {
		t.Errorf("token %q, error %v", token, err)
	}
}

// An authorization server may repeat the request in its error.
func TestAssertionsAreNotInErrors(t *testing.T) {
	w := newWorld(t)
	w.config.Grant, w.config.ClientID = ClientCredentials, "me"
	const assertion = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0.YXNzZXJ0aW9u"
	w.config.Assertion = func() (string, error) { return assertion, nil }
	w.issuer.fail = func(url.Values) (int, string) { return 400, "invalid_grant" }
	a := w.server().Account("")
	if _, err := w.refuse(a, "", "Bearer"); err == nil || strings.Contains(err.Error(), assertion) {
		t.Errorf("got %v", err)
	}
	if err := a.Status(t.Context()).Err; err == nil || strings.Contains(err.Error(), assertion) {
		t.Errorf("status: %v", err)
	}
}

// If the authorization server fails, an exchanged token stays in use while it is valid.
func TestExchangedTokenStaysInUse(t *testing.T) {
	w, a := newExchange(t)
	first, err := a.Exchange(t.Context(), "token-of-ann")
	if err != nil {
		t.Fatal(err)
	}
	w.issuer.change(func() { w.issuer.fail = func(url.Values) (int, string) { return 503, "" } })
	w.wait(3580 * time.Second) // valid for another 20 s
	for range 2 {
		if token, err := a.Exchange(t.Context(), "token-of-ann"); token != first || err != nil {
			t.Errorf("token %q, error %v, want %q", token, err, first)
		}
	}
	w.wait(30 * time.Second)
	if token, err := a.Exchange(t.Context(), "token-of-ann"); err == nil {
		t.Errorf("got the expired token %q", token)
	}
}
