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

// upstreams holds the upstreams in the routes of a server, without duplicates and without those
// that are known only at request time.
type upstreams struct {
	children []child
	proxied  []*reverseproxy.Upstream // without child processes
	checked  []*reverseproxy.Upstream // subset of proxied with active health checks
	pools    []*mcphttp.Transport     // hold the connections to proxied
	tls      bool                     // connections use TLS
}

// A child is an upstream with one or more child processes.
type child struct {
	transport *mcpstdio.Transport
	host      string
}

// findUpstreams returns the upstreams in provisioned routes.
func findUpstreams(routes caddyhttp.RouteList) upstreams {
	var found upstreams
	found.addRoutes(routes)
	return found
}

func (u *upstreams) addRoutes(routes caddyhttp.RouteList) {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *caddyhttp.Subroute:
				u.addRoutes(handler.Routes)
			case *reverseproxy.Handler:
				u.addProxy(handler)
			}
		}
	}
}

func (u *upstreams) addProxy(proxy *reverseproxy.Handler) {
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

// url returns the URL of requests to a target, without query and credentials. It returns "" unless
// there is exactly one upstream.
func (u *upstreams) url(target *url.URL) string {
	if len(u.proxied) != 1 || len(u.children) > 0 {
		return ""
	}
	address, port := url.URL{Scheme: "http", Host: u.proxied[0].Dial, Path: target.Path}, ":80"
	if u.tls {
		address.Scheme, port = "https", ":443"
	}
	address.Host = strings.TrimSuffix(address.Host, port)
	return address.String()
}

// command returns the program of the child processes, or "". Arguments may contain secrets.
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
