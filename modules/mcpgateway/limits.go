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

// Rate limits how often something may be asked for: so many times within a time. What
// is not used is saved up, to be used at once.
type Rate struct {
	// Which tools are meant, as server::tool, in which * stands for any characters. Each
	// rate has one budget for all of them. Default: all requests
	Tools string `json:"tools,omitempty"`

	// How many requests. Required.
	Requests int `json:"requests,omitempty"`

	// Within which time. Required.
	Per caddy.Duration `json:"per,omitempty"`

	// How many at once. Default: as many as requests
	Burst int `json:"burst,omitempty"`
}

func (r *Rate) validate() error {
	switch {
	case r.Requests <= 0:
		return fmt.Errorf("rate: %d requests are none", r.Requests)
	case r.Per <= 0:
		return fmt.Errorf("rate: %s is no time", time.Duration(r.Per))
	case r.Burst < 0:
		return fmt.Errorf("rate: a burst of %d is negative", r.Burst)
	}
	if r.Tools != "" {
		if _, err := mcp.ParsePattern(r.Tools); err != nil {
			return fmt.Errorf("rate: %w", err)
		}
	}
	return nil
}

// limits returns rates as the gateway has them. Their keys stay the same when the numbers
// change, so that what has been used counts for the new ones.
func (h *Handler) limits(scope string, rates []*Rate, client string) ([]access.Limit, error) {
	var limits []access.Limit
	count := map[string]int{}
	for _, r := range rates {
		if r == nil {
			return nil, errors.New("rate: one is null")
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
				h.warnOfUnknown(r.Tools, unknown, client)
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
