package gateway

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Rules may select tools by their annotations, which only lists have. So what was in a list is
// remembered for the calls of the client that got it.

// annotationTime is how long the annotations of a tool are good after it was in a list.
const annotationTime = time.Minute

var (
	keptAnnotations  = quota.NewKind("annotations")
	annotationLimits = quota.Limits{Entries: 100_000, Bytes: 32 << 20, OwnerEntries: 50_000, OwnerBytes: 16 << 20}
)

// tool returns what is known of a tool of a server. One that was in no list has no annotations.
func (c *caller) tool(target mcp.Target) acl.Tool {
	tool := c.newTool(target.Server, target.Name)
	if c.policy().NeedsAnnotations(target.Server, target.Name) {
		if said, ok := c.of.told.get(c.toldTool(c.of.servers[target.Server], target.Name)); ok {
			tool.Annotations = said
		}
	}
	return tool
}

func (c *caller) newTool(server, name string) acl.Tool {
	return acl.Tool{
		Facts:   condition.Facts{Client: c.name, Server: server, Tool: name, Annotations: mcp.Unannotated},
		Askable: c.askable,
	}
}

// toldTool returns a tool as the caller was told of it.
func (c *caller) toldTool(s *Server, name string) toldTool { return toldTool{s.ID, c.identity, name} }

// listedTool decides on a tool in a list.
func (c *caller) listedTool(s *Server, item *mcp.Item) acl.Decision {
	tool := c.newTool(s.Name, item.Name)
	if c.policy().NeedsAnnotations(s.Name, item.Name) {
		tool.Annotations = s.annotations(item.Name, item.Raw)
		c.of.told.note(c.toldTool(s, item.Name), tool.Annotations)
	}
	return c.policy().Tool(&tool)
}

// learnAnnotations asks the server for its tools if the decision on one of them depends on its
// annotations, and they are not known. If they cannot be had, the tool cannot be called.
func (q *Request) learnAnnotations(target mcp.Target) *jsonrpc.Failure {
	c, s := &q.caller, q.g.servers[target.Server]
	if target.Kind != mcp.Tool || s == nil || !c.policy().NeedsAnnotations(s.Name, target.Name) {
		return nil
	}
	for _, name := range []string{target.Name, everyTool} {
		if _, ok := q.g.annotations.get(c.toldTool(s, name)); ok {
			return nil
		}
	}
	if _, failure := q.g.newOperator(q.r, c.identity).listTools(s); failure != nil {
		if q.to.Kind == Aggregate {
			failure = failure.AsAnswer()
		}
		return failure
	}
	q.g.annotations.note(c.toldTool(s, everyTool), mcp.Unannotated)
	return nil
}
