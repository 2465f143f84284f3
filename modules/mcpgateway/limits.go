package mcpgateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// Rate limits how many requests a client may make in a period. Unused requests accumulate up to
// burst.
type Rate struct {
	// The tools that share this budget, as server::tool, in which * matches any characters. Default:
	// all requests
	Tools string `json:"tools,omitempty"`

	// Number of requests per period. Required.
	Requests int `json:"requests,omitempty"`

	// Length of the period. Required.
	Per caddy.Duration `json:"per,omitempty"`

	// Maximum number of requests at once. Default: requests
	Burst int `json:"burst,omitempty"`
}

func (r *Rate) validate() error {
	switch {
	case r.Requests <= 0:
		return fmt.Errorf("rate: requests must be positive, got %d", r.Requests)
	case r.Per <= 0:
		return fmt.Errorf("rate: per must be positive, got %s", time.Duration(r.Per))
	case r.Burst < 0:
		return fmt.Errorf("rate: burst must not be negative, got %d", r.Burst)
	}
	if r.Tools != "" {
		if _, err := mcp.ParsePattern(r.Tools); err != nil {
			return fmt.Errorf("rate: %w", err)
		}
	}
	return nil
}

// limits converts rates for internal/gateway. The key of a limit does not depend on its numbers, so
// that requests made before a reload still count if it changes the numbers.
func (h *Handler) limits(scope string, rates []*Rate, client string) ([]access.Limit, error) {
	var limits []access.Limit
	count := map[string]int{}
	for _, r := range rates {
		if r == nil {
			return nil, errors.New("rate: null is not a rate")
		}
		if err := r.validate(); err != nil {
			return nil, err
		}
		key := fmt.Sprintf("%s %s %d", scope, r.Tools, count[r.Tools])
		count[r.Tools]++
		var tools *mcp.Pattern
		if r.Tools != "" {
			if err := h.checkRate(r); err != nil {
				return nil, err
			}
			qualified, unknown := h.qualified(r.Tools)
			if unknown != "" {
				h.warnUnknownServer(r.Tools, unknown, client)
			}
			pattern, err := mcp.ParsePattern(qualified)
			if err != nil {
				return nil, fmt.Errorf("rate: %w", err)
			}
			tools = &pattern
		}
		limit := ratelimit.Limit{Key: key, N: r.Requests, Per: time.Duration(r.Per), Burst: r.Burst}
		limits = append(limits, access.NewLimit(limit, tools))
	}
	return limits, nil
}
