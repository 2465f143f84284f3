package access

import (
	"cmp"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A Caller is the client of a request, with its identity and rules.
type Caller struct {
	Identity string  // proven identity; "" for none
	Name     string  // name of the client; "" if unidentified
	Label    string  // label of the client in metrics, from a limited set
	Address  string  // IP address; "" without a request
	User     string  // user authenticated by a handler in front of the gateway; "" for none
	Client   *Client // rules; nil for none
	Askable  bool    // the user of the client can be asked to confirm calls

	Annotations mcp.Annotations // of the called tool, as far as known
}

// ShownName returns the name of the client for logs.
func (c *Caller) ShownName() string {
	switch {
	case c.Identity == OperatorIdentity:
		return OperatorLabel
	case c.Name == "":
		return Anonymous
	}
	return c.Name
}

// Account returns the name of the caller's account at servers where each client has one; "" if it
// is unidentified.
func (c *Caller) Account() string {
	if c.Identity == OperatorIdentity {
		return OperatorAccount
	}
	return c.Name
}

// Owner returns the owner of everything stored for the caller: its identity or, if it is
// unidentified, its address. An IPv6 network counts as one address.
func (c *Caller) Owner() string {
	if c.Identity == "" {
		return "@" + ratelimit.Address(c.Address)
	}
	return c.Identity
}

// BodyOwner returns the owner against whose limit a request body counts.
func (c *Caller) BodyOwner() string {
	if c.Name == "" {
		return "@" + ratelimit.Address(c.Address)
	}
	return c.Name
}

// Budget returns the owner of the rate limits of a request: the client or, if it is unidentified,
// its address (R14).
func (c *Caller) Budget() string {
	if c.Name != "" {
		return "client " + c.Name
	}
	return "address " + ratelimit.Address(c.Address)
}

// MustReauthenticate reports whether the caller must authenticate again after a change of the
// configuration. The configuration has no secret of such a caller to compare, so only a new request
// can show that it is still allowed in.
func (c *Caller) MustReauthenticate() bool {
	name, realm, _ := strings.Cut(c.Identity, realmMark)
	return name != "" && realm == "" && c.Identity != OperatorIdentity
}

// Policy returns the policy of the caller; nil to allow everything.
func (c *Caller) Policy() *acl.Policy {
	if c.Client == nil {
		return nil
	}
	return c.Client.Policy
}

// Redactor returns the redactor of results for the caller; nil to redact nothing.
func (c *Caller) Redactor() *redact.Redactor {
	if c.Client == nil {
		return nil
	}
	return c.Client.Redactor
}

// Unredacted returns the caller without a redactor.
func (c Caller) Unredacted() Caller {
	if c.Redactor() != nil {
		rules := *c.Client
		rules.Redactor, c.Client = nil, &rules
	}
	return c
}

// Allows reports whether the caller may use a target, possibly after a confirmation.
func (c *Caller) Allows(target mcp.Target) bool { return c.Decide(target).Action != acl.Deny }

// Decide decides whether the caller may use a target. All clients may use the tools, prompts and
// resources of the gateway itself, except for resources that an operator makes it host.
func (c *Caller) Decide(target mcp.Target) acl.Decision {
	policy := c.Policy()
	if policy == nil {
		return acl.Unrestricted
	}
	if target.Server == "" {
		_, own := mcp.ParseObservationURI(target.Name)
		if own || target.Kind != mcp.Resource {
			return acl.Because("provided by the gateway itself", acl.Allow)
		}
		return policy.Resource("", target.Name)
	}
	switch target.Kind {
	case mcp.Tool:
		if toolpin.IsPlainName(target.Name) { // as it is listed
			tool := c.NewTool(target.Server, target.Name)
			return policy.Tool(&tool)
		}
	case mcp.Prompt:
		if toolpin.IsPlainName(target.Name) {
			return policy.Prompt(target.Server, target.Name)
		}
	case mcp.Resource:
		return policy.Resource(target.Server, target.Name)
	case mcp.Other:
		if policy.AllowsOther(target.Server) {
			return acl.Because("the whole server is allowed", acl.Allow)
		}
		return acl.Because("only parts of the server are allowed", acl.Deny)
	default:
		if policy.MayAllow(target.Server) {
			return acl.Because("parts of the server are allowed", acl.Allow)
		}
		return acl.Because("no part of the server is allowed", acl.Deny)
	}
	return NotPlain
}

// DecideCall decides on a request for a target. The arguments are those of a tool call.
func (c *Caller) DecideCall(target mcp.Target, arguments []byte) acl.Decision {
	if target.Kind != mcp.Tool || target.Server == "" || c.Policy() == nil || !toolpin.IsPlainName(target.Name) {
		return c.Decide(target)
	}
	tool := c.NewTool(target.Server, target.Name)
	tool.Arguments = arguments
	return c.Policy().Call(&tool)
}

// DecideListed decides whether the caller sees an item of a list that is not a tool.
func (c *Caller) DecideListed(server string, kind mcp.ListKind, name string) acl.Decision {
	policy := c.Policy()
	switch kind {
	case mcp.Prompts:
		return policy.Prompt(server, name)
	case mcp.Templates:
		return policy.Template(server, name)
	default:
		return policy.Resource(server, name)
	}
}

// IsShown reports whether lists contain an item with this decision.
func (c *Caller) IsShown(d acl.Decision) bool {
	return d.Action == acl.Allow || d.Action == acl.Confirm && c.Askable
}

// NewTool returns the facts about a tool that the caller lists or calls.
func (c *Caller) NewTool(server, name string) acl.Tool {
	return acl.Tool{
		Facts: condition.Facts{
			Client: cmp.Or(c.Name, Anonymous), Server: server, Tool: name, Annotations: c.Annotations,
		},
		Askable: c.Askable,
	}
}

// NotPlain is the decision on a name with characters that people cannot see.
var NotPlain = acl.Because("its name has hidden characters", acl.Deny)
