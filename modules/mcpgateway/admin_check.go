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

// maxPatience is how long an operator may wait for a server to connect and to list.
const maxPatience = time.Hour

// readPatience reads how long an operator waits.
func readPatience(text string) (time.Duration, error) {
	if text == "" {
		return adminapi.DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxPatience {
		return 0, invalid(fmt.Errorf("timeout: %q is not a duration such as 30s, of at most %s",
			mcp.Shortened(text), maxPatience))
	}
	return d, nil
}

// check connects to a server, whatever is known of it. There is one check of a server at a time.
func (c *adminCall) check() (int, any, error) {
	h, s, err := c.change("check")
	if err != nil {
		return 0, nil, err
	}
	var options struct {
		Timeout string `json:"timeout"`
	}
	if err := c.decode(&options, true); err != nil {
		return 0, nil, err
	}
	patience, err := readPatience(options.Timeout)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), patience)
	defer cancel()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return 0, nil, adminErrorf(http.StatusConflict, "busy", "another check of the server %q has not ended", s.Name)
	}
	return http.StatusOK, h.check(ctx, s, patience), nil
}

// check connects to a server.
func (h *Handler) check(ctx context.Context, s *Server, patience time.Duration) adminapi.ServerCheck {
	s.upstreams.hurry()
	began := time.Now()
	o := h.gateway.NewOperator(operatorRequest(ctx), "")
	o.Patience = patience
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
			check.Error += fmt.Sprintf("; the URL of the server has no path, so %s was asked. Most servers are at /mcp",
				s.target.Path)
		}
	}
	return check
}

// checkStore asks the store that replicas share, also if it is known to be unavailable.
func (c *adminCall) checkStore() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	store, err := sharedBy(found)
	if err != nil {
		return 0, nil, err
	}
	if store == nil {
		return 0, nil, notFound("nothing is shared: there is no mcp_store")
	}
	c.action, c.name = "check", "mcp_store"
	return http.StatusOK, store.Check(c.r.Context()), nil
}

// sharedBy returns the store that gateways share with those of other replicas, nil if there is none. A
// configuration has one at most; without gateways, other handlers use it.
func sharedBy(gateways []*Handler) (*mcpstore.Store, error) {
	if len(gateways) == 0 {
		return mcpstore.Active()
	}
	return gateways[0].store, nil
}

// withoutAddress returns the reason of a fault without the address that was dialed. The URL has it, too.
func withoutAddress(reason string) string {
	if address, cause, ok := strings.Cut(reason, ": "); ok && strings.HasPrefix(address, "dial ") {
		return cause
	}
	return reason
}

// operatorRequest returns a request on behalf of which the operator asks servers.
func operatorRequest(ctx context.Context) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost", nil)
	if err != nil {
		panic(err) // it is always the same
	}
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), noResponse{}, new(caddyhttp.Server))
}

// hurry ends the pauses before children are started again.
func (u *upstreams) hurry() {
	for _, c := range u.children {
		c.transport.Hurry(c.host)
	}
}
