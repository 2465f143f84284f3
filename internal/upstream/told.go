package upstream

import (
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// toldTools has what clients were told of tools in lists. Calls have to agree with that, and nothing
// in them says it.
type toldTools[V any] struct {
	mu    sync.Mutex
	tools *quota.Cache[toldTool, V]
}

// A toldTool is a tool of a server. Who was told of it, or what, is the scope.
type toldTool struct{ server, scope, tool string }

// everyTool stands for all tools of a server: it is no name of one.
const everyTool = ""

func newToldTools[V any](kind *quota.Kind, limits quota.Limits, ttl time.Duration) *toldTools[V] {
	return &toldTools[V]{tools: quota.NewCache[toldTool, V](kind, limits, ttl, nil)}
}

// note notes for an owner what clients are told of a tool. It reports whether there is room for that.
func (t *toldTools[V]) note(owner string, tool toldTool, said V) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(owner, tool, said)
}

// put does the same. The caller holds the lock.
func (t *toldTools[V]) put(owner string, tool toldTool, said V) bool {
	return t.tools.Put(owner, tool, said, int64(64+len(tool.scope)+len(tool.tool)))
}

// forget notes that clients are told nothing of a tool.
func (t *toldTools[V]) forget(tool toldTool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tools.Remove(tool)
}

// get returns what clients were told of a tool.
func (t *toldTools[V]) get(tool toldTool) (said V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tools.Get(tool)
}

// close says that nothing more is kept.
func (t *toldTools[V]) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tools.Close()
}

// focusTime is how long it is remembered that a tool was in a list.
const focusTime = 24 * time.Hour

var (
	keptFocus   = quota.NewKind("focus_arguments")
	focusLimits = quota.Limits{Entries: 20_000, Bytes: 4 << 20, OwnerEntries: 5_000, OwnerBytes: 1 << 20}
)
