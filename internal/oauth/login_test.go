package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestAuthorizationRequest(t *testing.T) {
	w := newWorld(t)
	w.issuer.metadata["authorization_endpoint"] = w.issuer.name + "/authorize?tenant=1"
	query := w.login(w.server().Account("ann"))
	for name, want := range map[string]string{
		"response_type": "code", "client_id": "client-1", "redirect_uri": redirectURL, "state": "state", "tenant": "1",
		"code_challenge_method": "S256", "resource": w.resource.URL + "/mcp", "prompt": "",
	} {
		if got := query.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if w.pending.Account != "ann" || w.pending.Issuer != w.issuer.name {
		t.Errorf("pending for %s at %s", w.pending.Account, w.pending.Issuer)
	}
}

func TestLoginNeedsAState(t *testing.T) {
	w := newWorld(t)
	_, err := w.server().Account("").Begin(t.Context(), redirectURL, "", func(*Pending) string { return "" })
	wantError(t, err, "no state")
}

func TestScopes(t *testing.T) {
	for name, row := range map[string]struct {
		configured []string
		challenge  string
		resource   []string // scopes_supported of the resource
		issuer     []string // scopes_supported of the issuer
		want       string
	}{
		"of the configuration": {[]string{"c"}, `Bearer scope="h"`, []string{"r"},
			[]string{"offline_access"}, "c"},
		"of the challenge": {nil, `Bearer scope="h i"`, []string{"r"}, nil, "h i"},
		"of the resource":  {nil, `Bearer`, []string{"r", "s"}, []string{"x"}, "r s"},
		"none":             {nil, `Bearer`, nil, []string{"x"}, ""},
		"offline_access if the issuer supports it": {nil, `Bearer scope="h"`, nil,
			[]string{"h", "offline_access"}, "h offline_access"},
		"only offline_access": {nil, `Bearer`, nil, []string{"offline_access"},
			"offline_access"},
		"offline_access once": {nil, `Bearer scope="offline_access h"`, nil,
			[]string{"offline_access"}, "offline_access h"},
		"no offline_access if only the resource supports it": {nil, `Bearer`, []string{"r"}, []string{"r"}, "r"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.config.Scopes = row.configured
			w.prm["scopes_supported"] = row.resource
			w.issuer.metadata["scopes_supported"] = row.issuer
			a := w.server().Account("")
			_, _ = w.refuse(a, "", row.challenge)
			// Another process completes the login.
			query := w.login(w.server().Account(""))
			if got := query.Get("scope"); got != row.want || query.Has("scope") != (row.want != "") {
				t.Errorf("scope %q, want %q", got, row.want)
			}
			wantPrompt := ""
			if strings.Contains(row.want, "offline_access") {
				wantPrompt = "consent"
			}
			if got := query.Get("prompt"); got != wantPrompt {
				t.Errorf("prompt %q, want %q", got, wantPrompt)
			}
		})
	}
}

func TestCallback(t *testing.T) {
	for name, row := range map[string]struct {
		advertised bool
		change     func(w *world, query url.Values)
		want       string // part of the error, "" for none
	}{
		"no iss": {false, func(*world, url.Values) {}, ""},
		"the right iss": {false,
			func(w *world, q url.Values) { q.Set("iss", w.issuer.name) }, ""},
		"the right iss if required": {true,
			func(w *world, q url.Values) { q.Set("iss", w.issuer.name) }, ""},
		"no iss although required": {true, func(*world, url.Values) {}, "no iss"},
		"another iss if required": {true,
			func(_ *world, q url.Values) { q.Set("iss", "https://evil.example") }, "https://evil.example"},
		"another iss if not required": {false,
			func(_ *world, q url.Values) { q.Set("iss", "https://evil.example") }, "https://evil.example"},
		"an iss with an added slash": {true,
			func(w *world, q url.Values) { q.Set("iss", w.issuer.name+"/") }, "the callback comes from issuer"},
		"an empty iss": {false, func(_ *world, q url.Values) { q.Set("iss", "") },
			"the callback comes from issuer"},
		"two iss": {true,
			func(w *world, q url.Values) { q["iss"] = []string{w.issuer.name, w.issuer.name} }, "more than one iss"},
		"two codes": {false, func(_ *world, q url.Values) { q.Add("code", "x") },
			"more than one code"},
		"no code": {false, func(_ *world, q url.Values) { q.Del("code") },
			"no code"},
		"an error": {false, func(_ *world, q url.Values) {
			q.Set("error", "access_denied")
			q.Set("error_description", "not\nyou"+strings.Repeat("!", 1000))
		}, "access_denied not you!"},
		"an error of another issuer": {false, func(_ *world, q url.Values) {
			q.Set("iss", "https://evil.example")
			q.Set("error", "call_this_number")
		}, "the callback comes from issuer"},
		"another account": {false, func(w *world, _ url.Values) { w.pending.Account = "bob" },
			"another account"},
		"another verifier": {false, func(w *world, _ url.Values) { w.pending.Verifier = "x" },
			"invalid_grant"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.metadata["authorization_response_iss_parameter_supported"] = row.advertised
			a := w.server().Account("")
			address, err := w.begin(a)
			if err != nil {
				t.Fatal(err)
			}
			query := w.issuer.authorize(t, address)
			row.change(w, query)
			err = a.Finish(t.Context(), w.pending, query)
			if row.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantError(t, err, row.want)
			if err == nil || len(err.Error()) > 500 || strings.Contains(err.Error(), "call_this_number") {
				t.Errorf("error %v", err)
			}
			if token := w.token(a); token != "" {
				t.Errorf("token %q", token)
			}
			if row.want != "invalid_grant" && len(w.issuer.requests()) > 0 {
				t.Error("the code was sent")
			}
		})
	}
}

// A login may be completed by another process, after a restart.
func TestAnotherProcessCompletesTheLogin(t *testing.T) {
	w := newWorld(t)
	address, err := w.begin(w.server().Account("ann"))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := json.Marshal(w.pending)
	if err != nil {
		t.Fatal(err)
	}
	var opened Pending
	if err := json.Unmarshal(sealed, &opened); err != nil {
		t.Fatal(err)
	}
	if err := w.server().Account("ann").Finish(t.Context(), &opened, w.issuer.authorize(t, address)); err != nil {
		t.Fatal(err)
	}
	form := w.issuer.requests()[0]
	for name, want := range map[string]string{
		"grant_type": "authorization_code", "redirect_uri": redirectURL, "resource": w.resource.URL + "/mcp",
		"code_verifier": opened.Verifier,
	} {
		if got := form.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := w.token(w.server().Account("ann")); got != w.current() {
		t.Errorf("token %q, want %q", got, w.current())
	}
	if got := w.token(w.server().Account("bob")); got != "" {
		t.Errorf("token %q of another account", got)
	}
}

func TestRefusedTokenResponses(t *testing.T) {
	for name, row := range map[string]struct {
		extra map[string]any
		want  string
	}{
		"of another type":              {map[string]any{"token_type": "DPoP"}, "DPoP"},
		"without a type":               {map[string]any{"token_type": ""}, "token_type"},
		"without a token":              {map[string]any{"access_token": ""}, "no token"},
		"with a token of two lines":    {map[string]any{"access_token": "a\r\nX-Evil: b"}, "cannot be sent"},
		"with status 200 and an error": {map[string]any{"error": "invalid_scope"}, "invalid_scope"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.extra = row.extra
			a := w.server().Account("")
			address, err := w.begin(a)
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, a.Finish(t.Context(), w.pending, w.issuer.authorize(t, address)), row.want)
		})
	}
}

func TestStatusAndLogout(t *testing.T) {
	w := newWorld(t)
	w.config.Scopes = []string{"a"}
	a := w.server().Account("")
	if got := a.Status(t.Context()); got.LoggedIn || got.Err != nil {
		t.Errorf("status %+v", got)
	}
	w.prm["authorization_servers"] = nil
	_, err := w.begin(a)
	if got := a.Status(t.Context()); err == nil || got.Err != err {
		t.Errorf("status %+v, want the error %v", got, err)
	}
	w.prm["authorization_servers"] = []string{w.issuer.name}
	w.login(a)
	got := a.Status(t.Context())
	if until := got.Expires.Sub(w.now()).Round(1e9).Seconds(); until < 3500 || until > 3600 {
		t.Errorf("expires after %v seconds", until)
	}
	got.Expires = got.Expires.Truncate(0)
	want := Status{LoggedIn: true, Issuer: w.issuer.name, Scopes: []string{"a"}, Expires: got.Expires}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("status %+v, want %+v", got, want)
	}

	refresh := w.issuer.refresh
	if err := a.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}
	form := w.issuer.requests()[0]
	if form.Get("path") != "/revoke" || form.Get("token") != refresh || form.Get("token_type_hint") != "refresh_token" ||
		form.Get("basic_secret") != "registered-secret" {
		t.Errorf("revoked %v", form)
	}
	for _, account := range []*Account{a, w.server().Account("")} {
		if account.Status(t.Context()).LoggedIn || w.token(account) != "" {
			t.Error("still logged in")
		}
	}
	if keys := w.store.keys("logins"); len(keys) > 0 {
		t.Errorf("stored: %q", keys)
	}
}

func TestTokenRequestsAreCounted(t *testing.T) {
	w := newWorld(t)
	var counted []string
	w.config.OnToken = func(grant string, err error) { counted = append(counted, fmt.Sprint(grant, " ", err)) }
	a := w.loggedIn()
	if err := a.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"authorization_code <nil>"}; !slices.Equal(counted, want) {
		t.Errorf("counted %q, want %q", counted, want)
	}
}

func TestOtherProcessesSeeALogout(t *testing.T) {
	w := newWorld(t)
	w.issuer.lifetime = 0 // the token does not expire
	a, other := w.loggedIn(), w.server().Account("")
	if err := other.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wait(cacheTime)
	if got := w.token(a); got != "" {
		t.Errorf("the token after the logout is %q", got)
	}
	w.login(other)
	if got := w.token(a); got != w.current() {
		t.Errorf("the token after the next login is %q, want %q", got, w.current())
	}
}

func TestCanceledLoginIsNotAFailure(t *testing.T) {
	w := newWorld(t)
	a := w.server().Account("")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Begin(ctx, redirectURL, "", func(*Pending) string { return "state" }); !errors.Is(
		err,
		context.Canceled,
	) {
		t.Errorf("error %v", err)
	}
	if got := a.Status(t.Context()); got.Err != nil {
		t.Errorf("status %+v", got)
	}
}

func TestLogoutRemovesTokensThatCannotBeRevoked(t *testing.T) {
	w := newWorld(t)
	a := w.loggedIn()
	w.issuer.change(func() { w.issuer.fail = func(url.Values) (int, string) { return 503, "" } })
	wantError(t, a.Logout(t.Context()), "not revoked", "503")
	if w.token(a) != "" {
		t.Error("still logged in")
	}
}
