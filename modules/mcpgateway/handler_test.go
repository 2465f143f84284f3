package mcpgateway

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

func TestFind(t *testing.T) {
	h := provision(t, `{"handler":"mcp_gateway","mcp_path":"/é/mcp/","servers":[{"name":"a","routes":[{}]}]}`).(*Handler)
	for _, tt := range []struct {
		path string
		at   location
		to   inbound.Endpoint
	}{
		{"/%C3%A9/mcp/a", endpoint, inbound.Endpoint{Kind: upstream.Single, Server: "a"}},
		{"/%C3%A9/mcp/a%20b%2Fc%3A", endpoint, inbound.Endpoint{Kind: upstream.Single, Server: "a b/c:"}},
		{"/%C3%A9/mcp/", endpoint, inbound.Endpoint{Kind: upstream.Aggregate}},
		{"/%C3%A9/mcp", endpoint, inbound.Endpoint{Kind: upstream.Aggregate}},
		{"/%C3%A9/mcp/a/", endpoint, inbound.Endpoint{Kind: upstream.Single, Server: "a"}},
		{"/%C3%A9/mcp/a//", otherPath, inbound.Endpoint{}},
		{"/%C3%A9/mcp//", otherPath, inbound.Endpoint{}},
		{"/%C3%A9/mcp/a/b", otherPath, inbound.Endpoint{}},
		{"/%C3%A9/mcp/health", probe, inbound.Endpoint{}},
		{"/%C3%A9/mcp/health/", probe, inbound.Endpoint{}},
		{"/%C3%A9/mcp/.well-known/openid-configuration", otherPath, inbound.Endpoint{}},
		{"/%C3%A9/mcpx", otherPath, inbound.Endpoint{}},
		{"/api/mcp-gateway/a/rpc", endpoint, inbound.Endpoint{Kind: upstream.RPC, Server: "a"}},
		{"/api/mcp-gateway/rpc/rpc", endpoint, inbound.Endpoint{Kind: upstream.RPC, Server: "rpc"}},
		{"/api/mcp-gateway/a%2Frpc", otherPath, inbound.Endpoint{}},
		{"/api/mcp-gateway/a/b/rpc", otherPath, inbound.Endpoint{}},
		{"/api/mcp-gateway/", otherPath, inbound.Endpoint{}},
		{"/api/mcp-gateway", otherPath, inbound.Endpoint{}},
		{"/api/mcp-gatewayx", otherPath, inbound.Endpoint{}},
		{"/", otherPath, inbound.Endpoint{}},
	} {
		u, err := url.ParseRequestURI(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		if at, to, _ := h.find(u); at != tt.at || to != tt.to {
			t.Errorf("%s: got %d %+v, want %d %+v", tt.path, at, to, tt.at, tt.to)
		}
	}
}

// At addresses other than loopback, Host is checked only if hosts is set.
func TestAdmitByListener(t *testing.T) {
	loopback, public := &net.TCPAddr{IP: net.IPv6loopback}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	for _, tt := range []struct {
		name  string
		hosts []string
		local net.Addr
		host  string
		want  bool
	}{
		{"a loopback address", nil, loopback, "mcp.test", false},
		{"a loopback address over HTTP/3", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, "mcp.test", false},
		{"a public address", nil, public, "mcp.test", true},
		{"a public address with hosts", []string{"mcp.test"}, public, "evil.test", false},
		{"a public address with an allowed host", []string{"mcp.test"}, public, "MCP.test.:443", true},
		{"a public address with an allowed host and port", []string{"mcp.test:443"}, public, "mcp.test:443", true},
		{"a socket", nil, &net.UnixAddr{Name: "/run/caddy.sock"}, "mcp.test", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/mcp/a", nil)
			r.Host = tt.host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tt.local))
			failure := (&Handler{Hosts: tt.hosts}).checkOrigin(r)
			if (failure == nil) != tt.want {
				t.Errorf("%v", failure)
			}
			if failure != nil && !strings.Contains(failure.Message, "hosts") {
				t.Errorf("%q does not name the setting", failure.Message)
			}
		})
	}
}
