package oauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

func TestLoginRequired(t *testing.T) {
	w := newWorld(t)
	a := w.server().Account("")
	if got := w.token(a); got != "" {
		t.Errorf("token %q", got)
	}
	for _, challenge := range []string{"Bearer", `Bearer error="insufficient_scope"`, ""} {
		if _, err := w.refuse(a, "", challenge); !errors.Is(err, ErrLoginRequired) {
			t.Errorf("challenge %s: error %v", challenge, err)
		}
	}
	if got := slices.Concat(w.resource.paths(), w.issuer.paths()); len(got) > 0 {
		t.Errorf("requested %q", got)
	}
}

func TestPlain403IsFinal(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	_, err := a.Rejected(t.Context(), w.token(a), http.StatusForbidden, []string{`Bearer error="invalid_token"`})
	if err == nil || errors.Is(err, ErrLoginRequired) || len(w.issuer.requests()) > 0 {
		t.Errorf("error %v", err)
	}
}

// If another process has replaced a token, a 401 for the old one needs no request.
func TestRejectedTokenIsReplacedByANewerOne(t *testing.T) {
	w := newWorld(t)
	a, b := w.loggedIn(), w.server().Account("")
	old := w.token(b)
	if token, err := w.refuse(a, old); err != nil || token != w.current() {
		t.Fatal(token, err)
	}
	w.issuer.requests()
	if token, err := w.refuse(b, old); err != nil || token != w.current() {
		t.Errorf("token %q, error %v, want %q", token, err, w.current())
	}
	// This call was sent before the login.
	if token, err := w.refuse(b, ""); err != nil || token != w.current() {
		t.Errorf("token %q, error %v, want %q", token, err, w.current())
	}
	if got := w.issuer.requests(); len(got) > 0 {
		t.Errorf("requests %v", got)
	}
	// The newer token has expired meanwhile.
	w.wait(2 * time.Hour)
	if token, err := w.refuse(b, old); err != nil || token != w.current() || len(w.issuer.requests()) != 1 {
		t.Errorf("token %q, error %v, want %q", token, err, w.current())
	}
}

func TestServerThatAlwaysReturns401(t *testing.T) {
	for name, row := range map[string]struct {
		refreshes bool // the issuer gives refresh tokens
		accepted  bool // the server has accepted a token of the login
		tries     int
		login     bool // a login is required at the end
	}{
		"a new token":                     {false, false, 1, false},
		"a new token and a refresh":       {true, false, 2, false},
		"an accepted token":               {false, true, 1, true},
		"an accepted token and a refresh": {true, true, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.refreshes = row.refreshes
			a := w.server().Account("")
			w.login(a)
			token := w.token(a)
			if row.accepted {
				a.Accepted(t.Context(), token)
			}
			var err error
			for try := 1; err == nil; try++ {
				last := token
				if token, err = w.refuse(a, token); err == nil && (token == last || token != w.current()) {
					t.Fatalf("token %q again", token)
				}
				if (err != nil) != (try == row.tries) {
					t.Fatalf("try %d: error %v", try, err)
				}
			}
			if errors.Is(err, ErrLoginRequired) != row.login {
				t.Errorf("error %v", err)
			}
			if row.login {
				return
			}
			wantError(t, err, "does not accept")
			// Later calls end without a request, also those of other processes.
			w.issuer.requests()
			w.resource.paths()
			for _, later := range []*Account{a, w.server().Account("")} {
				if _, err := w.refuse(later, w.token(later)); err == nil || errors.Is(err, ErrLoginRequired) {
					t.Errorf("error %v", err)
				}
			}
			if len(w.issuer.requests())+len(w.resource.paths()) > 0 {
				t.Error("a later call sent a request")
			}
			// A person may still log in, but another login is not required either.
			w.login(a)
			token, err = w.refuse(a, w.token(a))
			if err == nil {
				_, err = w.refuse(a, token)
			}
			if err == nil || errors.Is(err, ErrLoginRequired) {
				t.Errorf("error %v after another login", err)
			}
		})
	}
}

// A token can be refreshed again if the server accepted it after the last refresh.
func TestSuccessfulRefreshCanBeRepeated(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	for range 3 {
		token, err := w.refuse(a, w.token(a))
		if err != nil {
			t.Fatal(err)
		}
		a.Accepted(t.Context(), token)
	}
}

// A token that was never sent does not affect the next one.
func TestRoutineRefreshCanBeFollowedByAnother(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	if _, err := w.refuse(a, w.token(a)); err != nil {
		t.Fatal(err)
	}
	w.wait(2 * time.Hour)
	if token, err := w.refuse(a, w.token(a)); err != nil || token != w.current() {
		t.Errorf("token %q, error %v, want %q", token, err, w.current())
	}
}

func TestStepUp(t *testing.T) {
	for name, row := range map[string]struct {
		configured []string
		demanded   string
		want       string // scope of the next login, or part of the error
	}{
		"requests all scopes together":        {nil, "b", "a b"},
		"requests each scope once":            {nil, "b a", "a b"},
		"ends if the scope was requested":     {nil, "a", "which the login has already requested"},
		"ends if no scope is demanded":        {nil, "", "which the login has already requested"},
		"ends if the scope is not configured": {[]string{"a"}, "b", "which are not configured"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.config.Scopes = row.configured
			a := w.server().Account("")
			_, _ = w.refuse(a, "", `Bearer scope="a"`)
			w.login(a)
			token := w.token(a)
			challenge := `Bearer error="insufficient_scope", scope="` + row.demanded + `"`
			_, err := a.Rejected(t.Context(), token, http.StatusForbidden, []string{challenge})
			if !errors.Is(err, ErrLoginRequired) {
				wantError(t, err, row.want)
				return
			}
			if w.token(a) != token {
				t.Error("other requests no longer use the token")
			}
			// Another process starts the login.
			b := w.server().Account("")
			if got := w.login(b).Get("scope"); got != row.want {
				t.Errorf("scope %q, want %q", got, row.want)
			}
			if token, err := a.Rejected(t.Context(), token, http.StatusForbidden, []string{challenge}); err != nil ||
				token != w.current() {
				t.Errorf("token %q, error %v, want %q", token, err, w.current())
			}
			if _, err := a.Rejected(t.Context(), w.current(), http.StatusForbidden, []string{challenge}); err == nil ||
				errors.Is(err, ErrLoginRequired) {
				t.Errorf("error %v after the step-up, want the limit", err)
			}
		})
	}
}

func TestMigrationToAnotherIssuer(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	old := w.issuer
	w.issuer = newIssuer(t, "")
	w.prm["authorization_servers"] = []string{w.issuer.name}
	_, err := w.refuse(a, w.token(a))
	if !errors.Is(err, ErrLoginRequired) {
		t.Fatal(err)
	}
	wantError(t, err, old.name, w.issuer.name)
	if got := w.token(a); got != "" || len(old.requests()) > 0 {
		t.Errorf("token %q of the old issuer", got)
	}
	w.login(a)
	if len(w.issuer.registered) != 1 || w.token(a) != w.current() {
		t.Error("not registered at the new issuer")
	}
	// One of several issuers may be removed as long as ours remains.
	w.prm["authorization_servers"] = []string{old.name, w.issuer.name}
	if token, err := w.refuse(a, w.token(a)); err != nil || token != w.current() {
		t.Errorf("token %q, error %v, want %q", token, err, w.current())
	}
}

func TestClientCredentials(t *testing.T) {
	w := newWorld(t)
	w.config.Grant, w.config.ClientID, w.config.ClientSecret = ClientCredentials, "me", "my-secret"
	w.issuer.refreshes = false
	a := w.server().Account("")
	if got := w.token(a); got != "" {
		t.Errorf("token %q", got)
	}
	token, err := w.refuse(a, "", `Bearer scope="a"`)
	if err != nil || token != w.current() {
		t.Fatalf("token %q, error %v", token, err)
	}
	form := w.issuer.requests()[0]
	for name, want := range map[string]string{
		"grant_type": "client_credentials", "scope": "a", "resource": w.resource.URL + "/mcp", "basic_id": "me",
		"basic_secret": "my-secret",
	} {
		if got := form.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	a.Accepted(t.Context(), token)

	w.wait(2 * time.Hour)
	if got := w.token(a); got == token || got != w.current() {
		t.Errorf("token %q after the old one has expired", got)
	}
	if token, err = w.refuse(a, w.current()); err != nil || token != w.current() {
		t.Errorf("token %q, error %v after the server refused one", token, err)
	}
	if _, err = w.refuse(a, token); err == nil || errors.Is(err, ErrLoginRequired) {
		t.Errorf("error %v after the server refused two", err)
	}

	w.issuer.requests()
	token, err = a.Rejected(
		t.Context(),
		token,
		http.StatusForbidden,
		[]string{`Bearer error="insufficient_scope", scope="b"`},
	)
	if err != nil || token != w.current() || w.issuer.requests()[0].Get("scope") != "a b" {
		t.Errorf("token %q, error %v after step-up", token, err)
	}
	a.Accepted(t.Context(), token)

	w.issuer = newIssuer(t, "")
	w.prm["authorization_servers"] = []string{w.issuer.name}
	if token, err = w.refuse(a, token); err != nil || token != w.current() || w.token(a) != token {
		t.Errorf("token %q, error %v after migration", token, err)
	}
	if _, err := w.begin(a); err == nil {
		t.Error("a login began")
	}

	w.issuer.change(func() { w.issuer.fail = func(url.Values) (int, string) { return 401, "invalid_client" } })
	w.wait(2 * time.Hour)
	_, err = a.Token(t.Context())
	wantError(t, err, "invalid_client")
	if errors.Is(err, ErrLoginRequired) || strings.Contains(err.Error(), "my-secret") {
		t.Errorf("error %v", err)
	}
}

func TestServerThatRefusesClientCredentials(t *testing.T) {
	w := newWorld(t)
	w.config.Grant, w.config.ClientID, w.config.ClientSecret = ClientCredentials, "me", "my-secret"
	a := w.server().Account("")
	token, err := w.refuse(a, "", "Bearer")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.refuse(a, token, "Bearer")
	wantError(t, err, "does not accept")
}

func TestClientCredentialsNeedAClient(t *testing.T) {
	w := newWorld(t)
	w.config.Grant = ClientCredentials
	_, err := w.refuse(w.server().Account(""), "", "Bearer")
	wantError(t, err, "client_id is not set")
}

func TestPrivateKeys(t *testing.T) {
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 2048)
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, edwards, _ := ed25519.GenerateKey(rand.Reader)
	for name, row := range map[string]struct {
		key       crypto.Signer
		algorithm jose.SignatureAlgorithm
	}{
		"RSA signs with RS256":         {rsaKey, jose.RS256},
		"ECDSA P-256 signs with ES256": {p256, jose.ES256},
		"Ed25519 signs with EdDSA":     {edwards, jose.EdDSA},
		"ECDSA P-384 is refused":       {p384, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.config.Grant, w.config.ClientID, w.config.ClientSecret, w.config.PrivateKey = ClientCredentials, "me", "unused",
				row.key
			_, err := w.refuse(w.server().Account(""), "", "Bearer")
			if row.algorithm == "" {
				wantError(t, err, "private_key")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			form := w.issuer.requests()[0]
			if form.Has("basic_id") || form.Has("client_secret") ||
				form.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
				t.Errorf("request %v", form)
			}
			token, err := jwt.ParseSigned(form.Get("client_assertion"), []jose.SignatureAlgorithm{row.algorithm})
			if err != nil {
				t.Fatal(err)
			}
			var claims jwt.Claims
			if err := token.Claims(row.key.Public(), &claims); err != nil {
				t.Fatal(err)
			}
			life := claims.Expiry.Time().Sub(claims.IssuedAt.Time())
			if claims.Issuer != "me" || claims.Subject != "me" || !slices.Equal(claims.Audience, jwt.Audience{w.issuer.name}) ||
				claims.ID == "" ||
				life != 5*time.Minute {
				t.Errorf("claims %+v", claims)
			}
		})
	}
}

// A token that expires soon would be refused at the next attempt as well.
func TestRejectedTokenIsNotReplacedByAnExpiringOne(t *testing.T) {
	w := newWorld(t)
	w.issuer.lifetime = 10
	a, b := w.loggedIn(), w.server().Account("")
	old := w.token(b)
	if _, err := w.refuse(a, old); err != nil {
		t.Fatal(err)
	}
	w.wait(9 * time.Second)
	late := w.current()
	if token, err := w.refuse(b, old); err != nil || token == late || token != w.current() {
		t.Errorf("token %q, error %v", token, err)
	}
}

// A token that was renewed after a refusal may expire before the server receives it.
func TestTokenThatExpiresInTransit(t *testing.T) {
	w := newWorld(t)
	w.issuer.lifetime = 10
	a := w.loggedIn()
	renewed, err := w.refuse(a, w.token(a))
	if err != nil {
		t.Fatal(err)
	}
	w.wait(11 * time.Second)
	if token, err := w.refuse(a, renewed); err != nil || token == renewed {
		t.Errorf("token %q, error %v", token, err)
	}
}

// A workload has a token of its platform instead of credentials. The token is read for each
// request.
func TestAssertionInsteadOfCredentials(t *testing.T) {
	w := newWorld(t)
	w.issuer.lifetime = 60
	n := 0
	w.config.Grant, w.config.ClientID = ClientCredentials, "me"
	w.config.Assertion = func() (string, error) { n++; return strings.Repeat("jwt", n), nil }
	a := w.server().Account("")
	for range 2 {
		if _, err := w.refuse(a, w.token(a)); err != nil {
			t.Fatal(err)
		}
		a.Accepted(t.Context(), w.token(a))
		requests := w.issuer.requests()
		request := requests[len(requests)-1]
		if request.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" ||
			request.Get("assertion") != strings.Repeat("jwt", n) ||
			request.Get("client_id") != "me" {
			t.Errorf("request %v", request)
		}
		w.wait(time.Hour)
	}
	w.config.Assertion = func() (string, error) { return "", errors.New("no file") }
	b := w.server().Account("other")
	if _, err := w.refuse(b, ""); err == nil || errors.Is(err, ErrLoginRequired) {
		t.Errorf("error %v", err)
	}
}

func TestChallenges(t *testing.T) {
	const metadata = "https://mcp.example/.well-known/oauth-protected-resource"
	for name, row := range map[string]struct {
		values []string
		want   challenge
	}{
		"no header":     {nil, challenge{}},
		"no parameters": {[]string{"Bearer"}, challenge{}},
		"all parameters": {[]string{`Bearer error="insufficient_scope", scope="a b", ` +
			`resource_metadata="` + metadata + `"`}, challenge{metadata, []string{"a", "b"}, "insufficient_scope"}},
		"without quotes": {[]string{`bearer error=invalid_token,scope=a`},
			challenge{"", []string{"a"}, "invalid_token"}},
		"names in any case":             {[]string{`BEARER Scope="a"`}, challenge{"", []string{"a"}, ""}},
		"spaces around the equals sign": {[]string{`Bearer scope = "a"`}, challenge{"", []string{"a"}, ""}},
		"after another scheme in one header": {[]string{`Basic realm="x", Bearer scope="a"`},
			challenge{"", []string{"a"}, ""}},
		"before another scheme in one header": {[]string{`Bearer scope="a", DPoP scope="b"`}, challenge{"", []string{"a"},
			""}},
		"not of another scheme": {[]string{`DPoP scope="b", Bearer error="e", Basic scope="c"`},
			challenge{"", nil, "e"}},
		"after a scheme with a token68": {[]string{`Negotiate YWJj/+==, Bearer scope="a"`},
			challenge{"", []string{"a"}, ""}},
		"after a scheme with a plain token68": {[]string{`Negotiate YWJj, Bearer scope="a"`}, challenge{"", []string{"a"},
			""}},
		"in another header": {[]string{`Basic realm="x"`, `Bearer scope="a"`},
			challenge{"", []string{"a"}, ""}},
		"spread over two challenges": {[]string{`Bearer scope="a"`, `Bearer scope="b", error="e"`},
			challenge{"", []string{"a"}, "e"}},
		"inside of a quoted string": {[]string{`Basic realm="x, Bearer scope=a"`}, challenge{}},
		"an escaped quote in a string": {[]string{`Bearer realm="a\", scope=\"b", scope="c\d"`},
			challenge{"", []string{"cd"}, ""}},
		"a repeated parameter":                  {[]string{`Bearer scope="a", scope="b"`}, challenge{"", []string{"a"}, ""}},
		"empty elements of the list":            {[]string{`, ,Bearer ,, scope="a",`}, challenge{"", []string{"a"}, ""}},
		"a string that is not closed":           {[]string{`Bearer error="e", scope="a`}, challenge{"", nil, "e"}},
		"garbage before":                        {[]string{`"x" = (), Bearer scope="a"`}, challenge{"", []string{"a"}, ""}},
		"a parameter without value is a scheme": {[]string{`Bearer error="e", scope, error="x"`}, challenge{"", nil, "e"}},
		"a scope that is too long is not stored": {[]string{`Bearer scope="` + strings.Repeat("a", maxParam+1) + `"`},
			challenge{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := parseChallenges(row.values)
			if got.metadata != row.want.metadata || !slices.Equal(got.scopes, row.want.scopes) || got.err != row.want.err {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// FuzzChallenges checks that parameters written as RFC 9110 says are read back, whatever precedes
// them.
func FuzzChallenges(f *testing.F) {
	f.Add("", "a b", "https://mcp.example/")
	f.Add(`Basic realm="x", `, `"\`, "")
	f.Add("Negotiate YWJj==, ", "é", "\x00")
	f.Add("Bearer scope", "", ",")
	f.Fuzz(func(t *testing.T, before, scope, metadata string) {
		quote := func(text string) string {
			return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
		}
		value := `Bearer scope=` + quote(scope) + `,resource_metadata=` + quote(metadata)
		_ = parseChallenges([]string{before + value}) // must return
		if len(scope) > maxParam || len(metadata) > maxParam {
			return
		}
		got := parseChallenges([]string{value, before})
		if got.metadata != metadata && metadata != "" ||
			!slices.Equal(got.scopes, strings.Fields(scope)) &&
				len(strings.Fields(scope)) > 0 {
			t.Errorf("%q: got %+v", value, got)
		}
	})
}

// A server that is busy has not moved to another authorization server: the login stays.
func TestBusyMetadataKeepTheLogin(t *testing.T) {
	for _, status := range []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests} {
		w := newWorld(t)
		a := w.loggedIn()
		first, busy := w.token(a), true
		w.resource.page("/.well-known/oauth-protected-resource/mcp", func(rw http.ResponseWriter, _ *http.Request) {
			if busy {
				rw.WriteHeader(status)
				return
			}
			writeJSON(rw, http.StatusOK, w.prm)
		})
		if _, err := w.refuse(a, first, "Bearer"); errors.Is(err, ErrLoginRequired) {
			t.Errorf("%d: %v", status, err)
		}
		busy = false
		w.wait(retryTime)
		if token, err := w.refuse(a, first, "Bearer"); err != nil || token != w.current() || token == "" {
			t.Errorf("%d, afterwards: token %q, error %v", status, token, err)
		}
	}
}
