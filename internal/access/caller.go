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

// A Caller is the sender of a request.
type Caller struct {
	Identity string  // as far as it was proved; "" for unknown
	Name     string  // of the client; "" for unknown
	Label    string  // of the client in metrics, of which there are only so many
	Address  string  // of its machine; "" where there is no request
	User     string  // whom a handler in front of the gateway has authenticated; "" for none
	Client   *Client // its rules; nil if it has none
	Askable  bool    // the person at it can be asked to confirm calls

	Annotations mcp.Annotations // of the tool that it calls, as far as they are known
}

// ShownName returns the name of the client as logs have it.
func (c *Caller) ShownName() string {
	switch {
	case c.Identity == OperatorIdentity:
		return OperatorLabel
	case c.Name == "":
		return Anonymous
	}
	return c.Name
}

// Account returns whose account at a server is used, where each client has one; "" if the
// caller is unknown.
func (c *Caller) Account() string {
	if c.Identity == OperatorIdentity {
		return OperatorAccount
	}
	return c.Name
}

// Owner returns whom something is kept for: the client or, if it is unknown, all at its
// address. A network of IPv6 is one address.
func (c *Caller) Owner() string {
	if c.Identity == "" {
		return "@" + ratelimit.Address(c.Address)
	}
	return c.Identity
}

// BodyOwner returns whom the body of a request is counted for.
func (c *Caller) BodyOwner() string {
	if c.Name == "" {
		return "@" + ratelimit.Address(c.Address)
	}
	return c.Name
}

// Budget returns whose budget a request is on: the client's or, if it is unknown, that of its
// address (R14).
func (c *Caller) Budget() string {
	if c.Name != "" {
		return "client " + c.Name
	}
	return "address " + ratelimit.Address(c.Address)
}

// IsVolatile reports whether only another request can show that the caller is still let in:
// the configuration has no secret of it that could be compared.
func (c *Caller) IsVolatile() bool {
	name, realm, _ := strings.Cut(c.Identity, realmMark)
	return name != "" && realm == "" && c.Identity != OperatorIdentity
}

// Policy returns what the caller may use; nil for everything.
func (c *Caller) Policy() *acl.Policy {
	if c.Client == nil {
		return nil
	}
	return c.Client.Policy
}

// Redactor returns what removes from results what the caller must not see; nil for nothing.
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

// Allows reports whether the caller may use something, if only with a confirmation.
func (c *Caller) Allows(target mcp.Target) bool { return c.Decide(target).Action != acl.Deny }

// Decide decides whether the caller may use something. What the gateway itself has is for
// everybody, except for resources that an operator has it host.
func (c *Caller) Decide(target mcp.Target) acl.Decision {
	policy := c.Policy()
	if policy == nil {
		return acl.Unrestricted
	}
	if target.Server == "" {
		_, own := mcp.ParseObservationURI(target.Name)
		if own || target.Kind != mcp.Resource {
			return acl.Because("it is the gateway's own", acl.Allow)
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
		if policy.Other(target.Server) {
			return acl.Because("all of the server is allowed", acl.Allow)
		}
		return acl.Because("not all of the server is allowed", acl.Deny)
	default:
		if policy.Server(target.Server) {
			return acl.Because("something of the server is allowed", acl.Allow)
		}
		return acl.Because("nothing of the server is allowed", acl.Deny)
	}
	return NotPlain
}

// DecideCall decides on a call with arguments, or on something else that the caller asks for.
func (c *Caller) DecideCall(target mcp.Target, arguments []byte) acl.Decision {
	if target.Kind != mcp.Tool || target.Server == "" || c.Policy() == nil || !toolpin.IsPlainName(target.Name) {
		return c.Decide(target)
	}
	tool := c.NewTool(target.Server, target.Name)
	tool.Arguments = arguments
	return c.Policy().Call(&tool)
}

// Listed decides on an item of a list other than a tool.
func (c *Caller) Listed(server string, kind mcp.ListKind, name string) acl.Decision {
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

// IsShown reports whether lists have what was decided on.
func (c *Caller) IsShown(d acl.Decision) bool {
	return d.Action == acl.Allow || d.Action == acl.Confirm && c.Askable
}

// NewTool returns what is known of a tool that the caller lists or calls.
func (c *Caller) NewTool(server, name string) acl.Tool {
	return acl.Tool{
		Facts: condition.Facts{
			Client: cmp.Or(c.Name, Anonymous), Server: server, Tool: name, Annotations: c.Annotations,
		},
		Askable: c.Askable,
	}
}

// NotPlain is the decision on a name that a person does not see all of.
var NotPlain = acl.Because("its name has hidden characters", acl.Deny)
