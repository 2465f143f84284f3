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
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A pinning is how the tools of a server were defined when they were first seen. It
// outlives reloads and, where tools are withheld, restarts.
type pinning struct {
	toolpin.Pins

	mu      sync.Mutex
	loaded  bool                      // what is in Caddy's storage is known
	failing bool                      // it cannot be saved, which has been said
	saved   atomic.Uint64             // the version that is there
	pause   atomic.Pointer[time.Time] // before which nothing is saved; nil for none
}

// Destruct implements caddy.Destructor.
func (*pinning) Destruct() error { return nil }

// pinnings are those in use, by the source of the server.
var pinnings = caddy.NewUsagePool()

// openPins finds how the tools of a server were defined.
func (h *Handler) openPins(s *Server) error {
	value, _, err := pinnings.LoadOrNew(s.source, func() (caddy.Destructor, error) { return new(pinning), nil })
	if err != nil {
		return err
	}
	s.pins = value.(*pinning)
	if !h.PinTools {
		return nil
	}
	if err := s.pins.load(h.ctx, s.pinsKey()); err != nil {
		return fmt.Errorf("pin_tools: %s: %w", s.pinsKey(), err)
	}
	return nil
}

// closePins says that the server does not need them any more.
func (s *Server) closePins() error {
	if s.pins == nil {
		return nil
	}
	_, err := pinnings.Delete(s.source)
	return err
}

// pinsKey is where the pins of a server are in Caddy's storage.
func (s *Server) pinsKey() string {
	sum := sha256.Sum256([]byte(s.source))
	return path.Join("mcp_gateway", "tool_pins", hex.EncodeToString(sum[:16])+".json")
}

// load takes what is in Caddy's storage in the place of what was seen while nobody
// withheld anything.
func (p *pinning) load(ctx caddy.Context, key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded {
		return nil
	}
	text, err := ctx.Storage().Load(ctx, key)
	switch {
	case err == nil:
		err = p.UnmarshalJSON(text)
		p.saved.Store(p.Version())
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	p.loaded = err == nil
	return err
}

// paused reports whether Caddy's storage is left alone.
func (p *pinning) paused() bool {
	until := p.pause.Load()
	return until != nil && time.Now().Before(*until)
}

// savePins saves what has been seen for the first time, or accepted.
func (h *Handler) savePins(s *Server) {
	if !h.PinTools || s.pins.Version() == s.pins.saved.Load() || s.pins.paused() {
		return
	}
	s.asides.Go(func() { h.store(s) }) // nobody has to wait for it
}

// store saves the pins of a server.
func (h *Handler) store(s *Server) {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if s.pins.Version() == s.pins.saved.Load() || s.pins.paused() {
		return // somebody else has, or could not
	}
	version := s.pins.Version()
	text, err := s.pins.MarshalJSON()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), saveTime)
		defer cancel()
		err = h.ctx.Storage().Store(ctx, s.pinsKey(), text)
	}
	if err != nil && !s.pins.failing {
		h.logger.Error("pinned tools not saved", zap.String("mcp_server", s.Name), zap.Error(err))
	}
	if s.pins.failing = err != nil; err != nil {
		s.pins.pause.Store(new(time.Now().Add(savePause)))
		return
	}
	s.pins.saved.Store(version)
}

// How long Caddy's storage may take, and how long it is left alone after it has failed.
const saveTime, savePause = 5 * time.Second, 30 * time.Second

// withheld reports whether a tool may not be used because it is not what it was.
func (h *Handler) withheld(target mcp.Target) bool {
	s := h.byName[target.Server]
	return h.PinTools && s != nil && target.Kind == mcp.Tool && s.pins.Changed(target.Name)
}

// pinned reports whether a tool is what it was when it was first seen. That it is not
// any more may be an attack: what a client has agreed to was another tool.
func (x *exchange) pinned(item mcp.ListItem) bool {
	changed, news := x.server.pins.See(item.Name, item.Raw)
	if news {
		toolChanges.WithLabelValues(x.server.Name).Inc()
		x.handler.logger.Warn("definition of tool has changed", zap.String("mcp_server", x.server.Name),
			zap.String("mcp_tool", mcp.Shortened(item.Name)), zap.Bool("withheld", x.handler.PinTools))
		x.handler.events.Emit(x.handler.ctx, "mcp_tool_changed", map[string]any{
			"gateway": x.handler.Name, "server": x.server.Name, "tool": mcp.Shortened(item.Name),
		})
	}
	return !changed
}

// changedTools returns the tools whose definition is not what it was when it was first
// seen.
func (h *Handler) changedTools() (changes []toolChange) {
	for _, s := range h.Servers {
		for _, change := range s.pins.Changes() {
			changes = append(changes, toolChange{h.Name, s.Name, change})
		}
	}
	return changes
}

// acceptTools accepts the definition that a tool has now, or those of all tools of the
// server. It returns how many it has accepted. If seen is not empty, the definition must
// be the one of this digest.
func (h *Handler) acceptTools(s *Server, tool, seen string) (accepted int, err error) {
	accepted, err = s.pins.Accept(tool, seen)
	if accepted > 0 {
		h.savePins(s)
		h.joined.Refresh(s.Name)
	}
	return accepted, err
}
