package mcpgateway

import (
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcphttp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// upstreams are what a server's routes pass requests on to, as far as that can be known
// without a request. Each is there once.
type upstreams struct {
	children []child
	proxied  []*reverseproxy.Upstream // that are no children
	checked  []*reverseproxy.Upstream // those of them that reverse_proxy itself checks
	pools    []*mcphttp.Transport     // that keep connections to them
	tls      bool                     // connections to them use TLS
}

// A child is an upstream that is a child process, or some for the same address.
type child struct {
	transport *mcpstdio.Transport
	host      string
}

// findUpstreams returns the upstreams of routes that have been provisioned.
func findUpstreams(routes caddyhttp.RouteList) upstreams {
	var found upstreams
	found.inRoutes(routes)
	return found
}

func (u *upstreams) inRoutes(routes caddyhttp.RouteList) {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *caddyhttp.Subroute:
				u.inRoutes(handler.Routes)
			case *reverseproxy.Handler:
				u.of(handler)
			}
		}
	}
}

func (u *upstreams) of(proxy *reverseproxy.Handler) {
	transport, isChild := proxy.Transport.(*mcpstdio.Transport)
	if pool, ok := proxy.Transport.(*mcphttp.Transport); ok {
		u.pools = append(u.pools, pool)
	}
	if transport, ok := proxy.Transport.(reverseproxy.TLSTransport); ok {
		u.tls = u.tls || transport.TLSEnabled()
	}
	for _, upstream := range proxy.Upstreams {
		if !isChild {
			u.addProxied(upstream, proxy.HealthChecks)
		} else if host, ok := mcpstdio.Host(upstream.Dial); ok {
			u.addChild(child{transport, host})
		}
	}
}

// url returns where requests with a target are sent, without the query and without credentials; "" unless there
// is one such place.
func (u *upstreams) url(target *url.URL) string {
	if len(u.proxied) != 1 || len(u.children) > 0 {
		return ""
	}
	at, port := url.URL{Scheme: "http", Host: u.proxied[0].Dial, Path: target.Path}, ":80"
	if u.tls {
		at.Scheme, port = "https", ":443"
	}
	at.Host = strings.TrimSuffix(at.Host, port)
	return at.String()
}

// command returns the program of the child processes, without arguments, which may have secrets; "" if there are none.
func (u *upstreams) command() string {
	if len(u.children) == 0 || len(u.children[0].transport.Command) == 0 {
		return ""
	}
	return u.children[0].transport.Command[0]
}

func (u *upstreams) addProxied(upstream *reverseproxy.Upstream, checks *reverseproxy.HealthChecks) {
	if !slices.ContainsFunc(u.proxied, func(other *reverseproxy.Upstream) bool { return other.Dial == upstream.Dial }) {
		u.proxied = append(u.proxied, upstream)
		if checks != nil && checks.Active != nil && checks.Active.IsEnabled() {
			u.checked = append(u.checked, upstream)
		}
	}
}

func (u *upstreams) addChild(c child) {
	if !slices.ContainsFunc(u.children, func(other child) bool {
		return other.host == c.host && other.transport.Shares(c.transport)
	}) {
		u.children = append(u.children, c)
	}
}
