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
	return g.newOperator(r, identityOf(client))
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
func (g *Gateway) newOperator(r *http.Request, identity string) *Operator {
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
	shared := o.g.sharedUIs(all)
	for i, s := range servers {
		lists[i].Tools = o.g.readTools(all[i], shared, s)
	}
	if own := o.g.builtin.list(mcp.Tools, o.client.identity); own != nil {
		lists = append(lists, ToolList{Tools: o.g.readTools(own, nil, nil)})
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
	result.Tools = o.g.readTools(list, nil, s)
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
	if _, can := l.state(); can&mcp.ListKinds[k].Needs == 0 {
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
	if s != nil && o.g.transparent() {
		_, name = o.g.serverOfTool(name)
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
		Serve: func(q *inbound.Request) *jsonrpc.Failure { return o.g.serve(q, o.client) },
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
	s, _ := g.serverOfTool(tool)
	if s == nil {
		return "", false
	}
	return s.Name, true
}

// serverOfTool returns the server of a tool, nil if there is none, and the name without the server.
func (g *Gateway) serverOfTool(tool string) (_ *upstream.Server, rest string) {
	if g.transparent() {
		s := g.config.Servers[0]
		return s, strings.TrimPrefix(tool, s.Name+mcp.Separator)
	}
	server, rest, _ := g.config.Naming.Split(tool, func(server string) bool { return g.servers[server] != nil })
	return g.servers[server], rest
}

// shownToolName returns the canonical name of a tool that clients see. rest is the name without the
// server.
func (g *Gateway) shownToolName(s *upstream.Server, rest string) string {
	if g.transparent() {
		return rest
	}
	return s.Name + g.config.Naming.Separator + rest
}

// Received returns the bytes of the server's response to the last call, before masking.
func (o *Operator) Received() int64 { return o.received }

// find returns a tool and its server. If the server does not have the tool, it returns the names of
// those that it has.
func (o *Operator) find(name string) (tool *Tool, names []string, s *upstream.Server) {
	if tool := o.builtinTool(name); tool != nil {
		return tool, nil, nil
	}
	s, rest := o.g.serverOfTool(name)
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
	if tool, names = findTool(o.g.readTools(list, nil, s), o.g.shownToolName(s, rest)); tool == nil && annotated {
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
	tool, _ := findTool(o.g.readTools(own, nil, nil), name)
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
