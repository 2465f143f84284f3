// Package acl decides what a client may see and use of the servers behind the gateway.
//
// Rules select tools by name and by annotation, prompts by name, and resources by a prefix of
// their URI. A URI has many spellings, and the gateway cannot know which of them a server treats as
// equal. So acl compares URIs in a canonical form, and denies those that have none.
package acl

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An Action is the effect of a rule on the items that it selects.
type Action uint8

const (
	// Deny hides it, and refuses its use.
	Deny Action = iota
	// Confirm allows each call that a person at the client agrees to.
	Confirm
	// Allow allows it.
	Allow
)

var actionNames = [...]string{Deny: "deny", Confirm: "confirm", Allow: "allow"}

func (a Action) String() string { return actionNames[a] }

// Actions returns the names of all actions.
func Actions() []string { return actionNames[:] }

// ParseAction returns the action with a name.
func ParseAction(name string) (Action, bool) {
	i := slices.Index(actionNames[:], name)
	return Action(max(i, 0)), i >= 0
}

// A Rule applies an action to the items that its pattern selects:
//
//	server::*                   everything of a server
//	server::tool                tools
//	tool:server::name           tools
//	read_only                   tools with this annotation; or destructive, idempotent, open_world
//	read_only:server::name      tools with this annotation and name
//	prompt:server::name         prompts
//	resource:prefix             resources, of any server
//	resource:server::prefix     resources of a server
//	*                           everything
//
// In names of servers, tools and prompts, * matches any run of characters. The prefix * matches
// every URI; any other prefix matches whole segments of a path. A rule that confirms, or has a
// condition, selects only tools.
type Rule struct {
	Action  Action
	Pattern string
	When    *condition.Condition // nil if the pattern alone selects
}

// A Tool describes a tool that a client lists or calls.
type Tool struct {
	condition.Facts
	Askable bool // the client can ask a person to confirm a call
}

// A Decision is the verdict of a policy on an item.
type Decision struct {
	Action  Action
	Depends bool    // the verdict depends on arguments that are not known yet
	earlier []*rule // earlier rules that decide instead if the arguments meet their conditions
	Err     error   // a failure that caused the denial
	rule    *rule   // the deciding rule, or nil
	reason  string  // the reason without a rule; "" for the default of the policy
}

// newDecision returns the decision of a rule, or the default if it is nil. The rules before it may
// decide instead; for a denial they do not matter.
func newDecision(action Action, decisive *rule, earlier []*rule) Decision {
	if action == Deny {
		earlier = nil
	}
	return Decision{Action: action, Depends: len(earlier) > 0, rule: decisive, earlier: earlier}
}

// Because returns a decision without a rule, for the given reason.
func Because(reason string, action Action) Decision { return Decision{Action: action, reason: reason} }

// Reason returns the deciding rule as written, or the reason without one, and the error if there is
// one.
func (d Decision) Reason() string {
	reason := d.reason
	switch {
	case d.rule != nil:
		reason = d.rule.String()
	case reason == "":
		reason = "default " + d.Action.String()
	}
	for _, r := range slices.Backward(d.earlier) {
		reason = r.String() + ", else " + reason
	}
	if d.Err != nil {
		reason += ": " + d.Err.Error()
	}
	return reason
}

// Unrestricted is the decision for a client without rules.
var Unrestricted = Because("no rules", Allow)

// A Policy is the compiled list of a client's rules. It is immutable. A nil Policy allows
// everything.
type Policy struct {
	rules       []*rule
	otherwise   Action
	fingerprint string
}

// New compiles rules. The first rule that selects an item decides; otherwise is the action for
// items that no rule selects.
func New(rules []Rule, otherwise Action) (*Policy, error) {
	p := &Policy{otherwise: otherwise}
	text := []byte{byte(otherwise)}
	for _, r := range rules {
		compiled, err := compileRule(r)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, compiled)
		text = strconv.AppendQuote(append(text, byte(r.Action)), r.Pattern)
		if r.When != nil {
			text = strconv.AppendQuote(text, r.When.String())
		}
	}
	sum := sha256.Sum256(text)
	p.fingerprint = base64.RawURLEncoding.EncodeToString(sum[:12])
	return p, nil
}

// MayAllow reports whether any item of a server may be allowed. If not, the gateway need not
// contact it.
func (p *Policy) MayAllow(server string) bool {
	if p == nil {
		return true
	}
	var denied kinds
	for _, r := range p.rules {
		if !mcp.MatchName(r.server, server) {
			continue
		}
		if r.Action != Deny && r.kinds&^denied != 0 {
			return true
		}
		if r.Action == Deny && r.whole {
			denied |= r.kinds
		}
		if denied == everything {
			return false
		}
	}
	return p.otherwise != Deny
}

// Restricts reports whether any item of a server may be denied, or needs a confirmation.
func (p *Policy) Restricts(server string) bool { return p.restricts(server, everything) }

// RestrictsResources reports whether any resource of a server may be denied.
func (p *Policy) RestrictsResources(server string) bool { return p.restricts(server, resources) }

func (p *Policy) restricts(server string, wanted kinds) bool {
	if p == nil {
		return false
	}
	var allowed kinds
	for _, r := range p.rules {
		if !mcp.MatchName(r.server, server) {
			continue
		}
		if r.Action != Allow && r.kinds&wanted&^allowed != 0 {
			return true
		}
		if r.Action == Allow && r.whole {
			allowed |= r.kinds
		}
		if wanted&^allowed == 0 {
			return false
		}
	}
	return p.otherwise != Allow
}

// AllowsOther reports whether a client may send requests that concern no tool, prompt or resource.
// That needs a rule, or a default, that allows the whole server.
func (p *Policy) AllowsOther(server string) bool {
	if p == nil {
		return true
	}
	for _, r := range p.rules {
		if r.whole && r.kinds == everything && mcp.MatchName(r.server, server) {
			return r.Action == Allow
		}
	}
	return p.otherwise == Allow
}

// Call decides on the call of a tool.
func (p *Policy) Call(t *Tool) Decision { return p.tool(t, holds) }

func holds(c *condition.Condition, f *condition.Facts) (condition.Verdict, error) {
	if ok, err := c.Holds(f); err != nil || !ok {
		return condition.No, err
	}
	return condition.Yes, nil
}

// Tool decides on a tool before its arguments are known. It denies a tool that no arguments would
// allow.
func (p *Policy) Tool(t *Tool) Decision { return p.tool(t, (*condition.Condition).Possible) }

func (p *Policy) tool(t *Tool, judge func(*condition.Condition, *condition.Facts) (condition.Verdict, error)) Decision {
	if p == nil {
		return Unrestricted
	}
	var before []*rule
	for _, r := range p.rules {
		if !r.names(tools, t.Server, t.Tool) || r.annotations&^t.Annotations != 0 {
			continue
		}
		if r.When == nil {
			return r.decision(before...)
		}
		verdict, err := judge(r.When, &t.Facts)
		switch {
		case err != nil:
			return Decision{Err: err, rule: r}
		case verdict == condition.Yes:
			return r.decision(before...)
		case verdict == condition.Maybe && (r.Action == Allow || r.Action == Confirm && t.Askable):
			d := r.decision(before...)
			d.Depends = true
			return d
		case verdict == condition.Maybe:
			before = append(before, r)
		}
	}
	return p.byDefault(before...)
}

// NeedsAnnotations reports whether the decision on a tool may depend on its annotations.
func (p *Policy) NeedsAnnotations(server, name string) bool {
	if p == nil {
		return false
	}
	for _, r := range p.rules {
		switch {
		case !r.names(tools, server, name):
		case r.usesAnnotations():
			return true
		case r.When == nil:
			return false
		}
	}
	return false
}

// ReadsArguments reports whether the decision on a call of a tool may depend on its arguments: by a
// condition, or by a person who sees them.
func (p *Policy) ReadsArguments(server, name string) bool {
	if p == nil {
		return false
	}
	for _, r := range p.rules {
		switch {
		case !r.names(tools, server, name):
		case r.Action == Confirm, r.When != nil && r.When.UsesArguments():
			return true
		case r.When == nil && r.annotations == 0:
			return false
		}
	}
	return false
}

// UsesAnnotations reports whether any rule depends on the annotations of tools.
func (p *Policy) UsesAnnotations() bool {
	return p != nil && slices.ContainsFunc(p.rules, (*rule).usesAnnotations)
}

// Prompt decides on a prompt of a server.
func (p *Policy) Prompt(server, name string) Decision {
	if p == nil {
		return Unrestricted
	}
	for _, r := range p.rules {
		if r.names(prompts, server, name) {
			return r.decision()
		}
	}
	return p.byDefault()
}

// byDefault returns the decision on an item that no rule selects.
func (p *Policy) byDefault(before ...*rule) Decision {
	return newDecision(p.otherwise, nil, before)
}

// Resource decides on a resource of a server, by the URI that the server uses.
//
// If any resource of the server may be denied, Resource denies URIs that servers can read in more
// than one way.
func (p *Policy) Resource(server, uri string) Decision {
	if p == nil {
		return Unrestricted
	}
	var at *location
	var err error
	for _, r := range p.rules {
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		if r.whole {
			return r.decision()
		}
		if at == nil {
			at = new(location)
			if *at, err = locate(uri); err != nil && p.restricts(server, resources) {
				return incomparable(err)
			}
		}
		if err == nil && r.selects(*at) {
			return r.decision()
		}
	}
	return p.byDefault()
}

// Template decides whether a client may see a URI template: whether any URI made from it may be
// allowed. Resource decides on each of these URIs.
func (p *Policy) Template(server, uriTemplate string) Decision {
	at, decision, decided := p.template(server, uriTemplate)
	if decided {
		return decision
	}
	for i, r := range p.rules {
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		if r.whole || r.selects(at) {
			return r.decision()
		}
		if r.Action == Allow && isWithin(r.prefix.canonical, at.canonical) && !p.prefixDenied(server, i) {
			return r.decision()
		}
	}
	return p.byDefault()
}

// template returns the location that contains all URIs of a template. It is the zero location,
// which contains everything, if the template has no literal prefix. If the rules are not needed,
// decided is true and d is the decision.
func (p *Policy) template(server, uriTemplate string) (at location, d Decision, decided bool) {
	beginning, open := literalPrefix(uriTemplate)
	switch {
	case p == nil:
		return at, Unrestricted, true
	case !open:
		return at, p.Resource(server, uriTemplate), true
	case beginning == "" || !p.restricts(server, resources):
		return at, d, false
	}
	at, err := locate(beginning)
	if err != nil {
		return at, incomparable(err), true
	}
	return at, d, false
}

// incomparable denies a URI that servers can read in more than one way.
func incomparable(err error) Decision {
	return Decision{reason: "the URI cannot be compared", Err: err}
}

// AllowsAllURIs reports whether every URI made from a template may be read.
func (p *Policy) AllowsAllURIs(server, uriTemplate string) bool {
	at, decision, decided := p.template(server, uriTemplate)
	if decided {
		return decision.Action == Allow
	}
	for _, r := range p.rules {
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		switch {
		case r.whole, r.selects(at):
			return r.Action == Allow
		case r.Action == Deny && (len(at.readings) == 0 || isWithin(r.prefix.readings[0], at.readings[0])):
			return false
		}
	}
	return p.otherwise == Allow
}

// prefixDenied reports whether a rule before the nth denies the prefix of the nth rule.
func (p *Policy) prefixDenied(server string, n int) bool {
	for _, r := range p.rules[:n] {
		if r.Action == Deny && r.kinds&resources != 0 && mcp.MatchName(r.server, server) &&
			r.selects(p.rules[n].prefix) {
			return true
		}
	}
	return false
}

// Shadowed returns a warning for each rule that never applies because an earlier rule with another
// action selects all of its items.
func (p *Policy) Shadowed() (warnings []string) {
	if p == nil {
		return nil
	}
	for i, late := range p.rules {
		for _, early := range p.rules[:i] {
			if early.Action != late.Action && early.covers(late) {
				warnings = append(warnings, fmt.Sprintf("%s never applies, because %s comes before it", late, early))
				break
			}
		}
	}
	return warnings
}

// Fingerprint returns a short hash of the rules, or "" if there are no rules.
func (p *Policy) Fingerprint() string {
	if p == nil {
		return ""
	}
	return p.fingerprint
}

// literalPrefix returns the common beginning of all URIs made from a template, in whole segments. A
// template without variables is not open.
func literalPrefix(template string) (beginning string, open bool) {
	beginning, expression, open := strings.Cut(template, "{")
	if !open || strings.ContainsAny(beginning, "?#") {
		return beginning, open
	}
	if expression != "" && strings.IndexByte("/?&#", expression[0]) >= 0 {
		return beginning, true // the expression begins a new segment
	}
	if i := strings.LastIndexAny(beginning, `/\`); i >= 0 {
		return beginning[:i+1], true
	}
	return beginning[:strings.LastIndexByte(beginning, ':')+1], true
}
