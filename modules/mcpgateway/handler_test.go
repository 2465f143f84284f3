package mcpgateway

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	h := provisioned(t, `{"handler":"mcp_gateway","mcp_path":"/é/mcp/","servers":[{"name":"a","routes":[{}]}]}`).(*Handler)
	for _, tt := range []struct {
		path string
		door door
		name string
	}{
		{"/%C3%A9/mcp/a", mcpDoor, "a"},
		{"/%C3%A9/mcp/a%20b%2Fc%3A", mcpDoor, "a b/c:"},
		{"/%C3%A9/mcp/", joinedDoor, ""},
		{"/%C3%A9/mcp", joinedDoor, ""},
		{"/%C3%A9/mcp/a/b", elsewhere, ""},
		{"/api/mcp-gateway/a/rpc", rpcDoor, "a"},
		{"/api/mcp-gateway/rpc/rpc", rpcDoor, "rpc"},
		{"/api/mcp-gateway/a%2Frpc", elsewhere, ""},
		{"/api/mcp-gateway/a/b/rpc", elsewhere, ""},
		{"/api/mcp-gateway/", elsewhere, ""},
		{"/", elsewhere, ""},
	} {
		u, err := url.ParseRequestURI(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		if door, name := h.find(u); door != tt.door || name != tt.name {
			t.Errorf("%s: %d %q", tt.path, door, name)
		}
	}
}

// Away from loopback addresses the Host is checked only if hosts are given.
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
		{"a public address that is one of hosts", []string{"mcp.test"}, public, "MCP.test.:443", true},
		{"a public address that is one of hosts with its port", []string{"mcp.test:443"}, public, "mcp.test:443", true},
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

// sealAll has a stream pass in pieces of a size.
func sealAll(s *Server, stream string, size int) (string, error) {
	var sealer endpointSealer
	var all []byte
	for piece := range slices.Chunk([]byte(stream), size) {
		passed, err := sealer.seal(piece, func(address string) (string, bool) { return s.sealedEndpoint(address, "/mcp/old", "ann") })
		all = append(all, passed...)
		if err != nil {
			return string(all), err
		}
	}
	return string(append(all, sealer.rest()...)), nil
}

func TestEndpoints(t *testing.T) {
	target, _ := url.Parse("/v1/sse?x=1")
	s := &Server{Name: "old", target: target}
	const end = "\n\n"
	for _, tt := range []struct{ name, event, uri string }{
		{"a path", "event: endpoint\ndata: /messages?s=1" + end, "/messages?s=1"},
		{"a relative path", "event:endpoint\r\ndata:messages?s=1\r\n\r\n", "/v1/messages?s=1"},
		{"a query", "data: ?s=1\nevent: endpoint" + end, "/v1/sse?s=1"},
		{"a URL", "event: endpoint\ndata: https://u:p@elsewhere/a%2Fb" + end, "/a%2Fb"},
		{"two lines", "event: endpoint\ndata: /mess\ndata: ages" + end, "/messages"},
		{"lines that end with CR", "event: endpoint\rdata: /messages\r\r", "/messages"},
		{"after a byte order mark", "\ufeffevent: endpoint\ndata: /messages" + end, "/messages"},
		{"a name that some clients would read so", "event:  Endpoint\ndata: /messages" + end, "/messages"},
		{"an address that is none", "event: endpoint\ndata: mailto:x" + end, "error"},
		{"an address that browsers can read", "event: endpoint\ndata: /mcp/files?%zz#%zz" + end, "error"},
		{"a name after long data", "data: " + strings.Repeat("x", longestEndpoint) + "\nevent: endpoint" + end, "error"},
		{"another event", "event: message\ndata: /messages" + end, ""},
		{"an event without a name", "data: /messages" + end, ""},
		{"an event that has not ended", "data: /messages\n", ""},
		{"no stream", "not found", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sealAll(s, tt.event, 5)
			if (err != nil) != (tt.uri == "error") {
				t.Fatalf("%q: %v", got, err)
			}
			if tt.uri == "error" {
				return
			}
			if tt.uri == "" {
				if got != tt.event {
					t.Errorf("rewritten: %q", got)
				}
				return
			}
			_, token, ok := strings.Cut(got, "/mcp/old?endpoint=")
			if !ok {
				t.Fatalf("%q", got)
			}
			token, _, _ = strings.Cut(strings.ReplaceAll(token, "\r", "\n"), "\n")
			u, failure := s.unseal(token, "ann")
			if failure != nil || u.RequestURI() != tt.uri {
				t.Errorf("%v %v", u, failure)
			}
			if _, failure := s.unseal(token, "bob"); failure == nil {
				t.Error("it is good for another client")
			}
			if _, failure := (&Server{Name: "other", target: target}).unseal(token, "ann"); failure == nil {
				t.Error("another server takes it")
			}
		})
	}
}
