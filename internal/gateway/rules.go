package gateway

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// rules are what the clients of a gateway may do.
type rules struct {
	config     *Config
	byIdentity map[string]*Client // by name and match
	patterns   []*Client          // whose names are patterns
	redact     bool               // something is redacted for some of them
}

func newRules(g *Gateway) rules {
	r := rules{config: &g.config, byIdentity: map[string]*Client{}}
	for _, c := range r.config.Clients {
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

// Anonymous is the name of clients that are not identified.
const Anonymous = "anonymous"

// OperatorIdentity is the identity of the command that has started this process to talk to
// it. No rules apply to it, and no client can claim it.
const OperatorIdentity = "\x00operator"

// OperatorLabel is how logs and metrics name it.
const OperatorLabel = "operator"

// OperatorAccount is whose account it uses, where each client has one. No client has this name.
const OperatorAccount = "(operator)"

// realmMark stands in an identity between its name and what tells it from others of the same
// name elsewhere.
const realmMark = "\x01"

// Identity returns the identity of a client by its name and realm: what lets it in, in short.
// Without a realm only another request can show that the client is still let in.
func Identity(name, realm string) string { return name + realmMark + realm }

// A caller is the sender of a request.
type caller struct {
	identity string  // as far as it was proved; "" for unknown
	name     string  // of the client; "" for unknown
	label    string  // of the client in metrics, of which there are only so many
	address  string  // of its machine; "" where there is no request
	user     string  // whom a handler in front of the gateway has authenticated; "" for none
	rules    *Client // nil if there are none
	askable  bool    // the person at it can be asked to confirm calls

	annotations mcp.Annotations // of the tool that it calls, as far as they are known
}

// caller returns the caller with an identity. Its rules are its own, or those of the first
// pattern that fits.
func (r *rules) caller(identity string) caller {
	if identity == OperatorIdentity {
		return caller{identity: identity, label: OperatorLabel, annotations: mcp.Unannotated}
	}
	c := caller{identity: identity, label: Anonymous, annotations: mcp.Unannotated}
	name, _, _ := strings.Cut(identity, realmMark)
	c.name = name
	if name == "" {
		name = Anonymous
	}
	c.rules = r.byIdentity[name]
	if c.rules != nil && !c.rules.isPattern() {
		c.label = c.rules.Name
		if c.name != "" {
			c.name = c.rules.Name
		}
		return c
	}
	i := slices.IndexFunc(r.patterns, func(c *Client) bool { return mcp.MatchName(c.Name, name) })
	if i < 0 {
		c.rules = nil
		if c.name != "" {
			c.label = "other"
		}
		return c
	}
	c.rules, c.label = r.patterns[i], r.patterns[i].Name
	return c
}

// shownName returns the name of the client as logs have it.
func (c *caller) shownName() string {
	switch {
	case c.identity == OperatorIdentity:
		return OperatorLabel
	case c.name == "":
		return Anonymous
	}
	return c.name
}

// callerOf returns a client as a caller.
func (r *rules) callerOf(c *client) caller {
	who := r.caller(c.identity)
	who.askable = c.askable(&who)
	return who
}

// account returns whose account at a server is used, where each client has one; "" if the
// caller is unknown.
func (c *caller) account() string {
	if c.identity == OperatorIdentity {
		return OperatorAccount
	}
	return c.name
}

// owner returns whom something is kept for: the client or, if it is unknown, all at its
// address. A network of IPv6 is one address.
func (c *caller) owner() string {
	if c.identity == "" {
		return "@" + ratelimit.Address(c.address)
	}
	return c.identity
}

// bodyOwner returns whom the body of a request is counted for.
func (c *caller) bodyOwner() string {
	if c.name == "" {
		return "@" + ratelimit.Address(c.address)
	}
	return c.name
}

// budget returns whose budget a request is on: the client's or, if it is unknown, that of its
// address (R14).
func (c *caller) budget() string {
	if c.name != "" {
		return "client " + c.name
	}
	return "address " + ratelimit.Address(c.address)
}

// isVolatile reports whether only another request can show that the caller is still let in:
// the configuration has no secret of it that could be compared.
func (c *caller) isVolatile() bool {
	name, realm, _ := strings.Cut(c.identity, realmMark)
	return name != "" && realm == "" && c.identity != OperatorIdentity
}

// policy returns what the caller may use; nil for everything.
func (c *caller) policy() *acl.Policy {
	if c.rules == nil {
		return nil
	}
	return c.rules.Policy
}

// redactor returns what removes from results what the caller must not see; nil for nothing.
func (c *caller) redactor() *redact.Redactor {
	if c.rules == nil {
		return nil
	}
	return c.rules.Redactor
}

// unredacted returns the caller without a redactor.
func (c caller) unredacted() caller {
	if c.redactor() != nil {
		rules := *c.rules
		rules.Redactor, c.rules = nil, &rules
	}
	return c
}

// allows reports whether the caller may use something, if only with a confirmation.
func (c *caller) allows(target mcp.Target) bool { return c.decide(target).Action != acl.Deny }

// decide decides whether the caller may use something. What the gateway itself has is for
// everybody, except for resources that an operator has it host.
func (c *caller) decide(target mcp.Target) acl.Decision {
	policy := c.policy()
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
			tool := c.newTool(target.Server, target.Name)
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
	return notPlain
}

// decideCall decides on a call with arguments, or on something else that the caller asks for.
func (c *caller) decideCall(target mcp.Target, arguments []byte) acl.Decision {
	if target.Kind != mcp.Tool || target.Server == "" || c.policy() == nil || !toolpin.IsPlainName(target.Name) {
		return c.decide(target)
	}
	tool := c.newTool(target.Server, target.Name)
	tool.Arguments = arguments
	return c.policy().Call(&tool)
}

// listed decides on an item of a list other than a tool, which listedTool does.
func (c *caller) listed(server string, kind mcp.ListKind, name string) acl.Decision {
	policy := c.policy()
	switch kind {
	case mcp.Prompts:
		return policy.Prompt(server, name)
	case mcp.Templates:
		return policy.Template(server, name)
	default:
		return policy.Resource(server, name)
	}
}

// isShown reports whether lists have what was decided on.
func (c *caller) isShown(d acl.Decision) bool {
	return d.Action == acl.Allow || d.Action == acl.Confirm && c.askable
}

// users returns the names of the clients that may use a tool, or something of the gateway itself.
func (r *rules) users(target mcp.Target, annotations mcp.Annotations) (names []string) {
	for _, c := range r.config.Clients {
		tool := (&caller{name: c.Name, askable: true}).newTool(target.Server, target.Name)
		tool.Annotations = annotations
		if target.Server == "" || c.Policy.Tool(&tool).Action != acl.Deny {
			names = append(names, c.Name)
		}
	}
	return names
}

// The rules below go by identity, because streams and lists outlive the configuration
// that their request came in with.

// sees reports whether a client may know of a server. Others are never contacted for it.
func (r *rules) sees(identity string, s *Server) bool {
	if len(r.config.Clients) == 0 {
		return true
	}
	who := r.caller(identity)
	return who.policy().Server(s.Name)
}

// hears reports whether a client may know of changes of a resource.
func (r *rules) hears(identity string, s *Server, uri string) bool {
	if len(r.config.Clients) == 0 {
		return true
	}
	who := r.caller(identity)
	return r.sees(identity, s) && who.allows(mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri})
}

// allowsUnknown reports whether a client may send a server methods that MCP does not define.
func (r *rules) allowsUnknown(identity string, s *Server) bool {
	if len(r.config.Clients) == 0 {
		return true
	}
	who := r.caller(identity)
	return who.allows(mcp.Target{Server: s.Name, Kind: mcp.Other})
}

// view returns a text that changes with what a client is shown of lists.
func (r *rules) view(identity string) string {
	view := ""
	if who := r.caller(identity); who.rules != nil {
		view = who.rules.View
	}
	if r.config.PinTools {
		view += " pinned"
	}
	return view
}

// standing returns a text that changes with what lets a client in. Only a new request can
// show whether a certificate, a JWT or Caddy's own authentication still does, so for those it
// changes with each configuration.
func (r *rules) standing(identity string) string {
	who := r.caller(identity)
	standing := who.label
	if r.config.Auth != nil {
		standing += r.config.Auth.Fingerprint()
	}
	if who.isVolatile() {
		standing += fmt.Sprintf(" %p", r.config.Generation)
	}
	return standing
}

// seen returns the servers that a client may know of.
func (r *rules) seen(identity string) []*Server {
	if len(r.config.Clients) == 0 {
		return r.config.Servers
	}
	return slices.DeleteFunc(slices.Clone(r.config.Servers), func(s *Server) bool { return !r.sees(identity, s) })
}

// appendLimits appends those limits that apply to something.
func appendLimits(to []ratelimit.Limit, limits []Limit, target mcp.Target, request bool) []ratelimit.Limit {
	for i := range limits {
		switch l := &limits[i]; {
		case l.pattern != nil:
			if request && target.Kind == mcp.Tool && l.pattern.Match(target.Server, target.Name) {
				to = append(to, l.own)
			}
		case request:
			to = append(to, l.own)
		default:
			to = append(to, l.aside)
		}
	}
	return to
}

// limits appends the limits that apply to a message of a client, which is a request or comes
// besides.
func (r *rules) limits(to []ratelimit.Limit, c *caller, target mcp.Target, request bool) []ratelimit.Limit {
	var own []Limit
	if c.rules != nil {
		own = c.rules.Limits
	}
	if len(own)+len(r.config.Limits) == 0 || c.identity == OperatorIdentity {
		return to
	}
	return appendLimits(appendLimits(to, r.config.Limits, target, request), own, target, request)
}
