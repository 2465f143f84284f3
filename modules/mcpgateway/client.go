package mcpgateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
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

	policy   *acl.Policy
	redactor *redact.Redactor
	limits   []limit
	view     string // changes with what is shown
}

// AccessRule allows or denies what its patterns select.
type AccessRule struct {
	// Either allow or deny.
	Action string `json:"action,omitempty"`

	// What it is about.
	Patterns []string `json:"patterns,omitempty"`
}

const (
	allow = "allow"
	deny  = "deny"
)

// anonymous is the name of clients that nobody knows.
const anonymous = "anonymous"

func (c *Client) provision(h *Handler) error {
	otherwise := c.Default == allow
	if c.Default == "" {
		otherwise = !slices.ContainsFunc(c.Rules, func(r *AccessRule) bool { return r != nil && r.Action == allow })
	}
	var rules []acl.Rule
	for i, r := range c.Rules {
		if r == nil || r.Action != allow && r.Action != deny {
			return fmt.Errorf("rules: the action of number %d is neither allow nor deny", i)
		}
		if len(r.Patterns) == 0 {
			return fmt.Errorf("rules: %s without a pattern", r.Action)
		}
		for _, pattern := range r.Patterns {
			rules = append(rules, acl.Rule{Allow: r.Action == allow, Pattern: h.qualified(pattern, c.Name)})
		}
	}
	var err error
	if len(rules) > 0 || !otherwise {
		if c.policy, err = acl.New(rules, otherwise); err != nil {
			return err
		}
		for _, shadowed := range c.policy.Shadowed() {
			h.logger.Warn("rule never decides", zap.String("client", c.Name), zap.String("rule", shadowed))
		}
	}
	if len(c.Redact) > 0 || len(c.RedactFields) > 0 {
		if c.redactor, err = redact.New(c.Redact, c.RedactFields); err != nil {
			return fmt.Errorf("redact: %w", err)
		}
	}
	c.view = digest([]any{c.policy.Fingerprint(), c.Redact, c.RedactFields})
	c.limits, err = h.limitsOf("client", c.Rates, c.Name)
	return err
}

// qualified returns a pattern with the name of a server that it calls by an alias. One that
// fits no server has no effect, which its author should know.
func (h *Handler) qualified(pattern, client string) string {
	return acl.Qualified(pattern, func(server string) string {
		if s := h.byName[server]; s != nil {
			return s.Name
		}
		if !slices.ContainsFunc(h.Servers, func(s *Server) bool { return mcp.MatchName(server, s.Name) }) {
			h.logger.Warn("pattern for a server that there is not", zap.String("client", client), zap.String("pattern", pattern))
		}
		return server
	})
}

func (c *Client) validate() error {
	switch {
	case c.Name == "":
		return errors.New("name: it is empty")
	case slices.ContainsFunc(append([]string{c.Name}, c.Match...), func(name string) bool { return strings.ContainsAny(name, "{}") }):
		return errors.New("name, match: there is a placeholder, which is not replaced there; in a Caddyfile {$NAME} is, when it is read")
	case c.isPattern() && len(c.Match) > 0:
		return errors.New("match: the name is a pattern, which matches by itself")
	case slices.Contains(c.Match, ""):
		return errors.New("match: a name is empty")
	case c.Default != "" && c.Default != allow && c.Default != deny:
		return fmt.Errorf("default: %q is neither allow nor deny", c.Default)
	}
	return nil
}

// isPattern reports whether the block is for several clients.
func (c *Client) isPattern() bool { return strings.Contains(c.Name, "*") }

// provisionClients sets up who may do what.
func (h *Handler) provisionClients() error {
	h.byIdentity, h.permits = map[string]*Client{}, digest(h.Clients)
	for i, c := range h.Clients {
		if c == nil {
			return fmt.Errorf("clients: number %d is null", i)
		}
		if err := c.provision(h); err != nil {
			return fmt.Errorf("client %q: %w", c.Name, err)
		}
		if c.isPattern() {
			h.patterns = append(h.patterns, c)
		}
		for _, name := range append([]string{c.Name}, c.Match...) {
			if h.byIdentity[name] != nil {
				return fmt.Errorf("client %q: the name %q is given twice", c.Name, name)
			}
			h.byIdentity[name] = c
		}
	}
	var err error
	if len(h.providers) == 0 && slices.ContainsFunc(h.Clients, func(c *Client) bool { return !c.isPattern() && c.Name != anonymous }) {
		h.logger.Warn("clients have rules, but there is no auth and no token to know them by; only Caddy's authentication can")
	}
	h.limits, err = h.limitsOf("gateway", h.Rates, "")
	return err
}

// A caller is whom a request comes from.
type caller struct {
	identity string  // as far as it has proved it; "" for nobody in particular
	name     string  // of the client, "" for nobody in particular
	label    string  // of the client in metrics: there are only so many
	rules    *Client // nil if there are none
}

// realmMark stands in an identity between who it is and what tells it from others of the
// same name elsewhere.
const realmMark = "\x01"

// operator is the identity of whoever has started this very process to talk to it. No
// rules are for them, and nobody else can have it.
const operator = "\x00operator"

// callerOf returns the caller with this identity. It has a block of its own, or one that
// is for several, or none.
func (h *Handler) callerOf(identity string) caller {
	if identity == operator {
		return caller{identity: identity, label: "operator"}
	}
	who := caller{identity: identity, label: anonymous}
	identity, _, _ = strings.Cut(identity, realmMark)
	if who.name = identity; identity == "" {
		identity = anonymous
	}
	if who.rules = h.byIdentity[identity]; who.rules != nil && !who.rules.isPattern() {
		who.label = who.rules.Name
		if who.name != "" {
			who.name = who.rules.Name
		}
		return who
	}
	i := slices.IndexFunc(h.patterns, func(c *Client) bool { return mcp.MatchName(c.Name, identity) })
	if i < 0 {
		who.rules = nil
		if who.name != "" {
			who.label = "other"
		}
		return who
	}
	who.rules, who.label = h.patterns[i], h.patterns[i].Name
	return who
}

// mustProveAgain reports whether only another request can show that the caller is still
// let in: it has no secret here that could be compared.
func (c *caller) mustProveAgain() bool {
	name, realm, _ := strings.Cut(c.identity, realmMark)
	return name != "" && realm == "" && c.identity != operator
}

// policy returns what the caller may use; nil for everything.
func (c *caller) policy() *acl.Policy {
	if c.rules == nil {
		return nil
	}
	return c.rules.policy
}

// allows reports whether the caller may use something. What the gateway itself has is
// for everybody, but for the resources that an operator has it host.
func (c *caller) allows(target mcp.Target) bool {
	policy := c.policy()
	if policy == nil {
		return true
	}
	if target.Server == "" {
		_, own := mcp.ParseObservationURI(target.Name)
		return own || target.Kind != mcp.Resource || policy.Resource("", target.Name)
	}
	if !policy.Server(target.Server) {
		return false
	}
	switch target.Kind {
	case mcp.Tool:
		return toolpin.IsPlainName(target.Name) && policy.Tool(target.Server, target.Name) // as it is listed
	case mcp.Prompt:
		return toolpin.IsPlainName(target.Name) && policy.Prompt(target.Server, target.Name)
	case mcp.Resource:
		return policy.Resource(target.Server, target.Name)
	case mcp.Other:
		return policy.Other(target.Server)
	}
	return true
}

// redactor returns what takes out of results what the caller must not see; nil for
// nothing.
func (c *caller) redactor() *redact.Redactor {
	if c.rules == nil {
		return nil
	}
	return c.rules.redactor
}
