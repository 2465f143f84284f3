package mcpgateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
)

// Client configures what a client may do. The providers of auth, or Caddy's own authentication,
// determine the identity of a client.
//
// Patterns select what a rule applies to:
//
// Pattern | Selects
// --------|--------
// `*` | Everything
// `files::*` | All tools, prompts and resources of a server. `*` also works in the server name
// `files::read_*`, `tool:files::*` | Tools
// `read_only`, `destructive`, `idempotent`, `open_world` | Tools with this annotation
// `read_only:files::*` | Tools of a server with this annotation
// `prompt:files::*` | Prompts
// `resource:file:///srv/` | Resources of any server below this URI, by whole segments: not file:///srv2
// `resource:files::file:///srv/` | Resources of one server below this URI
//
// As MCP defines, a tool without annotations is destructive and open_world.
//
// Lists do not contain items that the client may not use, and requests for them fail with
// acl_denied. If a client may use nothing of a server, the gateway never contacts the server for
// it.
type Client struct {
	// The identity of the client. With *, which matches any characters, the block applies to every
	// client that matches and has no block of its own; a plain * applies to all other clients. The
	// identity of an unauthenticated client is anonymous. Required.
	Name string `json:"name,omitempty"`

	// Other identities to which this block applies: users of Caddy's authentication (such as
	// basic_auth), subjects of certificates or tokens. Default: none
	Match []string `json:"match,omitempty"`

	// Rules about what the client may use. The first rule that matches decides. Default: none
	Rules []*AccessRule `json:"rules,omitempty"`

	// What to do if no rule matches: allow or deny. Default: deny if a rule allows something,
	// otherwise allow
	Default string `json:"default,omitempty"`

	// Regular expressions. Their matches in results are replaced by [redacted] before a result is
	// shortened. Default: none
	Redact []string `json:"redact,omitempty"`

	// Names of JSON members whose values in results are replaced by [redacted]. Default: none
	RedactFields []string `json:"redact_fields,omitempty"`

	// How often the client may make requests, in addition to the gateway's rates. Default: no limit
	Rates []*Rate `json:"rates,omitempty"`
}

// AccessRule allows or denies what its patterns select.
type AccessRule struct {
	// One of allow, deny and confirm. With confirm, the person at the client must approve each call of
	// a tool. Clients that cannot ask that person are denied.
	Action string `json:"action,omitempty"`

	// What the rule applies to. Default: everything if when is set; otherwise required
	Patterns []string `json:"patterns,omitempty"`

	// A CEL condition over client, server, tool, annotations and arguments. A rule with a condition
	// applies only to calls of tools for which it is true. If it cannot be evaluated, for example
	// because an argument is missing, the call is denied. Default: none
	When string `json:"when,omitempty"`
}

const (
	allow   = "allow"
	deny    = "deny"
	confirm = "confirm"
)

// An accessCompiler converts clients and rates for internal/gateway.
type accessCompiler struct {
	names  serverNames
	logger *zap.Logger
}

// client converts a client.
func (a accessCompiler) client(c *Client) (*access.Client, error) {
	compiled := &access.Client{Name: c.Name, Match: c.Match}
	otherwise := acl.Allow
	allows := slices.ContainsFunc(c.Rules, func(r *AccessRule) bool { return r != nil && r.Action == allow })
	if c.Default == deny || c.Default == "" && allows {
		otherwise = acl.Deny
	}
	var rules []acl.Rule
	for _, r := range c.Rules {
		if err := a.names.checkRule(r); err != nil {
			return nil, err
		}
		compiled, err := r.compile(func(pattern string) string { return a.qualified(pattern, c.Name) })
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
			a.logger.Warn("rule has no effect: earlier rules always match first",
				zap.String("client", c.Name), zap.String("rule", shadowed))
		}
	}
	if len(c.Redact) > 0 || len(c.RedactFields) > 0 {
		if compiled.Redactor, err = redact.New(c.Redact, c.RedactFields); err != nil {
			return nil, err
		}
	}
	compiled.View = digest([]any{compiled.Policy.Fingerprint(), c.Redact, c.RedactFields})
	compiled.Limits, err = a.limits("client", c.Rates, c.Name)
	return compiled, err
}

// qualified returns a pattern of a client with the alias of a server replaced by its name. It warns
// if the server does not exist yet.
func (a accessCompiler) qualified(pattern, client string) string {
	qualified, unknown := a.names.qualified(pattern)
	if unknown != "" {
		a.logger.Warn("rule refers to an unknown server",
			zap.String("client", client), zap.String("pattern", pattern), a.names.closest(unknown))
	}
	return qualified
}

// compile returns one rule per pattern. It calls qualified to replace aliases of servers in a
// pattern.
func (r *AccessRule) compile(qualified func(pattern string) string) (rules []acl.Rule, err error) {
	if r == nil {
		return nil, errors.New("rules: null is not a rule")
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

// names returns all identities of the client.
func (c *Client) names() []string { return append([]string{c.Name}, c.Match...) }

func (c *Client) validate() error {
	switch {
	case c.Name == "":
		return errors.New("name is empty")
	case slices.ContainsFunc(c.names(), func(name string) bool { return strings.ContainsAny(name, "{}") }):
		return errors.New("name and match: placeholders are not replaced here; " +
			"in a Caddyfile, use {$NAME} for environment variables")
	case c.isPattern() && len(c.Match) > 0:
		return errors.New("match: not allowed if the client name is a pattern")
	case slices.Contains(c.Match, ""):
		return errors.New("match: empty name")
	case c.Default != "" && c.Default != allow && c.Default != deny:
		return fmt.Errorf("default: %q must be allow or deny", c.Default)
	}
	return nil
}

// isPattern reports whether the block applies to several clients.
func (c *Client) isPattern() bool { return strings.Contains(c.Name, "*") }

// HasRules reports whether a client block applies to the client, by its name, match or pattern.
func (h *Handler) HasRules(client string) bool {
	return slices.ContainsFunc(h.Clients, func(c *Client) bool {
		return c != nil && (client == c.Name || slices.Contains(c.Match, client) || mcp.MatchName(c.Name, client))
	})
}

// clients converts all clients of a gateway.
func (a accessCompiler) clients(configured []*Client) (all []*access.Client, err error) {
	for i, c := range configured {
		if c == nil {
			return nil, fmt.Errorf("clients[%d] is null", i)
		}
		compiled, err := a.client(c)
		if err != nil {
			return nil, fmt.Errorf("client %q: %w", c.Name, err)
		}
		if err := c.checkUnique(configured); err != nil {
			return nil, err
		}
		all = append(all, compiled)
	}
	return all, nil
}

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

// limits converts the rates of a client, or of the gateway if client is empty. The key of a limit
// does not depend on its numbers, so that requests made before a reload still count if it changes
// the numbers.
func (a accessCompiler) limits(scope string, rates []*Rate, client string) ([]access.Limit, error) {
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
			if err := a.names.checkRate(r); err != nil {
				return nil, err
			}
			pattern, err := mcp.ParsePattern(a.qualified(r.Tools, client))
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
