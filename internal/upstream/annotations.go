package upstream

import (
	"context"
	"crypto/sha256"
	"iter"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Rules may select tools by their annotations, which only lists have. So what was in a list is
// remembered for calls. Where it is not known, the server is asked for a list before the call.

// annotationTime is how long the annotations of a tool are good after it was in a list.
const annotationTime = time.Minute

// askPause is how long a server that did not list its tools is not asked again for a call.
const askPause = 5 * time.Second

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

// ToolNotes are what is remembered of the tools of a server as it shows them to a client.
type ToolNotes struct {
	kept   *toldTools[toolNote]
	server *Server
	owner  string // identity of the client
	scope  string // the same, with its headers: a server may choose by them what it shows
	since  uint64 // the last change of the server's tools
}

// ToolNotes returns those for a caller whose requests have these headers.
func (shared *Shared) ToolNotes(s *Server, c *access.Caller, header http.Header) *ToolNotes {
	private := shared.Private
	if s.ForwardAuth {
		private = OverridingHeaders
	}
	sum := sha256.New()
	for _, name := range HeaderNames(nil, header, func(name string) bool { return MayChoose(name) && !private[name] }) {
		_, _ = sum.Write([]byte(name))
		for _, value := range header[name] {
			_, _ = sum.Write([]byte("\x00" + value))
		}
		_, _ = sum.Write([]byte{'\n'})
	}
	scope := string(sum.Sum([]byte(c.Identity + "\x00")))
	return &ToolNotes{shared.State.annotations, s, c.Identity, scope, s.toolChanges.Load()}
}

func (n *ToolNotes) key(tool string) toldTool { return toldTool{n.server.ID, n.scope, tool} }

func (n *ToolNotes) put(tool string, note toolNote) { n.kept.note(n.owner, n.key(tool), note) }

// list returns the list of all tools, which may have to be asked for.
func (n *ToolNotes) list() *toolList {
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	if note, ok := n.kept.tools.Get(n.key(everyTool)); ok {
		return note.list
	}
	list := &toolList{asking: make(chan struct{}, 1)}
	n.kept.put(n.owner, n.key(everyTool), toolNote{list: list})
	return list
}

// Annotations returns those of a tool since the last change of the server's tools. It reports whether they are
// known: what is not in the whole list has none. Both are looked up at once, so no list ends in between.
func (n *ToolNotes) Annotations(tool string) (_ mcp.Annotations, known bool) {
	n.kept.mu.Lock()
	defer n.kept.mu.Unlock()
	if note, ok := n.kept.tools.Get(n.key(tool)); ok && note.changes >= n.since && note.list == nil {
		return note.annotations, true
	}
	note, ok := n.kept.tools.Get(n.key(everyTool))
	return mcp.Unannotated, ok && note.changes >= n.since && note.list.whole.Load()
}

// ToolsChanged notes that what is remembered of the tools of a server may be wrong.
func (t *State) ToolsChanged(s *Server) { s.toolChanges.Store(t.changes.Add(1)) }

// Learn has ask list all tools of the server as they are since the last change. One of several requests asks,
// and the others wait. If it is canceled, another one asks.
func (n *ToolNotes) Learn(ctx context.Context, ask func() *jsonrpc.Failure) *jsonrpc.Failure {
	began, list := time.Now(), n.list()
	select {
	case list.asking <- struct{}{}:
		defer func() { <-list.asking }()
	case <-ctx.Done():
		return jsonrpc.Timeout(n.server.Name)
	}
	if _, whole := n.Annotations(everyTool); whole {
		return nil
	}
	f, again := list.failure, time.Since(list.asked) >= askPause || list.failure.IsLoginRequired()
	if f != nil && (!again || !list.asked.Before(began)) {
		return f
	}
	list.whole.Store(false)
	n.put(everyTool, toolNote{changes: n.server.toolChanges.Load(), list: list})
	failure := ask()
	if list.failure = failure; ctx.Err() != nil {
		list.failure = nil // it says nothing of the server
	}
	list.asked = time.Now()
	list.whole.Store(failure == nil)
	return failure
}

// IsFocused reports whether clients at Single were told that a tool of a server takes the argument of its Focus.
// That is not known as long as no list is.
func (t *State) IsFocused(s *Server, tool string) (has, known bool) {
	if tool == everyTool {
		return false, true
	}
	if _, has = t.focused.get(s.focusedTool(tool)); has {
		return true, true
	}
	_, known = t.focused.get(s.focusedTool(everyTool))
	return false, known
}

// NoteFocused notes the tools of a list that take it.
func (t *State) NoteFocused(s *Server, tools iter.Seq[string]) {
	for tool := range tools {
		t.focused.note(s.Source, s.focusedTool(tool), struct{}{})
	}
	t.focused.note(s.Source, s.focusedTool(everyTool), struct{}{})
}
