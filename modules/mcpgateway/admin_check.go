package mcpgateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// maxTimeout is the maximum timeout of an operator's request.
const maxTimeout = time.Hour

// readTimeout parses the timeout of an operator's request.
func readTimeout(text string) (time.Duration, error) {
	if text == "" {
		return adminapi.DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTimeout {
		return 0, invalidRequest(fmt.Errorf("timeout: %q must be a duration such as 30s, at most %s",
			mcp.Shortened(text), maxTimeout))
	}
	return d, nil
}

// check connects to a server, even if it is known to be down. Only one check of a server runs at a
// time.
func (c *adminCall) check() (int, any, error) {
	h, s, err := c.startChange("check")
	if err != nil {
		return 0, nil, err
	}
	var options struct {
		Timeout string `json:"timeout"`
	}
	if err := c.decode(&options, true); err != nil {
		return 0, nil, err
	}
	timeout, err := readTimeout(options.Timeout)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), timeout)
	defer cancel()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return 0, nil, adminErrorf(http.StatusConflict, "busy", "another check of server %q is still running", s.Name)
	}
	return http.StatusOK, h.check(ctx, s, timeout), nil
}

// check connects to a server and counts the items of its lists.
func (h *Handler) check(ctx context.Context, s *Server, timeout time.Duration) adminapi.ServerCheck {
	s.upstreams.skipBackoff()
	began := time.Now()
	o := h.gateway.NewOperator(operatorRequest(ctx), "")
	o.Patience = timeout
	found := o.Check(s.Name)
	check := adminapi.ServerCheck{
		Gateway: h.Name, Path: h.MCPPath, Name: s.Name, Up: found.Failure == nil, Seconds: time.Since(began).Seconds(),
		Protocol: found.Protocol, Tools: len(found.Tools), Prompts: found.Prompts, Resources: found.Resources,
		Templates: found.Templates, URL: s.server.URL,
	}
	if found.Name != "" {
		check.Info = &adminapi.ServerInfo{Name: found.Name, Version: found.Version}
	}
	for _, tool := range found.Tools {
		check.Tokens += tokens.Count(string(tool.Definition))
	}
	if found.Failure != nil {
		check.Code, check.Error = found.Failure.Data.Symbol, withoutAddress(found.Fault.Reason)
		check.Stderr = found.Fault.Stderr
		if s.Path == "" && check.URL != "" {
			check.Error += fmt.Sprintf("; the URL of the server has no path, so the gateway tried %s. Most servers use /mcp",
				s.target.Path)
		}
	}
	return check
}

// checkStore contacts the shared store, even if it is known to be unavailable.
func (c *adminCall) checkStore() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	store, err := sharedStore(found)
	if err != nil {
		return 0, nil, err
	}
	if store == nil {
		return 0, nil, notFound("mcp_store is not configured")
	}
	c.action, c.name = "check", "mcp_store"
	return http.StatusOK, store.Check(c.r.Context()), nil
}

// sharedStore returns the store that gateways share with other replicas, or nil. A configuration
// has at most one store, which handlers other than gateways may use, too.
func sharedStore(gateways []*Handler) (*mcpstore.Store, error) {
	if len(gateways) == 0 {
		return mcpstore.Active()
	}
	return gateways[0].store, nil
}

// withoutAddress removes the dialed address from the reason of a fault, because the URL contains
// it.
func withoutAddress(reason string) string {
	if address, cause, ok := strings.Cut(reason, ": "); ok && strings.HasPrefix(address, "dial ") {
		return cause
	}
	return reason
}

// operatorRequest returns a request for messages that the operator sends to servers.
func operatorRequest(ctx context.Context) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost", nil)
	if err != nil {
		panic(err) // cannot happen: the URL is constant
	}
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), noResponse{}, new(caddyhttp.Server))
}

// skipBackoff ends the pauses before child processes are restarted.
func (u *upstreams) skipBackoff() {
	for _, c := range u.children {
		c.transport.SkipBackoff(c.host)
	}
}
