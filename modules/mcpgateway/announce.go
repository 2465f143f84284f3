package mcpgateway

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// announcements holds the gateways in use whose URLs have been logged. It outlives reloads, so that
// a gateway is logged again only if it changes.
var announcements = caddy.NewUsagePool()

// An announcer logs where clients reach a gateway, and which clients may use it.
type announcer struct {
	key string // in announcements; empty until the gateway is announced
}

// announce logs the URLs of the gateway.
func (a *announcer) announce(h *Handler) {
	if h.place.site == nil || onStdio {
		return
	}
	servers := make([]string, len(h.Servers))
	for i, s := range h.Servers {
		servers[i] = s.Name
	}
	urls, clients := h.place.urls(h.paths.below("")), h.place.admission(h.auth.providers)
	a.key = digest([]any{h.Name, servers, urls, clients})
	if _, known := announcements.LoadOrStore(a.key, nil); !known {
		h.logger.Info("serving MCP", zap.String("gateway", h.Name), zap.Strings("servers", servers),
			zap.Strings("urls", urls), zap.String("clients", clients))
	}
}

// stop releases the announcement.
func (a *announcer) stop() {
	if a.key != "" {
		_, _ = announcements.Delete(a.key)
		a.key = ""
	}
}

// A placement is the place of a gateway in a site. A shell and its handlers share it.
type placement struct {
	site        *caddyhttp.Server // nil if the gateway is loaded on its own
	handler     *Handler          // in the routes of the site
	publicURL   string
	authInFront bool // a handler in front authenticates clients
}

// urls returns the URLs of a path of the gateway for clients. Their hosts are those of the public
// URL, else the host names of the site, else the addresses it listens on. For a site that listens
// on all addresses it is localhost.
func (p *placement) urls(path string) []string {
	if p.publicURL != "" {
		return []string{strings.TrimSuffix(p.publicURL, "/") + path}
	}
	hosts, prefix, _ := p.locate(p.site.Routes)
	path = prefix + path
	var urls []string
	for _, listen := range p.site.Listen {
		address, err := caddy.ParseNetworkAddress(listen)
		if err != nil || address.IsUnixNetwork() || address.IsFdNetwork() {
			urls = append(urls, listen+" "+path)
			continue
		}
		names := hosts
		if len(names) == 0 {
			names = []string{reachableHost(address.Host)}
		}
		for _, name := range names {
			urls = append(urls, siteURL(p.site, name, address.StartPort)+path)
		}
	}
	return urls
}

// base returns the scheme and host of the gateway: those of public_url, else those of the client's
// request, else those for a browser on this machine.
func (p *placement) base(r *http.Request) string {
	switch {
	case p.publicURL != "":
		return strings.TrimSuffix(p.publicURL, "/")
	case r == nil:
		return p.localBase()
	case r.TLS != nil:
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// localBase returns the URL of the site on this machine.
func (p *placement) localBase() string {
	if p.site != nil {
		for _, listen := range p.site.Listen {
			address, err := caddy.ParseNetworkAddress(listen)
			if err == nil && !address.IsUnixNetwork() && address.StartPort != 0 {
				return siteURL(p.site, "localhost", address.StartPort)
			}
		}
	}
	return "http://localhost"
}

// siteURL returns the scheme, host and port of a site.
func siteURL(site *caddyhttp.Server, host string, port uint) string {
	scheme := "http"
	if len(site.TLSConnPolicies) > 0 {
		scheme = "https"
	}
	if scheme == "http" && port == 80 || scheme == "https" && port == 443 {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return scheme + "://" + host
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// reachableHost returns the host of a listener, or localhost if it listens on all addresses.
func reachableHost(host string) string {
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return "localhost"
	}
	return host
}

// locate finds the handler in routes. It returns the host names that its routes match, and the path
// prefix that they strip, as handle_path does.
func (p *placement) locate(routes caddyhttp.RouteList) (hosts []string, prefix string, found bool) {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *Handler:
				if handler == p.handler {
					return hostsOf(route), prefix, true
				}
			case *rewrite.Rewrite:
				if len(route.MatcherSets) == 0 {
					prefix += handler.StripPathPrefix
				}
			case *caddyhttp.Subroute:
				if inner, stripped, ok := p.locate(handler.Routes); ok {
					return append(hostsOf(route), inner...), prefix + stripped, true
				}
			}
		}
	}
	return nil, "", false
}

// hostsOf returns the host names that a route matches.
func hostsOf(route caddyhttp.Route) (hosts []string) {
	for _, set := range route.MatcherSets {
		for _, matcher := range set {
			if names, ok := matcher.(*caddyhttp.MatchHost); ok {
				hosts = append(hosts, *names...)
			}
		}
	}
	return hosts
}

// admission describes which clients may use a gateway with these providers of auth.
func (p *placement) admission(providers []auth.Provider) string {
	var ways []string
	for _, provider := range providers {
		way := caddy.GetModuleName(provider)
		if token, ok := provider.(*auth.Token); ok {
			way += ", " + countedClients(token.Clients())
		}
		ways = append(ways, way)
	}
	switch {
	case len(ways) > 0:
		return strings.Join(ways, "; ")
	case p.authInFront:
		return "authenticated by a handler in front"
	case len(p.publicAddresses()) > 0:
		return "anyone who can reach it"
	}
	return "anyone on this machine"
}

func countedClients(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
}

// publicAddresses returns the listen addresses that other machines can reach. The host name of a
// site does not restrict them: for a site named localhost Caddy listens on all addresses, and a
// request can name any host.
func (p *placement) publicAddresses() (open []string) {
	for _, listen := range p.site.Listen {
		address, err := caddy.ParseNetworkAddress(listen)
		switch {
		case err == nil && (address.IsUnixNetwork() || address.Network == pipenet.Name):
		case err == nil && clientrequest.IsLocal(address.Host):
		default:
			open = append(open, listen)
		}
	}
	return open
}

// authenticatedInFront reports whether a handler in front of the gateway authenticates clients,
// maybe for some paths only. Caddy has loaded the routes in front, but not the route that contains
// the gateway.
func authenticatedInFront(routes caddyhttp.RouteList) bool {
	for _, route := range routes {
		if route.HandlersRaw != nil {
			found, _ := rawAuthenticates(route.HandlersRaw)
			return found
		}
		if !route.Terminal && slices.ContainsFunc(route.Handlers, authenticates) {
			return true
		}
	}
	return false
}

// authenticates reports whether a handler is, or contains, Caddy's authentication or forward_auth.
func authenticates(handler caddyhttp.MiddlewareHandler) bool {
	switch handler := handler.(type) {
	case *caddyauth.Authentication:
		return true
	case *reverseproxy.Handler:
		return len(handler.HandleResponse) > 0
	case *caddyhttp.Subroute:
		return slices.ContainsFunc(handler.Routes, func(route caddyhttp.Route) bool {
			return slices.ContainsFunc(route.Handlers, authenticates)
		})
	}
	return false
}

// rawAuthenticates reports whether handlers that are not loaded yet authenticate clients. It stops
// at the first gateway, and then sets reached.
func rawAuthenticates(handlers []json.RawMessage) (found, reached bool) {
	for _, raw := range handlers {
		var handler struct {
			Name           string            `json:"handler"`
			HandleResponse []json.RawMessage `json:"handle_response"`
			Routes         []struct {
				Handlers []json.RawMessage `json:"handle"`
			} `json:"routes"`
		}
		if json.Unmarshal(raw, &handler) != nil {
			continue
		}
		switch handler.Name {
		case "authentication":
			return true, false
		case "reverse_proxy":
			if len(handler.HandleResponse) > 0 {
				return true, false
			}
		case "mcp_gateway":
			return false, true
		case "subroute":
			for _, route := range handler.Routes {
				if found, reached = rawAuthenticates(route.Handlers); found || reached {
					return found, reached
				}
			}
		}
	}
	return false, false
}
