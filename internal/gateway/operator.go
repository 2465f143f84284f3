package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An Operator uses the gateway through the admin API, as one of its clients or without rules. It
// has no capabilities, so servers cannot send it requests. Its sessions with servers end with each
// operation. The gateway keeps no state for it and counts only its calls.
type Operator struct {
	*upstream.Inspection
	scope
	client *client

	received int64 // bytes of the response to the last call
}

// NewOperator returns an operator that acts as the client of this name, or without rules if the
// name is empty. r is the request to the admin API.
func (g *Gateway) NewOperator(r *http.Request, client string) *Operator {
	return newOperator(g, r, identityOf(client))
}

// identityOf returns the identity of a client by name, that of an operator if the name is empty.
func identityOf(client string) string {
	switch client {
	case "":
		return access.OperatorIdentity
	case access.Anonymous:
		return ""
	}
	return client
}

// newOperator returns an operator with an identity.
func newOperator(g *Gateway, r *http.Request, identity string) *Operator {
	caller := g.rules.Caller(identity)
	c := newClient(mcp.Legacy, mcp.Latest, identity, caller.Owner(), readIntroduction(jsonrpc.Encode(map[string]any{
		"protocolVersion": mcp.Latest, "capabilities": struct{}{}, "clientInfo": g.info,
	})))
	c.isolated.Store(true)
	c.inspection = new(upstream.Inspection)
	return &Operator{Inspection: c.inspection, scope: scope{ctx: r.Context(), g: g, r: r}, client: c}
}

// ListTools requests the tools that the client sees from all servers. Patience is the timeout per
// server.
func (o *Operator) ListTools() []ToolList {
	var servers []*upstream.Server
	if !o.g.config.Discovery {
		servers = o.g.visibleServers(o.client.identity)
	}
	return o.gather(servers, func(s *upstream.Server, _ *ToolList) (*catalog.List, *jsonrpc.Failure, string) {
		list, failure := o.listTools(s)
		return list, failure, "tools/list"
	})
}

// An askTools requests the tools of a server. On failure it also returns the method that failed.
type askTools func(s *upstream.Server, into *ToolList) (list *catalog.List, failure *jsonrpc.Failure, method string)

// gather requests the tools of servers, and adds those of the gateway itself.
func (o *Operator) gather(servers []*upstream.Server, ask askTools) []ToolList {
	lists, all := make([]ToolList, len(servers)), make([]*catalog.List, len(servers))
	var group errgroup.Group
	group.SetLimit(maxFanOut)
	for i, s := range servers {
		group.Go(func() error {
			lists[i].Server = s.Name
			list, failure, method := ask(s, &lists[i])
			all[i] = list
			if failure != nil {
				lists[i].Failure, lists[i].Reason = failure, s.Fault(failure, method, o.serverTimeout()).Reason
			}
			return nil
		})
	}
	_ = group.Wait()
	shared := o.g.names.sharedUIs(all)
	for i, s := range servers {
		lists[i].Tools = o.readTools(all[i], shared, s)
	}
	if own := o.g.builtin.list(mcp.Tools, o.client.identity); own != nil {
		lists = append(lists, ToolList{Tools: o.readTools(own, nil, nil)})
	}
	return lists
}

// listTools requests the tools of a server.
func (o *Operator) listTools(s *upstream.Server) (list *catalog.List, failure *jsonrpc.Failure) {
	o.inSession(s, func(sc scope, l *link) { list, failure = o.list(sc, l, s, mcp.Tools, nil) })
	return list, failure
}

// A Check is the result of [Operator.Check].
type Check struct {
	upstream.ServerDescription
	Tools                         []Tool
	Prompts, Resources, Templates int
	Failure                       *jsonrpc.Failure // why the check failed; nil if it succeeded
	Fault                         *upstream.Fault  // Failure in detail, for operators
}

// Check connects to a server and requests all its lists.
func (o *Operator) Check(server string) (result Check) {
	s := o.g.servers[server]
	if s == nil {
		return Check{Failure: jsonrpc.UnknownServer(server)}
	}
	o.inSession(s, func(sc scope, l *link) { o.countItems(sc, l, s, &result) })
	result.ServerDescription = o.Server()
	if result.Failure != nil {
		result.Fault = s.Fault(result.Failure, "tools/list", o.serverTimeout())
	}
	return result
}

// countItems requests all lists of a server. A list that the server does not support counts as
// empty.
func (o *Operator) countItems(sc scope, l *link, s *upstream.Server, result *Check) {
	list, failure := o.list(sc, l, s, mcp.Tools, nil)
	result.Tools = o.readTools(list, nil, s)
	for _, count := range []struct {
		kind mcp.ListKind
		n    *int
	}{{mcp.Prompts, &result.Prompts}, {mcp.Resources, &result.Resources}, {mcp.Templates, &result.Templates}} {
		if failure != nil {
			break
		}
		list, failure = o.list(sc, l, s, count.kind, nil)
		if failure != nil && failure.Code == jsonrpc.CodeMethodNotFound {
			failure = nil
		}
		*count.n = len(list.Ends)
	}
	result.Failure = failure
}

// inSession calls do with a session with a server, within Patience, and ends the session.
func (o *Operator) inSession(s *upstream.Server, do func(scope, *link)) {
	ctx, cancel := context.WithTimeout(o.ctx, o.serverTimeout())
	defer cancel()
	l := o.client.linkTo(s)
	defer o.end(l)
	do(o.withContext(ctx), l)
}

// serverTimeout returns the timeout for a server: Patience or JoinTimeout.
func (o *Operator) serverTimeout() time.Duration { return cmp.Or(o.Patience, o.g.config.JoinTimeout) }

// end ends a session, even if the operator's request was canceled.
func (o *Operator) end(l *link) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), o.g.config.JoinTimeout)
	defer cancel()
	l.end(o.withContext(ctx))
}

// list requests a list. It is empty if the server has no such list. The explainer may be nil.
func (o *Operator) list(sc scope, l *link, s *upstream.Server, k mcp.ListKind, e *explainer) (
	*catalog.List, *jsonrpc.Failure,
) {
	if failure := l.open(sc); failure != nil {
		return catalog.Empty, failure
	}
	if l.session.current().Can&mcp.ListKinds[k].Needs == 0 {
		return catalog.Empty, nil
	}
	q := &listQuery{scope: sc, client: o.client, server: s, kind: k, explain: e}
	list, _, failure := q.fetch(l)
	if failure != nil {
		return catalog.Empty, failure
	}
	return list, nil
}

// A ToolCall is a tool call of an operator.
type ToolCall struct {
	Name    string // name that clients use
	Address string // address of the operator

	// Arguments returns the arguments as a JSON object. tool is nil if the client may not call it
	// or the list request failed; the call then returns the reason. If the server does not have the
	// tool, names are the tools that it has.
	Arguments func(tool *Tool, names []string) ([]byte, error)
}

// Call calls a tool. It writes the response to w as clients of the aggregate endpoint get it, with
// preceding notifications. It fails if c.Arguments fails.
func (o *Operator) Call(w http.ResponseWriter, c ToolCall) error {
	tool, names, s := o.find(c.Name)
	if s != nil {
		defer o.end(o.client.linkTo(s))
	}
	arguments, err := c.Arguments(tool, names)
	if err != nil {
		return err
	}
	name := c.Name
	if s != nil && o.g.names.areUnchanged() {
		_, name = o.g.names.tool(name)
	}
	params := jsonrpc.Encode(map[string]any{
		"name": name, "arguments": json.RawMessage(arguments), "_meta": map[string]any{"progressToken": 1},
	})
	r := o.r.Clone(o.ctx)
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	httpbody.Post(r, jsonrpc.RequestAs([]byte("1"), "tools/call", params))
	o.BeginCall()
	q := o.g.gate.NewRequest(w, r, inbound.Endpoint{Kind: upstream.Aggregate}, inbound.Peer{Address: c.Address})
	q.ActAs(&inbound.Operator{
		Identity: o.client.identity, Inspection: o.Inspection,
		Serve: func(q *inbound.Request) *jsonrpc.Failure { return aggregate{o.g}.serve(q, o.client) },
	})
	q.Serve()
	o.received = q.Traffic.Received
	return nil
}

// ServerOf returns the server of a tool, by the name that clients of the aggregate endpoint use.
// The server is "" for tools of the gateway itself. It reports false if there is no such server.
func (g *Gateway) ServerOf(tool string) (server string, ok bool) {
	if g.builtin.tool(tool) != nil {
		return "", true
	}
	s, _ := g.names.tool(tool)
	if s == nil {
		return "", false
	}
	return s.Name, true
}

// Received returns the bytes of the server's response to the last call, before masking.
func (o *Operator) Received() int64 { return o.received }

// find returns a tool and its server. If the server does not have the tool, it returns the names of
// those that it has.
func (o *Operator) find(name string) (tool *Tool, names []string, s *upstream.Server) {
	if tool := o.builtinTool(name); tool != nil {
		return tool, nil, nil
	}
	s, rest := o.g.names.tool(name)
	if s == nil {
		return nil, nil, nil
	}
	caller := o.g.rules.Caller(o.client.identity)
	target := mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: s.Overrides.ServerName(rest)}
	annotated := caller.Policy().NeedsAnnotations(s.Name, target.Name) // only the list has annotations
	if !annotated && !caller.Allows(target) {
		return nil, nil, s
	}
	ctx, cancel := context.WithTimeout(o.ctx, o.serverTimeout())
	defer cancel()
	list, failure := o.list(o.withContext(ctx), o.client.linkTo(s), s, mcp.Tools, nil)
	if failure != nil {
		return nil, nil, s
	}
	if tool, names = findTool(o.readTools(list, nil, s), o.g.names.shownTool(s, rest)); tool == nil && annotated {
		return nil, nil, s // the tool may exist, but not for the client
	}
	return tool, names, s
}

// builtinTool returns a tool of the gateway itself, nil if there is none of this name.
func (o *Operator) builtinTool(name string) *Tool {
	own := o.g.builtin.list(mcp.Tools, o.client.identity)
	if own == nil || o.g.builtin.tool(name) == nil {
		return nil
	}
	tool, _ := findTool(o.readTools(own, nil, nil), name)
	return tool
}

// findTool returns the tool with a name. If there is none, it returns all names, sorted.
func findTool(all []Tool, name string) (_ *Tool, names []string) {
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	slices.SortFunc(names, strings.Compare)
	return nil, names
}

// A ToolList has the tools of a server, as a client of the aggregate endpoint sees them.
type ToolList struct {
	Server  string // "" for tools of the gateway itself
	Tools   []Tool
	Failure *jsonrpc.Failure // why the server could not be reached; nil if it could
	Reason  string           // Failure in detail, for operators

	// Explained has the decisions of [Operator.Explain] on all items of the server.
	Explained []Explanation
}

// A Tool is a tool as a client sees it.
type Tool struct {
	Name         string
	Qualified    string   // <server>::<name>, also with another separator; "" without a server
	Original     string   // name at the server, if different
	Clients      []string // names of the configured clients that may call it
	Definition   []byte   // JSON
	WithoutFocus []byte   // Definition without the focus argument, see [toolview.Focus]
}

// readTools returns the tools of a list. s is nil for the list of the gateway itself.
func (o *Operator) readTools(list *catalog.List, shared catalog.SharedUIs, s *upstream.Server) []Tool {
	all := make([]Tool, len(list.Ends))
	for i := range all {
		t := &all[i]
		t.Definition = list.From(i, i+1, shared)
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(t.Definition, &named) // valid: it was parsed before
		t.Name, t.WithoutFocus = named.Name, t.Definition
		if list.Focused[t.Name] != "" {
			t.WithoutFocus = s.Focus.RemovedFrom(t.Definition)
		}
		target := o.g.names.toolTarget(list, s, t.Name)
		t.Clients = o.g.rules.Users(target, mcp.ReadAnnotations(t.Definition))
		if s == nil {
			continue
		}
		_, rest := o.g.names.tool(t.Name)
		t.Qualified = s.Name + mcp.Separator + rest
		if s.Overrides.ClientName(target.Name) != target.Name {
			t.Original = target.Name
		}
	}
	return all
}

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
	s, rest := o.g.names.tool(name)
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
	shown := o.g.names.shownTool(s, rest)
	d.Tool, d.Names = findTool(o.readTools(list, nil, s), shown)
	for i := range e.all {
		tool := e.all[i].Name
		name := s.Overrides.ClientName(tool)
		if o.g.names.shown(s.Name, mcp.Tools, name) == shown && s.Overrides.ServerName(name) == tool {
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
