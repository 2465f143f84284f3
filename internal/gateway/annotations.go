package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Rules may select tools by their annotations, which only lists have. So what was in a list is
// remembered for calls. Where it is not known, the server is asked for a list before the call.

// annotationTime is how long the annotations of a tool are good after it was in a list.
const annotationTime = time.Minute

var (
	keptAnnotations  = quota.NewKind("annotations")
	annotationLimits = quota.Limits{Entries: 100_000, Bytes: 32 << 20, OwnerEntries: 50_000, OwnerBytes: 16 << 20}
)

// A toolNote is what is remembered of a tool, or of the list of all tools.
type toolNote struct {
	annotations mcp.Annotations
	changes     uint64    // the last of the server's tools before it was asked
	list        *toolList // of everyTool only
}

// A toolList says whether all tools of a server are remembered. It is noted before they are asked for:
// what is older is dropped first, so it is never there without them.
type toolList struct {
	whole  atomic.Bool
	asking chan struct{} // holds one token: its holder asks the server

	// Of the last attempt to ask, for the holder of the token.
	failure *jsonrpc.Failure
	asked   time.Time // when it ended
}

// toolNotes are what is remembered of the tools of a server as it shows them to a client.
type toolNotes struct {
	kept   *toldTools[toolNote]
	server *Server
	owner  string // identity of the client
	scope  string // the same, with its headers: a server may choose by them what it shows
}

// toolNotes returns those for a caller whose requests have these headers.
func (g *Gateway) toolNotes(s *Server, c *caller, header http.Header) *toolNotes {
	private := g.private
	if s.ForwardAuth {
		private = overrides
	}
	sum := sha256.New()
	for _, name := range headerNames(nil, header, func(name string) bool { return mayChoose(name) && !private[name] }) {
		_, _ = sum.Write([]byte(name))
		for _, value := range header[name] {
			_, _ = sum.Write([]byte("\x00" + value))
		}
		_, _ = sum.Write([]byte{'\n'})
	}
	return &toolNotes{g.annotations, s, c.identity, string(sum.Sum([]byte(c.identity + "\x00")))}
}

func (n *toolNotes) key(tool string) toldTool { return toldTool{n.server.ID, n.scope, tool} }

func (n *toolNotes) put(tool string, note toolNote) { n.kept.note(n.owner, n.key(tool), note) }

// list returns the list of all tools, which may have to be asked for.
func (n *toolNotes) list() *toolList {
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	if note, ok := n.kept.tools.Get(n.key(everyTool)); ok {
		return note.list
	}
	list := &toolList{asking: make(chan struct{}, 1)}
	n.kept.put(n.owner, n.key(everyTool), toolNote{list: list})
	return list
}

// annotations returns those of a tool since a change of the server's tools. It reports whether they are
// known: what is not in the whole list has none. Both are looked up at once, so no list ends in between.
func (n *toolNotes) annotations(tool string, since uint64) (_ mcp.Annotations, known bool) {
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	if note, ok := n.kept.tools.Get(n.key(tool)); ok && note.changes >= since && note.list == nil {
		return note.annotations, true
	}
	note, ok := n.kept.tools.Get(n.key(everyTool))
	return mcp.Unannotated, ok && note.changes >= since && note.list.whole.Load()
}

// newTool returns what is known of a tool that the caller lists or calls.
func (c *caller) newTool(server, name string) acl.Tool {
	return acl.Tool{
		Facts: condition.Facts{
			Client: cmp.Or(c.name, Anonymous), Server: server, Tool: name, Annotations: c.annotations,
		},
		Askable: c.askable,
	}
}

// toolsChanged notes that what is remembered of the tools of a server may be wrong.
func (g *Gateway) toolsChanged(s *Server) { s.toolChanges.Store(g.State.toolChanges.Add(1)) }

// learnAnnotations has the caller know the annotations of the tool that it calls, if the decision on
// it depends on them. If they cannot be had, the tool cannot be called. A server of which the caller may
// use nothing is not asked.
func (q *Request) learnAnnotations(target mcp.Target) *jsonrpc.Failure {
	c, s := &q.caller, q.g.servers[target.Server]
	if target.Kind != mcp.Tool || s == nil || !c.policy().NeedsAnnotations(s.Name, target.Name) ||
		!c.policy().Server(s.Name) {
		return nil
	}
	notes, since := q.g.toolNotes(s, c, q.r.Header), s.toolChanges.Load()
	var known bool
	if c.annotations, known = notes.annotations(target.Name, since); known {
		return nil
	}
	if failure := q.spend(target); failure != nil {
		return failure
	}
	failure := q.learnTools(notes, since)
	if failure == nil {
		if c.annotations, known = notes.annotations(target.Name, since); !known {
			failure = jsonrpc.TooManyTools(s.Name)
		}
	}
	if failure != nil && q.to.Kind == Aggregate {
		failure = failure.AsAnswer()
	}
	return failure
}

// learnTools asks the server for all its tools as they are since a change. One of several requests asks,
// and the others wait. If it is canceled, another one asks.
func (q *Request) learnTools(n *toolNotes, since uint64) *jsonrpc.Failure {
	began, ctx, list := time.Now(), q.r.Context(), n.list()
	select {
	case list.asking <- struct{}{}:
		defer func() { <-list.asking }()
	case <-ctx.Done():
		return jsonrpc.Timeout(n.server.Name)
	}
	if _, whole := n.annotations(everyTool, since); whole {
		return nil
	}
	f, again := list.failure, time.Since(list.asked) >= failurePause || isLoginRequired(list.failure)
	if f != nil && (!again || !list.asked.Before(began)) {
		return f
	}
	list.whole.Store(false)
	n.put(everyTool, toolNote{changes: n.server.toolChanges.Load(), list: list})
	failure := q.askForTools(n.server)
	if list.failure = failure; ctx.Err() != nil {
		list.failure = nil // it says nothing of the server
	}
	list.asked = time.Now()
	list.whole.Store(failure == nil)
	return failure
}

// askForTools asks a server for its tools on behalf of the client: at Aggregate in its session.
func (q *Request) askForTools(s *Server) *jsonrpc.Failure {
	if q.listTools != nil {
		return q.listTools(s)
	}
	r := q.r.WithContext(&requestContext{q.r.Context(), q.caller, q.peer.Inherited})
	_, failure := q.g.newOperator(r, q.caller.identity).listTools(s)
	return failure
}

// listTools asks a server for its tools, also if they are known.
func (c *call) listTools(s *Server) *jsonrpc.Failure {
	ctx, cancel := context.WithTimeout(c.ctx, c.g.config.JoinTimeout)
	defer cancel()
	q := c.client.newListQuery(c.visit.behalf().within(ctx), s, tools)
	l := c.client.link(s)
	failure := l.open(q.behalf)
	if failure != nil {
		return failure
	}
	if _, can := l.state(); can&kinds[tools].needs != 0 {
		_, _, failure = q.fetch(l)
	}
	return failure
}
