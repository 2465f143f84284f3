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

// Who is let in, and what for.
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
		user                     string // of Caddy's authentication
		status                   int
		want                     string // user and read-only, or why not
	}{
		{"a browser here", plain, here, localhost, nil, "", ok, "[] false"},
		{"by another loopback address", plain, "127.8.9.1:1", "127.8.9.1", nil, "", ok, "[] false"},
		{"by IPv6", plain, "[::1]:5000", "[::1]:8080", nil, "", ok, "[] false"},
		{"by a mapped address", plain, "[::ffff:127.0.0.1]:5000", localhost, nil, "", ok, "[] false"},
		{"here, read-only", shut, here, localhost, nil, "", ok, "[] true"},
		{"another machine", plain, there, localhost, nil, "", no, "another machine"},
		{"another machine, mapped", plain, "[::ffff:192.0.2.7]:5000", localhost, nil, "", no, "another machine"},
		{"another machine by IPv6", plain, "[2001:db8::1]:5000", localhost, nil, "", no, "another machine"},
		{"the local network", plain, "[fe80::1%eth0]:5000", localhost, nil, "", no, "another machine"},
		{"another machine, open", open, there, localhost, nil, "", no, "another machine"},
		{"another machine that claims to be here", plain, there, localhost, []string{"X-Forwarded-For", "127.0.0.1"}, "", no,
			"another machine"},
		{"a Unix socket", plain, "@", localhost, nil, "", no, "the sender of the request is unknown"},
		{"a Unix socket without a name", plain, "", localhost, nil, "", no, "the sender of the request is unknown"},
		{"an address without a port", plain, "127.0.0.1", localhost, nil, "", no, "the sender of the request is unknown"},
		{"a name that resolves to here", plain, here, "evil.test", nil, "", no, "this Host"},
		{"a name that looks local", plain, here, "localhost.evil.test", nil, "", no, "this Host"},
		{"a host with a user", plain, here, "localhost:80@evil.test", nil, "", no, "a host other than localhost"},
		{"no host", plain, here, "", nil, "", no, "this Host"},
		{"every address", plain, here, "0.0.0.0:8080", nil, "", no, "this Host"},
		{"a name of the console, by a proxy perhaps", named, here, "console.test", nil, "", no,
			"a host other than localhost"},
		{"another name than that of the console", named, there, "evil.test", nil, "ann", no, "this Host"},
		{"a proxy here", plain, here, localhost, []string{"X-Forwarded-For", "192.0.2.7"}, "", no, "a proxy"},
		{"a proxy for a user here", plain, here, localhost, []string{"X-Forwarded-For", "127.0.0.1"}, "", no, "a proxy"},
		{"a proxy with an empty header", plain, here, localhost, []string{"X-Forwarded-For", ""}, "", no, "a proxy"},
		{"a proxy by its standard", plain, here, localhost, []string{"Forwarded", "for=192.0.2.7"}, "", no, "a proxy"},
		{"a proxy by its name", plain, here, localhost, []string{"Via", "1.1 proxy"}, "", no, "a proxy"},
		{"a proxy by an address", plain, here, localhost, []string{"X-Real-IP", "192.0.2.7"}, "", no, "a proxy"},
		{"a tunnel", plain, here, localhost, []string{"CF-Connecting-IP", "192.0.2.7"}, "", no, "a proxy"},

		{"a user of Caddy", plain, there, "console.test", nil, "ann", ok, "[ann] true"},
		{"a user of Caddy, by a proxy", plain, here, localhost, []string{"X-Forwarded-For", "192.0.2.7"}, "ann", ok,
			"[ann] true"},
		{"a user of Caddy here", plain, here, localhost, nil, "ann", ok, "[ann] true"},
		{"a user of Caddy who may", open, there, "console.test", nil, "ann", ok, "[ann] false"},
		{"a user with a strange name", plain, there, "console.test", nil, "<i>\"", ok, "[&lt;i&gt;&#34;] true"},
		{"a user with an impossible name", plain, there, "console.test", nil, "a\nb", no, "not authenticated"},

		{"a user by a header", byHeader, there, "console.test", []string{"Remote-User", "ann"}, "", ok, "[ann] true"},
		{"no user in the header", byHeader, there, "console.test", nil, "", no, "not authenticated"},
		{"an empty header", byHeader, there, "console.test", []string{"Remote-User", ""}, "", no, "not authenticated"},
		{"no user in the header, here", byHeader, here, localhost, nil, "", no, "not authenticated"},
		{"another user of Caddy", byHeader, there, "console.test", nil, "ann", no, "not authenticated"},
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
		{"no password here", byToken, here, localhost, nil, "", ask, "not authenticated"},
		{"a user of Caddy without a password", byToken, there, "console.test", nil, "ann", ask, "not authenticated"},
		{"a password for a name that resolves to here", byToken, here, "evil.test", []string{"Authorization", basic(good)},
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
		{"an unknown word", plain, here, localhost, []string{"Sec-Fetch-Site", "other"}, "", no, "another site"},
		{"a script of another site", plain, here, localhost, []string{"Origin", "https://evil.test"}, "", no, "another site"},
		{"a script at another port", plain, here, localhost, []string{"Origin", "http://localhost:3000"}, "", no,
			"another site"},
		{"a page that hides where it is from", plain, here, localhost, []string{"Origin", "null"}, "", no, "another site"},
		{"two origins", plain, here, localhost, []string{"Origin", "http://localhost:8080", "Origin", "https://evil.test"},
			"", no, "another site"},
		{"a script of the console", plain, here, localhost, []string{"Origin", "http://localhost:8080", "Sec-Fetch-Site",
			"same-origin", "Sec-Fetch-Mode", "cors"}, "", ok, "[] false"},
		{"a script of the console, by a proxy that takes TLS off", plain, there, "console.test",
			[]string{"Origin", "https://console.test"}, "ann", ok, "[ann] true"},
		{"an address that was typed", plain, here, localhost, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode",
			"navigate", "Sec-Fetch-Dest", "document"}, "", ok, "[] false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := load(t, tt.config)
			r := newRequest(http.MethodGet, "/console/test/page", tt.header...)
			r.RemoteAddr, r.Host = tt.peer, tt.host
			w := answer(t, h, r, tt.user)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if challenged := w.Header().Get("WWW-Authenticate") != ""; challenged != (tt.status == ask) {
				t.Errorf("a password is asked for: %t", challenged)
			}
			if w.Code == ok {
				return
			}
			if strings.Contains(w.Body.String(), "<") {
				t.Errorf("got %s", w.Body)
			}
			for _, path := range []string{"/console/nothing", "/console/assets/console.css", "/console/live/test",
				"/console/test/sample/refresh"} {
				other := r.Clone(r.Context())
				other.URL.Path = path
				if got := answer(t, h, other, tt.user); got.Code != w.Code || got.Body.String() != w.Body.String() {
					t.Errorf("%s: got %d %s", path, got.Code, got.Body)
				}
			}
		})
	}
}

// A request in HTTP/1.0 is one of a proxy that sets no header by itself.
func TestOldProtocolIsNotLocal(t *testing.T) {
	r := newRequest(http.MethodGet, "/console/test/page")
	r.Proto, r.ProtoMinor = "HTTP/1.0", 0
	if w := answer(t, load(t, `{}`), r, ""); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(),
		"a proxy") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// Certificates count if Caddy has verified them, and as long as they are valid.
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
		{"by its name", `{"auth":[{"provider":"mtls"}]}`, valid, true, http.StatusOK, "[ann] true"},
		{"where a user is asked for", `{"user":"{http.request.header.Remote-User}"}`, valid, true, http.StatusForbidden,
			"not authenticated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRequest(http.MethodGet, "/console/test/page")
			r.RemoteAddr, r.Host = "192.0.2.7:5000", "console.test"
			r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{tt.cert}}
			if tt.verified {
				r.TLS.VerifiedChains = [][]*x509.Certificate{{tt.cert}}
			}
			if w := answer(t, load(t, tt.config), r, ""); w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

// Without authentication, whatever a request has, the console is shown only for a loopback address, and every answer
// has
// the headers that keep the browser safe.
func FuzzStrangers(f *testing.F) {
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
		w := answer(t, h, r, "")
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
			t.Errorf("it leads to %s", to)
		}
		if w.Code == http.StatusForbidden || w.Code == http.StatusBadRequest {
			return
		}
		address, err := netip.ParseAddrPort(peer)
		if err != nil || !address.Addr().Unmap().IsLoopback() {
			t.Errorf("%s is let in with %d", peer, w.Code)
		}
		called, _, _ := strings.Cut(host, ":")
		if bracketed, ok := strings.CutPrefix(host, "["); ok {
			called, _, _ = strings.Cut(bracketed, "]")
		}
		if !clientrequest.IsLocal(called) && !clientrequest.IsLocal(host) {
			t.Errorf("the host %q is let in", host)
		}
		if slices.Contains(proxyHeaders, http.CanonicalHeaderKey(name)) {
			t.Errorf("%s is let in", name)
		}
	})
}

// What is in front of the console only for its path cannot be passed by: for matchers of Caddy, this path is another
// one.
func TestNoWayAroundWhatIsInFront(t *testing.T) {
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
