// Package access says who clients are to a gateway, and what they may do.
//
// A [Caller] is the sender of a request. [Rules] find what applies to it by its identity: a policy
// (package acl), what is redacted for it, and limits of its rate.
package access

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
)

// Rules are what the clients of a gateway may do.
type Rules struct {
	clients    []*Client
	all        []Limit            // of each client
	byIdentity map[string]*Client // by name and match
	patterns   []*Client          // whose names are patterns
	redact     bool               // something is redacted for some of them
}

// NewRules returns the rules of these clients. The limits are for each client.
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

// Redacts reports whether something is redacted for some clients.
func (r *Rules) Redacts() bool { return r.redact }

// Match reports whether a client is also known by this name, as its Match says.
func (r *Rules) Match(name string) bool {
	c := r.byIdentity[name]
	return name != "" && c != nil && slices.Contains(c.Match, name)
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

// NameOf returns the name in an identity.
func NameOf(identity string) string {
	name, _, _ := strings.Cut(identity, realmMark)
	return name
}

// Caller returns the caller with an identity. Its rules are its own, or those of the first
// pattern that fits.
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

// Users returns the names of the clients that may use a tool, or something of the gateway itself.
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

// The rules below go by identity, because streams and lists outlive the configuration
// that their request came in with.

// Sees reports whether a client may know of a server. Others are never contacted for it.
func (r *Rules) Sees(identity, server string) bool {
	if len(r.clients) == 0 {
		return true
	}
	who := r.Caller(identity)
	return who.Policy().Server(server)
}

// Hears reports whether a client may know of changes of a resource.
func (r *Rules) Hears(identity, server, uri string) bool {
	if len(r.clients) == 0 {
		return true
	}
	who := r.Caller(identity)
	return r.Sees(identity, server) && who.Allows(mcp.Target{Server: server, Kind: mcp.Resource, Name: uri})
}

// AllowsUnknown reports whether a client may send a server methods that MCP does not define.
func (r *Rules) AllowsUnknown(identity, server string) bool {
	if len(r.clients) == 0 {
		return true
	}
	who := r.Caller(identity)
	return who.Allows(mcp.Target{Server: server, Kind: mcp.Other})
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

// Limits appends the limits that apply to a message of a client, which is a request or comes
// besides.
func (r *Rules) Limits(to []ratelimit.Limit, c *Caller, target mcp.Target, request bool) []ratelimit.Limit {
	var own []Limit
	if c.Client != nil {
		own = c.Client.Limits
	}
	if len(own)+len(r.all) == 0 || c.Identity == OperatorIdentity {
		return to
	}
	return appendLimits(appendLimits(to, r.all, target, request), own, target, request)
}

// A Client says what a client may do.
type Client struct {
	Name     string           // in which * stands for any characters
	Match    []string         // other names by which it is known
	Policy   *acl.Policy      // nil to allow everything
	Redactor *redact.Redactor // nil to redact nothing
	Limits   []Limit
	View     string // changes with what the client is shown
}

// isPattern reports whether the rules are for several clients.
func (c *Client) isPattern() bool { return strings.Contains(c.Name, "*") }

// A Limit limits how often a client may make requests.
type Limit struct {
	pattern *mcp.Pattern // nil for all requests
	own     ratelimit.Limit
	aside   ratelimit.Limit // for messages that surround requests
}

// asideFactor is how many other messages come with each request: handshakes, notifications,
// answers to questions, streams. They have a budget of their own, so that a client which
// comes back after a cut has as many requests as others.
const asideFactor = 10

// NewLimit returns a Limit on calls of the tools that a pattern selects, or on all requests if
// it is nil.
func NewLimit(l ratelimit.Limit, pattern *mcp.Pattern) Limit {
	aside := l
	aside.Key, aside.N, aside.Burst = l.Key+" aside", asideFactor*l.N, asideFactor*l.Burst
	return Limit{pattern, l, aside}
}
