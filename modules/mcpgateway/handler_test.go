package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// TestMain runs the test binary as a child process when it is called as `<binary> ds …`.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" {
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// adaptGateway provisions a gateway. It is unloaded when the test ends.
func adaptGateway(t *testing.T, config string) *Handler {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	module, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

// proxyTo returns a reverse_proxy to these addresses. more is appended to its configuration.
func proxyTo(more string, addresses ...string) string {
	var upstreams []string
	for _, address := range addresses {
		upstreams = append(upstreams, fmt.Sprintf(`{"dial":%q}`, address))
	}
	return fmt.Sprintf(`{"handler":"reverse_proxy","upstreams":[%s]%s}`, strings.Join(upstreams, ","), more)
}

// childTransport returns the transport of a reverse_proxy whose upstreams are children of mcptest
// with flags.
func childTransport(flags ...string) string {
	command, _ := json.Marshal(append([]string{os.Args[0], "ds", "alpha"}, flags...))
	return fmt.Sprintf(`,"transport":{"protocol":"mcp_stdio","command":%s,"stop_grace":1000000000}`, command)
}

// serverOf returns a server whose routes have these handlers.
func serverOf(name string, handlers ...string) string {
	return fmt.Sprintf(`{"name":%q,"routes":[{"handle":[%s]}]}`, name, strings.Join(handlers, ","))
}

func TestFindUpstreams(t *testing.T) { // A70
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	address := silent.Listener.Addr().String()
	const active = `,"health_checks":{"active":{"uri":"/","interval":3600000000000}}`
	subroute := func(handler string) string {
		return `{"handler":"subroute","routes":[{"match":[{"path":["/x"]}],"handle":[` + handler + `]}]}`
	}
	for _, tt := range []struct {
		name                       string
		handlers                   []string
		children, proxied, checked string
	}{
		{"a child", []string{proxyTo(childTransport(), "alpha:1")}, "alpha:1", "", ""},
		{"several children", []string{proxyTo(childTransport(), "alpha:1", "alpha:2")}, "alpha:1 alpha:2", "", ""},
		{"a child at port 80", []string{proxyTo(childTransport(), "alpha:80")}, "alpha:80", "", ""},
		{"an upstream", []string{proxyTo("", "127.0.0.1:9")}, "", "127.0.0.1:9", ""},
		{"handlers in subroutes", []string{subroute(subroute(proxyTo("", "127.0.0.1:9"))), proxyTo(childTransport(),
			"alpha:1")},
			"alpha:1", "127.0.0.1:9", ""},
		{"repeated handlers",
			[]string{subroute(proxyTo(childTransport(), "alpha:1")), subroute(proxyTo("", "127.0.0.1:9", "127.0.0.1:9")),
				subroute(proxyTo("", "127.0.0.1:9")), proxyTo(childTransport(), "alpha:1")}, "alpha:1", "127.0.0.1:9", ""},
		{"another command at the same address",
			[]string{subroute(proxyTo(childTransport(), "alpha:1")), proxyTo(childTransport("--no-ping"), "alpha:1")},
			"alpha:1 alpha:1", "", ""},
		{"an address with a placeholder",
			[]string{subroute(proxyTo(childTransport(), "{http.request.header.x}:1")), proxyTo("", "{http.request.host}:9")},
			"", "{http.request.host}:9", ""},
		{"health checks of reverse_proxy", []string{proxyTo(active, address)}, "", address, address},
		{"disabled health checks of reverse_proxy", []string{proxyTo(`,"health_checks":{"active":{}}`, "127.0.0.1:9")}, "",
			"127.0.0.1:9", ""},
		{"no upstreams", []string{`{"handler":"static_response"}`}, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := adaptGateway(t, `{"servers":[`+serverOf("a", tt.handlers...)+`]}`).Servers[0].upstreams
			var children, proxied, checked []string
			for _, c := range u.children {
				children = append(children, c.host)
			}
			for _, upstream := range u.proxied {
				proxied = append(proxied, upstream.Dial)
			}
			for _, upstream := range u.checked {
				checked = append(checked, upstream.Dial)
			}
			if (len(u.pools) > 0) != (tt.proxied != "") {
				t.Errorf("%d connection pools", len(u.pools))
			}
			for i, got := range [...][]string{children, proxied, checked} {
				if want := [...]string{tt.children, tt.proxied, tt.checked}[i]; strings.Join(got, " ") != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
}

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
		if at, to, _ := h.paths.find(u); at != tt.at || to != tt.to {
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
			failure := (&Handler{Hosts: tt.hosts}).originPolicy().Admit(r)
			if (failure == nil) != tt.want {
				t.Errorf("%v", failure)
			}
			if failure != nil && !strings.Contains(failure.Message, "hosts") {
				t.Errorf("%q does not name the setting", failure.Message)
			}
		})
	}
}

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

// Writing out a default does not change the id of a server, so its sessions survive the reload.
func TestServerIDWithDefaults(t *testing.T) {
	id := func(more string) string {
		return adaptGateway(t, `{`+more+`"servers":[`+serverOf("a", staticHandler)+`]}`).Servers[0].id
	}
	want := id("")
	for _, more := range []string{`"separator":"::",`, `"max_name_length":64,`, `"mcp_path":"/mcp",`} {
		if got := id(more); got != want {
			t.Errorf("%s changes the id", more)
		}
	}
	if id(`"separator":"__",`) == want {
		t.Error("another separator does not change the id")
	}
}

// The id of a server changes with forward_auth_header, because its responses may change.
func TestServerIDWithForwardedCredentials(t *testing.T) {
	server := &Server{Name: "a"}
	if serverID(&Handler{}, server) == serverID(&Handler{ForwardAuthHeader: true}, server) {
		t.Error("forward_auth_header does not change the id of a server")
	}
}
