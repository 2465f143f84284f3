package oauth

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestClientID(t *testing.T) {
	const document, own = "https://gateway.example/client.json", "https://own.example/client.json"
	documents := func(w *world) { w.issuer.metadata["client_id_metadata_document_supported"] = true }
	noRegistration := func(w *world) { delete(w.issuer.metadata, "registration_endpoint") }
	for name, row := range map[string]struct {
		id, document string
		change       []func(*world)
		want         string // client id, or part of the error
	}{
		"configured":                              {"my-client", document, []func(*world){documents}, "my-client"},
		"configured document":                     {own, document, []func(*world){documents}, own},
		"document of the gateway":                 {"", document, []func(*world){documents}, document},
		"registered: documents are not supported": {own, document, nil, "client-1"},
		"registered: no document":                 {"", "", []func(*world){documents}, "client-1"},
		"registered: the document is not https": {"", "http://localhost/client.json", []func(*world){documents},
			"client-1"},
		"missing: no registration": {"", document, []func(*world){noRegistration},
			"client_id is not set"},
		"missing: only the document is configured": {own, "", []func(*world){noRegistration}, "client_id is not set"},
		"missing: registration refused": {"", "",
			[]func(*world){func(w *world) { w.issuer.answer = map[string]any{"error": "access_denied"} }},
			"access_denied; set client_id"},
		"missing: registration without a client id": {"", "",
			[]func(*world){func(w *world) { w.issuer.answer = map[string]any{"client_id": ""} }}, "no client_id"},
		"missing: unknown authentication methods": {"", "", []func(*world){func(w *world) {
			w.issuer.metadata["token_endpoint_auth_methods_supported"] = []string{"tls_client_auth"}
		}}, "set client_id"},
		"missing: another authentication method": {"", "", []func(*world){func(w *world) {
			w.issuer.answer = map[string]any{"token_endpoint_auth_method": "client_secret_jwt"}
		}}, "client_secret_jwt"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, change := range row.change {
				change(w)
			}
			w.config.ClientID = row.id
			address, err := w.server().
				Account("").
				Begin(t.Context(), redirectURL, row.document,
					func(*Pending) string { return "state" })
			if err != nil {
				wantError(t, err, row.want)
				return
			}
			if got := mustParse(address).Query().Get("client_id"); got != row.want {
				t.Errorf("client %q, want %q", got, row.want)
			}
		})
	}
}

func TestRegistration(t *testing.T) {
	for name, row := range map[string]struct {
		redirect string
		offered  []string
		method   string
		kind     string
	}{
		"with basic, which is the default": {redirectURL, nil, methodBasic, "web"},
		"with basic rather than post":      {redirectURL, []string{"none", methodPost, methodBasic}, methodBasic, "web"},
		"with post rather than none":       {redirectURL, []string{"none", methodPost}, methodPost, "web"},
		"with none":                        {redirectURL, []string{"none"}, methodNone, "web"},
		"native at localhost":              {"http://localhost:8080/mcp/oauth/callback", nil, methodBasic, "native"},
		"native at a loopback address":     {"http://127.0.0.1:8080/mcp/oauth/callback", nil, methodBasic, "native"},
		"native at the IPv6 loopback":      {"http://[::1]:8080/mcp/oauth/callback", nil, methodBasic, "native"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.metadata["token_endpoint_auth_methods_supported"] = row.offered
			if _, err := w.server().Account("").Begin(t.Context(), row.redirect, "",
				func(*Pending) string { return "state" }); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"client_name": "gateway", "redirect_uris": []any{row.redirect}, "response_types": []any{"code"},
				"grant_types":                []any{"authorization_code", "refresh_token"},
				"token_endpoint_auth_method": row.method, "application_type": row.kind,
			}
			if got := w.issuer.registered[0]; !reflect.DeepEqual(got, want) {
				t.Errorf("registered %v, want %v", got, want)
			}
		})
	}
}

func TestRegistrationIsStored(t *testing.T) {
	for name, row := range map[string]struct {
		between  func(*world) // the first login and the second one
		redirect string       // of the second one
		want     int          // registrations
	}{
		"is kept":                        {func(*world) {}, redirectURL, 1},
		"is for one redirect URL":        {func(*world) {}, redirectURL + "2", 2},
		"is kept until it expires":       {func(w *world) { w.wait(59 * time.Minute) }, redirectURL, 1},
		"is renewed when it has expired": {func(w *world) { w.wait(61 * time.Minute) }, redirectURL, 2},
		"is renewed after invalid_client at the end of a login": {func(w *world) {
			w.issuer.change(func() {
				w.issuer.fail = func(url.Values) (int, string) { return http.StatusUnauthorized, "invalid_client" }
			})
			a := w.server().Account("")
			address, err := w.begin(a)
			if err != nil {
				w.t.Fatal(err)
			}
			wantError(w.t, a.Finish(w.t.Context(), w.pending, w.issuer.authorize(w.t, address)), "invalid_client")
		}, redirectURL, 2},
		"is for one issuer": {func(w *world) {
			w.issuer = newIssuer(w.t, "")
			w.issuer.registered = []map[string]any{nil} // counts that of the other issuer
			w.prm["authorization_servers"] = []string{w.issuer.name}
		}, redirectURL, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.answer = map[string]any{"client_secret_expires_at": time.Now().Add(time.Hour).Unix()}
			w.login(w.server().Account(""))
			row.between(w)
			if _, err := w.server().Account("").Begin(t.Context(), row.redirect, "",
				func(*Pending) string { return "state" }); err != nil {
				t.Fatal(err)
			}
			if got := len(w.issuer.registered); got != row.want {
				t.Errorf("%d registrations, want %d", got, row.want)
			}
		})
	}
}

// Two processes that start a login at the same time register once.
func TestConcurrentRegistrations(t *testing.T) {
	w := newWorld(t)
	done := make(chan error)
	for range 4 {
		a := w.server().Account("")
		go func() {
			_, err := a.Begin(t.Context(), redirectURL, "", func(*Pending) string { return "state" })
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := len(w.issuer.registered); got != 1 {
		t.Errorf("%d registrations", got)
	}
}

func TestClientAuthentication(t *testing.T) {
	for name, row := range map[string]struct {
		config  func(*Config)
		offered []string
		want    url.Values // parameters of the token request
		without []string
	}{
		"with Basic": {func(c *Config) { c.ClientID, c.ClientSecret = "a:b", "s %" }, []string{methodPost, methodBasic},
			url.Values{"basic_id": {"a%3Ab"}, "basic_secret": {"s+%25"}}, []string{"client_id", "client_secret"}},
		"with Basic, which is the default": {func(c *Config) { c.ClientID, c.ClientSecret = "a", "s" }, nil,
			url.Values{"basic_id": {"a"}, "basic_secret": {"s"}}, []string{"client_id"}},
		"with parameters": {func(c *Config) { c.ClientID, c.ClientSecret = "a", "s" }, []string{methodPost},
			url.Values{"client_id": {"a"}, "client_secret": {"s"}}, []string{"basic_id"}},
		"with its id only": {func(c *Config) { c.ClientID = "a" }, []string{"none"},
			url.Values{"client_id": {"a"}}, []string{"basic_id", "client_secret"}},
		"with the secret of the registration": {func(*Config) {}, []string{methodPost},
			url.Values{"client_id": {"client-1"}, "client_secret": {"registered-secret"}}, []string{"basic_id"}},
		"without the secret of a public registration": {func(*Config) {}, []string{"none"},
			url.Values{"client_id": {"client-1"}}, []string{"basic_id", "client_secret"}},
		"without a secret if it has a document": {func(c *Config) {
			c.ClientID, c.ClientSecret = "https://own.example/client.json", "s"
		}, nil,
			url.Values{"client_id": {"https://own.example/client.json"}}, []string{"basic_id", "client_secret"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.metadata["token_endpoint_auth_methods_supported"] = row.offered
			w.issuer.metadata["client_id_metadata_document_supported"] = true
			row.config(&w.config)
			a := w.server().Account("")
			w.login(a)
			w.wait(2 * time.Hour)
			w.token(a)
			form := w.issuer.requests()[0]
			for name, want := range row.want {
				if !slices.Equal(form[name], want) {
					t.Errorf("%s: %q, want %q", name, form[name], want)
				}
			}
			for _, name := range row.without {
				if form.Has(name) {
					t.Errorf("%s: %q, want none", name, form[name])
				}
			}
		})
	}
}

func TestTextsOfServersAreLimited(t *testing.T) {
	text := printable("a\x1b[31m\r\nb\u2028" + string(make([]byte, 1000)) + "\xff")
	if len([]rune(text)) > 201 || text[:7] != "a [31m " {
		t.Errorf("%q", text)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		s := New(Config{Resource: mustParse("https://mcp.example"), ClientSecret: "hush", Store: newMemory()})
		a := s.Account("")
		a.cached.AccessToken = "hush"
		p := Pending{Verifier: "hush"}
		if text := fmt.Sprintf(format+format+format+format+format, s, a, s.config, p, &p); len(text) == 0 ||
			slices.Contains([]byte(text), '{') {
			t.Errorf("%s: %s", format, text)
		}
	}
}

func TestRegistrationWithoutSecret(t *testing.T) {
	w := newWorld(t)
	w.issuer.answer = map[string]any{"client_secret": ""}
	w.login(w.server().Account(""))
	if w.finished.Has("basic_id") || w.finished.Get("client_id") != "client-1" {
		t.Errorf("request %v", w.finished)
	}
}

// Another process may have registered again when this process learns that the client is unknown.
func TestNewRegistrationIsKept(t *testing.T) {
	w := newWorld(t)
	s := w.server()
	w.login(s.Account(""))
	key := w.store.keys("clients")[0]
	if err := s.forgetClient(t.Context(), client{ID: "client-0", key: key}); err != nil {
		t.Fatal(err)
	}
	if len(w.store.keys("clients")) != 1 {
		t.Error("forgotten")
	}
}

// The tokens of one client are not refreshed by another client.
func TestLoginOfRemovedRegistration(t *testing.T) {
	w := newWorld(t)
	w.issuer.answer = map[string]any{"client_secret_expires_at": time.Now().Add(time.Hour).Unix()}
	s := w.server()
	w.login(s.Account("ann"))
	w.wait(2 * time.Hour)
	w.issuer.change(func() { w.issuer.answer = nil })
	w.login(s.Account("bob"))
	if _, err := s.Account("ann").Token(t.Context()); !errors.Is(err, ErrLoginRequired) {
		t.Errorf("error %v", err)
	}
	if len(w.issuer.requests()) > 0 {
		t.Error("refreshed")
	}
}
