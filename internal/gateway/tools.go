package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A ToolList has the tools of a server as a client sees them in the aggregate.
type ToolList struct {
	Server  string // "" for the tools of the gateway itself
	Tools   []Tool
	Failure *jsonrpc.Failure // why the server could not be asked; nil if it could
	Reason  string           // the same in full, for operators
}

// A Tool is a tool as a client sees it.
type Tool struct {
	Name         string
	Definition   []byte // as JSON
	WithoutFocus []byte // the definition without the argument of a [Focus]; the same if it has none
}

// ListTools asks the servers for the tools that a client sees: all of them if the name is empty.
// Servers are asked on behalf of r, in sessions that end before it returns. Nothing of that is
// remembered or counted. It takes no longer than a few times the JoinTimeout.
func (g *Gateway) ListTools(r *http.Request, client string) []ToolList {
	identity := client
	switch client {
	case "":
		identity = OperatorIdentity
	case Anonymous:
		identity = ""
	}
	var servers []*Server
	if !g.config.Discovery {
		servers = g.rules.seen(identity)
	}
	lists, all := make([]ToolList, len(servers)), make([]*listing, len(servers))
	lister := g.newToolLister(r, identity)
	var asking errgroup.Group
	asking.SetLimit(maxFanOut)
	for i, s := range servers {
		asking.Go(func() error {
			lists[i].Server = s.Name
			var failure *jsonrpc.Failure
			if all[i], failure = lister.ask(s); failure != nil {
				lists[i].Failure, lists[i].Reason = failure, s.fault(failure, "tools/list", g.config.JoinTimeout).Reason
			}
			return nil
		})
	}
	_ = asking.Wait()
	shared := g.sharedUIs(all)
	for i, s := range servers {
		lists[i].Tools = readTools(all[i], shared, s.Focus)
	}
	if own := g.own.list(tools, identity); own != nil {
		lists = append(lists, ToolList{Tools: readTools(own, nil, nil)})
	}
	return lists
}

// Join connects to a server, asks it for its tools, and leaves, on behalf of the operator. So it is known whether the
// server is there. A server that wants a login is.
func (g *Gateway) Join(r *http.Request, server string) *jsonrpc.Failure {
	s := g.servers[server]
	if s == nil {
		return jsonrpc.UnknownServer(server)
	}
	_, failure := g.newToolLister(r, OperatorIdentity).ask(s)
	if isLoginRequired(failure) {
		return nil
	}
	return failure
}

// A toolLister asks servers for their tools on behalf of a client that nothing is remembered of.
type toolLister struct {
	behalf
	client *client
}

func (g *Gateway) newToolLister(r *http.Request, identity string) toolLister {
	who := g.rules.caller(identity)
	c := newClient(mcp.Legacy, mcp.Latest, identity, who.owner(), readIntroduction(jsonrpc.Encode(map[string]any{
		"protocolVersion": mcp.Latest, "capabilities": struct{}{}, "clientInfo": g.info,
	})))
	c.uncounted = true
	c.apart.Store(true)
	return toolLister{behalf{ctx: r.Context(), g: g, r: r}, c}
}

// ask asks a server, and ends the session that it takes.
func (t toolLister) ask(s *Server) (*listing, *jsonrpc.Failure) {
	l := t.client.link(s)
	defer t.end(l)
	if failure := l.open(t.behalf); failure != nil {
		return emptyListing, failure
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.g.config.JoinTimeout)
	defer cancel()
	o := t.within(ctx)
	if _, can := l.state(); can&kinds[tools].needs == 0 {
		return emptyListing, nil
	}
	q := &listQuery{behalf: o, client: t.client, server: s, kind: tools}
	list, _, failure := q.fetch(l)
	if failure != nil {
		return emptyListing, failure
	}
	return list, nil
}

// end ends a session, also if the request for the list was canceled.
func (t toolLister) end(l *link) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), t.g.config.JoinTimeout)
	defer cancel()
	l.end(t.within(ctx))
}

// readTools returns the tools in a list, to which a Focus was added if it is not nil.
func readTools(list *listing, shared sharedUIs, focus *Focus) []Tool {
	all := make([]Tool, len(list.ends))
	for i := range all {
		t := &all[i]
		t.Definition = list.from(i, i+1, shared)
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(t.Definition, &named) // which was read before
		t.Name, t.WithoutFocus = named.Name, t.Definition
		if list.focused[t.Name] != "" {
			t.WithoutFocus = focus.removedFrom(t.Definition)
		}
	}
	return all
}

// removedFrom returns the definition of a tool, as clients got it, without the argument.
func (f *Focus) removedFrom(tool []byte) []byte {
	for _, added := range [][]byte{append([]byte{','}, f.property...), f.property} {
		if before, after, ok := bytes.Cut(tool, added); ok {
			return append(bytes.Clone(before), after...)
		}
	}
	return tool
}
