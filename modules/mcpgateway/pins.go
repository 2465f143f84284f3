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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// A serverPins holds the pins of a server: the definitions of its tools when they were first seen.
// It outlives reloads and, with pin_tools, restarts.
type serverPins struct {
	toolpin.Pins

	poolKey string // in pinPool
	key     string // in Caddy's storage and in the shared store

	mu      sync.Mutex
	loaded  bool                      // the pins in Caddy's storage have been read
	waiting bool                      // Caddy's storage had no pins, and those of other replicas are unknown
	failing bool                      // the last save failed, and that has been logged
	saved   atomic.Uint64             // version of the saved pins
	pause   atomic.Pointer[time.Time] // do not save before this time; nil for no pause
}

// A pinStore saves the pins of servers in Caddy's storage and, with mcp_store, in the shared store.
// The shared pins decide. The copy in Caddy's storage serves a replica while the shared store is
// unavailable, and restores the shared pins if they are lost.
type pinStore struct {
	ctx     caddy.Context
	logger  *zap.Logger
	enabled bool                // pin_tools: changed tools are withheld, and pins are saved
	shared  *replicas.Space     // shared by replicas; nil without mcp_store
	storeID string              // ID of the shared store
	refresh func(server string) // makes clients list the tools of a server again

	stopFollowing []func() // each ends following the pins of one server
}

// pinPool holds the pins in use, by source of the server and shared store.
var pinPool = caddy.NewUsagePool()

// open acquires the pins of a server.
func (p *pinStore) open(s *Server) {
	key := s.source + "\x00" + p.storeID
	sum := sha256.Sum256([]byte(s.source))
	name := path.Join("mcp_gateway", "tool_pins", hex.EncodeToString(sum[:16])+".json")
	value, _ := pinPool.LoadOrStore(key, &serverPins{poolKey: key, key: name})
	s.pins = value.(*serverPins)
	if p.enabled {
		p.load(s)
	}
}

// release releases the pins of a server. p may be nil.
func (p *serverPins) release() {
	if p != nil {
		_, _ = pinPool.Delete(p.poolKey)
	}
}

// follow merges the pins of other replicas, now and whenever they change. As long as those are
// unknown and Caddy's storage has no copy, all tools are withheld.
func (p *pinStore) follow(servers []*Server, refresh func(server string)) {
	if !p.enabled || p.shared == nil {
		return
	}
	p.refresh = refresh
	for _, s := range servers {
		p.stopFollowing = append(p.stopFollowing, p.shared.Follow(s.pins.key, func(context.Context, string) error {
			return p.sync(s, func() bool { return true })
		}))
	}
}

// flush saves unsaved pins once more, and stops the retries of this pinStore.
func (p *pinStore) flush(servers []*Server) {
	for _, stop := range p.stopFollowing {
		stop()
	}
	var saving sync.WaitGroup
	for _, s := range servers {
		if s == nil || s.pins == nil || !p.enabled {
			continue
		}
		saving.Go(func() {
			_ = p.saveNow(s) // logs its error
			s.pins.mu.Lock()
			defer s.pins.mu.Unlock()
			if s.retryPins != nil {
				s.retryPins.Stop()
			}
		})
	}
	saving.Wait()
}

// load reads the pins from Caddy's storage. They replace pins that were seen while pin_tools was
// off. If they cannot be read, the gateway still runs, but withholds all tools of the server until
// an operator accepts them, because any tool may have changed. The stored pins stay until then.
func (p *pinStore) load(s *Server) {
	pins, key := s.pins, s.pins.key
	pins.mu.Lock()
	defer pins.mu.Unlock()
	if pins.loaded {
		return
	}
	text, err := p.ctx.Storage().Load(p.ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		pins.loaded = true
		if p.shared != nil {
			pins.waiting = true
			pins.MarkLost()
		}
		return
	}
	if err == nil {
		err = pins.UnmarshalJSON(text)
	}
	pins.loaded = err == nil
	if err != nil {
		pins.MarkLost()
		p.logger.Error("pinned tools cannot be read; all tools of the server are withheld until they are accepted",
			zap.String("mcp_server", s.Name), zap.String("key", key), zap.Error(err))
	}
	pins.saved.Store(pins.Version())
}

// keepBroken copies unreadable pins in Caddy's storage before they are replaced.
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

// paused reports whether saving pauses after a failure.
func (p *serverPins) paused() bool {
	until := p.pause.Load()
	return until != nil && time.Now().Before(*until)
}

// save saves new pins in the background.
func (p *pinStore) save(s *Server) {
	if !p.enabled || s.pins.Version() == s.pins.saved.Load() || s.pins.paused() {
		return
	}
	s.savingPins.Go(func() { _ = p.saveUnsaved(s) })
}

// retry saves pins in the background that could not be saved, by this pinStore or by that of an
// earlier configuration.
func (p *pinStore) retry(s *Server) {
	if p.enabled && s.pins.Version() != s.pins.saved.Load() {
		s.savingPins.Go(func() { _ = p.saveNow(s) })
	}
}

// saveNow ends a pause, and saves the pins of a server.
func (p *pinStore) saveNow(s *Server) error {
	s.pins.pause.Store(nil)
	return p.saveUnsaved(s)
}

// saveUnsaved saves the pins of a server unless they are saved or saving pauses. On failure it
// schedules a retry.
func (p *pinStore) saveUnsaved(s *Server) error {
	return p.sync(s, func() bool { return s.pins.Version() != s.pins.saved.Load() && !s.pins.paused() })
}

// sync merges the pins of a server with those of other replicas and saves them. It does nothing if
// needed returns false.
func (p *pinStore) sync(s *Server, needed func() bool) error {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if !needed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), saveTimeout)
	defer cancel()
	err := p.mergeShared(ctx, s)
	version := s.pins.Version()
	if version != s.pins.saved.Load() {
		err = errors.Join(err, p.saveLocal(ctx, s))
	}
	if err != nil && !s.pins.failing {
		p.logger.Error("pinned tools not saved", zap.String("mcp_server", s.Name),
			zap.Bool("withheld", s.pins.waiting), zap.Error(err))
	}
	s.pins.failing = err != nil
	if err != nil {
		s.pins.pause.Store(new(time.Now().Add(savePause)))
		if s.retryPins != nil {
			s.retryPins.Stop()
		}
		s.retryPins = time.AfterFunc(savePause, func() { p.retry(s) })
		return err
	}
	s.pins.saved.Store(version)
	return nil
}

// mergeShared merges the pins of a server with those of other replicas, without losing pins or
// acceptances of any replica.
func (p *pinStore) mergeShared(ctx context.Context, s *Server) error {
	if p.shared == nil {
		return nil
	}
	news := false
	changed, err := p.shared.Change(ctx, s.pins.key, "", func(value []byte) ([]byte, error) {
		switch {
		case value != nil:
			others, err := s.pins.Merge(value)
			news = news || others
			if err != nil {
				return nil, err
			}
		case s.pins.waiting:
			s.pins.ClearLost()
			news = true
		}
		s.pins.waiting = false
		if value == nil && s.pins.IsEmpty() {
			return nil, nil
		}
		return s.pins.MarshalJSON()
	})
	if changed {
		_ = p.shared.Announce(ctx, s.pins.key, "") // replicas also poll
	}
	if news && p.refresh != nil {
		p.refresh(s.Name)
	}
	return err
}

// saveLocal saves a copy of the pins of a server in Caddy's storage.
func (p *pinStore) saveLocal(ctx context.Context, s *Server) error {
	text, err := s.pins.MarshalJSON()
	if err == nil && !s.pins.loaded {
		err = p.keepBroken(ctx, s.pins.key)
	}
	if err == nil {
		err = p.ctx.Storage().Store(ctx, s.pins.key, text)
	}
	s.pins.loaded = s.pins.loaded || err == nil
	return err
}

// Timeout of a save, and the pause after a failed one.
const saveTimeout, savePause = 5 * time.Second, 30 * time.Second

// listChanges returns the tools whose definition has changed since it was first seen.
func (g adminGateway) listChanges() (changes []adminapi.ToolChange) {
	for _, s := range g.Servers {
		for _, change := range s.pins.Changes() {
			changes = append(changes, adminapi.ToolChange{Gateway: g.Name, Server: s.Name, Change: change})
		}
	}
	return changes
}

// acceptTools accepts the current definition of a tool or, if tool is empty, of all tools of the
// server. If seen is not empty, the definition must have this digest. It returns the number of
// accepted tools.
func (g adminGateway) acceptTools(s *Server, tool, seen string) (accepted int, err error) {
	accepted, err = s.pins.Accept(tool, seen)
	if accepted > 0 {
		if g.PinTools {
			if failed := g.pins.saveNow(s); failed != nil {
				err = fmt.Errorf("%w: %w", errNotSaved, failed)
			}
		}
		g.gateway.RefreshLocal(s.Name) // other replicas follow the pins
	}
	return accepted, err
}

// errNotSaved means that accepted tools will be withheld again after a restart, unless a later save
// succeeds.
var errNotSaved = errors.New("the tools are accepted, but could not be saved")
