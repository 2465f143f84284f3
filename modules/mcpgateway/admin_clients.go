package mcpgateway

import (
	"maps"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
)

// A ClientStatus is the status of a client block, or of all clients without one.
type ClientStatus struct {
	Name     string         `json:"name"`
	Match    []string       `json:"match,omitempty"`
	Rules    []*AccessRule  `json:"rules,omitempty"`
	Default  string         `json:"default,omitempty"`
	Rates    []*Rate        `json:"rates,omitempty"`
	Sessions map[string]int `json:"sessions,omitempty"` // sessions in memory, by identity
	Requests int64          `json:"requests"`
	Denied   int64          `json:"denied"`
	LastSeen *time.Time     `json:"last_seen,omitempty"`
}

// clientStatuses returns the rules, sessions and counters of all clients.
func clientStatuses(h *Handler) []ClientStatus {
	byLabel := map[string]*ClientStatus{}
	var order []string
	statusOf := func(label string) *ClientStatus {
		if byLabel[label] == nil {
			byLabel[label] = &ClientStatus{Name: label, Sessions: map[string]int{}}
			order = append(order, label)
		}
		return byLabel[label]
	}
	for _, c := range h.Clients {
		status := statusOf(c.Name)
		status.Match, status.Rules, status.Default, status.Rates = c.Match, c.Rules, c.Default, c.Rates
	}
	sessions := h.gateway.Sessions()
	for _, label := range slices.Sorted(maps.Keys(sessions)) {
		statusOf(label).Sessions = sessions[label]
	}
	h.retained.Usage.Tallies(func(label string, t *inbound.Tally) {
		status := statusOf(label)
		status.Requests, status.Denied = t.Requests.Load(), t.Denied.Load()
		if last := t.Last.Load(); last > 0 {
			seen := time.UnixMilli(last).UTC()
			status.LastSeen = &seen
		}
	})
	all := make([]ClientStatus, len(order))
	for i, label := range order {
		all[i] = *byLabel[label]
	}
	return all
}
