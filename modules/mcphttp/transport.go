// Package mcphttp reaches MCP servers over HTTP, behind reverse_proxy: the transport
// http.reverse_proxy.transport.mcp_http.
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

// Transport is the transport http of reverse_proxy, with the same settings in JSON and in
// the Caddyfile, for servers that get many small requests. mcp_gateway uses it for all of
// its servers. There are two differences.
//
// It is faster where that is possible: over HTTP/1.1 without TLS, for requests that with
// their header have up to 64 KiB, and a Content-Length if they have a body. Such a body is
// read to its end before the request is sent. Everything else is left to the transport http:
// TLS, HTTP/2 and HTTP/3, upgrades, larger requests and those of unknown length, forward
// proxies; and every request if `max_conns_per_host`, `keepalive_idle_conns`,
// `keepalive off` or `proxy_protocol` is set, or on Windows.
// A connection that a server keeps for a while, as it says by `Keep-Alive: timeout=5`, is
// not used after that.
//
// And reverse_proxy does not log the credentials in requests, nor MCP sessions: at level
// DEBUG it logs the values of well-known headers only, and at other levels no headers.
type Transport struct {
	reverseproxy.HTTPTransport

	// The Host header of requests. `header_up Host` of reverse_proxy does the same, and
	// copies all headers of a request for it. Default: that of the client's request, or
	// with TLS the address of the upstream.
	Host string `json:"host,omitempty"`

	lean   *http1.Transport // nil if it cannot be used
	logged unlogged.Headers
}

// Name is the name of the transport in the namespace of reverse_proxy's transports.
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
		t.lean = http1.New(t.Transport)
	}
	return nil
}

// RequestHeaderOps implements reverseproxy.RequestHeaderOpsTransport. The Host that it sets
// with TLS is not needed if there is another.
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
	if t.lean == nil {
		return t.HTTPTransport.RoundTrip(r)
	}
	t.SetScheme(r)
	return t.lean.RoundTrip(r)
}

// CloseIdleConnections closes the connections that no request uses, and each other one as
// soon as no request uses it.
func (t *Transport) CloseIdleConnections() {
	if t.lean != nil {
		t.lean.CloseIdleConnections()
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
