package mcpgateway

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// registry has the gateways of this process, for the admin API.
var registry gateways

// gateways are handlers, in the order in which they were started. While one
// configuration takes the place of another there are those of both.
type gateways struct {
	mu  sync.Mutex
	all []*Handler
}

// add adds a handler. One that a live has made takes the place of the one before it, so that it does
// not look newer than the handlers of a configuration that has been started since.
func (g *gateways) add(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := -1
	if h.shell != nil {
		at = slices.IndexFunc(g.all, func(other *Handler) bool { return other.shell == h.shell })
	}
	if at < 0 {
		g.all = append(g.all, h)
		return
	}
	g.all[at] = h
}

func (g *gateways) remove(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *Handler) bool { return other == h })
}

// current returns the handlers of the configuration that was started last. One that
// stands in several sites is one.
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

// fingerprint tells the gateway from all others that are different in any way for
// clients.
func fingerprint(h *Handler) string {
	var b strings.Builder
	b.WriteString(h.place())
	for _, s := range h.Servers {
		b.WriteString("\x00" + s.id)
	}
	return b.String()
}
