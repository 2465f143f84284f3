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
	retry   *time.Timer               // ends that pause; nil if there was none
}

// Destruct implements caddy.Destructor.
func (*pinning) Destruct() error { return nil }

// A pinStore keeps the pins of servers in Caddy's storage.
type pinStore struct {
	ctx    caddy.Context
	logger *zap.Logger
	on     bool // tools are withheld
}

// pinnings are those in use, by the source of the server.
var pinnings = caddy.NewUsagePool()

// open finds how the tools of a server were defined.
func (p *pinStore) open(s *Server) error {
	value, _, err := pinnings.LoadOrNew(s.source, func() (caddy.Destructor, error) { return new(pinning), nil })
	if err != nil {
		return err
	}
	s.pins = value.(*pinning)
	if p.on {
		p.load(s)
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

// flush saves what could not be saved before. Nothing is tried again after that.
func (p *pinStore) flush(servers []*Server) {
	var saving sync.WaitGroup
	for _, s := range servers {
		if s == nil || s.pins == nil || !p.on {
			continue
		}
		saving.Go(func() {
			_ = p.saveNow(s) // it logs why it cannot
			s.pins.mu.Lock()
			defer s.pins.mu.Unlock()
			if s.pins.retry != nil {
				s.pins.retry.Stop()
			}
		})
	}
	saving.Wait()
}

// pinsKey is where the pins of a server are in Caddy's storage.
func (s *Server) pinsKey() string {
	sum := sha256.Sum256([]byte(s.source))
	return path.Join("mcp_gateway", "tool_pins", hex.EncodeToString(sum[:16])+".json")
}

// load takes what is in Caddy's storage in place of what was seen while nothing was
// withheld. If it cannot be read, the gateway serves nevertheless, as do other
// sites, but withholds all tools of the server until an operator accepts them: any of them
// may have changed. What is there stays until then.
func (p *pinStore) load(s *Server) {
	pins, key := s.pins, s.pinsKey()
	pins.mu.Lock()
	defer pins.mu.Unlock()
	if pins.loaded {
		return
	}
	text, err := p.ctx.Storage().Load(p.ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		pins.loaded = true
		return
	}
	if err == nil {
		err = pins.UnmarshalJSON(text)
	}
	if pins.loaded = err == nil; err != nil {
		pins.Lose()
		p.logger.Error("pinned tools cannot be read; all tools of the server are withheld until they are accepted",
			zap.String("mcp_server", s.Name), zap.String("key", key), zap.Error(err))
	}
	pins.saved.Store(pins.Version())
}

// keepBroken keeps a copy of what could not be read before it is replaced.
func (p *pinStore) keepBroken(ctx context.Context, key string) error {
	text, err := p.ctx.Storage().Load(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = p.ctx.Storage().Store(ctx, key+".broken", text)
	}
	return err
}

// paused reports whether Caddy's storage is left alone.
func (p *pinning) paused() bool {
	until := p.pause.Load()
	return until != nil && time.Now().Before(*until)
}

// save saves what has been seen for the first time, or accepted.
func (p *pinStore) save(s *Server) {
	if !p.on || s.pins.Version() == s.pins.saved.Load() || s.pins.paused() {
		return
	}
	s.saving.Go(func() { _ = p.store(s) }) // the caller need not wait for it
}

// saveNow saves the pins of a server, even if that has failed just before.
func (p *pinStore) saveNow(s *Server) error {
	s.pins.pause.Store(nil)
	return p.store(s)
}

// store saves the pins of a server. If it cannot, it is tried again later.
func (p *pinStore) store(s *Server) error {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if s.pins.Version() == s.pins.saved.Load() || s.pins.paused() {
		return nil // somebody else has, or could not
	}
	version := s.pins.Version()
	text, err := s.pins.MarshalJSON()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), saveTime)
		defer cancel()
		if !s.pins.loaded {
			err = p.keepBroken(ctx, s.pinsKey())
		}
		if err == nil {
			err = p.ctx.Storage().Store(ctx, s.pinsKey(), text)
		}
	}
	if err != nil && !s.pins.failing {
		p.logger.Error("pinned tools not saved", zap.String("mcp_server", s.Name), zap.Error(err))
	}
	if s.pins.failing = err != nil; err != nil {
		s.pins.pause.Store(new(time.Now().Add(savePause)))
		if s.pins.retry != nil {
			s.pins.retry.Stop()
		}
		s.pins.retry = time.AfterFunc(savePause, func() { p.save(s) })
		return err
	}
	s.pins.loaded = true
	s.pins.saved.Store(version)
	return nil
}

// How long Caddy's storage may take, and how long it is left alone after it has failed.
const saveTime, savePause = 5 * time.Second, 30 * time.Second

// changedTools returns the tools whose definition is not what it was when it was first
// seen.
func changedTools(h *Handler) (changes []ToolChange) {
	for _, s := range h.Servers {
		for _, change := range s.pins.Changes() {
			changes = append(changes, ToolChange{h.Name, s.Name, change})
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
		if h.PinTools {
			if failed := h.pins.saveNow(s); failed != nil {
				err = fmt.Errorf("%w: %w", errNotSaved, failed)
			}
		}
		h.gateway.Refresh(s.Name)
	}
	return accepted, err
}

// errNotSaved is that what was accepted is withheld again after a restart.
var errNotSaved = errors.New("accepted, but not saved")
