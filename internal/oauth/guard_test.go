package oauth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestPublicAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"1.1.1.1": true, "100.63.255.255": true, "172.32.0.1": true, "2606:4700::1111": true,
		"::ffff:1.1.1.1": true, "64:ff9b::101:101": true, "2002:101:101::1": true,

		"0.0.0.0": false, "0.1.2.3": false, "127.0.0.1": false, "127.255.0.1": false,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "100.64.0.1": false, "100.127.255.255": false,
		"169.254.169.254": false, "192.0.0.1": false, "192.0.2.1": false, "198.18.0.1": false, "198.51.100.1": false,
		"203.0.113.1": false,
		"224.0.0.1":   false, "239.1.1.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd00::1": false,
		"fec0::1": false, "ff02::1": false,
		"2001:db8::1": false, "2001::1": false, "3fff::1": false, "::127.0.0.1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:0:7f00:1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a00:1": false, "64:ff9b:1::101:101": false, "2002:7f00:1::1": false,
		"2002:a00:1::1": false,
	} {
		if got := isPublic(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is public: %t, want %t", address, got, want)
		}
	}
}

func TestServerURLs(t *testing.T) {
	g := newGuard(mustParse("http://10.0.0.1:3000/mcp"), []string{"localhost", "*.corp.example", "10.1.*", "[fd00::1]"})
	for address, want := range map[string]string{ // part of the error
		"https://login.example/token":             "",
		"https://1.1.1.1/token":                   "",
		"http://10.0.0.1:3000/token":              "", // the origin of the resource
		"http://localhost:1/token":                "",
		"http://LOCALHOST/token":                  "",
		"http://login.corp.example/token":         "",
		"https://10.1.2.3/token":                  "",
		"http://login.example/token":              "plain http",
		"http://[fd00::1]:8080/token":             "",
		"http://10.0.0.1:3001/token":              "plain http",
		"https://10.0.0.1:3000/token":             "not public",
		"https://127.0.0.1/token":                 "not public",
		"https://[::1]/token":                     "not public",
		"https://[::ffff:127.0.0.1]/token":        "not public",
		"https://169.254.169.254/latest":          "not public",
		"http://corp.example/token":               "plain http",
		"http://corp.example.evil.example":        "plain http",
		"file:///etc/passwd":                      "not an https URL",
		"javascript:alert(1)":                     "not an https URL",
		"data:text/html,x":                        "not an https URL",
		"ftp://login.example/":                    "not an https URL",
		"//login.example/token":                   "not an https URL",
		"/token":                                  "not an https URL",
		"https:///token":                          "not an https URL",
		"https:login.example":                     "not an https URL",
		"":                                        "not an https URL",
		"https://user:secret@login.example":       "contains a user name",
		"https://login.corp.example@evil.example": "contains a user name",
		"https://login.example/#fragment":         "has a fragment",
		"https://login.example/%zz":               "not a URL",
	} {
		_, err := g.parse(address)
		if want == "" && err != nil {
			t.Errorf("%s: %v", address, err)
		}
		if want != "" {
			wantError(t, err, want)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", address, err)
			}
		}
		var refused *refusal
		if errors.As(err, &refused) {
			wantError(t, err, mustParse(address).Host, "trusted_hosts")
		}
	}
}

// A hostile server names an authorization server, an endpoint or a metadata document that only the
// gateway can reach.
func TestHostileMetadata(t *testing.T) {
	type hostile struct {
		*world
		victim, secure *site
	}
	for name, row := range map[string]struct {
		change func(hostile)
		want   string
	}{
		"resource_metadata at another host": {func(h hostile) {
			_, _ = h.refuse(h.server().Account(""), "", `Bearer resource_metadata="https://evil.example/prm"`)
		}, "its origin is not"},
		"resource_metadata at another local port": {func(h hostile) {
			_, _ = h.refuse(h.server().Account(""), "", `Bearer resource_metadata="`+h.victim.URL+`/prm"`)
		}, "plain http"},
		"resource_metadata in a file": {func(h hostile) {
			_, _ = h.refuse(h.server().Account(""), "", `Bearer resource_metadata="file:///etc/passwd"`)
		}, "not an https URL"},
		"metadata that redirect to a local address": {func(h hostile) {
			h.resource.page(wellKnown+"/mcp", http.RedirectHandler(h.victim.URL+"/prm", http.StatusFound).ServeHTTP)
		}, "plain http"},
		"metadata that redirect to localhost": {func(h hostile) {
			h.resource.page(wellKnown+"/mcp", http.RedirectHandler(h.secure.URL+"/prm", http.StatusFound).ServeHTTP)
		}, "address is not public"},
		"a local issuer": {func(h hostile) {
			h.prm["authorization_servers"] = []string{h.victim.URL}
		}, "plain http"},
		"a local issuer with TLS": {func(h hostile) {
			h.prm["authorization_servers"] = []string{"https://127.0.0.1:1"}
		}, "address is not public"},
		"an issuer at localhost": {func(h hostile) {
			h.prm["authorization_servers"] = []string{h.secure.URL}
		}, "address is not public"},
		"an issuer in a file": {func(h hostile) {
			h.prm["authorization_servers"] = []string{"file:///etc/passwd"}
		}, "not an https URL"},
		"an issuer with a user": {func(h hostile) {
			h.prm["authorization_servers"] = []string{"https://login.example@127.0.0.1"}
		}, "contains a user name"},
		"a local token endpoint": {func(h hostile) {
			h.issuer.metadata["token_endpoint"] = h.victim.URL + "/token"
		}, "token_endpoint: "},
		"a local registration endpoint": {func(h hostile) {
			h.issuer.metadata["registration_endpoint"] = h.victim.URL + "/register"
		}, "registration_endpoint: "},
		"a registration endpoint at localhost": {func(h hostile) {
			h.issuer.metadata["registration_endpoint"] = h.secure.URL + "/register"
		}, "address is not public"},
		"a local revocation endpoint": {func(h hostile) {
			h.issuer.metadata["revocation_endpoint"] = h.victim.URL + "/revoke"
		}, "revocation_endpoint: "},
		"a login page that is a script": {func(h hostile) {
			h.issuer.metadata["authorization_endpoint"] = "javascript:alert(1)"
		}, "authorization_endpoint: "},
		"a registration that redirects": {func(h hostile) {
			h.issuer.page("/register", http.RedirectHandler(h.issuer.URL+"/elsewhere", http.StatusTemporaryRedirect).ServeHTTP)
		}, "redirect"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostile{world: newWorld(t), victim: newSite(t), secure: &site{pages: map[string]http.HandlerFunc{}}}
			h.secure.Server = httptest.NewTLSServer(h.secure)
			t.Cleanup(h.secure.Close)
			h.secure.URL = strings.Replace(h.secure.URL, "127.0.0.1", "localhost", 1)
			h.config.TrustedHosts = nil
			// The origin of the resource is trusted, so the server is its own issuer here.
			h.resource.pages = h.issuer.pages
			h.resource.document(wellKnown+"/mcp", h.prm)
			h.config.Resource = mustParse(h.issuer.name + "/mcp")
			h.resource = h.issuer.site
			h.prm["resource"], h.prm["authorization_servers"] = h.issuer.name+"/mcp", []string{h.issuer.name}

			row.change(h)
			_, err := h.begin(h.server().Account(""))
			if err == nil {
				t.Fatal("accepted")
			}
			wantError(t, err, row.want)
			if got := slices.Concat(h.victim.paths(), h.secure.paths()); len(got) > 0 {
				t.Errorf("requested %q", got)
			}
			if slices.Contains(h.issuer.paths(), "/elsewhere") {
				t.Error("a POST was redirected")
			}
		})
	}
}

func TestRedirectsOfMetadata(t *testing.T) {
	for name, row := range map[string]struct {
		hops int
		ok   bool
	}{
		"up to the limit": {maxRedirects, true},
		"over the limit":  {maxRedirects + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			path := wellKnown + "/mcp"
			for range row.hops {
				w.resource.page(path, http.RedirectHandler(path+"x", http.StatusFound).ServeHTTP)
				path += "x"
			}
			w.resource.document(path, w.prm)
			if _, err := w.begin(w.server().Account("")); (err == nil) != row.ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A proxy may connect to addresses that the guard cannot check.
func TestProxyIsForTrustedHosts(t *testing.T) {
	g := newGuard(mustParse("https://mcp.example"), nil)
	if g.public.Proxy != nil || g.trusted.Proxy == nil {
		t.Error("requests to hosts that are not trusted use the proxy of the environment")
	}
}

func TestTrustedHostsMayHaveAPort(t *testing.T) {
	g := newGuard(mustParse("https://server.example"), []string{"localhost:4000", "[::1]:5000", "[::2]", "*.corp"})
	for address, trusted := range map[string]bool{
		"http://localhost:4000/token": true, "http://LOCALHOST:4000/token": true, "http://localhost:2019/stop": false,
		"http://localhost/":  false,
		"http://[::1]:5000/": true, "http://[::1]:5001/": false, "http://[::2]:1/": true, "http://a.corp:1/": true,
		"http://corp/": false,
	} {
		if g.trusts(mustParse(address)) != trusted {
			t.Errorf("%s: trusted %v", address, !trusted)
		}
	}
}
