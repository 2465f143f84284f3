package mcpgateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/hosted"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A memory is what a gateway remembers over reloads, beside its clients.
type memory struct {
	buckets   *ratelimit.Buckets // what clients have used of their rates
	pins      *toolpin.Pins      // how tools were defined when they were first seen
	templates *hosted.Templates  // that the admin API has it host
	tallies   sync.Map           // of clients, by what they are called in metrics

	saving sync.Mutex
	saved  atomic.Uint64 // the version of pins that is in Caddy's storage
}

// A tally counts what a client does.
type tally struct {
	requests, denied atomic.Int64
	last             atomic.Int64 // when, in milliseconds since 1970
}

// tally returns that of a client.
func (m *memory) tally(label string) *tally {
	t, _ := m.tallies.LoadOrStore(label, new(tally))
	return t.(*tally)
}

// Destruct implements caddy.Destructor.
func (*memory) Destruct() error { return nil }

// memories are those in use, by gateway.
var memories = caddy.NewUsagePool()

// maxLimited is how many clients a gateway knows the rates of.
const maxLimited = 100_000

// recall finds what the gateway remembers.
func (h *Handler) recall() error {
	value, _, err := memories.LoadOrNew(h.place(), func() (caddy.Destructor, error) {
		m := &memory{buckets: ratelimit.New(maxLimited), pins: toolpin.New(), templates: hosted.New()}
		return m, h.loadPins(m)
	})
	if err != nil {
		return err
	}
	h.memory = value.(*memory)
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

// place tells this gateway from others, over reloads.
func (h *Handler) place() string { return h.Name + "\x00" + h.MCPPath }

// pinsKey is where the pins of the gateway are in Caddy's storage.
func (h *Handler) pinsKey() string {
	place := sha256.Sum256([]byte(h.place()))
	return path.Join("mcp_gateway", "tool_pins", hex.EncodeToString(place[:8])+".json")
}

// loadPins has the gateway remember the tools that it withholds changes of over restarts,
// too.
func (h *Handler) loadPins(m *memory) error {
	if !h.PinTools {
		return nil
	}
	text, err := h.ctx.Storage().Load(h.ctx, h.pinsKey())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = m.pins.UnmarshalJSON(text)
	}
	if err != nil {
		return fmt.Errorf("pin_tools: %s: %w", h.pinsKey(), err)
	}
	m.saved.Store(m.pins.Version())
	return nil
}

// savePins saves what has been seen for the first time, or accepted.
func (h *Handler) savePins() {
	m := h.memory
	if !h.PinTools || m.pins.Version() == m.saved.Load() {
		return
	}
	m.saving.Lock()
	defer m.saving.Unlock()
	version := m.pins.Version()
	text, err := m.pins.MarshalJSON()
	if err == nil {
		err = h.ctx.Storage().Store(context.WithoutCancel(h.ctx), h.pinsKey(), text)
	}
	if err != nil {
		h.logger.Error("pinned tools not saved", zap.Error(err))
		return
	}
	m.saved.Store(version)
}
