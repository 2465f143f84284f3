package upstream

import (
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

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
