package clientrequest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

func TestIdentity(t *testing.T) {
	tests := []struct {
		name                string
		client, user, wants string
	}{
		{"not authenticated", "", "", ""},
		{"authenticated by Caddy", "", "alice", "alice"},
		{"authenticated by the gateway", "tenant", "alice", "tenant"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repl := caddy.NewReplacer()
			repl.Set("http.mcp.client", tt.client)
			repl.Set("http.auth.user.id", tt.user)
			r := httptest.NewRequest("GET", "/", nil)
			r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
			if got := Identity(r); got != tt.wants {
				t.Errorf("got %q, want %q", got, tt.wants)
			}
		})
	}
	if got := Identity(httptest.NewRequest("GET", "/", nil)); got != "" {
		t.Errorf("without a replacer: got %q", got)
	}
}

func TestAdmit(t *testing.T) {
	loopback, public := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(203, 0, 113, 1)}
	tests := []struct {
		name   string
		policy Policy
		at     net.Addr
		origin string // values separated by spaces
		host   string
		why    string // end of the error; empty if the request is admitted
		site   string // Sec-Fetch-Site
	}{
		{"a request without an origin", Policy{}, loopback, "", "localhost:8080", "", ""},
		{"a page on this machine", Policy{}, loopback, "http://[::1]:3000", "127.0.0.1", "", ""},
		{"a page on another machine", Policy{}, loopback, "https://evil.test", "127.0.0.1", "origins of test", ""},
		{"a page with an opaque origin", Policy{}, loopback, "null", "127.0.0.1", "origins of test", ""},
		{"a page on another machine with a name like localhost", Policy{}, loopback, "https://localhost.evil.test",
			"127.0.0.1",
			"origins of test", ""},
		{"an allowed page", Policy{Origins: []string{"https://APP.test"}}, loopback, "https://app.test", "127.0.0.1",
			"", ""},
		{"an allowed page on another port", Policy{Origins: []string{"https://app.test"}}, loopback,
			"https://app.test:8443", "127.0.0.1", "origins of test", ""},
		{"any page", Policy{Origins: []string{"*"}}, loopback, "https://evil.test", "127.0.0.1", "", ""},
		{"two origins, one of them allowed", Policy{Origins: []string{"https://app.test"}}, loopback,
			"https://app.test https://evil.test", "127.0.0.1", "origins of test", ""},
		{"a foreign host at a loopback address", Policy{}, loopback, "", "evil.test", "hosts of test", ""},
		{"an allowed host", Policy{Hosts: []string{"mcp.test"}}, loopback, "", "MCP.test.:443", "", ""},
		{"a foreign host at a public address", Policy{Hosts: []string{"mcp.test"}}, public, "", "evil.test",
			"hosts of test", ""},
		{"any host at a public address", Policy{}, public, "", "evil.test", "", ""},
		{"any host", Policy{Hosts: []string{"*"}}, loopback, "", "evil.test", "", ""},
		{"an image in a page of another site", Policy{}, loopback, "", "127.0.0.1", "origins of test", "cross-site"},
		{"an image in a page of the same site", Policy{}, public, "", "mcp.test", "origins of test", "same-site"},
		{"an unknown Sec-Fetch-Site value", Policy{}, public, "", "mcp.test", "origins of test", "other-site"},
		{"an image in a page of the same origin", Policy{}, loopback, "", "127.0.0.1", "", "same-origin"},
		{"an address typed by the user", Policy{}, loopback, "", "127.0.0.1", "", "none"},
		{"a page on this machine at another port", Policy{}, loopback, "http://localhost:3000", "127.0.0.1", "", "same-site"},
		{"an allowed page of another site", Policy{Origins: []string{"https://app.test"}}, loopback,
			"https://app.test", "127.0.0.1", "", "cross-site"},
		{"an image in any page", Policy{Origins: []string{"*"}}, loopback, "", "127.0.0.1", "", "cross-site"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Host = tt.host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tt.at))
			for _, origin := range strings.Fields(tt.origin) {
				r.Header.Add("Origin", origin)
			}
			if tt.site != "" {
				r.Header.Set("Sec-Fetch-Site", tt.site)
			}
			tt.policy.Directive = "test"
			switch failure := tt.policy.Admit(r); {
			case (failure == nil) != (tt.why == ""):
				t.Errorf("got %v", failure)
			case failure != nil && (failure.Status != http.StatusForbidden || !strings.HasSuffix(failure.Message, tt.why)):
				t.Errorf("got %d %s", failure.Status, failure.Message)
			}
		})
	}
}
