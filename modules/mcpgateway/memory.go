package mcpgateway

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/hosted"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// A memory is what a gateway remembers over reloads, beside its clients.
type memory struct {
	buckets   *ratelimit.Buckets // what clients have used of their rates
	templates *hosted.Templates  // that the admin API has it host
	tasks     *tasks             // that clients have begun
	tallies   sync.Map           // of clients, by what they are called in metrics
}

// A tally counts what a client does.
type tally struct {
	requests, denied atomic.Int64
	last             atomic.Int64 // when, in milliseconds since 1970
}

// tally returns that of a client.
func (m *memory) tally(label string) *tally {
	t, ok := m.tallies.Load(label)
	if !ok {
		t, _ = m.tallies.LoadOrStore(label, new(tally))
	}
	return t.(*tally)
}

// memories are those in use, by gateway.
var memories = caddy.NewUsagePool()

// kept is a memory in its place.
type kept struct{ memory *memory }

// Destruct implements caddy.Destructor.
func (k kept) Destruct() error {
	k.memory.buckets.Close()
	k.memory.templates.Close()
	k.memory.tasks.close()
	return nil
}

// maxLimited is how many clients a gateway knows the rates of.
const maxLimited = 100_000

// recall finds what the gateway remembers.
func (h *Handler) recall() error {
	value, _, err := memories.LoadOrNew(h.place(), func() (caddy.Destructor, error) {
		return kept{&memory{buckets: ratelimit.New(maxLimited), templates: hosted.New(), tasks: newTasks()}}, nil
	})
	if err != nil {
		return err
	}
	h.memory = value.(kept).memory
	return nil
}

// forget says that this handler needs no memory any more.
func (h *Handler) forget() error {
	if h.memory == nil {
		return nil
	}
	_, err := memories.Delete(h.place())
	return err
}

// place tells this gateway from others, over reloads: by its name or, if it has none, by
// what its servers are called.
func (h *Handler) place() string {
	if h.Name != "" {
		return h.Name + "\x00" + h.MCPPath
	}
	var names []string
	for _, s := range h.Servers {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return "\x00" + h.MCPPath + "\x00" + strings.Join(names, "\x00")
}

// serverID returns what tells a server from all that are another for clients: one with
// the same id can be talked to as if nothing had happened. The routes are those that
// are not provisioned yet.
func (h *Handler) serverID(s *Server) string {
	return s.Name + "\x00" + digest([]any{s, h.Mask, h.Separator, h.MaxNameLength, h.MCPPath})
}

// serverSource returns what tells a server from others of its name: where its answers
// come from.
func serverSource(s *Server) string {
	return s.Name + "\x00" + digest([]any{s.Routes, s.Path})
}

// digest returns a text that stands for a part of a configuration.
func digest(part any) string {
	sum := sha256.Sum256(caddyconfig.JSON(part, nil))
	return hex.EncodeToString(sum[:16])
}
