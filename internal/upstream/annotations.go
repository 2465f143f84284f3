package upstream

import (
	"context"
	"crypto/sha256"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Rules may select tools by their annotations, which only lists have. So the gateway caches them
// for calls. If they are unknown, it lists the tools before the call.

// annotationTime is how long the annotations of a tool are valid after it was in a list.
const annotationTime = time.Minute

// toolListPause is the pause after a failed list of tools, before another call requests it again.
const toolListPause = 5 * time.Second

var (
	annotationsQuota = quota.NewKind("annotations")
	annotationLimits = quota.Limits{Entries: 100_000, Bytes: 32 << 20, OwnerEntries: 50_000, OwnerBytes: 16 << 20}
)

// A toolNote is a cached fact about a tool, or about the list of all tools.
type toolNote struct {
	annotations mcp.Annotations
	changes     uint64    // counter of tool changes before the list was requested
	list        *toolList // only of everyTool
}

// A toolList says whether all tools of a server are cached. It is stored before its tools: the
// cache drops older entries first, so the list is never there without them.
type toolList struct {
	whole    atomic.Bool
	fetching chan struct{} // holds one token, for the request that lists the tools

	// Result of the last attempt, for the holder of the token.
	failure   *jsonrpc.Failure
	attempted time.Time // end of the attempt
}

// ToolNotes caches facts about the tools of a server, as it shows them to a client.
type ToolNotes struct {
	cache  *toolCache[toolNote]
	server *Server
	owner  string // identity of the client
	scope  string // the identity and the headers on which the server's lists may depend
	since  uint64 // counter of tool changes
}

// ToolNotes returns the cache for a caller whose requests have these headers.
func (shared *Shared) ToolNotes(s *Server, c *access.Caller, header http.Header) *ToolNotes {
	private := shared.Private
	if s.ForwardAuth {
		private = OverridingHeaders
	}
	sum := sha256.New()
	for _, name := range HeaderNames(nil, header, func(name string) bool { return MayVaryLists(name) && !private[name] }) {
		_, _ = sum.Write([]byte(name))
		for _, value := range header[name] {
			_, _ = sum.Write([]byte("\x00" + value))
		}
		_, _ = sum.Write([]byte{'\n'})
	}
	scope := string(sum.Sum([]byte(c.Identity + "\x00")))
	return &ToolNotes{shared.Retained.annotations, s, c.Identity, scope, s.toolChanges.Load()}
}

func (n *ToolNotes) key(tool string) toolKey { return toolKey{n.server.ID, n.scope, tool} }

func (n *ToolNotes) put(tool string, note toolNote) { n.cache.store(n.owner, n.key(tool), note) }

// list returns the entry for the list of all tools.
func (n *ToolNotes) list() *toolList {
	n.cache.mu.Lock()
	defer n.cache.mu.Unlock()
	if note, ok := n.cache.tools.Get(n.key(everyTool)); ok {
		return note.list
	}
	list := &toolList{fetching: make(chan struct{}, 1)}
	n.cache.put(n.owner, n.key(everyTool), toolNote{list: list})
	return list
}

// Annotations returns the annotations of a tool since the last change of the server's tools. It
// reports whether they are known: a tool that is not in a complete list has none. The tool and the
// list are looked up under one lock, so no list is completed in between.
func (n *ToolNotes) Annotations(tool string) (_ mcp.Annotations, known bool) {
	n.cache.mu.Lock()
	defer n.cache.mu.Unlock()
	if note, ok := n.cache.tools.Get(n.key(tool)); ok && note.changes >= n.since && note.list == nil {
		return note.annotations, true
	}
	note, ok := n.cache.tools.Get(n.key(everyTool))
	return mcp.Unannotated, ok && note.changes >= n.since && note.list.whole.Load()
}

// ToolsChanged invalidates the cached facts about the tools of a server.
func (r *Retained) ToolsChanged(s *Server) { s.toolChanges.Store(r.changes.Add(1)) }

// Learn calls ask to list all tools of the server, unless they are known since the last change. One
// of several concurrent requests asks, the others wait. If it is canceled, another one asks.
func (n *ToolNotes) Learn(ctx context.Context, ask func() *jsonrpc.Failure) *jsonrpc.Failure {
	began, list := time.Now(), n.list()
	select {
	case list.fetching <- struct{}{}:
		defer func() { <-list.fetching }()
	case <-ctx.Done():
		return jsonrpc.Timeout(n.server.Name)
	}
	if _, whole := n.Annotations(everyTool); whole {
		return nil
	}
	f, mayRetry := list.failure, time.Since(list.attempted) >= toolListPause || list.failure.IsLoginRequired()
	if f != nil && (!mayRetry || !list.attempted.Before(began)) {
		return f
	}
	list.whole.Store(false)
	n.put(everyTool, toolNote{changes: n.server.toolChanges.Load(), list: list})
	failure := ask()
	list.failure = failure
	if ctx.Err() != nil {
		list.failure = nil // canceled: says nothing about the server
	}
	list.attempted = time.Now()
	list.whole.Store(failure == nil)
	return failure
}

// IsFocused reports whether a tool was listed with the focus argument to clients at Single. known
// is false until there was a list.
func (r *Retained) IsFocused(s *Server, tool string) (has, known bool) {
	if tool == everyTool {
		return false, true
	}
	if _, has = r.focused.get(s.focusedTool(tool)); has {
		return true, true
	}
	_, known = r.focused.get(s.focusedTool(everyTool))
	return false, known
}

// NoteFocused records the tools of a list that have the focus argument.
func (r *Retained) NoteFocused(s *Server, tools iter.Seq[string]) {
	for tool := range tools {
		r.focused.store(s.Source, s.focusedTool(tool), struct{}{})
	}
	r.focused.store(s.Source, s.focusedTool(everyTool), struct{}{})
}

// A toolCache caches facts about tools from lists, for calls that depend on them and do not contain
// them.
type toolCache[V any] struct {
	mu    sync.Mutex
	tools *quota.Cache[toolKey, V]
}

// A toolKey identifies a tool of a server. Its scope tells apart what different clients see.
type toolKey struct{ server, scope, tool string }

// everyTool stands for all tools of a server. It is not a valid tool name.
const everyTool = ""

func newToolCache[V any](kind *quota.Kind, limits quota.Limits, ttl time.Duration) *toolCache[V] {
	return &toolCache[V]{tools: quota.NewCache[toolKey, V](kind, limits, ttl, nil)}
}

// store stores a fact about a tool for an owner. It reports whether there is room for it.
func (t *toolCache[V]) store(owner string, tool toolKey, value V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(owner, tool, value)
}

// put is like store. The caller holds the lock.
func (t *toolCache[V]) put(owner string, tool toolKey, value V) bool {
	return t.tools.Put(owner, tool, value, int64(64+len(tool.scope)+len(tool.tool)))
}

// remove removes a tool.
func (t *toolCache[V]) remove(tool toolKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tools.Remove(tool)
}

// get returns the fact about a tool.
func (t *toolCache[V]) get(tool toolKey) (value V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tools.Get(tool)
}

// close drops all entries. From then on, store does nothing.
func (t *toolCache[V]) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tools.Close()
}

// focusTime is how long a tool is remembered after it was in a list.
const focusTime = 24 * time.Hour

var (
	focusQuota  = quota.NewKind("focus_arguments")
	focusLimits = quota.Limits{Entries: 20_000, Bytes: 4 << 20, OwnerEntries: 5_000, OwnerBytes: 1 << 20}
)
