package mcpgateway

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Answer says what becomes of what a server sends to clients on its own account:
// questions such as roots/list, and notifications.
type Answer struct {
	// The method, in which * stands for any characters. Of several the first that fits
	// decides. Required.
	Method string `json:"method,omitempty"`

	// What becomes of it: deliver passes it on, drop does not, and answer answers
	// roots/list here. A server whose question is dropped is told that nobody answers.
	// Default: answer if there are roots, otherwise deliver
	Action string `json:"action,omitempty"`

	// URIs of the roots that the server is told of. Default: none
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
		return errors.New("one is null")
	}
	if a.Action == "" {
		if a.Action = deliver; len(a.Roots) > 0 {
			a.Action = answerHere
		}
	}
	return nil
}

// check reports what of a line answer makes no sense.
func (a *Answer) check() error {
	settled := *a
	if err := settled.provision(); err != nil {
		return err
	}
	if err := settled.validate(); err != nil {
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
		return fmt.Errorf("roots: given, but the action is %s", a.Action)
	}
	for _, root := range a.Roots {
		if u, err := url.Parse(root); err != nil || u.Scheme == "" {
			return fmt.Errorf("roots: %q is not a URI", root)
		}
	}
	return nil
}

// config returns the answer as the gateway has it.
func (a *Answer) config() upstream.Answer {
	answer := upstream.Answer{Method: a.Method, Result: stdio.RootsResult(a.Roots)}
	switch a.Action {
	case drop:
		answer.Action = upstream.Drop
	case answerHere:
		answer.Action = upstream.AnswerHere
	}
	return answer
}

// answerChildren has the questions of child processes answered where they are asked,
// because they may ask while no client is there.
func (s *Server) answerChildren() {
	if len(s.Answers) == 0 {
		return
	}
	for _, child := range s.upstreams.children {
		release := child.transport.AnswerWith(child.host, func(method string) (result []byte, ours bool) {
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

// watchChildren has other replicas know that child processes have said that a list has changed, also if no client
// listens to them here: those who listen there may meet these processes next.
func (s *Server) watchChildren(g *gateway.Gateway) {
	for _, child := range s.upstreams.children {
		release := child.transport.Watch(child.host, func(notice string, unread []string) {
			g.ChildChanged(s.Name, notice, unread)
		})
		s.releases = append(s.releases, release)
	}
}
