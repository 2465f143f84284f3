package mcpgateway

import (
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Answer says how to handle the requests and notifications that a server sends to clients, such as
// roots/list.
type Answer struct {
	// The method of the request or notification, in which * matches any characters. The first answer
	// that matches decides. Required.
	Method string `json:"method,omitempty"`

	// What to do with the message: deliver forwards it to the client, drop discards it, and answer
	// responds to roots/list with roots. If a request is dropped, the server gets an error. Default:
	// answer if roots is set, otherwise deliver
	Action string `json:"action,omitempty"`

	// URIs of the roots that the server gets. Default: none
	Roots []string `json:"roots,omitempty"`
}

const (
	deliver    = "deliver"
	drop       = "drop"
	answerHere = "answer"
	rootsList  = "roots/list"
)

func (a *Answer) provision() error {
	if a == nil {
		return errors.New("null is not an answer")
	}
	if a.Action == "" {
		a.Action = deliver
		if len(a.Roots) > 0 {
			a.Action = answerHere
		}
	}
	return nil
}

// check validates an answer whose defaults are not set.
func (a *Answer) check() error {
	withDefaults := *a
	if err := withDefaults.provision(); err != nil {
		return err
	}
	if err := withDefaults.validate(); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

func (a *Answer) validate() error {
	switch {
	case a.Method == "":
		return errors.New("method is empty")
	case a.Action != deliver && a.Action != drop && a.Action != answerHere:
		return fmt.Errorf("action: %q must be deliver, drop or answer", a.Action)
	case a.Action == answerHere && a.Method != rootsList:
		return fmt.Errorf("method: only %s can be answered, not %q", rootsList, a.Method)
	case a.Action != answerHere && len(a.Roots) > 0:
		return fmt.Errorf("roots: not allowed with action %s", a.Action)
	}
	for _, root := range a.Roots {
		if u, err := url.Parse(root); err != nil || u.Scheme == "" {
			return fmt.Errorf("roots: %q is not a URI", root)
		}
	}
	return nil
}

// config converts the answer for internal/gateway.
func (a *Answer) config() upstream.Answer {
	answer := upstream.Answer{Method: a.Method, Result: stdio.RootsResult(a.Roots)}
	switch a.Action {
	case drop:
		answer.Action = upstream.Drop
	case answerHere:
		answer.Action = upstream.Respond
	}
	return answer
}

// answerChildren makes the transports of child processes apply the answers: a child may send a
// request while no client is connected.
func (s *Server) answerChildren() {
	if len(s.Answers) == 0 {
		return
	}
	for _, child := range s.upstreams.children {
		release := child.pool.AnswerWith(child.host, func(method string) (result []byte, ours bool) {
			switch a := s.server.Answer(method); a.Action {
			case upstream.Deliver:
				return nil, false
			case upstream.Drop:
				return nil, true
			default:
				return a.Result, true
			}
		})
		s.releases = append(s.releases, release)
	}
}

// watchChildren notifies other replicas when a child process reports a changed list, even if no
// client listens to it here. Clients of those replicas may use the same process next.
func (s *Server) watchChildren(g *gateway.Gateway) {
	for _, child := range s.upstreams.children {
		release := child.pool.Watch(child.host, func(notice string, unread []string) {
			g.ChildListChanged(s.Name, notice, unread)
		})
		s.releases = append(s.releases, release)
	}
}

// NotificationRoute configures which servers get a notification from a client.
type NotificationRoute struct {
	// The method of the notification, in which * matches any characters. Required.
	Method string `json:"method,omitempty"`

	// The servers that get it. Required.
	Servers []string `json:"servers,omitempty"`
}

func (n *NotificationRoute) validate(names serverNames) error {
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
		if names.find(name) == nil && !names.mayChange {
			return fmt.Errorf("unknown server %q%s", name, names.didYouMean(name))
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
