package mcpgateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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
		return errors.New("method: it is empty")
	case slices.Contains([]string{"notifications/initialized", "notifications/cancelled", "notifications/progress"}, n.Method):
		return fmt.Errorf("method: %s goes where it belongs", n.Method)
	case len(n.Servers) == 0:
		return fmt.Errorf("servers: %s goes to none", n.Method)
	}
	for _, name := range n.Servers {
		if h.byName[name] == nil {
			return fmt.Errorf("servers: there is no server %q", name)
		}
	}
	return nil
}

// concerned returns the servers that a notification of a client is for, if it is not for
// all.
func (h *Handler) concerned(method string) (servers []string, some bool) {
	i := slices.IndexFunc(h.NotificationRoutes, func(n *NotificationRoute) bool { return mcp.MatchName(n.Method, method) })
	if i < 0 {
		return nil, false
	}
	for _, name := range h.NotificationRoutes[i].Servers {
		servers = append(servers, h.byName[name].Name)
	}
	return servers, true
}
