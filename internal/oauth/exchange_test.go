package oauth

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

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
