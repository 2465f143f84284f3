package mcpgateway

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// warn warns of settings that are valid, but probably not intended.
func (h *Handler) warn() {
	if h.shell != nil && h.shell.live.running { // already logged when the configuration was loaded
		h.authInFront = h.shell.authInFront
		return
	}
	h.warnIfOpen()
	h.warnOfNames()
	h.warnOfRoutes()
	h.warnOfSite()
	if h.HealthInterval > 0 && h.HealthTimeout > h.HealthInterval {
		h.logger.Warn("health_timeout is longer than health_interval: servers that hang are checked less often",
			zap.Duration("health_timeout", time.Duration(h.HealthTimeout)),
			zap.Duration("health_interval", time.Duration(h.HealthInterval)))
	}
}

// warnOfNames warns of tool names that model APIs refuse.
func (h *Handler) warnOfNames() {
	if h.Separator == noSeparator {
		return
	}
	for _, s := range h.Servers {
		if strings.ContainsFunc(s.Name, refusedByModels) {
			h.logger.Warn("model APIs refuse tool names with characters other than letters, digits, _ and -",
				zap.String("mcp_server", s.Name))
		}
	}
	switch {
	case h.Separator == mcp.Separator:
		h.logger.Warn("model APIs refuse tool names with ::; set separator __ unless your clients rename tools")
	case strings.ContainsFunc(h.Separator, refusedByModels):
		h.logger.Warn("model APIs refuse tool names with this separator; "+
			"set separator __ unless your clients rename tools",
			zap.String("separator", h.Separator))
	}
}

// warnOfRoutes warns of notification routes to servers that do not exist yet.
func (h *Handler) warnOfRoutes() {
	for _, route := range h.NotificationRoutes {
		for _, name := range route.Servers {
			if h.serverNamed(name) == nil {
				h.logger.Warn("route_notifications refers to an unknown server", zap.String("mcp_server", name))
			}
		}
	}
}

// warnOfSite warns of settings of the site that keep the gateway from working.
func (h *Handler) warnOfSite() {
	if h.site == nil {
		return
	}
	if h.usesCertificates() && !slices.ContainsFunc(h.site.TLSConnPolicies, asksForCertificate) {
		h.logger.Warn("auth mtls cannot identify clients: the site does not request client certificates; " +
			"set client_auth in tls")
	}
	routes := h.site.Routes
	for _, module := range h.ctx.Modules() {
		if subroute, ok := module.(*caddyhttp.Subroute); ok {
			routes = subroute.Routes
		}
	}
	for _, route := range routes {
		if len(route.Handlers) == 0 { // not loaded yet: it contains this gateway
			h.warnOfHandlers(h.gatewaysInFront(route.HandlersRaw))
			return
		}
		if len(route.MatcherSets) == 0 && len(route.MatcherSetsRaw) == 0 {
			h.warnOfHandlers(route.Handlers)
		}
	}
}

// gatewaysInFront returns the gateways in front of this one in the same route.
func (h *Handler) gatewaysInFront(route []json.RawMessage) (gateways []caddyhttp.MiddlewareHandler) {
	for _, raw := range route {
		var config struct {
			Kind string `json:"handler"`
			Handler
		}
		switch err := json.Unmarshal(raw, &config); {
		case err != nil || config.Kind != "mcp_gateway":
		case bytes.Equal(caddyconfig.JSON(&config.Handler, nil), h.rawConfig):
			return gateways
		default:
			config.setDefaults()
			config.mcpPrefix = pathPrefix(config.MCPPath)
			gateways = append(gateways, &config.Handler)
		}
	}
	return nil
}

// warnOfHandlers warns of handlers in front that prevent requests from reaching the gateway.
func (h *Handler) warnOfHandlers(inFront []caddyhttp.MiddlewareHandler) {
	for _, handler := range inFront {
		switch handler := handler.(type) {
		case *Handler:
			if handler.mcpPrefix == h.mcpPrefix {
				h.logger.Warn("another mcp_gateway in front of this one has the same mcp_path: this one gets no requests",
					zap.String("mcp_path", h.MCPPath))
			}
		case *rewrite.Rewrite:
			if prefix := handler.StripPathPrefix; prefix != "" && strings.HasPrefix(h.MCPPath, prefix) {
				h.logger.Warn("a handler in front strips the beginning of mcp_path from requests; "+
					"use handle instead of handle_path",
					zap.String("stripped", prefix), zap.String("mcp_path", h.MCPPath))
			}
		}
	}
}

// usesCertificates reports whether auth mtls is configured.
func (h *Handler) usesCertificates() bool {
	return slices.ContainsFunc(h.auth.providers, func(p auth.Provider) bool {
		_, ok := p.(*auth.MTLS)
		return ok
	})
}

func asksForCertificate(policy *caddytls.ConnectionPolicy) bool {
	return policy.ClientAuthentication != nil
}
