package oauth

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const wellKnown = "/.well-known/oauth-protected-resource"

func TestResourceMetadataURLs(t *testing.T) {
	for name, row := range map[string]struct {
		resource   string   // path
		challenged string   // path of resource_metadata
		found      []string // paths that have metadata
		asked      []string // paths that are requested
	}{
		"at the URL of the challenge": {"/mcp", "/custom.json", []string{"/custom.json", wellKnown + "/mcp",
			wellKnown}, []string{"/custom.json"}},
		"below the path": {"/mcp", "", []string{wellKnown + "/mcp", wellKnown},
			[]string{wellKnown + "/mcp"}},
		"at the root": {"/mcp", "", []string{wellKnown}, []string{wellKnown + "/mcp",
			wellKnown}},
		"at the root if the path is the root": {"/", "", []string{wellKnown}, []string{wellKnown}},
		"below a path that ends with a slash": {"/a/mcp/", "", []string{wellKnown + "/a/mcp"},
			[]string{wellKnown + "/a/mcp"}},
		"after a wrong challenge": {"/mcp", "/gone.json", []string{wellKnown + "/mcp"},
			[]string{"/gone.json", wellKnown + "/mcp"}},
		"none, with the default endpoints": {"/mcp", "", nil, []string{wellKnown + "/mcp", wellKnown,
			"/.well-known/oauth-authorization-server", "/.well-known/openid-configuration", "/register"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			clear(w.resource.pages)
			w.config.Resource = mustParse(w.resource.URL + row.resource)
			w.prm["resource"] = w.resource.URL
			for _, path := range row.found {
				w.resource.document(path, w.prm)
			}
			w.resource.page("/register", w.issuer.serveRegister)
			a := w.server().Account("")
			if row.challenged != "" {
				_, _ = w.refuse(a, "", `Bearer resource_metadata="`+w.resource.URL+row.challenged+`"`)
			}
			if _, err := w.begin(a); err != nil {
				t.Fatal(err)
			}
			if got := w.resource.paths(); !slices.Equal(got, row.asked) {
				t.Errorf("requested %q, want %q", got, row.asked)
			}
		})
	}
}

func TestHTMLIsNotMetadata(t *testing.T) {
	w := newWorld(t)
	w.resource.page(wellKnown+"/mcp", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = rw.Write([]byte("<html>"))
	})
	w.resource.document(wellKnown, w.prm)
	w.login(w.server().Account(""))
}

func TestServerWithoutMetadataIsItsOwnIssuer(t *testing.T) {
	for name, ending := range map[string]string{
		"with metadata":              "",
		"with metadata and a slash":  "/",
		"with the default endpoints": "none",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.metadata["issuer"] = w.issuer.name + ending
			if ending == "none" {
				delete(w.issuer.pages, "/.well-known/oauth-authorization-server")
			}
			w.config.Resource = mustParse(w.issuer.name + "/mcp")
			a := w.server().Account("")
			if got := w.login(a).Get("resource"); got != w.issuer.name+"/mcp" {
				t.Errorf("resource %q", got)
			}
			w.wait(2 * time.Hour)
			if got := w.token(a); got != w.current() {
				t.Errorf("token %q, want %q", got, w.current())
			}
		})
	}
}

func TestPublishedResource(t *testing.T) {
	for name, row := range map[string]struct {
		published string // $ is the origin
		refused   bool
	}{
		"is sent unchanged":                 {"$/mcp", false},
		"may be a parent":                   {"$", false},
		"may be a parent with a slash":      {"$/", false},
		"may have another case in the host": {"HTTP://127.0.0.1:PORT/mcp", false},
		"may not be of another host":        {"https://evil.example/mcp", true},
		"may not be of another port":        {"http://127.0.0.1:1/mcp", true},
		"may not be a child":                {"$/mcp/child", true},
		"may not be a sibling":              {"$/mc", true},
		"may not have a user":               {"http://a@127.0.0.1:PORT/mcp", true},
		"may not have a fragment":           {"$/mcp#a", true},
		"may not have another query":        {"$/mcp?a", true},
		"may not be empty":                  {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			published := strings.NewReplacer("$", w.resource.URL, "PORT", w.config.Resource.Port()).Replace(row.published)
			w.prm["resource"] = published
			a := w.server().Account("")
			if row.refused {
				_, err := w.begin(a)
				wantError(t, err, published, w.resource.URL+"/mcp")
				return
			}
			if got := w.login(a).Get("resource"); got != published {
				t.Errorf("authorization request for %q, want %q", got, published)
			}
			if got := w.finished.Get("resource"); got != published {
				t.Errorf("token request for %q, want %q", got, published)
			}
			w.wait(2 * time.Hour)
			w.token(a)
			if got := w.issuer.requests()[0].Get("resource"); got != published {
				t.Errorf("refresh for %q, want %q", got, published)
			}
		})
	}
}

func TestIssuerMetadataURLs(t *testing.T) {
	const oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	for name, row := range map[string]struct {
		path  string // of the issuer
		found string
		asked []string
	}{
		"first URL of an issuer without a path":  {"", oauth, []string{oauth}},
		"second URL of an issuer without a path": {"", openid, []string{oauth, openid}},
		"first URL of an issuer with a path":     {"/tenant1", oauth + "/tenant1", []string{oauth + "/tenant1"}},
		"second URL of an issuer with a path": {"/tenant1", openid + "/tenant1", []string{oauth + "/tenant1",
			openid + "/tenant1"}},
		"third URL of an issuer with a path": {"/tenant1", "/tenant1" + openid, []string{oauth + "/tenant1",
			openid + "/tenant1", "/tenant1" + openid}},
		"not the root of an issuer with a path": {"/tenant1", "", []string{oauth + "/tenant1", openid + "/tenant1",
			"/tenant1" + openid}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer = newIssuer(t, row.path)
			w.prm["authorization_servers"] = []string{w.issuer.name}
			document := w.issuer.pages[oauth+row.path]
			delete(w.issuer.pages, oauth+row.path)
			if row.found != "" {
				w.issuer.page(row.found, document)
			}
			_, err := w.begin(w.server().Account(""))
			if row.found == "" {
				wantError(t, err, "publishes no metadata")
			} else if err != nil {
				t.Fatal(err)
			}
			got := slices.DeleteFunc(w.issuer.paths(), func(path string) bool { return strings.HasSuffix(path, "/register") })
			if !slices.Equal(got, row.asked) {
				t.Errorf("requested %q, want %q", got, row.asked)
			}
		})
	}
}

func TestRefusedMetadata(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*world)
		want   []string
	}{
		"without an authorization server": {func(w *world) { w.prm["authorization_servers"] = nil },
			[]string{"name no authorization server"}},
		"of another issuer": {func(w *world) { w.issuer.metadata["issuer"] = "https://evil.example" },
			[]string{"https://evil.example", "127.0.0.1"}},
		"of an issuer with an added slash": {func(w *world) { w.issuer.metadata["issuer"] = w.issuer.name + "/" },
			[]string{"the metadata at"}},
		"of an issuer with a query": {func(w *world) {
			w.prm["authorization_servers"] = []string{w.issuer.name + "?a=b"}
		}, []string{"has a query"}},
		"without S256": {func(w *world) {
			w.issuer.metadata["code_challenge_methods_supported"] = []string{"plain"}
		}, []string{"PKCE"}},
		"with an empty list of challenge methods": {func(w *world) {
			w.issuer.metadata["code_challenge_methods_supported"] = []string{}
		}, []string{"PKCE"}},
		"without a token endpoint": {func(w *world) { delete(w.issuer.metadata, "token_endpoint") },
			[]string{"token_endpoint"}},
		"without an authorization endpoint": {func(w *world) { delete(w.issuer.metadata, "authorization_endpoint") },
			[]string{"authorization_endpoint"}},
		"that fail": {func(w *world) {
			w.resource.page(wellKnown+"/mcp", func(rw http.ResponseWriter,
				_ *http.Request) {
				rw.WriteHeader(http.StatusBadGateway)
			})
		}, []string{"status 502"}},
		"that are not JSON": {func(w *world) {
			w.resource.page(wellKnown+"/mcp", func(rw http.ResponseWriter, _ *http.Request) {
				_, _ = rw.Write([]byte(`{"resource":`))
			})
		}, []string{"JSON"}},
		"that are too large": {func(w *world) {
			w.resource.page(wellKnown+"/mcp", func(rw http.ResponseWriter, _ *http.Request) {
				_, _ = rw.Write([]byte(`{"resource":"` + strings.Repeat("a", maxBody) + `"}`))
			})
		}, []string{"too large"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			row.change(w)
			_, err := w.begin(w.server().Account(""))
			if err == nil {
				t.Fatal("accepted")
			}
			wantError(t, err, row.want...)
			if len(w.issuer.registered) > 0 {
				t.Error("registered")
			}
		})
	}
}

func TestIssuerWithoutChallengeMethodsIsUsed(t *testing.T) {
	w := newWorld(t)
	delete(w.issuer.metadata, "code_challenge_methods_supported")
	w.login(w.server().Account(""))
}

// A hostile resource could name its own authorization server. That server could claim to be the
// configured one to get the secret of the client.
func TestConfiguredIssuerIsAlwaysUsed(t *testing.T) {
	for name, change := range map[string]func(w *world, other *issuer){
		"among others": func(w *world,
			other *issuer) {
			w.prm["authorization_servers"] = []string{other.name, w.issuer.name}
		},
		"not named": func(w *world,
			other *issuer) {
			w.prm["authorization_servers"] = []string{other.name}
		},
		"named with an added slash": func(w *world,
			_ *issuer) {
			w.prm["authorization_servers"] = []string{w.issuer.name + "/"}
		},
		"none named":                  func(w *world, _ *issuer) { w.prm["authorization_servers"] = nil },
		"no metadata of the resource": func(w *world, _ *issuer) { w.resource.page(wellKnown+"/mcp", http.NotFound) },
		"imitated by another issuer": func(w *world, other *issuer) {
			w.prm["authorization_servers"] = []string{other.name}
			other.metadata["issuer"] = w.issuer.name
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, other := newWorld(t), newIssuer(t, "")
			w.config.Issuer, w.config.ClientID, w.config.ClientSecret = w.issuer.name, "me", "secret"
			change(w, other)
			a := w.loggedIn()
			w.wait(metadataTime) // metadata are fetched again
			if _, err := w.refuse(a, w.token(a)); err != nil {
				t.Error(err)
			}
			if paths := other.paths(); len(paths) > 0 {
				t.Errorf("the other issuer got requests for %q", paths)
			}
		})
	}
}

func TestLoginAtAnotherIssuerIsNotUsed(t *testing.T) {
	w := newWorld(t)
	w.loggedIn()
	w.config.Issuer = newIssuer(t, "").name
	if got := w.token(w.server().Account("")); got != "" {
		t.Errorf("got the token %q", got)
	}
}

// Metadata of an issuer stay valid for a while, unless its token endpoint fails.
func TestTokenEndpointMoves(t *testing.T) {
	for name, gone := range map[string]bool{"the old one fails": true, "the old one still works": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.issuer.lifetime = 60
			a := w.loggedIn()
			w.issuer.change(func() { w.issuer.metadata["token_endpoint"] = w.issuer.name + "/token2" })
			w.issuer.page("/token2", w.issuer.serveToken)
			w.wait(time.Minute)
			if gone {
				w.issuer.page("/token", nil)
				if _, err := a.Token(t.Context()); err == nil {
					t.Fatal("no error")
				}
				w.wait(retryTime)
			} else {
				w.token(a)
				if got := w.issuer.requests()[0].Get("path"); got != "/token" {
					t.Fatalf("refreshed at %s", got)
				}
				w.wait(metadataTime)
			}
			w.token(a)
			if got := w.issuer.requests()[0].Get("path"); got != "/token2" {
				t.Errorf("refreshed at %s", got)
			}
		})
	}
}

// Some servers send the URL of their metadata only once.
func TestMetadataURLIsRemembered(t *testing.T) {
	w := newWorld(t)
	clear(w.resource.pages)
	w.resource.document("/custom.json", w.prm)
	a := w.server().Account("")
	_, _ = w.refuse(a, "", `Bearer resource_metadata="`+w.resource.URL+`/custom.json"`)
	w.login(a)
	if token, err := w.refuse(w.server().Account(""), w.token(a), "Bearer"); err != nil || token != w.current() {
		t.Errorf("token %q, error %v", token, err)
	}
}
