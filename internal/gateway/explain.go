package gateway

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An Explanation is what was decided on something that a server has, for a client.
type Explanation struct {
	Kind        string          // tool, prompt, resource or template
	Name        string          // as the server has it; a URI, or a template of URIs
	Shown       string          // as the client sees it; "" if it does not
	Annotations mcp.Annotations // of a tool
	Decision    acl.Decision
}

// An explainedKind is a list that is explained.
type explainedKind struct {
	list listKind
	name string // of an item
}

var explainedKinds = []explainedKind{
	{tools, "tool"}, {prompts, "prompt"}, {resources, "resource"}, {templates, "template"},
}

// An explainer notes what is decided on the items of lists for a client that has not asked for them.
type explainer struct {
	client caller
	kind   string // of the list
	all    []Explanation
	size   int // bytes of texts in all
}

// Explain asks all servers for all that they have, and decides on it for a client as its lists and calls
// do. The servers are asked without rules: the client would not ask those of which it may use nothing.
func (o *Operator) Explain(client string) []ToolList {
	who := o.g.rules.caller(identityOf(client))
	who.identity = o.client.identity // who gets the lists, and what is remembered of them
	who.askable = true
	ask := func(s *Server, into *ToolList) (list *listing, failed *jsonrpc.Failure, method string) {
		e := &explainer{client: who}
		list = emptyListing
		o.at(s, func(at behalf, l *link) {
			for _, k := range explainedKinds {
				e.kind = k.name
				found, failure := o.list(at, l, s, k.list, e)
				if failure != nil && (k.list == tools || failure.Code != jsonrpc.CodeMethodNotFound) {
					failed, method = failure, kinds[k.list].method
					return
				}
				if k.list == tools && !o.g.config.Discovery {
					list = found
				}
			}
		})
		into.Explained = e.all
		return list, failed, method
	}
	return o.gather(o.g.config.Servers, ask)
}

// note notes what was decided on an item of a list.
func (e *explainer) note(b *builder, item *mcp.Item, d acl.Decision) {
	found := Explanation{Kind: e.kind, Name: item.Name, Decision: d}
	if e.client.isShown(d) {
		found.Shown = b.shown(item.Name)
	}
	if b.kind == tools {
		found.Annotations = b.server.annotations(item.Name, item.Raw)
	}
	e.all = append(e.all, found)
	e.size += len(found.Name) + len(found.Shown) + len(d.Reason())
}

// full reports whether a server has more than can be explained.
func (e *explainer) full() bool { return e != nil && e.size > maxListing }
