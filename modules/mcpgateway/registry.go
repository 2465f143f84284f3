package mcpgateway

import (
	"cmp"
	"slices"
	"sync"
)

// registry has the gateways of this process, for the admin API.
var registry gateways

// gateways are handlers, in the order in which they were provisioned. While one
// configuration takes the place of another there are those of both.
type gateways struct {
	mu  sync.Mutex
	all []*Handler
}

// add makes a handler the one that counts of those at its place.
func (g *gateways) add(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, h)
}

// remove takes a handler out. That of a configuration that has failed to load leaves its
// place to the one before.
func (g *gateways) remove(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *Handler) bool { return other == h })
}

// current returns the handlers that count, by name and path.
func (g *gateways) current() []*Handler {
	g.mu.Lock()
	defer g.mu.Unlock()
	latest := map[string]*Handler{}
	for _, h := range g.all {
		latest[h.place()] = h
	}
	var current []*Handler
	for _, h := range g.all {
		if latest[h.place()] == h {
			current = append(current, h)
		}
	}
	slices.SortStableFunc(current, func(a, b *Handler) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.MCPPath, b.MCPPath))
	})
	return current
}

// newest returns the handler that was provisioned last, or nil.
func (g *gateways) newest() *Handler {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) == 0 {
		return nil
	}
	return g.all[len(g.all)-1]
}
