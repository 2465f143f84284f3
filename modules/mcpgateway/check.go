package mcpgateway

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// checks are those that need the whole Caddyfile block, with the lines that they are about.
type checks []func() error

// add adds a check of the line that begins with a token.
func (c *checks) add(at caddyfile.Token, check func() error) {
	*c = append(*c, func() error {
		if err := check(); err != nil {
			return setting.At(at, err)
		}
		return nil
	})
}

// run returns the first error.
func (c checks) run() error {
	for _, check := range c {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkSettings reports settings that make no sense. Nothing needs to be provisioned.
func (h *Handler) checkSettings() error {
	settled := *h
	settled.setDefaults()
	return settled.validateSettings()
}

// validateSettings reports settings that make no sense, after defaults are filled in.
func (h *Handler) validateSettings() error {
	belowMCP, belowRPC := below(h.MCPPath), below(h.RPCPath)
	switch {
	case len(h.Servers) == 0 && !h.mayGainServers():
		return errors.New("mcp_gateway needs at least one server")
	case h.ResponseTimeout < 0:
		return fmt.Errorf("response_timeout: %s is negative", time.Duration(h.ResponseTimeout))
	case h.RequestLimit < 0:
		return fmt.Errorf("request_limit: %d is negative", h.RequestLimit)
	case h.InFlightLimit < h.RequestLimit:
		return fmt.Errorf("in_flight_limit: %d bytes are less than request_limit, %d", h.InFlightLimit, h.RequestLimit)
	case h.HealthInterval != 0 && h.HealthInterval < caddy.Duration(shortestInterval):
		return fmt.Errorf("health_interval: %s is shorter than %s", time.Duration(h.HealthInterval), shortestInterval)
	case h.HealthTimeout < 0:
		return fmt.Errorf("health_timeout: %s is negative", time.Duration(h.HealthTimeout))
	case h.ResponseLimit < 0:
		return fmt.Errorf("response_limit: %d is negative", h.ResponseLimit)
	case !strings.HasPrefix(h.MCPPath, "/"):
		return fmt.Errorf("mcp_path: %q does not begin with a slash", h.MCPPath)
	case h.PublicURL != "" && !isOrigin(h.PublicURL):
		return fmt.Errorf("public_url: %q is not a URL such as https://mcp.example.com", h.PublicURL)
	case !strings.HasPrefix(h.RPCPath, "/"):
		return fmt.Errorf("rpc_path: %q does not begin with a slash", h.RPCPath)
	case strings.HasPrefix(belowMCP, belowRPC), strings.HasPrefix(belowRPC, belowMCP):
		return fmt.Errorf("mcp_path and rpc_path: %q and %q overlap", h.MCPPath, h.RPCPath)
	case h.Separator == noSeparator && (len(h.Servers) > 1 || len(h.Servers) == 0 && h.shell != nil):
		return fmt.Errorf("separator: none is for a single server, and there are %d", len(h.Servers))
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
	if err := validateAudit(h.Audit); err != nil {
		return err
	}
	if err := h.checkOrigins(); err != nil {
		return err
	}
	mayMask := h.mayGainServers() && h.Mask != nil
	if h.Focus.on() && !mayMask && !slices.ContainsFunc(h.Servers, h.masks) {
		return errNoMask
	}
	return h.naming().CheckSeparator()
}

// checkOrigins reports origins and hosts that no request can have.
func (h *Handler) checkOrigins() error { return h.originPolicy().Validate() }

// checkLiteralKey checks a session_key that is written out.
func (h *Handler) checkLiteralKey() error {
	if strings.Contains(h.SessionKey, "{") {
		return nil
	}
	if _, err := setting.SessionKey(h.SessionKey); err != nil {
		return fmt.Errorf("session_key: %w", err)
	}
	return nil
}

// checkServer reports what is wrong about a server among the others.
func (h *Handler) checkServer(s *Server) error {
	settled := *h
	settled.setDefaults()
	err := settled.checkNames(s)
	if err == nil {
		err = s.checkRoutes()
	}
	if err == nil {
		err = h.checkFocus(s)
	}
	if err != nil {
		return fmt.Errorf("server %s: %w", s.Name, err)
	}
	return nil
}

// checkNames checks that clients can tell the names of a server from others, and from names of
// tools.
func (h *Handler) checkNames(s *Server) error {
	for _, name := range s.names() {
		if first := h.serverNamed(name); first != nil && first != s || occurrences(s.names(), name) > 1 {
			return fmt.Errorf("the name or alias %q is given twice", name)
		}
		if h.Separator == noSeparator {
			continue
		}
		if err := h.naming().Check(name); err != nil {
			return err
		}
	}
	return nil
}

func occurrences(names []string, name string) (n int) {
	for _, other := range names {
		if other == name {
			n++
		}
	}
	return n
}

// serverNamed returns the first server with a name or alias, or nil.
func (h *Handler) serverNamed(name string) *Server {
	for _, s := range h.Servers {
		if s != nil && occurrences(s.names(), name) > 0 {
			return s
		}
	}
	return nil
}

// checkClientOnce checks that no client before c has one of its names.
func (h *Handler) checkClientOnce(c *Client) error {
	for _, other := range h.Clients {
		if other == c {
			return nil
		}
		for _, name := range c.names() {
			if other != nil && occurrences(other.names(), name) > 0 {
				return fmt.Errorf("client %s: the name %q is given twice", c.Name, name)
			}
		}
	}
	return nil
}

// check reports what of a rule makes no sense by itself.
func (r *AccessRule) check() error {
	_, err := r.compile(func(pattern string) string { return pattern })
	return err
}

// checkRule refuses a rule that restricts nothing because no server has the name in it, or its tool has another.
func (h *Handler) checkRule(r *AccessRule) error {
	if r == nil || r.Action == allow {
		return nil // compile refuses nil
	}
	for _, pattern := range r.Patterns {
		qualified, unknown := h.qualified(pattern)
		if unknown != "" && !h.mayGainServers() {
			return fmt.Errorf("%s: %q refers to an unknown server%s", r.Action, pattern, h.didYouMean(unknown))
		}
		policy, err := acl.New([]acl.Rule{{Action: acl.Deny, Pattern: qualified}}, acl.Allow)
		if err != nil {
			return nil // compile refuses it
		}
		if err := h.checkRenamed(pattern, func(server, tool string) bool {
			facts := condition.Facts{Server: server, Tool: tool, Annotations: ^mcp.Annotations(0)}
			return policy.Tool(&acl.Tool{Facts: facts}).Action == acl.Deny
		}); err != nil {
			return fmt.Errorf("%s: %w", r.Action, err)
		}
	}
	return nil
}

// checkRate refuses a rate that limits nothing because no server has the name in it, or its tool has another.
func (h *Handler) checkRate(r *Rate) error {
	qualified, unknown := h.qualified(r.Tools)
	if unknown != "" && !h.mayGainServers() {
		return fmt.Errorf("rate: %q refers to an unknown server%s", r.Tools, h.didYouMean(unknown))
	}
	if r.Tools == "" {
		return nil
	}
	pattern, err := mcp.ParsePattern(qualified)
	if err == nil {
		err = h.checkRenamed(r.Tools, pattern.Match)
	}
	if err != nil {
		return fmt.Errorf("rate: %w", err)
	}
	return nil
}

// checkRenamed refuses a pattern that selects a tool by the name that clients see, and not by its own.
func (h *Handler) checkRenamed(pattern string, selects func(server, tool string) bool) error {
	for _, s := range h.Servers {
		if s == nil {
			continue
		}
		for _, own := range slices.Sorted(maps.Keys(s.Tools)) {
			t := s.Tools[own]
			if t == nil || t.Rename == "" || s.Tools[t.Rename] != nil || selects(s.Name, own) {
				continue
			}
			if selects(s.Name, t.Rename) {
				return fmt.Errorf("%q selects tool %s by its name for clients; write its name at the server, %s::%s",
					pattern, t.Rename, s.Name, own)
			}
		}
	}
	return nil
}

// qualified returns a pattern with the name of a server that it calls by an alias, and the server in it if that fits
// none of the gateway.
func (h *Handler) qualified(pattern string) (qualified, unknown string) {
	qualified = acl.Qualified(pattern, func(server string) string {
		if s := h.serverNamed(server); s != nil {
			return s.Name
		}
		if !slices.ContainsFunc(h.Servers, func(s *Server) bool { return s != nil && mcp.MatchName(server, s.Name) }) {
			unknown = server
		}
		return server
	})
	return qualified, unknown
}

// didYouMean returns the end of an error about an unknown server.
func (h *Handler) didYouMean(server string) string { return words.DidYouMean(server, h.serverNames()) }

// serverNames returns the names and aliases of all servers.
func (h *Handler) serverNames() (names []string) {
	for _, s := range h.Servers {
		if s != nil {
			names = append(names, s.names()...)
		}
	}
	return names
}

// warnOfUnknown logs a pattern for a server that is not there yet.
func (h *Handler) warnOfUnknown(pattern, server, client string) {
	fields := []zap.Field{zap.String("client", client), zap.String("pattern", pattern)}
	if meant := words.Meant(server, h.serverNames()); meant != "" {
		fields = append(fields, zap.String("did_you_mean", meant))
	}
	h.logger.Warn("rule refers to an unknown server", fields...)
}

// checkRedaction reports what of redact and redact_fields makes no sense.
func (c *Client) checkRedaction() error {
	_, err := redact.New(c.Redact, c.RedactFields)
	return err
}
