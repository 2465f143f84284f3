package mcpgateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
)

// NotificationRoute says to which servers a notification of a client is passed on.
type NotificationRoute struct {
	// The method of the notification, in which * stands for any characters. Required.
	Method string `json:"method,omitempty"`

	// The servers that get it. Required.
	Servers []string `json:"servers,omitempty"`
}

func (n *NotificationRoute) validate(h *Handler) error {
	switch {
	case n == nil:
		return errors.New("one is null")
	case n.Method == "":
		return errors.New("method is empty")
	case slices.Contains([]string{"notifications/initialized", "notifications/cancelled", "notifications/progress"}, n.Method):
		return fmt.Errorf("method: %s goes where it belongs", n.Method)
	case len(n.Servers) == 0:
		return fmt.Errorf("servers: %s goes to none", n.Method)
	}
	for _, name := range n.Servers {
		if h.serverNamed(name) == nil && !h.mayGainServers() {
			return fmt.Errorf("there is no server %q%s", name, h.didYouMean(name))
		}
	}
	return nil
}

// config returns the route as the gateway has it.
func (n *NotificationRoute) config(h *Handler) gateway.NotificationRoute {
	route := gateway.NotificationRoute{Method: n.Method}
	for _, name := range n.Servers {
		if s := h.byName[name]; s != nil { // else Validate refuses it
			route.Servers = append(route.Servers, s.Name)
		}
	}
	return route
}
