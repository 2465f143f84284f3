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

// An Operator uses a gateway by the admin API: as one of its clients, or without rules. It has no
// capabilities, so servers cannot ask it questions. Its sessions with servers end with what it
// does. The gateway remembers nothing of it, and counts only its calls.
type Operator struct {
	*upstream.Inspection
	behalf
	client *client

	received int64 // bytes of the answer to a call
}

// NewOperator returns an operator that acts on behalf of r, as the client of this name, or without
// rules if the name is empty.
func (g *Gateway) NewOperator(r *http.Request, client string) *Operator {
	return g.newOperator(r, identityOf(client))
}

// identityOf returns the identity of a client by its name, that of an operator if it is empty.
func identityOf(client string) string {
	switch client {
	case "":
		return access.OperatorIdentity
	case access.Anonymous:
		return ""
	}
	return client
}

// newOperator returns an operator that acts as the client with an identity.
func (g *Gateway) newOperator(r *http.Request, identity string) *Operator {
	who := g.rules.Caller(identity)
	c := newClient(mcp.Legacy, mcp.Latest, identity, who.Owner(), readIntroduction(jsonrpc.Encode(map[string]any{
		"protocolVersion": mcp.Latest, "capabilities": struct{}{}, "clientInfo": g.info,
	})))
	c.apart.Store(true)
	c.inspection = new(upstream.Inspection)
	return &Operator{Inspection: c.inspection, behalf: behalf{ctx: r.Context(), g: g, r: r}, client: c}
}

// ListTools asks the servers for the tools that the client sees. Each server has the Patience.
func (o *Operator) ListTools() []ToolList {
	var servers []*upstream.Server
	if !o.g.config.Discovery {
		servers = o.g.seen(o.client.identity)
	}
	return o.gather(servers, func(s *upstream.Server, _ *ToolList) (*catalog.List, *jsonrpc.Failure, string) {
		list, failure := o.listTools(s)
		return list, failure, "tools/list"
	})
}

// An askTools asks a server for its tools. If the server fails, it also returns the method that it failed at.
type askTools func(s *upstream.Server, into *ToolList) (list *catalog.List, failure *jsonrpc.Failure, method string)

// gather asks servers for their tools, and adds those of the gateway itself.
func (o *Operator) gather(servers []*upstream.Server, ask askTools) []ToolList {
	lists, all := make([]ToolList, len(servers)), make([]*catalog.List, len(servers))
	var asking errgroup.Group
	asking.SetLimit(maxFanOut)
	for i, s := range servers {
		asking.Go(func() error {
			lists[i].Server = s.Name
			list, failure, method := ask(s, &lists[i])
			if all[i] = list; failure != nil {
				lists[i].Failure, lists[i].Reason = failure, s.Fault(failure, method, o.wait()).Reason
			}
			return nil
		})
	}
	_ = asking.Wait()
	shared := o.g.sharedUIs(all)
	for i, s := range servers {
		lists[i].Tools = o.g.readTools(all[i], shared, s)
	}
	if own := o.g.own.list(mcp.Tools, o.client.identity); own != nil {
		lists = append(lists, ToolList{Tools: o.g.readTools(own, nil, nil)})
	}
	return lists
}

// listTools asks a server for its tools.
func (o *Operator) listTools(s *upstream.Server) (list *catalog.List, failure *jsonrpc.Failure) {
	o.at(s, func(at behalf, l *link) { list, failure = o.list(at, l, s, mcp.Tools, nil) })
	return list, failure
}

// A Check is what a server has.
type Check struct {
	upstream.ServerDescription
	Tools                         []Tool
	Prompts, Resources, Templates int
	Failure                       *jsonrpc.Failure // why it could not be asked; nil if it could
	Fault                         *upstream.Fault  // the same for operators
}

// Check connects to a server and asks for all its lists.
func (o *Operator) Check(server string) (found Check) {
	s := o.g.servers[server]
	if s == nil {
		return Check{Failure: jsonrpc.UnknownServer(server)}
	}
	o.at(s, func(at behalf, l *link) { o.count(at, l, s, &found) })
	found.ServerDescription = o.Server()
	if found.Failure != nil {
		found.Fault = s.Fault(found.Failure, "tools/list", o.wait())
	}
	return found
}

// count asks for all lists of a server. One that the server does not know is empty.
func (o *Operator) count(at behalf, l *link, s *upstream.Server, found *Check) {
	list, failure := o.list(at, l, s, mcp.Tools, nil)
	found.Tools = o.g.readTools(list, nil, s)
	for _, count := range []struct {
		kind mcp.ListKind
		n    *int
	}{{mcp.Prompts, &found.Prompts}, {mcp.Resources, &found.Resources}, {mcp.Templates, &found.Templates}} {
		if failure != nil {
			break
		}
		list, failure = o.list(at, l, s, count.kind, nil)
		if failure != nil && failure.Code == jsonrpc.CodeMethodNotFound {
			failure = nil
		}
		*count.n = len(list.Ends)
	}
	found.Failure = failure
}

// at has something done in a session with a server, within the Patience, and ends the session.
func (o *Operator) at(s *upstream.Server, do func(behalf, *link)) {
	ctx, cancel := context.WithTimeout(o.ctx, o.wait())
	defer cancel()
	l := o.client.link(s)
	defer o.end(l)
	do(o.within(ctx), l)
}

// wait returns how long a server may take.
func (o *Operator) wait() time.Duration { return cmp.Or(o.Patience, o.g.config.JoinTimeout) }

// end ends a session, also if the request of the operator was canceled.
func (o *Operator) end(l *link) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), o.g.config.JoinTimeout)
	defer cancel()
	l.end(o.within(ctx))
}

// list asks a server for a list, which is empty if the server has no such list. The explainer may be nil.
func (o *Operator) list(at behalf, l *link, s *upstream.Server, k mcp.ListKind, e *explainer) (
	*catalog.List, *jsonrpc.Failure,
) {
	if failure := l.open(at); failure != nil {
		return catalog.Empty, failure
	}
	if _, can := l.state(); can&mcp.ListKinds[k].Needs == 0 {
		return catalog.Empty, nil
	}
	q := &listQuery{behalf: at, client: o.client, server: s, kind: k, explain: e}
	list, _, failure := q.fetch(l)
	if failure != nil {
		return catalog.Empty, failure
	}
	return list, nil
}

// A ToolCall is a call of a tool by an operator.
type ToolCall struct {
	Name    string // as clients write it
	Address string // of the operator

	// Arguments returns the arguments, as a JSON object. The tool is nil if the client may not call
	// it, or if its list cannot be had: the call then shows why. names are those of the tools of the
	// server, if it does not have this one.
	Arguments func(tool *Tool, names []string) ([]byte, error)
}

// Call calls a tool, and has the answer written to w as clients of the aggregate get it, with the
// notifications that come before it. It fails if there are no arguments.
func (o *Operator) Call(w http.ResponseWriter, c ToolCall) error {
	tool, names, s := o.find(c.Name)
	if s != nil {
		defer o.end(o.client.link(s))
	}
	arguments, err := c.Arguments(tool, names)
	if err != nil {
		return err
	}
	name := c.Name
	if s != nil && o.g.transparent() {
		_, name = o.g.serverOf(name)
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

// ServerOf returns the server whose tool a client of the aggregate calls by a name, "" for one of the
// gateway itself. It reports false if there is no such server.
func (g *Gateway) ServerOf(tool string) (server string, ok bool) {
	if g.own.tool(tool) != nil {
		return "", true
	}
	s, _ := g.serverOf(tool)
	if s == nil {
		return "", false
	}
	return s.Name, true
}

// serverOf returns the server whose tool has a name, nil if there is none, and the rest of the name.
func (g *Gateway) serverOf(tool string) (_ *upstream.Server, rest string) {
	if g.transparent() {
		s := g.config.Servers[0]
		return s, strings.TrimPrefix(tool, s.Name+mcp.Separator)
	}
	server, rest, _ := g.config.Naming.Split(tool, func(server string) bool { return g.servers[server] != nil })
	return g.servers[server], rest
}

// shownAs returns the name of a tool as clients of the aggregate see it, by the rest of its name, however that was
// spelled.
func (g *Gateway) shownAs(s *upstream.Server, rest string) string {
	if g.transparent() {
		return rest
	}
	return s.Name + g.config.Naming.Separator + rest
}

// Received returns how many bytes the server has answered to a call, before they were masked.
func (o *Operator) Received() int64 { return o.received }

// find looks for a tool, and for the server that has it.
func (o *Operator) find(name string) (tool *Tool, names []string, s *upstream.Server) {
	if tool := o.own(name); tool != nil {
		return tool, nil, nil
	}
	s, rest := o.g.serverOf(name)
	if s == nil {
		return nil, nil, nil
	}
	who := o.g.rules.Caller(o.client.identity)
	target := mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: s.Overrides.Original(rest)}
	annotated := who.Policy().NeedsAnnotations(s.Name, target.Name) // so the list decides
	if !annotated && !who.Allows(target) {
		return nil, nil, s
	}
	ctx, cancel := context.WithTimeout(o.ctx, o.wait())
	defer cancel()
	list, failure := o.list(o.within(ctx), o.client.link(s), s, mcp.Tools, nil)
	if failure != nil {
		return nil, nil, s
	}
	if tool, names = pick(o.g.readTools(list, nil, s), o.g.shownAs(s, rest)); tool == nil && annotated {
		return nil, nil, s // it may be there, but not for the client
	}
	return tool, names, s
}

// own returns a tool of the gateway itself, nil if it has none of this name.
func (o *Operator) own(name string) *Tool {
	own := o.g.own.list(mcp.Tools, o.client.identity)
	if own == nil || o.g.own.tool(name) == nil {
		return nil
	}
	tool, _ := pick(o.g.readTools(own, nil, nil), name)
	return tool
}

// pick returns the tool of a name, or the names of all if there is none.
func pick(all []Tool, name string) (_ *Tool, names []string) {
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	slices.SortFunc(names, strings.Compare)
	return nil, names
}
