// Package mcphttp implements http.reverse_proxy.transport.mcp_http, the transport of reverse_proxy
// for MCP servers over HTTP.
package mcphttp

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/http1"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/unlogged"
)

func init() {
	caddy.RegisterModule(Transport{})
}

// Transport is a variant of the transport http of reverse_proxy, for servers that get many small
// requests. It has the same settings, in JSON and in the Caddyfile. mcp_gateway uses it for all
// HTTP servers. It differs from http in two ways.
//
// First, it is faster for some requests: over HTTP/1.1 without TLS, with up to 64 KiB including
// the header, and with a Content-Length if there is a body. It reads such a body completely
// before it sends the request. The transport http handles everything else: TLS, HTTP/2 and
// HTTP/3, upgrades, larger requests and those of unknown length, and forward proxies; and every
// request if `max_conns_per_host`, `keepalive_idle_conns`, `keepalive off` or `proxy_protocol` is
// set, or on Windows. A connection is not reused after the time that the server announces with
// `Keep-Alive: timeout=5`.
//
// Second, it keeps credentials and MCP session ids out of the logs of reverse_proxy: at level DEBUG
// these have only the values of well-known headers, and at other levels no headers.
type Transport struct {
	reverseproxy.HTTPTransport

	// The Host header of requests. `header_up Host` of reverse_proxy does the same, but is slower: it
	// copies all headers of each request. Default: the client's Host or, with TLS, the address of the
	// upstream
	Host string `json:"host,omitempty"`

	fast   *http1.Transport // for the faster requests; nil if the settings exclude them
	logged unlogged.Headers
}

// Name is the transport's name in the Caddyfile.
const Name = "mcp_http"

// CaddyModule returns the Caddy module information.
func (Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport." + Name,
		New: func() caddy.Module { return new(Transport) },
	}
}

// Provision sets up the transport.
func (t *Transport) Provision(ctx caddy.Context) error {
	if err := t.HTTPTransport.Provision(ctx); err != nil {
		return err
	}
	t.logged = unlogged.HeadersFor(ctx.Logger())
	// A connection with the PROXY protocol belongs to one client.
	if t.ProxyProtocol == "" && slices.Contains(t.Versions, "1.1") {
		t.fast = http1.New(t.Transport)
	}
	return nil
}

// RequestHeaderOps implements reverseproxy.RequestHeaderOpsTransport. If Host is set, the transport
// sets the header itself and needs no operations.
func (t *Transport) RequestHeaderOps() *headers.HeaderOps {
	if t.Host != "" {
		return nil
	}
	return t.HTTPTransport.RequestHeaderOps()
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Host != "" {
		r.Host = t.Host
	}
	return t.logged.RoundTrip(r, t.roundTrip)
}

func (t *Transport) roundTrip(r *http.Request) (*http.Response, error) {
	if t.fast == nil {
		return t.HTTPTransport.RoundTrip(r)
	}
	t.SetScheme(r)
	return t.fast.RoundTrip(r)
}

// CloseIdleConnections closes idle connections, and busy ones when they become idle.
func (t *Transport) CloseIdleConnections() {
	if t.fast != nil {
		t.fast.CloseIdleConnections()
	} else if t.Transport != nil {
		t.Transport.CloseIdleConnections()
	}
}

// Cleanup closes idle connections.
func (t *Transport) Cleanup() error {
	t.CloseIdleConnections()
	return t.HTTPTransport.Cleanup()
}

// Interface guards
var (
	_ caddy.Provisioner                                = (*Transport)(nil)
	_ caddy.CleanerUpper                               = (*Transport)(nil)
	_ caddyfile.Unmarshaler                            = (*Transport)(nil)
	_ http.RoundTripper                                = (*Transport)(nil)
	_ reverseproxy.TLSTransport                        = (*Transport)(nil)
	_ reverseproxy.H2CTransport                        = (*Transport)(nil)
	_ reverseproxy.RequestHeaderOpsTransport           = (*Transport)(nil)
	_ reverseproxy.ProxyProtocolTransport              = (*Transport)(nil)
	_ reverseproxy.HealthCheckSchemeOverriderTransport = (*Transport)(nil)
)
