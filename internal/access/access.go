// Package access identifies the clients of a gateway, and decides what they may do.
//
// A [Caller] is the client of a request. [Rules] find its rules by its identity: a policy (package
// acl), a redactor, and rate limits.
package access

import (
	"cmp"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// Rules are the rules of all clients of a gateway.
type Rules struct {
	clients    []*Client
	all        []Limit            // for each client
	byIdentity map[string]*Client // by name and by names in Match
	patterns   []*Client          // clients whose names are patterns
	redact     bool               // some client has a Redactor
}

// NewRules returns the rules of these clients. limits apply to each client.
func NewRules(clients []*Client, limits []Limit) *Rules {
	r := &Rules{clients: clients, all: limits, byIdentity: map[string]*Client{}}
	for _, c := range clients {
		r.redact = r.redact || c.Redactor != nil
		if c.isPattern() {
			r.patterns = append(r.patterns, c)
		}
		for _, name := range append([]string{c.Name}, c.Match...) {
			r.byIdentity[name] = c
		}
	}
	return r
}

// Redacts reports whether results are redacted for some clients.
func (r *Rules) Redacts() bool { return r.redact }

// Match reports whether a client has this name in its Match.
func (r *Rules) Match(name string) bool {
	c := r.byIdentity[name]
	return name != "" && c != nil && slices.Contains(c.Match, name)
}

// Anonymous is the name of unidentified clients.
const Anonymous = "anonymous"

// OperatorIdentity is the identity of the command that started this process. No rules apply to it,
// and no client can claim it.
const OperatorIdentity = "\x00operator"

// OperatorLabel is the operator's name in logs and metrics.
const OperatorLabel = "operator"

// OperatorAccount is the operator's account at servers where each client has one. No client has
// this name.
const OperatorAccount = "(operator)"

// realmMark separates the name from the realm in an identity.
const realmMark = "\x01"

// Identity returns the identity of a client. realm is a short hash of its secret, and tells clients
// of the same name apart. Without a realm, the client must authenticate again after a change of the
// configuration.
func Identity(name, realm string) string { return name + realmMark + realm }

// NameOf returns the name in an identity.
func NameOf(identity string) string {
	name, _, _ := strings.Cut(identity, realmMark)
	return name
}

// Caller returns the caller with an identity. Its rules are its own, or those of the first matching
// pattern.
func (r *Rules) Caller(identity string) Caller {
	if identity == OperatorIdentity {
		return Caller{Identity: identity, Label: OperatorLabel, Annotations: mcp.Unannotated}
	}
	c := Caller{Identity: identity, Label: Anonymous, Annotations: mcp.Unannotated}
	name := NameOf(identity)
	c.Name = name
	if name == "" {
		name = Anonymous
	}
	c.Client = r.byIdentity[name]
	if c.Client != nil && !c.Client.isPattern() {
		c.Label = c.Client.Name
		if c.Name != "" {
			c.Name = c.Client.Name
		}
		return c
	}
	i := slices.IndexFunc(r.patterns, func(c *Client) bool { return mcp.MatchName(c.Name, name) })
	if i < 0 {
		c.Client = nil
		if c.Name != "" {
			c.Label = "other"
		}
		return c
	}
	c.Client, c.Label = r.patterns[i], r.patterns[i].Name
	return c
}

// Users returns the names of the clients that may use a tool. All clients may use the tools of the
// gateway itself.
func (r *Rules) Users(target mcp.Target, annotations mcp.Annotations) (names []string) {
	for _, c := range r.clients {
		tool := (&Caller{Name: c.Name, Askable: true}).NewTool(target.Server, target.Name)
		tool.Annotations = annotations
		if target.Server == "" || c.Policy.Tool(&tool).Action != acl.Deny {
			names = append(names, c.Name)
		}
	}
	return names
}

// The methods below take an identity, because streams and lists outlive the configuration of their
// request.

// Sees reports whether a client may know of a server. The gateway contacts no other servers for it.
func (r *Rules) Sees(identity, server string) bool {
	if len(r.clients) == 0 {
		return true
	}
	caller := r.Caller(identity)
	return caller.Policy().MayAllow(server)
}

// AllowsSubscription reports whether a client may get notifications about a resource.
func (r *Rules) AllowsSubscription(identity, server, uri string) bool {
	if len(r.clients) == 0 {
		return true
	}
	caller := r.Caller(identity)
	return r.Sees(identity, server) && caller.Allows(mcp.Target{Server: server, Kind: mcp.Resource, Name: uri})
}

// AllowsUnknown reports whether a client may send methods that MCP does not define to a server.
func (r *Rules) AllowsUnknown(identity, server string) bool {
	if len(r.clients) == 0 {
		return true
	}
	caller := r.Caller(identity)
	return caller.Allows(mcp.Target{Server: server, Kind: mcp.Other})
}

// appendLimits appends the limits that apply to a message. request is false for messages other than
// requests.
func appendLimits(dst []ratelimit.Limit, limits []Limit, target mcp.Target, request bool) []ratelimit.Limit {
	for i := range limits {
		switch l := &limits[i]; {
		case l.pattern != nil:
			if request && target.Kind == mcp.Tool && l.pattern.Match(target.Server, target.Name) {
				dst = append(dst, l.requests)
			}
		case request:
			dst = append(dst, l.requests)
		default:
			dst = append(dst, l.other)
		}
	}
	return dst
}

// Limits appends the limits that apply to a message of a client. request is false for messages
// other than requests.
func (r *Rules) Limits(dst []ratelimit.Limit, c *Caller, target mcp.Target, request bool) []ratelimit.Limit {
	var own []Limit
	if c.Client != nil {
		own = c.Client.Limits
	}
	if len(own)+len(r.all) == 0 || c.Identity == OperatorIdentity {
		return dst
	}
	return appendLimits(appendLimits(dst, r.all, target, request), own, target, request)
}

// A Client has the rules of a client, or of several if its name is a pattern.
type Client struct {
	Name     string           // pattern in which * stands for any characters
	Match    []string         // other names of the client
	Policy   *acl.Policy      // nil to allow everything
	Redactor *redact.Redactor // nil to redact nothing
	Limits   []Limit
	View     string // hash of what the client sees
}

// isPattern reports whether the name is a pattern.
func (c *Client) isPattern() bool { return strings.Contains(c.Name, "*") }

// A Limit limits the rate of a client's requests.
type Limit struct {
	pattern  *mcp.Pattern // nil for all requests
	requests ratelimit.Limit
	other    ratelimit.Limit // for other messages
}

// otherFactor is how many other messages are allowed per request: handshakes, notifications,
// responses to server requests, streams. They have a budget of their own, so a client that
// reconnects keeps its budget for requests.
const otherFactor = 10

// NewLimit returns a Limit on calls of the tools that match a pattern, or on all requests if
// pattern is nil.
func NewLimit(l ratelimit.Limit, pattern *mcp.Pattern) Limit {
	other := l
	other.Key, other.N, other.Burst = l.Key+" aside", otherFactor*l.N, otherFactor*l.Burst
	return Limit{pattern, l, other}
}

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
