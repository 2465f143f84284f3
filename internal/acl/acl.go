// Package acl decides what a client may see and use of the servers behind the gateway.
//
// Tools are selected by name and by what they do, prompts by name, resources by what their
// URI begins with. One URI has many spellings, and which of them a server takes for the same is not
// known. So it is compared in a form that they have in common, and in doubt it is
// denied.
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

// An Action is what a rule does with what it selects.
type Action uint8

const (
	Deny    Action = iota
	Confirm        // it is allowed if the person at the client agrees to each call
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

// A Rule says what happens to what its pattern selects:
//
//	server::*                   everything of a server
//	server::tool                tools
//	tool:server::name           tools
//	read_only                   tools with this annotation; so do destructive, idempotent, open_world
//	read_only:server::name      those of them
//	prompt:server::name         prompts
//	resource:prefix             resources, of any server
//	resource:server::prefix     resources of a server
//	*                           everything
//
// In names of servers, tools and prompts * stands for any run of characters. As a
// prefix it stands for all; any other is the beginning of a URI, in whole segments.
// A rule that confirms, or has a condition, selects tools only.
type Rule struct {
	Action  Action
	Pattern string
	When    *condition.Condition // nil to select all that the pattern does
}

// A Tool is what is known of a tool that a client lists or calls.
type Tool struct {
	condition.Facts
	Askable bool // the client can ask a person to confirm a call
}

// A Decision is what a policy says to something.
type Decision struct {
	Action  Action
	Depends bool    // on the arguments, which are not known: others may be denied
	before  []*rule // that decide if their conditions hold, which depends on the arguments
	Err     error   // why it is denied, if that is not what a rule says
	rule    *rule   // that decided; nil if none has
	reason  string  // if not by a rule; "" for the default of the policy
}

// newDecision returns that of a rule, or the default if it is nil, unless one of the rules before it decides.
// Whether one of them denies makes no difference to what is denied anyway.
func newDecision(action Action, by *rule, before []*rule) Decision {
	if action == Deny {
		before = nil
	}
	return Decision{Action: action, Depends: len(before) > 0, rule: by, before: before}
}

// Because returns a decision that was not made by a rule, and for which reason it was made.
func Because(reason string, action Action) Decision { return Decision{Action: action, reason: reason} }

// Reason returns the rule that decided, as it is written, or why there is none, and what is wrong.
func (d Decision) Reason() string {
	reason := d.reason
	switch {
	case d.rule != nil:
		reason = d.rule.String()
	case reason == "":
		reason = "default " + d.Action.String()
	}
	for _, r := range slices.Backward(d.before) {
		reason = r.String() + ", else " + reason
	}
	if d.Err != nil {
		reason += ": " + d.Err.Error()
	}
	return reason
}

// Unrestricted is the decision on everything where there are no rules.
var Unrestricted = Because("no rules", Allow)

// A Policy is what the rules of a client come to. A nil one allows everything. It
// never changes.
type Policy struct {
	rules       []rule
	otherwise   Action
	fingerprint string
}

// New compiles rules. The first that selects something decides on it, and otherwise
// decides on what none of them selects.
func New(rules []Rule, otherwise Action) (*Policy, error) {
	p := &Policy{otherwise: otherwise}
	text := []byte{byte(otherwise)}
	for _, r := range rules {
		compiled, err := compile(r)
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

// Server reports whether anything of a server may be allowed. If not, there is no
// reason to contact it.
func (p *Policy) Server(server string) bool {
	if p == nil {
		return true
	}
	var denied kinds
	for i := range p.rules {
		r := &p.rules[i]
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

// Restricts reports whether anything of a server may be denied, or needs to be confirmed.
func (p *Policy) Restricts(server string) bool { return p.restricts(server, everything) }

// RestrictsResources reports whether any resource of a server may be denied.
func (p *Policy) RestrictsResources(server string) bool { return p.restricts(server, resources) }

func (p *Policy) restricts(server string, of kinds) bool {
	if p == nil {
		return false
	}
	var allowed kinds
	for i := range p.rules {
		r := &p.rules[i]
		if !mcp.MatchName(r.server, server) {
			continue
		}
		if r.Action != Allow && r.kinds&of&^allowed != 0 {
			return true
		}
		if r.Action == Allow && r.whole {
			allowed |= r.kinds
		}
		if of&^allowed == 0 {
			return false
		}
	}
	return p.otherwise != Allow
}

// Other reports whether a server may be asked for what is neither a tool nor a prompt nor
// a resource: only who may use all that no rule is about may.
func (p *Policy) Other(server string) bool {
	if p == nil {
		return true
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.whole && r.kinds == everything && mcp.MatchName(r.server, server) {
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

// Tool decides on a tool whatever its arguments are: it is denied if there are none with which it
// may be called.
func (p *Policy) Tool(t *Tool) Decision { return p.tool(t, (*condition.Condition).Possible) }

func (p *Policy) tool(t *Tool, judge func(*condition.Condition, *condition.Facts) (condition.Verdict, error)) Decision {
	if p == nil {
		return Unrestricted
	}
	var before []*rule
	for i := range p.rules {
		r := &p.rules[i]
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
	for i := range p.rules {
		switch r := &p.rules[i]; {
		case !r.names(tools, server, name):
		case r.usesAnnotations():
			return true
		case r.When == nil:
			return false
		}
	}
	return false
}

// UsesAnnotations reports whether any rule depends on the annotations of tools.
func (p *Policy) UsesAnnotations() bool {
	return p != nil && slices.ContainsFunc(p.rules, func(r rule) bool { return r.usesAnnotations() })
}

// Prompt decides on a prompt of a server.
func (p *Policy) Prompt(server, name string) Decision {
	if p == nil {
		return Unrestricted
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.names(prompts, server, name) {
			return r.decision()
		}
	}
	return p.byDefault()
}

// byDefault returns the decision on what no rule selects.
func (p *Policy) byDefault(before ...*rule) Decision {
	return newDecision(p.otherwise, nil, before)
}

// Resource decides on a resource of a server. The URI is the one the server knows it by.
//
// Where any resource of the server may be denied, one with a URI that can be read in
// more than one way is.
func (p *Policy) Resource(server, uri string) Decision {
	if p == nil {
		return Unrestricted
	}
	var at *location
	var err error
	for i := range p.rules {
		r := &p.rules[i]
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

// Template decides whether a template of a server may be shown: whether something
// that can be made of it may be allowed. What is made of it is up to Resource.
func (p *Policy) Template(server, uriTemplate string) Decision {
	at, decision, decided := p.template(server, uriTemplate)
	if decided {
		return decision
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		if r.whole || r.selects(at) {
			return r.decision()
		}
		if r.Action == Allow && within(r.at.exact, at.exact) && !p.denied(server, i) {
			return r.decision()
		}
	}
	return p.byDefault()
}

// template returns the location that the URIs of a template lie in: that of everything,
// unless the template says more. It also reports whether it is decided without the rules
// if they may be read.
func (p *Policy) template(server, uriTemplate string) (at location, d Decision, decided bool) {
	beginning, open := literal(uriTemplate)
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

// incomparable denies something with a URI that can be read in more than one way.
func incomparable(err error) Decision {
	return Decision{reason: "the URI cannot be compared", Err: err}
}

// Everything reports whether all that can be made of a template of a server may be read.
func (p *Policy) Everything(server, uriTemplate string) bool {
	at, decision, decided := p.template(server, uriTemplate)
	if decided {
		return decision.Action == Allow
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		switch {
		case r.whole, r.selects(at):
			return r.Action == Allow
		case r.Action == Deny && (len(at.readings) == 0 || within(r.at.readings[0], at.readings[0])):
			return false
		}
	}
	return p.otherwise == Allow
}

// denied reports whether a rule before the nth denies the prefix of the nth.
func (p *Policy) denied(server string, n int) bool {
	for i := range p.rules[:n] {
		r := &p.rules[i]
		if r.Action == Deny && r.kinds&resources != 0 && mcp.MatchName(r.server, server) && r.selects(p.rules[n].at) {
			return true
		}
	}
	return false
}

// Shadowed tells of the rules that never decide because one before them decides to
// the contrary on all they select. Who wrote them meant something else.
func (p *Policy) Shadowed() (warnings []string) {
	if p == nil {
		return nil
	}
	for i := range p.rules {
		for j := range p.rules[:i] {
			late, early := &p.rules[i], &p.rules[j]
			if early.Action != late.Action && early.covers(late) {
				warnings = append(warnings, fmt.Sprintf("%s never applies, because %s comes before it", late, early))
				break
			}
		}
	}
	return warnings
}

// Fingerprint returns a short text that is the same for the same rules, and empty if
// there are none.
func (p *Policy) Fingerprint() string {
	if p == nil {
		return ""
	}
	return p.fingerprint
}

// literal returns what every URI made of a template begins with, in whole segments.
// A template without variables is not open.
func literal(template string) (beginning string, open bool) {
	beginning, expression, open := strings.Cut(template, "{")
	if !open || strings.ContainsAny(beginning, "?#") {
		return beginning, open
	}
	if expression != "" && strings.IndexByte("/?&#", expression[0]) >= 0 {
		return beginning, true // a segment ends where it begins
	}
	if i := strings.LastIndexAny(beginning, `/\`); i >= 0 {
		return beginning[:i+1], true
	}
	return beginning[:strings.LastIndexByte(beginning, ':')+1], true
}
