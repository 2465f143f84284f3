package mcpconsole

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

func basic(password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte("any name:"+password))
}

// TestWho checks which requests are admitted, as which user, and whether they are read-only.
func TestWho(t *testing.T) {
	const (
		plain    = `{}`
		open     = `{"read_only":false}`
		shut     = `{"read_only":true}`
		byHeader = `{"user":"{http.request.header.Remote-User}"}`
		named    = `{"hosts":["console.test"]}`
		byCert   = `{"auth":[{"provider":"mtls"}]}`
	)
	t.Setenv("CONSOLE_TOKEN", "secret-secret-secret-secret-secret-1")
	const byToken = `{"auth":[{"provider":"token","tokens":[{"token":"{env.CONSOLE_TOKEN}","client":"ann"}]}]}`
	good, bad := "secret-secret-secret-secret-secret-1", "secret-secret-secret-secret-secret-2"
	const (
		here, there = "127.0.0.1:5000", "192.0.2.7:5000"
		localhost   = "localhost:8080"
		no          = http.StatusForbidden
		ask         = http.StatusUnauthorized
		ok          = http.StatusOK
	)
	for _, tt := range []struct {
		name, config, peer, host string
		header                   []string
		user                     string // authenticated by Caddy
		status                   int
		want                     string // "[user] read-only", or the reason of the refusal
	}{
		{"a local browser", plain, here, localhost, nil, "", ok, "[] false"},
		{"another loopback address", plain, "127.8.9.1:1", "127.8.9.1", nil, "", ok, "[] false"},
		{"an IPv6 loopback address", plain, "[::1]:5000", "[::1]:8080", nil, "", ok, "[] false"},
		{"a mapped loopback address", plain, "[::ffff:127.0.0.1]:5000", localhost, nil, "", ok, "[] false"},
		{"a local browser, read-only", shut, here, localhost, nil, "", ok, "[] true"},
		{"another machine", plain, there, localhost, nil, "", no, "another machine"},
		{"a mapped address of another machine", plain, "[::ffff:192.0.2.7]:5000", localhost, nil, "", no, "another machine"},
		{"an IPv6 address of another machine", plain, "[2001:db8::1]:5000", localhost, nil, "", no, "another machine"},
		{"a link-local address", plain, "[fe80::1%eth0]:5000", localhost, nil, "", no, "another machine"},
		{"another machine, not read-only", open, there, localhost, nil, "", no, "another machine"},
		{"a forged X-Forwarded-For", plain, there, localhost, []string{"X-Forwarded-For", "127.0.0.1"}, "", no,
			"another machine"},
		{"a Unix socket", plain, "@", localhost, nil, "", no, "the sender of the request is unknown"},
		{"an unnamed Unix socket", plain, "", localhost, nil, "", no, "the sender of the request is unknown"},
		{"an address without a port", plain, "127.0.0.1", localhost, nil, "", no, "the sender of the request is unknown"},
		{"a foreign host", plain, here, "evil.test", nil, "", no, "this Host"},
		{"a foreign host that begins with localhost", plain, here, "localhost.evil.test", nil, "", no, "this Host"},
		{"a host with a user", plain, here, "localhost:80@evil.test", nil, "", no, "a host other than localhost"},
		{"no host", plain, here, "", nil, "", no, "this Host"},
		{"the unspecified address", plain, here, "0.0.0.0:8080", nil, "", no, "this Host"},
		{"a name of the console", named, here, "console.test", nil, "", no,
			"a host other than localhost"},
		{"a host other than those configured", named, there, "evil.test", nil, "ann", no, "this Host"},
		{"a local proxy", plain, here, localhost, []string{"X-Forwarded-For", "192.0.2.7"}, "", no, "a proxy"},
		{"a local proxy for a local user", plain, here, localhost, []string{"X-Forwarded-For", "127.0.0.1"}, "", no,
			"a proxy"},
		{"an empty X-Forwarded-For", plain, here, localhost, []string{"X-Forwarded-For", ""}, "", no, "a proxy"},
		{"a proxy that sets Forwarded", plain, here, localhost, []string{"Forwarded", "for=192.0.2.7"}, "", no, "a proxy"},
		{"a proxy that sets Via", plain, here, localhost, []string{"Via", "1.1 proxy"}, "", no, "a proxy"},
		{"a proxy that sets X-Real-IP", plain, here, localhost, []string{"X-Real-IP", "192.0.2.7"}, "", no, "a proxy"},
		{"a tunnel", plain, here, localhost, []string{"CF-Connecting-IP", "192.0.2.7"}, "", no, "a proxy"},

		{"a user of Caddy", plain, there, "console.test", nil, "ann", ok, "[ann] true"},
		{"a user of Caddy through a proxy", plain, here, localhost, []string{"X-Forwarded-For", "192.0.2.7"}, "ann", ok,
			"[ann] true"},
		{"a local user of Caddy", plain, here, localhost, nil, "ann", ok, "[ann] true"},
		{"a user of Caddy, not read-only", open, there, "console.test", nil, "ann", ok, "[ann] false"},
		{"a user name with markup", plain, there, "console.test", nil, "<i>\"", ok, "[&lt;i&gt;&#34;] true"},
		{"a user name with a line break", plain, there, "console.test", nil, "a\nb", no, "not authenticated"},

		{"a user in a header", byHeader, there, "console.test", []string{"Remote-User", "ann"}, "", ok, "[ann] true"},
		{"no user header", byHeader, there, "console.test", nil, "", no, "not authenticated"},
		{"an empty user header", byHeader, there, "console.test", []string{"Remote-User", ""}, "", no, "not authenticated"},
		{"no user header from this machine", byHeader, here, localhost, nil, "", no, "not authenticated"},
		{"a user of Caddy instead of the header", byHeader, there, "console.test", nil, "ann", no, "not authenticated"},
		{"an unknown placeholder", `{"user":"{http.nothing.here}"}`, here, localhost, nil, "", no, "not authenticated"},

		{"a password", byToken, there, "console.test", []string{"Authorization", basic(good)}, "", ok, "[ann] true"},
		{"a token", byToken, there, "console.test", []string{"Authorization", "Bearer " + good}, "", ok, "[ann] true"},
		{"a wrong password", byToken, there, "console.test", []string{"Authorization", basic(bad)}, "", ask,
			"not authenticated"},
		{"a wrong token", byToken, there, "console.test", []string{"Authorization", "Bearer " + bad}, "", ask,
			"not authenticated"},
		{"an empty password", byToken, there, "console.test", []string{"Authorization", basic("")}, "", ask,
			"not authenticated"},
		{"two passwords", byToken, there, "console.test", []string{"Authorization", basic(good), "Authorization",
			basic(bad)}, "", ask, "not authenticated"},
		{"no password", byToken, there, "console.test", nil, "", ask, "not authenticated"},
		{"no password from this machine", byToken, here, localhost, nil, "", ask, "not authenticated"},
		{"a user of Caddy without a password", byToken, there, "console.test", nil, "ann", ask, "not authenticated"},
		{"a password for a foreign host", byToken, here, "evil.test", []string{"Authorization", basic(good)},
			"", no, "this Host"},
		{"no certificate", byCert, here, localhost, nil, "", no, "not authenticated"},

		{"a link on another site", plain, here, localhost, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode",
			"navigate", "Sec-Fetch-Dest", "document"}, "", ok, "[] false"},
		{"a frame on another site", plain, here, localhost, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode",
			"navigate", "Sec-Fetch-Dest", "iframe"}, "", no, "another site"},
		{"an image on another site", plain, here, localhost, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode",
			"no-cors"}, "", no, "another site"},
		{"an image at another port", plain, here, localhost, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode",
			"no-cors"}, "", no, "another site"},
		{"an unknown Sec-Fetch-Site", plain, here, localhost, []string{"Sec-Fetch-Site", "other"}, "", no, "another site"},
		{"a script of another site", plain, here, localhost, []string{"Origin", "https://evil.test"}, "", no, "another site"},
		{"a script at another port", plain, here, localhost, []string{"Origin", "http://localhost:3000"}, "", no,
			"another site"},
		{"a page with an opaque origin", plain, here, localhost, []string{"Origin", "null"}, "", no, "another site"},
		{"two origins", plain, here, localhost, []string{"Origin", "http://localhost:8080", "Origin", "https://evil.test"},
			"", no, "another site"},
		{"a script of the console", plain, here, localhost, []string{"Origin", "http://localhost:8080", "Sec-Fetch-Site",
			"same-origin", "Sec-Fetch-Mode", "cors"}, "", ok, "[] false"},
		{"a script of the console behind a proxy that terminates TLS", plain, there, "console.test",
			[]string{"Origin", "https://console.test"}, "ann", ok, "[ann] true"},
		{"an address typed by the user", plain, here, localhost, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode",
			"navigate", "Sec-Fetch-Dest", "document"}, "", ok, "[] false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := load(t, tt.config)
			r := newRequest(http.MethodGet, "/console/test/page", tt.header...)
			r.RemoteAddr, r.Host = tt.peer, tt.host
			w := respond(t, h, r, tt.user)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if challenged := w.Header().Get("WWW-Authenticate") != ""; challenged != (tt.status == ask) {
				t.Errorf("response has WWW-Authenticate: %t", challenged)
			}
			if w.Code == ok {
				return
			}
			if strings.Contains(w.Body.String(), "<") {
				t.Errorf("got markup: %s", w.Body)
			}
			for _, path := range []string{"/console/nothing", "/console/assets/console.css", "/console/live/test",
				"/console/test/sample/refresh"} {
				other := r.Clone(r.Context())
				other.URL.Path = path
				if got := respond(t, h, other, tt.user); got.Code != w.Code || got.Body.String() != w.Body.String() {
					t.Errorf("%s: got %d %s", path, got.Code, got.Body)
				}
			}
		})
	}
}

// HTTP/1.0 requests come from proxies that set no headers: browsers do not use it.
func TestHTTP10IsNotLocal(t *testing.T) {
	r := newRequest(http.MethodGet, "/console/test/page")
	r.Proto, r.ProtoMinor = "HTTP/1.0", 0
	if w := respond(t, load(t, `{}`), r, ""); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(),
		"a proxy") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// A client certificate authenticates a user if Caddy has verified it and it has not expired.
func TestCertificates(t *testing.T) {
	subject, err := asn1.Marshal(pkix.Name{CommonName: "ann", Organization: []string{"Example"}}.ToRDNSequence())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	valid := &x509.Certificate{RawSubject: subject, Subject: pkix.Name{CommonName: "ann"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(time.Hour)}
	expired := &x509.Certificate{RawSubject: subject, NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}
	for _, tt := range []struct {
		name, config string
		cert         *x509.Certificate
		verified     bool
		status       int
		want         string
	}{
		{"verified", `{}`, valid, true, http.StatusOK, "[CN=ann,O=Example] true"},
		{"not verified", `{}`, valid, false, http.StatusForbidden, "not authenticated"},
		{"expired", `{}`, expired, true, http.StatusForbidden, "not authenticated"},
		{"the common name", `{"auth":[{"provider":"mtls"}]}`, valid, true, http.StatusOK, "[ann] true"},
		{"no user header", `{"user":"{http.request.header.Remote-User}"}`, valid, true, http.StatusForbidden,
			"not authenticated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRequest(http.MethodGet, "/console/test/page")
			r.RemoteAddr, r.Host = "192.0.2.7:5000", "console.test"
			r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{tt.cert}}
			if tt.verified {
				r.TLS.VerifiedChains = [][]*x509.Certificate{{tt.cert}}
			}
			if w := respond(t, load(t, tt.config), r, ""); w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

// Without authentication, only requests from loopback addresses get pages, whatever their headers.
// Every response has the security headers.
func FuzzUnauthenticated(f *testing.F) {
	f.Add("127.0.0.1:1", "localhost", "/console/", "X-Forwarded-For", "::1")
	f.Add("192.0.2.1:1", "127.0.0.1:80", "/console/test/%2e%2e/x", "Origin", "http://127.0.0.1:80")
	f.Add("[::1]:1", "[::1", "/console//evil.test/", "Authorization", "Basic Og==")
	f.Add("192.0.2.1:1", "localhost", "/console/../x", "Remote-User", "ann")
	f.Add("@", "localhost:80@evil", "/console/live/test", "Sec-Fetch-Site", "none")
	h := load(f, `{}`)
	f.Fuzz(func(t *testing.T, peer, host, path, name, value string) {
		r := newRequest(http.MethodHead, "/")
		r.RemoteAddr, r.Host, r.Header = peer, host, http.Header{http.CanonicalHeaderKey(name): {value}}
		r.URL.Path = path
		w := respond(t, h, r, "")
		if !strings.HasPrefix(r.URL.EscapedPath(), "/console") {
			if w.Code != passed {
				t.Errorf("got %d", w.Code)
			}
			return
		}
		if w.Code == passed {
			return
		}
		if got := w.Header().Get("Content-Security-Policy"); got != securityPolicy {
			t.Errorf("got %q", got)
		}
		if to := w.Header().Get("Location"); to != "" && !strings.HasPrefix(to, "/console/") {
			t.Errorf("redirected to %s", to)
		}
		if w.Code == http.StatusForbidden || w.Code == http.StatusBadRequest {
			return
		}
		address, err := netip.ParseAddrPort(peer)
		if err != nil || !address.Addr().Unmap().IsLoopback() {
			t.Errorf("peer %s is admitted with status %d", peer, w.Code)
		}
		called, _, _ := strings.Cut(host, ":")
		if bracketed, ok := strings.CutPrefix(host, "["); ok {
			called, _, _ = strings.Cut(bracketed, "]")
		}
		if !clientrequest.IsLocal(called) && !clientrequest.IsLocal(host) {
			t.Errorf("host %q is admitted", host)
		}
		if slices.Contains(proxyHeaders, http.CanonicalHeaderKey(name)) {
			t.Errorf("a request with %s is admitted", name)
		}
	})
}

// A path with dot segments must not evade handlers in front of the console, whose matchers see
// another path.
func TestPathsCannotEvadeHandlers(t *testing.T) {
	s := serve(t, `
	request_header /console* -Remote-User
	mcp_console {
		user {http.request.header.Remote-User}
	}
	respond 204`)
	for path, status := range map[string]int{
		"/console/": http.StatusForbidden, "/console/tools/x%2f%2e%2e%2f%2e%2e%2f%2e%2e%2ffree": http.StatusBadRequest,
		"/console/servers/../../free": http.StatusBadRequest, "//console/": http.StatusNoContent,
		"/CONSOLE/":   http.StatusNoContent,
		"/%63onsole/": http.StatusNoContent, "/console%2f": http.StatusNoContent,
		"/console/%2e%2e%2ffree": http.StatusBadRequest,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Remote-User", "mallory")
		if res, body := s.do(r); res.StatusCode != status || strings.Contains(body, "mallory") {
			t.Errorf("%s: got %d %s", path, res.StatusCode, body)
		}
	}
}

func TestCredentialsThatCannotBeChecked(t *testing.T) {
	unknown := errors.Join(nil, &auth.UnavailableError{Err: replicas.ErrUnavailable})
	if r := new(admission).unauthenticated(unknown); r.status != http.StatusServiceUnavailable {
		t.Errorf("status %d", r.status)
	}
}
