// Package access identifies the clients of a gateway, and decides what they may do.
//
// A [Caller] is the client of a request. [Rules] find its rules by its identity: a policy (package
// acl), a redactor, and rate limits.
package access

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
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
