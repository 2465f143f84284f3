package mcpgateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
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
