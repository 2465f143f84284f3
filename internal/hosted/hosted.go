// Package hosted keeps resource templates that the gateway has itself: texts with
// variables, and narrow windows to the resources of a server.
package hosted

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Template is a resource template. A resource of it is either a text or one of a
// server.
type Template struct {
	Name        string `json:"name"`
	URITemplate string `json:"uriTemplate"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	MIMEType    string `json:"mimeType,omitempty"`

	// The text in which {variables} of URITemplate stand for their values. Other
	// braces are text.
	Text string `json:"text,omitempty"`

	// The server that has the resource, and the template of its URI there.
	Server string `json:"server,omitempty"`
	URI    string `json:"uri,omitempty"`

	listed []byte // its descriptor, once it is kept
}

// What a Templates keeps at most.
const (
	maxTemplates = 1_000
	maxText      = 1 << 20
	maxURI       = 8 << 10
	maxField     = 64 << 10
	maxUses      = 1_000 // of variables in one text
)

// Templates are the templates of a gateway. They are safe for concurrent use.
type Templates struct {
	mu      sync.RWMutex
	byName  map[string]*hosting
	inOrder []*hosting // the order in which URIs are matched
	counts  *quota.Meter
}

var keptTemplates = quota.NewKind("templates")

// A hosting is a template that has been read.
type hosting struct {
	Template
	address *pattern
	target  *pattern // nil if it is a text
}

// New returns templates of which there are none yet.
func New() *Templates {
	return &Templates{byName: map[string]*hosting{}, counts: quota.NewMeter(keptTemplates, quota.Limits{Entries: maxTemplates})}
}

// Close says that the templates are no longer used.
func (ts *Templates) Close() { ts.counts.Close() }

// size returns how many bytes a template has.
func (t *Template) size() int64 {
	return int64(len(t.Name) + len(t.URITemplate) + len(t.Title) + len(t.Description) + len(t.MIMEType) + len(t.Text) + len(t.Server) + len(t.URI))
}

// Put adds a template, or puts it in the place of the one of the same name. The error
// names the field that makes no sense.
func (ts *Templates) Put(t Template) (created bool, err error) {
	h, err := read(t)
	if err != nil {
		return false, err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	created = ts.byName[t.Name] == nil
	for name, other := range ts.byName {
		if name != t.Name && other.URITemplate == t.URITemplate {
			return false, fmt.Errorf("uriTemplate: %q has the same", name)
		}
	}
	if !created {
		ts.counts.Give("", ts.byName[t.Name].size())
	}
	if !ts.counts.Take("", t.size()) {
		return false, fmt.Errorf("name: there are %d templates already", maxTemplates)
	}
	ts.byName[t.Name] = h
	ts.arrange()
	return created, nil
}

// Delete reports whether there was a template of this name. There is none any more.
func (ts *Templates) Delete(name string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	old := ts.byName[name]
	if old == nil {
		return false
	}
	ts.counts.Give("", old.size())
	delete(ts.byName, name)
	ts.arrange()
	return true
}

// arrange brings the templates in order. The caller holds the lock.
func (ts *Templates) arrange() {
	inOrder := make([]*hosting, 0, len(ts.byName))
	for _, h := range ts.byName {
		inOrder = append(inOrder, h)
	}
	slices.SortFunc(inOrder, func(a, b *hosting) int {
		return cmp.Or(cmp.Compare(len(b.address.prefix()), len(a.address.prefix())), cmp.Compare(a.Name, b.Name))
	})
	ts.inOrder = inOrder
}

// Has reports whether there is a template of this name.
func (ts *Templates) Has(name string) bool {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.byName[name] != nil
}

// Find returns the template with this URI template, and that of the server that it leads
// to, if it does.
func (ts *Templates) Find(uriTemplate string) (t *Template, original string, ok bool) {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	for _, h := range ts.byName {
		if h.URITemplate == uriTemplate {
			return &h.Template, h.URI, true
		}
	}
	return nil, "", false
}

// All returns the templates, sorted by name.
func (ts *Templates) All() []Template {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	all := make([]Template, 0, len(ts.byName))
	for _, h := range ts.byName {
		all = append(all, h.Template)
	}
	slices.SortFunc(all, func(a, b Template) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Descriptor returns what resources/templates/list shows of a template, which must not
// be changed.
func (t *Template) Descriptor() []byte {
	if t.listed != nil {
		return t.listed
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(struct { // texts always can be
		URITemplate string `json:"uriTemplate"`
		Name        string `json:"name"`
		Title       string `json:"title,omitempty"`
		Description string `json:"description,omitempty"`
		MIMEType    string `json:"mimeType,omitempty"`
	}{t.URITemplate, t.Name, t.Title, t.Description, t.MIMEType})
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// Match returns the template that a URI is of, and what its values make of the text, or
// of the URI at the server. If several match, it is the one with the longest beginning
// that is not a variable, and the first by name of these.
func (ts *Templates) Match(uri string) (t *Template, expanded string, ok bool) {
	if len(uri) > maxURI {
		return nil, "", false
	}
	ts.mu.RLock()
	inOrder := ts.inOrder
	ts.mu.RUnlock()
	for _, h := range inOrder {
		values, matches := h.address.match(uri)
		if !matches {
			continue
		}
		if h.target != nil {
			return &h.Template, h.target.expand(values), true
		}
		return &h.Template, fill(h.Text, values), true
	}
	return nil, "", false
}

// fill puts values in the place of the variables of a text.
func fill(text string, values map[string]value) string {
	var pairs []string
	for name, v := range values {
		pairs = append(pairs, "{"+name+"}", v.decoded, "{+"+name+"}", v.decoded)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
