package mcpgateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
)

// NotificationRoute configures which servers get a notification from a client.
type NotificationRoute struct {
	// The method of the notification, in which * matches any characters. Required.
	Method string `json:"method,omitempty"`

	// The servers that get it. Required.
	Servers []string `json:"servers,omitempty"`
}

func (n *NotificationRoute) validate(h *Handler) error {
	switch {
	case n == nil:
		return errors.New("null is not a route")
	case n.Method == "":
		return errors.New("method is empty")
	case slices.Contains(
		[]string{"notifications/initialized", "notifications/cancelled", "notifications/progress"}, n.Method):
		return fmt.Errorf("method: %s cannot be routed; it always goes to the servers it is about", n.Method)
	case len(n.Servers) == 0:
		return fmt.Errorf("servers: missing for %s", n.Method)
	}
	for _, name := range n.Servers {
		if h.serverNamed(name) == nil && !h.serversMayChange() {
			return fmt.Errorf("unknown server %q%s", name, h.didYouMean(name))
		}
	}
	return nil
}

// config converts the route for internal/gateway.
func (n *NotificationRoute) config(h *Handler) gateway.NotificationRoute {
	route := gateway.NotificationRoute{Method: n.Method}
	for _, name := range n.Servers {
		if s := h.byName[name]; s != nil { // Validate refuses unknown servers
			route.Servers = append(route.Servers, s.Name)
		}
	}
	return route
}
