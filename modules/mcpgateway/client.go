package mcpgateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
)

// Client says what a client may do. Who the client is, the providers of auth find out,
// or Caddy's own authentication.
//
// What is allowed and denied is told by patterns:
//
// Pattern | Selects
// --------|--------
// `*` | Everything
// `files::*` | Everything of the server: tools, prompts and resources. `*` stands for any characters, also in the name of the server
// `files::read_*`, `tool:files::*` | Tools
// `read_only`, `destructive`, `idempotent`, `open_world` | Tools with this annotation. What is not annotated is destructive and open_world, as MCP says
// `read_only:files::*` | Those of them
// `prompt:files::*` | Prompts
// `resource:file:///srv/` | Resources below this URI, of any server, by whole segments: not file:///srv2
// `resource:files::file:///srv/` | The same of one server
//
// What is not allowed is in no list, and using it is answered with acl_denied. A server
// of which nothing is allowed is never contacted for the client.
type Client struct {
	// Who it is. * stands for any characters: then the rules are for each client whose
	// name fits and who has no block of its own, and * alone is for all others. A client
	// that nobody knows is anonymous. Required.
	Name string `json:"name,omitempty"`

	// Other names by which it is known: the users of Caddy's authentication (such as
	// basic_auth) that are let in as this client, subjects of certificates or tokens.
	// Default: none
	Match []string `json:"match,omitempty"`

	// What may be used, or not. The first rule that fits decides. Default: none
	Rules []*AccessRule `json:"rules,omitempty"`

	// What happens to what no rule fits: allow or deny. Default: deny if a rule
	// allows something, otherwise allow
	Default string `json:"default,omitempty"`

	// Regular expressions. What they match in results is replaced by [redacted], before
	// anything is masked. Default: none
	Redact []string `json:"redact,omitempty"`

	// Names of members whose values are replaced by [redacted] in results. Default: none
	RedactFields []string `json:"redact_fields,omitempty"`

	// How often it may make requests, besides the gateway's rates. Default: as often
	// as it likes
	Rates []*Rate `json:"rates,omitempty"`
}

// AccessRule says what happens to what its patterns select.
type AccessRule struct {
	// One of allow, deny and confirm: a tool can be called if the person at the client agrees to the
	// call. Clients that cannot ask that person are denied.
	Action string `json:"action,omitempty"`

	// What it is about. Default: everything, if it has a condition
	Patterns []string `json:"patterns,omitempty"`

	// A condition in CEL over client, server, tool, annotations and arguments. A rule that has one
	// is for tools only, and for those calls of which it is true. If it cannot be decided, as
	// where an argument is missing, the call is denied. Default: none
	When string `json:"when,omitempty"`
}

const (
	allow   = "allow"
	deny    = "deny"
	confirm = "confirm"
)

// compile returns the rules of the client as the gateway has them.
func (c *Client) compile(h *Handler) (*access.Client, error) {
	compiled := &access.Client{Name: c.Name, Match: c.Match}
	otherwise := acl.Allow
	allows := slices.ContainsFunc(c.Rules, func(r *AccessRule) bool { return r != nil && r.Action == allow })
	if c.Default == deny || c.Default == "" && allows {
		otherwise = acl.Deny
	}
	var rules []acl.Rule
	for _, r := range c.Rules {
		if err := h.checkRule(r); err != nil {
			return nil, err
		}
		compiled, err := r.compile(func(pattern string) string {
			qualified, unknown := h.qualified(pattern)
			if unknown != "" {
				h.warnOfUnknown(pattern, unknown, c.Name)
			}
			return qualified
		})
		if err != nil {
			return nil, err
		}
		rules = append(rules, compiled...)
	}
	var err error
	if len(rules) > 0 || otherwise == acl.Deny {
		if compiled.Policy, err = acl.New(rules, otherwise); err != nil {
			return nil, err
		}
		for _, shadowed := range compiled.Policy.Shadowed() {
			h.logger.Warn("rule never decides", zap.String("client", c.Name), zap.String("rule", shadowed))
		}
	}
	if len(c.Redact) > 0 || len(c.RedactFields) > 0 {
		if compiled.Redactor, err = redact.New(c.Redact, c.RedactFields); err != nil {
			return nil, err
		}
	}
	compiled.View = digest([]any{compiled.Policy.Fingerprint(), c.Redact, c.RedactFields})
	compiled.Limits, err = h.limits("client", c.Rates, c.Name)
	return compiled, err
}

// compile returns a rule for each of the patterns, which may have to be qualified.
func (r *AccessRule) compile(qualified func(pattern string) string) (rules []acl.Rule, err error) {
	if r == nil {
		return nil, errors.New("rules: one is null")
	}
	action, ok := acl.ParseAction(r.Action)
	if !ok {
		return nil, fmt.Errorf("rules: action %q must be one of %s", r.Action, strings.Join(acl.Actions(), ", "))
	}
	var when *condition.Condition
	patterns := r.Patterns
	if r.When != "" {
		if when, err = condition.Compile(r.When); err != nil {
			return nil, fmt.Errorf("%s: when: %w", r.Action, err)
		}
		if len(patterns) == 0 {
			patterns = []string{"*"}
		}
	}
	if len(patterns) == 0 {
		return nil, fmt.Errorf("%s: pattern missing", r.Action)
	}
	for _, pattern := range patterns {
		rules = append(rules, acl.Rule{Action: action, Pattern: qualified(pattern), When: when})
	}
	if _, err := acl.New(rules, acl.Deny); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Action, err)
	}
	return rules, nil
}

// names returns the names by which the client is known.
func (c *Client) names() []string { return append([]string{c.Name}, c.Match...) }

func (c *Client) validate() error {
	switch {
	case c.Name == "":
		return errors.New("name is empty")
	case slices.ContainsFunc(c.names(), func(name string) bool { return strings.ContainsAny(name, "{}") }):
		return errors.New("name and match: a placeholder is not replaced there; in a Caddyfile {$NAME} is, when it is read")
	case c.isPattern() && len(c.Match) > 0:
		return errors.New("match: the name is a pattern, which matches by itself")
	case slices.Contains(c.Match, ""):
		return errors.New("match: a name is empty")
	case c.Default != "" && c.Default != allow && c.Default != deny:
		return fmt.Errorf("default: %q must be allow or deny", c.Default)
	}
	return nil
}

// isPattern reports whether the block is for several clients.
func (c *Client) isPattern() bool { return strings.Contains(c.Name, "*") }

// HasRules reports whether a client block has this name, or a pattern that fits.
func (h *Handler) HasRules(client string) bool {
	return slices.ContainsFunc(h.Clients, func(c *Client) bool {
		return c != nil && (client == c.Name || slices.Contains(c.Match, client) || mcp.MatchName(c.Name, client))
	})
}

// clients returns the rules of all clients as the gateway has them.
func (h *Handler) clients() (all []*access.Client, err error) {
	for i, c := range h.Clients {
		if c == nil {
			return nil, fmt.Errorf("clients: number %d is null", i)
		}
		compiled, err := c.compile(h)
		if err != nil {
			return nil, fmt.Errorf("client %q: %w", c.Name, err)
		}
		if err := h.checkClientOnce(c); err != nil {
			return nil, err
		}
		all = append(all, compiled)
	}
	named := func(c *Client) bool { return !c.isPattern() && c.Name != access.Anonymous }
	if len(h.auth.providers) == 0 && !onStdio && slices.ContainsFunc(h.Clients, named) {
		h.logger.Warn("clients have rules, but there is no auth and no token to know them by; only Caddy's authentication can")
	}
	return all, nil
}
