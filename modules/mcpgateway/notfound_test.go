package mcpgateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// For other paths, the gateway responds only if the next handler does not.
func TestServeNext(t *testing.T) {
	h := provision(t, `{"handler":"mcp_gateway","servers":[{"name":"a","routes":[{}]}]}`).(*Handler)
	broken := errors.New("broken")
	for _, tt := range []struct {
		name   string
		method string
		next   caddyhttp.HandlerFunc
		status int
		err    error
	}{
		{"no response", "GET", func(http.ResponseWriter, *http.Request) error { return nil }, 404, nil},
		{"a status", "GET", func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(204); return nil }, 204, nil},
		{"a body", "GET", func(w http.ResponseWriter, _ *http.Request) error { _, err := io.WriteString(w, "x"); return err },
			200, nil},
		{"a copied body", "GET", func(w http.ResponseWriter, _ *http.Request) error {
			_, err := io.Copy(w, io.LimitReader(strings.NewReader("x"), 1))
			return err
		}, 200, nil},
		{"a flush", "GET",
			func(w http.ResponseWriter, _ *http.Request) error { return http.NewResponseController(w).Flush() }, 200, nil},
		{"an error", "GET", func(http.ResponseWriter, *http.Request) error { return broken }, 200, broken},
		{"a preflight request", "OPTIONS", func(http.ResponseWriter, *http.Request) error { return nil }, 200, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			err := h.ServeHTTP(w, prepareRequest(httptest.NewRequest(tt.method, "/other", nil), w, ""), tt.next)
			if w.Code != tt.status || !errors.Is(err, tt.err) {
				t.Errorf("%d %v %s", w.Code, err, w.Body)
			}
			if strings.Contains(w.Body.String(), `"mcp":"/mcp"`) != (tt.status == 404) {
				t.Errorf("%s", w.Body)
			}
		})
	}
}

func TestIsOAuthPath(t *testing.T) {
	for path, want := range map[string]bool{
		"/.well-known/oauth-protected-resource":         true,
		"/.well-known/oauth-protected-resource/mcp":     true,
		"/.well-known/oauth-authorization-server":       true,
		"/.well-known/openid-configuration/mcp":         true,
		"/mcp/a/.well-known/oauth-authorization-server": true,
		"/register":            true,
		"/registered":          false,
		"/.well-known/acme":    false,
		"/mcp/oauth/callback":  false,
		"/oauth-authorization": false,
	} {
		if got := isOAuthPath(path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}
