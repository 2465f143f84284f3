// Package resourcetemplate stores the resource templates of the gateway itself: texts with
// variables, and aliases of the resources of a server.
package resourcetemplate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Limits of a Set.
const (
	maxTemplates = 1_000
	maxText      = 1 << 20
	maxURI       = 8 << 10
	maxField     = 64 << 10
	maxUses      = 1_000 // of variables in one text
)

// A Set holds the templates of a gateway. It is safe for concurrent use.
type Set struct {
	mu      sync.RWMutex
	byName  map[string]*compiled
	inOrder []*compiled // in order of matching
	counts  *quota.Meter
}

var templatesQuota = quota.NewKind("templates")

// New returns an empty set.
func New() *Set {
	counts := quota.NewMeter(templatesQuota, quota.Limits{Entries: maxTemplates})
	return &Set{byName: map[string]*compiled{}, counts: counts}
}

// Close removes the set from the metrics.
func (s *Set) Close() { s.counts.Close() }

// Put adds a template, or replaces the one of the same name. The error names the invalid
// field.
func (s *Set) Put(t Template) (created bool, err error) {
	c, err := compile(t)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	created = s.byName[t.Name] == nil
	for name, other := range s.byName {
		if name != t.Name && other.URITemplate == t.URITemplate {
			return false, fmt.Errorf("uriTemplate: same as that of %q", name)
		}
	}
	if !created {
		s.counts.Give("", s.byName[t.Name].size())
	}
	if !s.counts.Take("", t.size()) {
		return false, fmt.Errorf("name: the limit of %d templates is reached", maxTemplates)
	}
	s.byName[t.Name] = c
	s.sort()
	return created, nil
}

// Delete removes a template, and reports whether it existed.
func (s *Set) Delete(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byName[name]
	if old == nil {
		return false
	}
	s.counts.Give("", old.size())
	delete(s.byName, name)
	s.sort()
	return true
}

// Replace replaces all templates of the set. If one is invalid, the set stays unchanged.
func (s *Set) Replace(all []Template) error {
	byName := map[string]*compiled{}
	for _, t := range all {
		c, err := compile(t)
		if err != nil {
			return fmt.Errorf("template %q: %w", t.Name, err)
		}
		byName[t.Name] = c
	}
	if len(byName) > maxTemplates {
		return fmt.Errorf("the limit of %d templates is reached", maxTemplates)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.byName {
		s.counts.Give("", c.size())
	}
	for _, c := range byName {
		s.counts.Take("", c.size())
	}
	s.byName = byName
	s.sort()
	return nil
}

// sort sorts the templates for matching. The caller holds the lock.
func (s *Set) sort() {
	inOrder := make([]*compiled, 0, len(s.byName))
	for _, c := range s.byName {
		inOrder = append(inOrder, c)
	}
	slices.SortFunc(inOrder, func(a, b *compiled) int {
		return cmp.Or(cmp.Compare(len(b.uriPattern.prefix()), len(a.uriPattern.prefix())), cmp.Compare(a.Name, b.Name))
	})
	s.inOrder = inOrder
}

// Has reports whether the set has a template of this name.
func (s *Set) Has(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name] != nil
}

// Find returns the template with this URI template, and the URI template at its server.
func (s *Set) Find(uriTemplate string) (t *Template, original string, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.byName {
		if c.URITemplate == uriTemplate {
			return &c.Template, c.URI, true
		}
	}
	return nil, "", false
}

// All returns the templates, sorted by name.
func (s *Set) All() []Template {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]Template, 0, len(s.byName))
	for _, c := range s.byName {
		all = append(all, c.Template)
	}
	slices.SortFunc(all, func(a, b Template) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Match returns the template of a URI, and its text or the URI at its server with the
// variables replaced. If several templates match, the one with the longest literal
// prefix wins, then the first by name.
func (s *Set) Match(uri string) (t *Template, expanded string, ok bool) {
	if len(uri) > maxURI {
		return nil, "", false
	}
	s.mu.RLock()
	inOrder := s.inOrder
	s.mu.RUnlock()
	for _, c := range inOrder {
		values, matches := c.uriPattern.match(uri)
		if !matches {
			continue
		}
		if c.target != nil {
			return &c.Template, c.target.expand(values), true
		}
		return &c.Template, replaceVariables(c.Text, values), true
	}
	return nil, "", false
}

// replaceVariables replaces the variables of a text.
func replaceVariables(text string, values map[string]value) string {
	var pairs []string
	for name, v := range values {
		pairs = append(pairs, "{"+name+"}", v.decoded, "{+"+name+"}", v.decoded)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
