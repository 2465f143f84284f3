package mcpconsole

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// Every response has the security headers, even an error.
func TestHeaders(t *testing.T) {
	h := load(t, `{}`)
	stranger := newRequest(http.MethodGet, "/console/test/page")
	stranger.RemoteAddr = "192.0.2.7:5000"
	for name, tt := range map[string]struct {
		r      *http.Request
		status int
	}{
		"a page":               {newRequest(http.MethodGet, "/console/test/page"), http.StatusOK},
		"the head of a page":   {newRequest(http.MethodHead, "/console/test/page"), http.StatusOK},
		"an error of the API":  {newRequest(http.MethodGet, "/console/test/gone"), http.StatusNotFound},
		"an unknown page":      {newRequest(http.MethodGet, "/console/nothing"), http.StatusNotFound},
		"an unknown asset":     {newRequest(http.MethodGet, "/console/assets/nothing.css"), http.StatusNotFound},
		"the folder of assets": {newRequest(http.MethodGet, "/console/assets/"), http.StatusNotFound},
		"an asset":             {newRequest(http.MethodGet, "/console/assets/console.css"), http.StatusOK},
		"an unknown stream":    {newRequest(http.MethodGet, "/console/live/nothing"), http.StatusNotFound},
		"the head of a stream": {newRequest(http.MethodHead, "/console/live/test"), http.StatusOK},
		"the path without /":   {newRequest(http.MethodGet, "/console"), http.StatusTemporaryRedirect},
		"a path with dots":     {newRequest(http.MethodGet, "/console/test/../test/page"), http.StatusBadRequest},
		"a path with a dot":    {newRequest(http.MethodGet, "/console/./test/page"), http.StatusBadRequest},
		"escaped dots":         {newRequest(http.MethodGet, "/console/test/%2e%2E"), http.StatusBadRequest},
		"escaped slashes":      {newRequest(http.MethodGet, "/console/test/..%2f..%2f..%2ffree"), http.StatusBadRequest},
		"a name with dots":     {newRequest(http.MethodGet, "/console/test/..."), http.StatusOK},
		"a path with two /":    {newRequest(http.MethodGet, "/console//evil.test"), http.StatusTemporaryRedirect},
		"a page by POST":       {newRequest(http.MethodPost, "/console/test/page"), http.StatusMethodNotAllowed},
		"an action by GET":     {newRequest(http.MethodGet, "/console/test/sample/refresh"), http.StatusNotFound},
		"an action by PUT":     {newRequest(http.MethodPut, "/console/test/sample/refresh"), http.StatusMethodNotAllowed},
		"a refused action":     {newRequest(http.MethodPost, "/console/test/sample/refresh"), http.StatusForbidden},
		"another machine":      {stranger, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			w := respond(t, h, tt.r, "")
			if w.Code != tt.status {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			for field, want := range map[string]string{
				"Content-Security-Policy": securityPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			} {
				if got := w.Header().Get(field); got != want {
					t.Errorf("%s: %s", field, got)
				}
			}
			isAsset := tt.status == http.StatusOK && strings.Contains(tt.r.URL.Path, "/assets/")
			if got := w.Header().Get("Cache-Control"); (got == "no-store") == isAsset {
				t.Errorf("Cache-Control: %s", got)
			}
			if to := w.Header().Get("Location"); to != "" && !strings.HasPrefix(to, "/console/") {
				t.Errorf("redirected to %s", to)
			}
			if strings.Contains(w.Body.String(), "<b>gone") {
				t.Errorf("a name is not escaped: %s", w.Body)
			}
		})
	}
}

func TestAssets(t *testing.T) {
	h := load(t, `{}`)
	for _, a := range assets() {
		w := respond(t, h, newRequest(http.MethodGet, "/console/assets/"+a.name), "")
		if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), a.content) || w.Header().Get("Content-Type") == "" {
			t.Errorf("%s: got %d %v", a.name, w.Code, w.Header())
		}
		again := respond(t, h, newRequest(http.MethodGet, "/console/assets/"+a.name, "If-None-Match", w.Header().Get("ETag")),
			"")
		if again.Code != http.StatusNotModified {
			t.Errorf("%s: got %d for a cached asset, want 304", a.name, again.Code)
		}
	}
}

// Links have the path that the browser sees, even if a handler in front strips a part of it.
func TestPath(t *testing.T) {
	for _, tt := range []struct {
		name, config, sent, seen, want string // want is a link; empty if the next handler responds
	}{
		{"the default path", `{}`, "/console/test/a", "/console/test/a", "/console/assets/console.css"},
		{"a stripped path", `{}`, "/console/test/a", "/test/a", "/console/assets/console.css"},
		{"another path", `{"path":"/team/mcp"}`, "/team/mcp/test/a", "/mcp/test/a", "/team/mcp/assets/console.css"},
		{"an escaped path", `{}`, "/console/test/a%2Fb", "/console/test/a%2Fb", "/console/assets/console.css"},
		{"a path with the same beginning", `{}`, "/consoles/test/a", "/consoles/test/a", ""},
		{"a path below another", `{}`, "/team/console/test/a", "/console/test/a", ""},
		{"the root", `{}`, "/", "/", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRequest(http.MethodGet, tt.sent)
			h := load(t, tt.config)
			w := respond(t, h, r, "", tt.seen)
			if passes := w.Code == passed; passes != (tt.want == "") || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

// form returns a POST of the form of the test page.
func (s *site) form(values url.Values, header http.Header) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+"/console/test/sample/refresh",
		strings.NewReader(values.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	r.Header = header
	return r
}

// do sends a request, and returns the response and its body. It does not follow redirects.
func (s *site) do(r *http.Request) (*http.Response, string) {
	s.Helper()
	r.Close = true // a reload closes idle connections
	res, err := http.DefaultTransport.RoundTrip(r)
	for tries := 0; err != nil && tries < 10; tries++ { // a reload also resets connections that it has not accepted yet
		if r.GetBody != nil {
			r.Body, _ = r.GetBody() // never fails for a string
		}
		res, err = http.DefaultTransport.RoundTrip(r)
	}
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return res, string(body)
}

// token returns the token of the form of the test page.
func (s *site) token(header http.Header) string {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+"/console/test/page", nil)
	if err != nil {
		s.Fatal(err)
	}
	r.Header = header
	res, page := s.do(r)
	found := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(page)
	if found == nil {
		s.Fatalf("got %d %s", res.StatusCode, page)
	}
	return found[1]
}

const formType = "application/x-www-form-urlencoded"

// An action runs only if the request has everything that only a page of the console can send.
func TestActions(t *testing.T) {
	s := serve(t, "mcp_console")
	token := s.token(http.Header{})
	good := func(change func(url.Values, http.Header)) *http.Request {
		values := url.Values{"token": {token}}
		header := http.Header{"Origin": {s.url}, "Content-Type": {formType}, "Sec-Fetch-Site": {"same-origin"}}
		change(values, header)
		return s.form(values, header)
	}
	for _, tt := range []struct {
		name   string
		change func(url.Values, http.Header)
		status int
	}{
		{"no token", func(v url.Values, _ http.Header) { v.Del("token") }, 403},
		{"an empty token", func(v url.Values, _ http.Header) { v.Set("token", "") }, 403},
		{"another token", func(v url.Values, _ http.Header) { v.Set("token", token[:len(token)-1]+"!") }, 403},
		{"no Origin", func(_ url.Values, h http.Header) { h.Del("Origin") }, 403},
		{"an opaque Origin", func(_ url.Values, h http.Header) { h.Set("Origin", "null") }, 403},
		{"another Origin", func(_ url.Values, h http.Header) { h.Set("Origin", "https://evil.test") }, 403},
		{"another port", func(_ url.Values, h http.Header) { h.Set("Origin", "http://127.0.0.1:1") }, 403},
		{"another name of this machine", func(_ url.Values, h http.Header) {
			h.Set("Origin", strings.Replace(s.url, "127.0.0.1", "localhost", 1))
		}, 403},
		{"two Origins", func(_ url.Values, h http.Header) { h.Add("Origin", s.url) }, 403},
		{"another site", func(_ url.Values, h http.Header) { h.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"another site that navigates", func(_ url.Values, h http.Header) {
			h.Set("Sec-Fetch-Site", "cross-site")
			h.Set("Sec-Fetch-Mode", "navigate")
			h.Set("Sec-Fetch-Dest", "document")
		}, 403},
		{"no site of origin", func(_ url.Values, h http.Header) { h.Set("Sec-Fetch-Site", "none") }, 403},
		{"no Content-Type", func(_ url.Values, h http.Header) { h.Del("Content-Type") }, 415},
		{"a plain text", func(_ url.Values, h http.Header) { h.Set("Content-Type", "text/plain") }, 415},
		{"JSON", func(_ url.Values, h http.Header) { h.Set("Content-Type", "application/json") }, 415},
		{"a form with files", func(_ url.Values, h http.Header) { h.Set("Content-Type", "multipart/form-data; boundary=x") },
			415},
		{"a form that is too large", func(v url.Values, _ http.Header) {
			v.Set("more", strings.Repeat("x", adminapi.MaxBody))
		}, 413},
		{"a proxy", func(_ url.Values, h http.Header) { h.Set("X-Forwarded-For", "192.0.2.7") }, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if res, body := s.do(good(tt.change)); res.StatusCode != tt.status {
				t.Errorf("got %d %s", res.StatusCode, body)
			}
		})
	}
	inQuery := good(func(v url.Values, _ http.Header) { v.Del("token") })
	inQuery.URL.RawQuery = url.Values{"token": {token}}.Encode()
	if res, body := s.do(inQuery); res.StatusCode != http.StatusForbidden {
		t.Errorf("with the token in the URL: got %d %s", res.StatusCode, body)
	}
	if done := s.logged(`"admin action"`); len(done) > 0 {
		t.Fatalf("an action ran: %s", done)
	}
	res, body := s.do(good(func(url.Values, http.Header) {}))
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/console/test/done" {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	done := s.logged(`"admin action"`)
	if len(done) != 1 || !strings.Contains(done[0], `"action":"refresh"`) || !strings.Contains(done[0],
		`"remote_addr":"127.0.0.1:`) ||
		!strings.Contains(done[0], `"outcome":"ok"`) || strings.Contains(done[0], `"user"`) {
		t.Errorf("logged %s", done)
	}

	unknown := good(func(url.Values, http.Header) {})
	unknown.URL.Path = "/console/test/nothing/refresh"
	if res, body := s.do(unknown); res.StatusCode != http.StatusNotFound || !strings.Contains(body, "nothing") {
		t.Errorf("an unknown server: got %d %s", res.StatusCode, body)
	}

	s.load("mcp_console {\n\tprice 3\n}")
	if res, body := s.do(good(func(url.Values, http.Header) {})); res.StatusCode != http.StatusSeeOther {
		t.Errorf("after a reload: got %d %s", res.StatusCode, body)
	}
	s.load("mcp_console {\n\tread_only on\n}")
	if res, body := s.do(good(func(url.Values, http.Header) {})); res.StatusCode != http.StatusForbidden {
		t.Errorf("read-only: got %d %s", res.StatusCode, body)
	}
}

// Authenticated users can act only with read_only off, and only with their own token.
func TestActionsOfUsers(t *testing.T) {
	t.Setenv("CONSOLE_ANN", "secret-secret-secret-secret-secret-1")
	t.Setenv("CONSOLE_BOB", "secret-secret-secret-secret-secret-2")
	const tokens = "auth token {env.CONSOLE_ANN} ann\nauth token {env.CONSOLE_BOB} bob\n"
	s := serve(t, "mcp_console {\n"+tokens+"}")
	as := func(password string) http.Header {
		return http.Header{"Authorization": {basic(password)}, "Origin": {s.url}, "Content-Type": {formType}}
	}
	ann, bob := as("secret-secret-secret-secret-secret-1"), as("secret-secret-secret-secret-secret-2")
	token := s.token(ann)
	if token == s.token(bob) {
		t.Error("two users have the same token")
	}
	if res, body := s.do(s.form(url.Values{"token": {token}}, ann)); res.StatusCode != http.StatusForbidden ||
		!strings.Contains(body, "read-only") {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	s.load("mcp_console {\nread_only off\n" + tokens + "}")
	if res, body := s.do(s.form(url.Values{"token": {token}}, bob)); res.StatusCode != http.StatusForbidden {
		t.Errorf("with the token of another user: got %d %s", res.StatusCode, body)
	}
	if done := s.logged(`"admin action"`); len(done) > 0 {
		t.Fatalf("an action ran: %s", done)
	}
	if res, body := s.do(s.form(url.Values{"token": {token}}, ann)); res.StatusCode != http.StatusSeeOther {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
	if done := s.logged(`"admin action"`); len(done) != 1 || !strings.Contains(done[0], `"user":"ann"`) {
		t.Errorf("logged %s", done)
	}
}

// Over TLS, a page without TLS has another origin, and an action in early data may be a replay.
func TestOverTLS(t *testing.T) {
	h := load(t, `{"read_only":false}`)
	for _, tt := range []struct {
		name, method, target, origin string
		complete                     bool
		status                       int
	}{
		{"a script of the console", http.MethodGet, "/console/test/page", "https://console.test", true, http.StatusOK},
		{"a script of a page without TLS", http.MethodGet, "/console/test/page", "http://console.test", true,
			http.StatusForbidden},
		{"a page in early data", http.MethodGet, "/console/test/page", "https://console.test", false, http.StatusOK},
		{"an action without its token", http.MethodPost, "/console/test/sample/refresh", "https://console.test", true,
			http.StatusForbidden},
		{"an action in early data", http.MethodPost, "/console/test/sample/refresh", "https://console.test", false,
			http.StatusTooEarly},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRequest(tt.method, tt.target, "Origin", tt.origin, "Content-Type", formType)
			r.RemoteAddr, r.Host, r.TLS = "192.0.2.7:5000", "console.test", &tls.ConnectionState{HandshakeComplete: tt.complete}
			if w := respond(t, h, r, "ann"); w.Code != tt.status {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

// Tokens are valid for one host name and one console: another name may belong to an attacker.
func TestTokensAreOfOneHost(t *testing.T) {
	pageOf := func(config, path, host string) string {
		r := newRequest(http.MethodGet, path+"/test/page")
		r.Host = host
		return respond(t, load(t, config), r, "").Body.String()
	}
	token := regexp.MustCompile(`name="token" value="([^"]+)"`)
	seen := map[string]int{}
	for range 2 {
		seen[token.FindString(pageOf(`{}`, "/console", "127.0.0.1:8080"))]++
		seen[token.FindString(pageOf(`{}`, "/console", "localhost:8080"))]++
		seen[token.FindString(pageOf(`{"path":"/other"}`, "/other", "localhost:8080"))]++
	}
	if len(seen) != 3 || seen[""] > 0 {
		t.Errorf("got %v", seen)
	}
}
