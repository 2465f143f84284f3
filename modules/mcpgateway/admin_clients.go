package mcpgateway

import (
	"maps"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
)

// A ClientStatus tells of a client, or of all that have no block of their own.
type ClientStatus struct {
	Name     string         `json:"name"`
	Match    []string       `json:"match,omitempty"`
	Rules    []*AccessRule  `json:"rules,omitempty"`
	Default  string         `json:"default,omitempty"`
	Rates    []*Rate        `json:"rates,omitempty"`
	Sessions map[string]int `json:"sessions,omitempty"` // that are remembered, by identity
	Requests int64          `json:"requests"`
	Denied   int64          `json:"denied"`
	LastSeen *time.Time     `json:"last_seen,omitempty"`
}

// clientStatuses returns what the clients may do, which of them are there, and what they
// were refused.
func clientStatuses(h *Handler) []ClientStatus {
	byLabel := map[string]*ClientStatus{}
	var order []string
	of := func(label string) *ClientStatus {
		if byLabel[label] == nil {
			byLabel[label] = &ClientStatus{Name: label, Sessions: map[string]int{}}
			order = append(order, label)
		}
		return byLabel[label]
	}
	for _, c := range h.Clients {
		status := of(c.Name)
		status.Match, status.Rules, status.Default, status.Rates = c.Match, c.Rules, c.Default, c.Rates
	}
	sessions := h.gateway.Sessions()
	for _, label := range slices.Sorted(maps.Keys(sessions)) {
		of(label).Sessions = sessions[label]
	}
	h.retained.Usage.Tallies(func(label string, t *inbound.Tally) {
		status := of(label)
		status.Requests, status.Denied = t.Requests.Load(), t.Denied.Load()
		if last := t.Last.Load(); last > 0 {
			at := time.UnixMilli(last).UTC()
			status.LastSeen = &at
		}
	})
	all := make([]ClientStatus, len(order))
	for i, label := range order {
		all[i] = *byLabel[label]
	}
	return all
}
