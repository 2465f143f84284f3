package mcpgateway

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// registry holds the gateways of this process, for the admin API.
var registry gateways

// gateways holds handlers in the order in which they were started. During a reload it holds those
// of both configurations.
type gateways struct {
	mu  sync.Mutex
	all []*Handler
}

// add adds a handler. A handler of a liveGateway takes the position of the previous one of the same
// liveGateway, so that it does not count as newer than the handlers of a later configuration.
func (g *gateways) add(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	index := -1
	if h.shell != nil {
		index = slices.IndexFunc(g.all, func(other *Handler) bool { return other.shell == h.shell })
	}
	if index < 0 {
		g.all = append(g.all, h)
		return
	}
	g.all[index] = h
}

func (g *gateways) remove(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *Handler) bool { return other == h })
}

// current returns the handlers of the configuration that was started last. A handler that is used
// in several sites appears once.
func (g *gateways) current() (current []*Handler) {
	newest := g.newest()
	if newest == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := map[string]bool{}
	for _, h := range g.all {
		if h.generation == newest.generation && !seen[fingerprint(h)] {
			seen[fingerprint(h)] = true
			current = append(current, h)
		}
	}
	slices.SortStableFunc(current, func(a, b *Handler) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.MCPPath, b.MCPPath))
	})
	return current
}

// newest returns the handler that was started last, or nil.
func (g *gateways) newest() *Handler {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) == 0 {
		return nil
	}
	return g.all[len(g.all)-1]
}

// fingerprint returns a text that is equal for gateways that clients cannot distinguish.
func fingerprint(h *Handler) string {
	var b strings.Builder
	b.WriteString(h.reloadKey())
	for _, s := range h.Servers {
		b.WriteString("\x00" + s.id)
	}
	return b.String()
}
