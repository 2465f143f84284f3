package gateway

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An Explanation is a decision on an item of a server, for a client.
type Explanation struct {
	Kind        string          // tool, prompt, resource or template
	Name        string          // name, URI or URI template at the server
	Shown       string          // name that the client sees; "" if hidden
	Annotations mcp.Annotations // tools only
	Decision    acl.Decision
}

// An explainedKind is a kind of list that Explain covers.
type explainedKind struct {
	list mcp.ListKind
	name string // of one item
}

var explainedKinds = []explainedKind{
	{mcp.Tools, "tool"}, {mcp.Prompts, "prompt"}, {mcp.Resources, "resource"}, {mcp.Templates, "template"},
}

// An explainer records decisions on list items, for a client other than the one that requests the
// list.
type explainer struct {
	client access.Caller
	kind   string // kind of item
	all    []Explanation
	size   int // bytes of the texts in all
}

// Explain requests all lists of all servers, and returns the decision on each item for a client. It
// sends the requests without rules, because a client does not connect to servers that it may not
// use.
func (o *Operator) Explain(client string) []ToolList {
	ask := func(s *upstream.Server, into *ToolList) (list *catalog.List, failed *jsonrpc.Failure, method string) {
		e := o.explainer(client)
		list = catalog.Empty
		o.inSession(s, func(sc scope, l *link) {
			for _, k := range explainedKinds {
				e.kind = k.name
				found, failure := o.list(sc, l, s, k.list, e)
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

// explainer returns an explainer for a client, or for an operator if the name is empty.
func (o *Operator) explainer(client string) *explainer {
	caller := o.g.rules.Caller(identityOf(client))
	caller.Identity = o.client.identity // owner of the lists and of cached state
	caller.Askable = true
	return &explainer{client: caller}
}

// A Description is the result of [Operator.Describe].
type Description struct {
	Server string // "" for the gateway itself
	Tool   *Tool  // nil if no client sees the tool

	Names        []string // tools of the server, if Tool is nil
	HiddenReason string   // why the tool is hidden; "" if the server does not have it

	// Explanation is the decision on the tool for the client; nil if no client was given.
	Explanation *Explanation

	Failure *jsonrpc.Failure // why the server could not be reached; nil if it could
	Reason  string           // Failure in detail, for operators
}

// Describe requests the definition of a tool from its server. If client is not empty, it also
// returns the decision for this client, which may not see the tool. See [Gateway.ServerOf] for the
// name.
func (o *Operator) Describe(name, client string) (d Description) {
	if d.Tool = o.builtinTool(name); d.Tool != nil {
		if client != "" {
			e := o.explainer(client)
			d.Explanation = &Explanation{
				Kind: "tool", Name: name, Shown: name, Annotations: mcp.ReadAnnotations(d.Tool.Definition),
				Decision: e.client.Decide(mcp.Target{Kind: mcp.Tool, Name: name}),
			}
		}
		return d
	}
	s, rest := o.g.serverOfTool(name)
	if s == nil {
		return d
	}
	d.Server = s.Name
	o.inSession(s, func(sc scope, l *link) {
		if client != "" {
			d.Explanation = o.describe(&d, sc, l, rest, o.explainer(client))
		}
		if d.Tool != nil || d.Failure != nil {
			return
		}
		if e := o.describe(&d, sc, l, rest, o.explainer("")); d.Tool == nil && e != nil {
			d.HiddenReason = e.Decision.Reason()
		}
	})
	if d.Failure != nil {
		d.Reason = s.Fault(d.Failure, mcp.ListKinds[mcp.Tools].Method, o.serverTimeout()).Reason
	}
	return d
}

// describe looks for a tool in the list that the explainer's client sees. rest is the tool name
// without the server. It returns the decision, nil if the server does not have the tool.
func (o *Operator) describe(d *Description, sc scope, l *link, rest string, e *explainer) *Explanation {
	s := o.g.servers[d.Server]
	e.kind = "tool"
	list, failure := o.list(sc, l, s, mcp.Tools, e)
	d.Failure = failure
	if failure != nil {
		return nil
	}
	shown := o.g.shownToolName(s, rest)
	d.Tool, d.Names = findTool(o.g.readTools(list, nil, s), shown)
	for i := range e.all {
		tool := e.all[i].Name
		name := s.Overrides.ClientName(tool)
		if o.g.shownName(s.Name, mcp.Tools, name) == shown && s.Overrides.ServerName(name) == tool {
			return &e.all[i]
		}
	}
	return nil
}

// note records the decision on an item.
func (e *explainer) note(b *builder, item *mcp.Item, d acl.Decision) {
	found := Explanation{Kind: e.kind, Name: item.Name, Decision: d}
	if e.client.IsShown(d) {
		found.Shown = b.shownName(item.Name)
	}
	if b.kind == mcp.Tools {
		found.Annotations = b.server.Overrides.Annotations(item.Name, item.Raw)
	}
	e.all = append(e.all, found)
	e.size += len(found.Name) + len(found.Shown) + len(d.Reason())
}

// full reports whether the items of the server exceed the size limit.
func (e *explainer) full() bool { return e != nil && e.size > maxListing }
