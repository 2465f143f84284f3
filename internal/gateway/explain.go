package gateway

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
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
	list mcp.ListKind
	name string // of an item
}

var explainedKinds = []explainedKind{
	{mcp.Tools, "tool"}, {mcp.Prompts, "prompt"}, {mcp.Resources, "resource"}, {mcp.Templates, "template"},
}

// An explainer notes what is decided on the items of lists for a client that has not asked for them.
type explainer struct {
	client access.Caller
	kind   string // of the list
	all    []Explanation
	size   int // bytes of texts in all
}

// Explain asks all servers for all that they have, and decides on it for a client as its lists and calls
// do. The servers are asked without rules: the client would not ask those of which it may use nothing.
func (o *Operator) Explain(client string) []ToolList {
	ask := func(s *upstream.Server, into *ToolList) (list *catalog.List, failed *jsonrpc.Failure, method string) {
		e := o.explainer(client)
		list = catalog.Empty
		o.at(s, func(at behalf, l *link) {
			for _, k := range explainedKinds {
				e.kind = k.name
				found, failure := o.list(at, l, s, k.list, e)
				if failure != nil && (k.list == mcp.Tools || failure.Code != jsonrpc.CodeMethodNotFound) {
					failed, method = failure, mcp.ListKinds[k.list].Method
					return
				}
				if k.list == mcp.Tools && !o.g.config.Discovery {
					list = found
				}
			}
		})
		into.Explained = e.all
		return list, failed, method
	}
	return o.gather(o.g.config.Servers, ask)
}

// explainer returns an explainer for a client, or for the operator if the name is empty.
func (o *Operator) explainer(client string) *explainer {
	who := o.g.rules.Caller(identityOf(client))
	who.Identity = o.client.identity // who gets the lists, and what is remembered of them
	who.Askable = true
	return &explainer{client: who}
}

// A Description is what there is to know of a tool.
type Description struct {
	Server string // that has it; "" for the gateway itself
	Tool   *Tool  // nil if no client can see it

	Names []string // of the tools that the server has, if Tool is nil
	Why   string   // Tool is nil although the server has it; "" if it does not

	// Explanation is what is decided on the tool for the client, nil if none was named.
	Explanation *Explanation

	Failure *jsonrpc.Failure // why the server could not be asked; nil if it could
	Reason  string           // the same in full, for operators
}

// Describe asks the server of a tool for its definition. If client is not empty, it also decides on the tool for
// this client, which need not see it. See [Gateway.ServerOf] for the name.
func (o *Operator) Describe(name, client string) (d Description) {
	if d.Tool = o.own(name); d.Tool != nil {
		if e := o.explainer(client); client != "" {
			d.Explanation = &Explanation{
				Kind: "tool", Name: name, Shown: name, Annotations: mcp.ReadAnnotations(d.Tool.Definition),
				Decision: e.client.Decide(mcp.Target{Kind: mcp.Tool, Name: name}),
			}
		}
		return d
	}
	s, rest := o.g.serverOf(name)
	if s == nil {
		return d
	}
	d.Server = s.Name
	o.at(s, func(at behalf, l *link) {
		if client != "" {
			d.Explanation = o.describe(&d, at, l, rest, o.explainer(client))
		}
		if d.Tool != nil || d.Failure != nil {
			return
		}
		if e := o.describe(&d, at, l, rest, o.explainer("")); d.Tool == nil && e != nil {
			d.Why = e.Decision.Reason()
		}
	})
	if d.Failure != nil {
		d.Reason = s.Fault(d.Failure, mcp.ListKinds[mcp.Tools].Method, o.wait()).Reason
	}
	return d
}

// describe looks for a tool in the list that an explainer's client sees, by its name without that of the server. It
// returns what was decided on the tool, nil if the server does not have it.
func (o *Operator) describe(d *Description, at behalf, l *link, rest string, e *explainer) *Explanation {
	s := o.g.servers[d.Server]
	e.kind = "tool"
	list, failure := o.list(at, l, s, mcp.Tools, e)
	if d.Failure = failure; failure != nil {
		return nil
	}
	shown := o.g.shownAs(s, rest)
	d.Tool, d.Names = pick(o.g.readTools(list, nil, s), shown)
	for i := range e.all {
		tool := e.all[i].Name
		name := s.Overrides.Shown(tool)
		if o.g.shown(s.Name, mcp.Tools, name) == shown && s.Overrides.Original(name) == tool {
			return &e.all[i]
		}
	}
	return nil
}

// note notes what was decided on an item of a list.
func (e *explainer) note(b *builder, item *mcp.Item, d acl.Decision) {
	found := Explanation{Kind: e.kind, Name: item.Name, Decision: d}
	if e.client.IsShown(d) {
		found.Shown = b.shown(item.Name)
	}
	if b.kind == mcp.Tools {
		found.Annotations = b.server.Overrides.Annotations(item.Name, item.Raw)
	}
	e.all = append(e.all, found)
	e.size += len(found.Name) + len(found.Shown) + len(d.Reason())
}

// full reports whether a server has more than can be explained.
func (e *explainer) full() bool { return e != nil && e.size > maxListing }
