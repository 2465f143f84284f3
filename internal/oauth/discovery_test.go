package oauth

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const wellKnown = "/.well-known/oauth-protected-resource"

func TestMetadataOfTheResourceAreLookedFor(t *testing.T) {
	for name, row := range map[string]struct {
		resource   string   // path
		challenged string   // path of resource_metadata
		found      []string // paths that have metadata
		asked      []string // paths that are asked for
	}{
		"at the place of the challenge": {"/mcp", "/custom.json", []string{"/custom.json", wellKnown + "/mcp",
			wellKnown}, []string{"/custom.json"}},
		"below the path": {"/mcp", "", []string{wellKnown + "/mcp", wellKnown},
			[]string{wellKnown + "/mcp"}},
		"at the root": {"/mcp", "", []string{wellKnown}, []string{wellKnown + "/mcp",
			wellKnown}},
		"at the root only, if the path is the root": {"/", "", []string{wellKnown}, []string{wellKnown}},
		"below a path that ends with a slash": {"/a/mcp/", "", []string{wellKnown + "/a/mcp"},
			[]string{wellKnown + "/a/mcp"}},
		"elsewhere if the challenge is wrong": {"/mcp", "/gone.json", []string{wellKnown + "/mcp"},
			[]string{"/gone.json", wellKnown + "/mcp"}},
		"in vain, and the endpoints have their names": {"/mcp", "", nil, []string{wellKnown + "/mcp", wellKnown,
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
				t.Errorf("asked for %q, want %q", got, row.asked)
			}
		})
	}
}

func TestAPageOfHTMLIsNotMetadata(t *testing.T) {
	w := newWorld(t)
	w.resource.page(wellKnown+"/mcp", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = rw.Write([]byte("<html>"))
	})
	w.resource.document(wellKnown, w.prm)
	w.login(w.server().Account(""))
}

func TestAServerWithoutMetadataIsItsOwnIssuer(t *testing.T) {
	for name, ending := range map[string]string{
		"and publishes metadata of it":                "",
		"and publishes metadata of it, with a slash":  "/",
		"and has the default endpoints without those": "none",
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

func TestThePublishedResource(t *testing.T) {
	for name, row := range map[string]struct {
		published string // $ is the origin
		refused   bool
	}{
		"is sent as it is":                             {"$/mcp", false},
		"may be a parent":                              {"$", false},
		"may be a parent with a slash":                 {"$/", false},
		"may have another case in the host":            {"HTTP://127.0.0.1:PORT/mcp", false},
		"may not be of another host":                   {"https://evil.example/mcp", true},
		"may not be of another port":                   {"http://127.0.0.1:1/mcp", true},
		"may not be a child":                           {"$/mcp/child", true},
		"may not be a sibling":                         {"$/mc", true},
		"may not have a user":                          {"http://a@127.0.0.1:PORT/mcp", true},
		"may not have a fragment":                      {"$/mcp#a", true},
		"may not have a query that the server has not": {"$/mcp?a", true},
		"may not be empty":                             {"", true},
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

func TestMetadataOfTheIssuerAreLookedFor(t *testing.T) {
	const oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	for name, row := range map[string]struct {
		path  string // of the issuer
		found string
		asked []string
	}{
		"at the first place of an issuer without a path":  {"", oauth, []string{oauth}},
		"at the second place of an issuer without a path": {"", openid, []string{oauth, openid}},
		"at the first place of an issuer with a path":     {"/tenant1", oauth + "/tenant1", []string{oauth + "/tenant1"}},
		"at the second place of an issuer with a path": {"/tenant1", openid + "/tenant1", []string{oauth + "/tenant1",
			openid + "/tenant1"}},
		"at the third place of an issuer with a path": {"/tenant1", "/tenant1" + openid, []string{oauth + "/tenant1",
			openid + "/tenant1", "/tenant1" + openid}},
		"never at the root of an issuer with a path": {"/tenant1", "", []string{oauth + "/tenant1", openid + "/tenant1",
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
				t.Errorf("asked for %q, want %q", got, row.asked)
			}
		})
	}
}

func TestMetadataAreRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*world)
		want   []string
	}{
		"without an authorization server": {func(w *world) { w.prm["authorization_servers"] = nil },
			[]string{"name no authorization server"}},
		"of another issuer": {func(w *world) { w.issuer.metadata["issuer"] = "https://evil.example" },
			[]string{"https://evil.example", "127.0.0.1"}},
		"of an issuer with a slash more": {func(w *world) { w.issuer.metadata["issuer"] = w.issuer.name + "/" },
			[]string{"the metadata at"}},
		"of an issuer with a query": {func(w *world) {
			w.prm["authorization_servers"] = []string{w.issuer.name + "?a=b"}
		}, []string{"has a query"}},
		"without S256": {func(w *world) {
			w.issuer.metadata["code_challenge_methods_supported"] = []string{"plain"}
		}, []string{"PKCE"}},
		"with no challenge methods": {func(w *world) {
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

func TestAnIssuerWithoutChallengeMethodsIsTried(t *testing.T) {
	w := newWorld(t)
	delete(w.issuer.metadata, "code_challenge_methods_supported")
	w.login(w.server().Account(""))
}

// A hostile resource could name its own authorization server, which could claim to be the
// configured one to get the secret of the client.
func TestTheConfiguredIssuerIsUsedWhateverTheResourceSays(t *testing.T) {
	for name, change := range map[string]func(w *world, other *issuer){
		"it is among others": func(w *world,
			other *issuer) {
			w.prm["authorization_servers"] = []string{other.name, w.issuer.name}
		},
		"another one is named": func(w *world,
			other *issuer) {
			w.prm["authorization_servers"] = []string{other.name}
		},
		"it is named with a slash more": func(w *world,
			_ *issuer) {
			w.prm["authorization_servers"] = []string{w.issuer.name + "/"}
		},
		"none is named":                func(w *world, _ *issuer) { w.prm["authorization_servers"] = nil },
		"the resource has no metadata": func(w *world, _ *issuer) { w.resource.page(wellKnown+"/mcp", http.NotFound) },
		"another one claims to be it": func(w *world, other *issuer) {
			w.prm["authorization_servers"] = []string{other.name}
			other.metadata["issuer"] = w.issuer.name
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, other := newWorld(t), newIssuer(t, "")
			w.config.Issuer, w.config.ClientID, w.config.ClientSecret = w.issuer.name, "me", "secret"
			change(w, other)
			a := w.loggedIn()
			w.wait(metadataTime) // the metadata are fetched anew
			if _, err := w.refuse(a, w.token(a)); err != nil {
				t.Error(err)
			}
			if paths := other.paths(); len(paths) > 0 {
				t.Errorf("the other issuer was asked for %q", paths)
			}
		})
	}
}

func TestALoginAtAnotherIssuerThanTheConfiguredOneIsNotUsed(t *testing.T) {
	w := newWorld(t)
	w.loggedIn()
	w.config.Issuer = newIssuer(t, "").name
	if got := w.token(w.server().Account("")); got != "" {
		t.Errorf("got the token %q", got)
	}
}

// Metadata of an issuer are good for a while, unless its token endpoint fails.
func TestATokenEndpointMoves(t *testing.T) {
	for name, gone := range map[string]bool{"and the old one is gone": true, "and the old one stays": false} {
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

// Some servers say only once where their metadata are.
func TestThePlaceOfTheMetadataIsRemembered(t *testing.T) {
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
