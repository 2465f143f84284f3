// Package acl decides what a client may see and use of the servers behind the gateway.
//
// Tools and prompts are selected by name, resources by what their URI begins with.
// One URI has many spellings, and nobody knows which of them a server takes for the
// same. So it is compared in a form that they have in common, and in doubt it is
// denied.
package acl

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Rule allows or denies what its pattern selects:
//
//	server::*                   everything of a server
//	server::tool                tools
//	tool:server::name           tools
//	prompt:server::name         prompts
//	resource:prefix             resources, of any server
//	resource:server::prefix     resources of a server
//	*                           everything
//
// In names of servers, tools and prompts * stands for any run of characters. As a
// prefix it stands for all; any other is the beginning of a URI, in whole segments.
type Rule struct {
	Allow   bool
	Pattern string
}

// A Policy is what the rules of a client come to. A nil one allows everything. It
// never changes.
type Policy struct {
	rules       []rule
	otherwise   bool
	fingerprint string
}

// New compiles rules. The first that selects something decides on it, and otherwise
// decides on what none of them selects.
func New(rules []Rule, otherwise bool) (*Policy, error) {
	p := &Policy{otherwise: otherwise}
	text := strconv.AppendBool(nil, otherwise)
	for _, r := range rules {
		compiled, err := compile(r)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, compiled)
		text = strconv.AppendQuote(strconv.AppendBool(text, r.Allow), r.Pattern)
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
		if r.Allow && r.kinds&^denied != 0 {
			return true
		}
		if !r.Allow && r.whole {
			denied |= r.kinds
		}
		if denied == everything {
			return false
		}
	}
	return p.otherwise
}

// Restricts reports whether anything of a server may be denied.
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
		if !r.Allow && r.kinds&of&^allowed != 0 {
			return true
		}
		if r.Allow && r.whole {
			allowed |= r.kinds
		}
		if of&^allowed == 0 {
			return false
		}
	}
	return !p.otherwise
}

// Other reports whether a server may be asked for what is neither a tool nor a prompt nor
// a resource: only who may use all that no rule is about may.
func (p *Policy) Other(server string) bool {
	if p == nil {
		return true
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.whole && r.kinds == everything && mcp.MatchName(r.server, server) {
			return r.Allow
		}
	}
	return p.otherwise
}

// Tool reports whether a tool of a server may be used.
func (p *Policy) Tool(server, name string) bool { return p.named(tools, server, name) }

// Prompt reports whether a prompt of a server may be used.
func (p *Policy) Prompt(server, name string) bool { return p.named(prompts, server, name) }

func (p *Policy) named(kind kinds, server, name string) bool {
	if p == nil {
		return true
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.kinds&kind != 0 && mcp.MatchName(r.server, server) && mcp.MatchName(r.name, name) {
			return r.Allow
		}
	}
	return p.otherwise
}

// Resource reports whether a resource of a server may be read. The URI is the one
// the server knows it by.
//
// Where any resource of the server may be denied, one with a URI that can be read in
// more than one way is.
func (p *Policy) Resource(server, uri string) bool {
	if !p.restricts(server, resources) {
		return true
	}
	var at location
	located := false
	for i := range p.rules {
		r := &p.rules[i]
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		if r.whole {
			return r.Allow
		}
		if !located {
			var err error
			if at, err = locate(uri); err != nil {
				return false
			}
			located = true
		}
		if r.selects(at) {
			return r.Allow
		}
	}
	return p.otherwise
}

// Template reports whether a template of a server may be shown: whether something
// that can be made of it may be allowed. What is made of it is up to Resource.
func (p *Policy) Template(server, uriTemplate string) bool {
	at, allowed, decided := p.template(server, uriTemplate)
	if decided {
		return allowed
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		if r.whole || r.selects(at) {
			return r.Allow
		}
		if r.Allow && within(r.at.exact, at.exact) && !p.denied(server, i) {
			return true
		}
	}
	return p.otherwise
}

// template returns the location that the URIs of a template lie in: that of everything,
// unless the template says more. It also reports whether it is decided without the rules
// if they may be read.
func (p *Policy) template(server, uriTemplate string) (at location, allowed, decided bool) {
	beginning, open := literal(uriTemplate)
	switch {
	case !open:
		return at, p.Resource(server, uriTemplate), true
	case !p.restricts(server, resources):
		return at, true, true
	case beginning == "":
		return at, false, false
	}
	at, err := locate(beginning)
	return at, false, err != nil
}

// Everything reports whether all that can be made of a template of a server may be read.
func (p *Policy) Everything(server, uriTemplate string) bool {
	at, allowed, decided := p.template(server, uriTemplate)
	if decided {
		return allowed
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.kinds&resources == 0 || !mcp.MatchName(r.server, server) {
			continue
		}
		switch {
		case r.whole, r.selects(at):
			return r.Allow
		case !r.Allow && (len(at.readings) == 0 || within(r.at.readings[0], at.readings[0])):
			return false
		}
	}
	return p.otherwise
}

// denied reports whether a rule before the nth denies the prefix of the nth.
func (p *Policy) denied(server string, n int) bool {
	for i := range p.rules[:n] {
		r := &p.rules[i]
		if !r.Allow && r.kinds&resources != 0 && mcp.MatchName(r.server, server) && r.selects(p.rules[n].at) {
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
			if early.Allow != late.Allow && early.covers(late) {
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
