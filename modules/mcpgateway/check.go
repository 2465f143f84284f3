package mcpgateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

// A checker validates the configuration of a gateway.
type checker struct {
	config *Handler // a copy with defaults
	names  serverNames
}

// newChecker returns a checker of a gateway, which need not be provisioned.
func newChecker(h *Handler) checker {
	config := *h
	config.setDefaults()
	return checker{&config, h.serverNames()}
}

// settings validates the settings of the gateway itself.
func (c checker) settings() error {
	h := c.config
	if err := cmp.Or(checkEndpoint("mcp_path", h.MCPPath), checkEndpoint("rpc_path", h.RPCPath)); err != nil {
		return err
	}
	served := newPaths(h.MCPPath, h.RPCPath)
	switch {
	case len(h.Servers) == 0 && !c.names.mayChange:
		return errors.New("mcp_gateway needs at least one server")
	case h.ResponseTimeout < 0:
		return fmt.Errorf("response_timeout: %s is negative", time.Duration(h.ResponseTimeout))
	case h.RequestLimit < 0:
		return fmt.Errorf("request_limit: %d is negative", h.RequestLimit)
	case h.InFlightLimit < h.RequestLimit:
		return fmt.Errorf("in_flight_limit: %d is less than request_limit, %d", h.InFlightLimit, h.RequestLimit)
	case h.HealthInterval != 0 && h.HealthInterval < caddy.Duration(shortestInterval):
		return fmt.Errorf("health_interval: %s is shorter than %s", time.Duration(h.HealthInterval), shortestInterval)
	case h.HealthTimeout < 0:
		return fmt.Errorf("health_timeout: %s is negative", time.Duration(h.HealthTimeout))
	case h.ResponseLimit < 0:
		return fmt.Errorf("response_limit: %d is negative", h.ResponseLimit)
	case h.PublicURL != "" && !isOrigin(h.PublicURL):
		return fmt.Errorf("public_url: %q is not a URL such as https://mcp.example.com", h.PublicURL)
	case strings.HasPrefix(served.mcp, served.rpc), strings.HasPrefix(served.rpc, served.mcp):
		return fmt.Errorf("mcp_path and rpc_path: %q and %q overlap", h.MCPPath, h.RPCPath)
	case h.Separator == noSeparator && (len(h.Servers) > 1 || len(h.Servers) == 0 && h.shell != nil):
		return fmt.Errorf("separator: none requires a single server, but there are %d", len(h.Servers))
	case h.MaxNameLength < 0:
		return fmt.Errorf("max_name_length: %d is negative", h.MaxNameLength)
	case h.MaxSessions < 0:
		return fmt.Errorf("max_sessions: %d is negative", h.MaxSessions)
	case h.JoinTimeout < 0:
		return fmt.Errorf("join_timeout: %s is negative", time.Duration(h.JoinTimeout))
	}
	if err := validateStart(h.Start); err != nil {
		return err
	}
	if _, known := audits[h.Audit]; !known {
		return fmt.Errorf("audit: %q must be denied, all or arguments", h.Audit)
	}
	if err := h.originPolicy().Validate(); err != nil {
		return err
	}
	mayMask := c.names.mayChange && h.Mask != nil
	if h.Focus.on() && !mayMask && !slices.ContainsFunc(h.Servers, c.masks) {
		return errNoMask
	}
	return h.naming().CheckSeparator()
}

// checkEndpoint validates the path of an endpoint. name is that of the setting.
func checkEndpoint(name, path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("%s: %q does not start with a slash", name, path)
	case strings.ContainsAny(path, "{}"):
		return fmt.Errorf("%s: %q has a placeholder, which is not replaced here; "+
			"in a Caddyfile, use {$NAME} for environment variables", name, path)
	case strings.ContainsAny(path, "?#"):
		return fmt.Errorf("%s: %q is not a path", name, path)
	}
	return nil
}

// checkLiteralKey validates a session_key without placeholders.
func checkLiteralKey(key string) error {
	if strings.Contains(key, "{") {
		return nil
	}
	if _, err := setting.SessionKey(key); err != nil {
		return fmt.Errorf("session_key: %w", err)
	}
	return nil
}

// server validates a server together with the rest of the gateway. Its names must be unique, and
// unlike tool names.
func (c checker) server(s *Server) error {
	names := s.names()
	for i, name := range names {
		if first := c.names.find(name); first != nil && first != s || slices.Contains(names[:i], name) {
			return fmt.Errorf("duplicate name or alias %q", name)
		}
		if c.config.Separator == noSeparator {
			continue
		}
		if err := c.config.naming().Check(name); err != nil {
			return err
		}
	}
	if len(s.Routes) == 0 {
		return errors.New("no URL, command or handlers configured")
	}
	if s.Focus.on() && !c.masks(s) {
		return errNoMask
	}
	return nil
}

// masks reports whether results of a server are shortened.
func (c checker) masks(s *Server) bool {
	mask := cmp.Or(s.Mask, c.config.Mask)
	return mask != nil && (mask.MaxChars == nil || *mask.MaxChars > 0)
}

// checkUnique checks that no earlier client block has a name or match of c.
func (c *Client) checkUnique(all []*Client) error {
	for _, other := range all {
		if other == c {
			return nil
		}
		for _, name := range c.names() {
			if other != nil && slices.Contains(other.names(), name) {
				return fmt.Errorf("client %s: duplicate name %q", c.Name, name)
			}
		}
	}
	return nil
}

// serverNames finds the servers that other settings of a gateway name.
type serverNames struct {
	servers   []*Server
	mayChange bool // servers may be added later, so settings may name unknown servers
}

// serverNames returns the names of the servers that are known so far.
func (h *Handler) serverNames() serverNames { return serverNames{h.Servers, h.serversMayChange()} }

// find returns the server with a name or alias, or nil.
func (n serverNames) find(name string) *Server {
	for _, s := range n.servers {
		if s != nil && slices.Contains(s.names(), name) {
			return s
		}
	}
	return nil
}

// check validates a rule on its own.
func (r *AccessRule) check() error {
	_, err := r.compile(func(pattern string) string { return pattern })
	return err
}

// checkRule refuses a deny or confirm rule that cannot match, because it names an unknown server or
// a renamed tool by its new name.
func (n serverNames) checkRule(r *AccessRule) error {
	if r == nil || r.Action == allow {
		return nil // compile refuses nil
	}
	for _, pattern := range r.Patterns {
		qualified, unknown := n.qualified(pattern)
		if unknown != "" && !n.mayChange {
			return fmt.Errorf("%s: %q refers to an unknown server%s", r.Action, pattern, n.didYouMean(unknown))
		}
		policy, err := acl.New([]acl.Rule{{Action: acl.Deny, Pattern: qualified}}, acl.Allow)
		if err != nil {
			return nil // compile refuses it
		}
		if err := n.checkRenamed(pattern, func(server, tool string) bool {
			facts := condition.Facts{Server: server, Tool: tool, Annotations: ^mcp.Annotations(0)}
			return policy.Tool(&acl.Tool{Facts: facts}).Action == acl.Deny
		}); err != nil {
			return fmt.Errorf("%s: %w", r.Action, err)
		}
	}
	return nil
}

// checkRate refuses a rate that cannot match, because it names an unknown server or a renamed tool
// by its new name.
func (n serverNames) checkRate(r *Rate) error {
	qualified, unknown := n.qualified(r.Tools)
	if unknown != "" && !n.mayChange {
		return fmt.Errorf("rate: %q refers to an unknown server%s", r.Tools, n.didYouMean(unknown))
	}
	if r.Tools == "" {
		return nil
	}
	pattern, err := mcp.ParsePattern(qualified)
	if err == nil {
		err = n.checkRenamed(r.Tools, pattern.Match)
	}
	if err != nil {
		return fmt.Errorf("rate: %w", err)
	}
	return nil
}

// checkRenamed refuses a pattern that selects the new name of a renamed tool, but not its original
// name.
func (n serverNames) checkRenamed(pattern string, selects func(server, tool string) bool) error {
	for _, s := range n.servers {
		if s == nil {
			continue
		}
		for _, own := range slices.Sorted(maps.Keys(s.Tools)) {
			t := s.Tools[own]
			if t == nil || t.Rename == "" || s.Tools[t.Rename] != nil || selects(s.Name, own) {
				continue
			}
			if selects(s.Name, t.Rename) {
				return fmt.Errorf("%q selects the renamed tool %s; write its original name %s::%s",
					pattern, t.Rename, s.Name, own)
			}
		}
	}
	return nil
}

// qualified returns a pattern with the alias of a server replaced by its name. unknown is the
// server in the pattern if the gateway has no such server.
func (n serverNames) qualified(pattern string) (qualified, unknown string) {
	qualified = acl.Qualified(pattern, func(server string) string {
		if s := n.find(server); s != nil {
			return s.Name
		}
		if !slices.ContainsFunc(n.servers, func(s *Server) bool { return s != nil && mcp.MatchName(server, s.Name) }) {
			unknown = server
		}
		return server
	})
	return qualified, unknown
}

// didYouMean returns a suggestion to append to an error about an unknown server.
func (n serverNames) didYouMean(server string) string { return words.DidYouMean(server, n.all()) }

// closest returns a log field with the server that an unknown name probably means.
func (n serverNames) closest(unknown string) zap.Field {
	if meant := words.Closest(unknown, n.all()); meant != "" {
		return zap.String("did_you_mean", meant)
	}
	return zap.Skip()
}

// all returns the names and aliases of all servers.
func (n serverNames) all() (names []string) {
	for _, s := range n.servers {
		if s != nil {
			names = append(names, s.names()...)
		}
	}
	return names
}

// checkRedaction validates redact and redact_fields.
func (c *Client) checkRedaction() error {
	_, err := redact.New(c.Redact, c.RedactFields)
	return err
}

// A warner warns of settings that are valid, but probably not intended.
type warner struct{ *Handler }

func (w warner) warn() {
	if w.shell != nil && w.shell.live.running {
		return // already logged when the configuration was loaded
	}
	w.warnIfOpen()
	w.warnOfNames()
	w.warnOfRoutes()
	w.warnOfMasks()
	w.warnOfHeaders()
	w.warnOfSite()
	if w.HealthInterval > 0 && w.HealthTimeout > w.HealthInterval {
		w.logger.Warn("health_timeout is longer than health_interval: servers that hang are checked less often",
			zap.Duration("health_timeout", time.Duration(w.HealthTimeout)),
			zap.Duration("health_interval", time.Duration(w.HealthInterval)))
	}
}

// warnIfOpen warns if other machines can use the gateway without credentials.
func (w warner) warnIfOpen() {
	if w.place.site == nil || len(w.auth.providers) > 0 {
		return
	}
	w.place.authInFront = authenticatedInFront(w.place.site.Routes)
	if open := w.place.publicAddresses(); len(open) > 0 && !w.place.authInFront && !w.AllowUnauthenticated {
		w.logger.Warn("other machines can use this gateway without credentials, unless a handler in front authenticates; "+
			"add auth or client tokens, bind 127.0.0.1, or allow it with auth none",
			zap.String("gateway", w.Name), zap.Strings("listen", open))
	}
}

// warnOfClients warns of client blocks for clients that cannot be identified.
func (w warner) warnOfClients() {
	named := func(c *Client) bool { return !c.isPattern() && c.Name != access.Anonymous }
	if len(w.auth.providers) == 0 && !onStdio && slices.ContainsFunc(w.Clients, named) {
		w.logger.Warn("client blocks without auth or tokens: only Caddy's authentication can identify these clients")
	}
}

// warnOfNames warns of tool names that model APIs refuse.
func (w warner) warnOfNames() {
	if w.Separator == noSeparator {
		return
	}
	for _, s := range w.Servers {
		if strings.ContainsFunc(s.Name, refusedByModels) {
			w.logger.Warn("model APIs refuse tool names with characters other than letters, digits, _ and -",
				zap.String("mcp_server", s.Name))
		}
	}
	switch {
	case w.Separator == mcp.Separator:
		w.logger.Warn("model APIs refuse tool names with ::; set separator __ unless your clients rename tools")
	case strings.ContainsFunc(w.Separator, refusedByModels):
		w.logger.Warn("model APIs refuse tool names with this separator; "+
			"set separator __ unless your clients rename tools",
			zap.String("separator", w.Separator))
	}
}

// warnOfRoutes warns of notification routes to servers that do not exist yet.
func (w warner) warnOfRoutes() {
	for _, route := range w.NotificationRoutes {
		for _, name := range route.Servers {
			if w.serverNames().find(name) == nil {
				w.logger.Warn("route_notifications refers to an unknown server", zap.String("mcp_server", name))
			}
		}
	}
}

// warnOfMasks warns of masks that exempt servers which do not exist yet.
func (w warner) warnOfMasks() {
	masks := []*observationmask.Handler{w.Mask}
	for _, s := range w.Servers {
		masks = append(masks, s.Mask)
	}
	for _, m := range masks {
		if m == nil {
			continue
		}
		for _, pattern := range m.Exempt {
			if _, unknown := w.serverNames().qualified(pattern); unknown != "" {
				w.logger.Warn("exempt refers to an unknown server",
					zap.String("pattern", pattern), w.serverNames().closest(unknown))
			}
		}
	}
}

// warnOfHeaders warns of headers for servers whose placeholders are empty, or that only a shell
// would replace. The 401 of the server does not tell.
func (w warner) warnOfHeaders() {
	for _, s := range w.Servers {
		for _, handler := range handlersIn(s.Routes) {
			var request *headers.HeaderOps
			switch handler := handler.(type) {
			case *headers.Handler:
				request = handler.Request
			case *reverseproxy.Handler:
				if handler.Headers != nil {
					request = handler.Headers.Request
				}
			}
			if request != nil {
				w.warnOfHeader(s.Name, request.Add)
				w.warnOfHeader(s.Name, request.Set)
			}
		}
	}
}

func (w warner) warnOfHeader(server string, header http.Header) {
	repl := caddy.NewReplacer()
	for name, values := range header {
		for _, value := range values {
			log := w.logger.With(zap.String("mcp_server", server), zap.String("header", name))
			if setting.IsShellVariable(value) {
				log.Warn("header for an MCP server: $NAME is shell syntax; write {env.NAME}")
			}
			for _, match := range placeholderPattern.FindAllStringSubmatch(value, -1) {
				if text, known := repl.GetString(match[1]); known && text == "" {
					log.Warn("header for an MCP server is incomplete: a placeholder is empty", zap.String("placeholder", match[0]))
				}
			}
		}
	}
}

// warnOfSite warns of settings of the site that keep the gateway from working.
func (w warner) warnOfSite() {
	if w.place.site == nil {
		return
	}
	if hasProvider[*auth.MTLS](&w.auth) && !slices.ContainsFunc(w.place.site.TLSConnPolicies, asksForCertificate) {
		w.logger.Warn("auth mtls cannot identify clients: the site does not request client certificates; " +
			"set client_auth in tls")
	}
	routes := w.place.site.Routes
	for _, module := range w.place.handler.ctx.Modules() { // w.ctx lacks the modules around a shell
		if subroute, ok := module.(*caddyhttp.Subroute); ok {
			routes = subroute.Routes
		}
	}
	for _, route := range routes {
		if len(route.Handlers) == 0 { // not loaded yet: it contains this gateway
			w.warnOfHandlers(w.gatewaysInFront(route.HandlersRaw))
			return
		}
		if len(route.MatcherSets) == 0 && len(route.MatcherSetsRaw) == 0 {
			w.warnOfHandlers(route.Handlers)
		}
	}
}

// gatewaysInFront returns the gateways in front of this one in the same route.
func (w warner) gatewaysInFront(route []json.RawMessage) (gateways []caddyhttp.MiddlewareHandler) {
	for _, raw := range route {
		var config struct {
			Kind string `json:"handler"`
			Handler
		}
		switch err := json.Unmarshal(raw, &config); {
		case err != nil || config.Kind != "mcp_gateway":
		case bytes.Equal(caddyconfig.JSON(&config.Handler, nil), w.place.handler.rawConfig):
			return gateways
		default:
			config.setDefaults()
			config.paths = newPaths(config.MCPPath, config.RPCPath)
			gateways = append(gateways, &config.Handler)
		}
	}
	return nil
}

// warnOfHandlers warns of handlers in front that prevent requests from reaching the gateway.
func (w warner) warnOfHandlers(inFront []caddyhttp.MiddlewareHandler) {
	for _, handler := range inFront {
		switch handler := handler.(type) {
		case *Handler:
			if handler.paths.mcp == w.paths.mcp {
				w.logger.Warn("another mcp_gateway in front of this one has the same mcp_path: this one gets no requests",
					zap.String("mcp_path", w.MCPPath))
			}
		case *rewrite.Rewrite:
			if prefix := handler.StripPathPrefix; prefix != "" && strings.HasPrefix(w.MCPPath, prefix) {
				w.logger.Warn("a handler in front strips the beginning of mcp_path from requests; "+
					"use handle instead of handle_path",
					zap.String("stripped", prefix), zap.String("mcp_path", w.MCPPath))
			}
		}
	}
}

func asksForCertificate(policy *caddytls.ConnectionPolicy) bool {
	return policy.ClientAuthentication != nil
}
