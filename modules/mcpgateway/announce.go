package mcpgateway

import (
	"encoding/json"
	"fmt"
	"net"
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

// announcements are the gateways in use of which the log has told. They outlive reloads, which
// have nothing to tell if nothing has changed.
var announcements = caddy.NewUsagePool()

type announcement struct{}

// Destruct implements caddy.Destructor.
func (announcement) Destruct() error { return nil }

// announce logs where clients reach the gateway, and which clients may use it.
func (h *Handler) announce() {
	if h.site == nil || onStdio {
		return
	}
	servers := make([]string, len(h.Servers))
	for i, s := range h.Servers {
		servers[i] = s.Name
	}
	urls, clients := h.urls(), h.admitted()
	h.told = digest([]any{h.Name, servers, urls, clients})
	_, known, _ := announcements.LoadOrNew(h.told, func() (caddy.Destructor, error) { return announcement{}, nil })
	if !known {
		h.logger.Info("serving MCP", zap.String("gateway", h.Name), zap.Strings("servers", servers),
			zap.Strings("urls", urls), zap.String("clients", clients))
	}
}

// stopAnnouncing ends what announce has begun.
func (h *Handler) stopAnnouncing() {
	if h.told != "" {
		_, _ = announcements.Delete(h.told)
	}
}

// urls returns the addresses to give to clients: with the public URL, with the host names of the
// site, or else with the addresses it listens at. A site that listens at all addresses is at
// localhost, too, and that is all that is known of its names.
func (h *Handler) urls() []string {
	if h.PublicURL != "" {
		return []string{strings.TrimSuffix(h.PublicURL, "/") + h.at("")}
	}
	hosts, prefix, _ := h.locate(h.site.Routes)
	path := prefix + h.at("")
	var urls []string
	for _, listen := range h.site.Listen {
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
			urls = append(urls, siteURL(h.site, name, address.StartPort)+path)
		}
	}
	return urls
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

// reachableHost returns the host of a listener, or localhost if it listens at all addresses.
func reachableHost(host string) string {
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return "localhost"
	}
	return host
}

// locate finds the handler in routes. It returns the host names that these match, and the prefix
// that they strip from paths, as handle_path does.
func (h *Handler) locate(routes caddyhttp.RouteList) (hosts []string, prefix string, found bool) {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *Handler:
				if handler == h || handler == h.shell {
					return hostsOf(route), prefix, true
				}
			case *rewrite.Rewrite:
				if len(route.MatcherSets) == 0 {
					prefix += handler.StripPathPrefix
				}
			case *caddyhttp.Subroute:
				if inner, stripped, ok := h.locate(handler.Routes); ok {
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

// admitted returns which clients may use the gateway.
func (h *Handler) admitted() string {
	var ways []string
	for _, provider := range h.auth.providers {
		way := caddy.GetModuleName(provider)
		if token, ok := provider.(*auth.Token); ok {
			way += ", " + countedClients(token.Clients())
		}
		ways = append(ways, way)
	}
	switch {
	case len(ways) > 0:
		return strings.Join(ways, "; ")
	case h.guarded:
		return "as a handler in front authenticates them"
	case len(h.openAddresses()) > 0:
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

// openAddresses returns where the site listens for other machines. The name of a site does not
// bind it: Caddy listens at all addresses for a site localhost, and a request can name any host.
func (h *Handler) openAddresses() (open []string) {
	for _, listen := range h.site.Listen {
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

// warnIfOpen warns of a gateway that other machines can use without credentials.
func (h *Handler) warnIfOpen() {
	if h.site == nil || len(h.auth.providers) > 0 {
		return
	}
	h.guarded = authenticatedInFront(h.site.Routes)
	if h.shell != nil {
		h.shell.guarded = h.guarded
	}
	if open := h.openAddresses(); len(open) > 0 && !h.guarded && !h.AllowUnauthenticated {
		h.logger.Warn("other machines can use this gateway without credentials, unless a handler in front authenticates; "+
			"add auth or tokens of clients, bind 127.0.0.1, or allow it by auth none",
			zap.String("gateway", h.Name), zap.Strings("listen", open))
	}
}

// authenticatedInFront reports whether a handler in front of the gateway that is being loaded
// authenticates clients, perhaps for some paths only. Routes in front have been loaded; the one with
// the gateway in it has not.
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

// authenticates reports whether a handler, or one in it, is Caddy's authentication or forward_auth.
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

// rawAuthenticates is authenticates for handlers that are not loaded yet, in front of the first
// gateway. It reports whether it has come to that.
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

// Interface guard
var _ caddy.Destructor = announcement{}
