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

// A pinning is how the tools of a server were defined when they were first seen. It
// outlives reloads and, where tools are withheld, restarts.
type pinning struct {
	toolpin.Pins

	mu      sync.Mutex
	loaded  bool                      // what is in Caddy's storage is known
	waiting bool                      // it has nothing, and what other replicas have is not known yet
	failing bool                      // it cannot be saved, which has been said
	saved   atomic.Uint64             // the version that is there
	pause   atomic.Pointer[time.Time] // before which nothing is saved; nil for none
	retry   *time.Timer               // ends that pause; nil if there was none
}

// Destruct implements caddy.Destructor.
func (*pinning) Destruct() error { return nil }

// A pinStore keeps the pins of servers in Caddy's storage and, where there are replicas, in the store
// that they share. The pins there are those that count. Caddy's storage has a copy, by which a replica
// serves while the store is unavailable, and which takes its place if it is lost.
type pinStore struct {
	ctx     caddy.Context
	logger  *zap.Logger
	on      bool                // tools are withheld
	common  *replicas.Space     // what replicas share; nil if there are none
	storeID string              // tells it from others
	refresh func(server string) // has the tools of a server listed anew

	following []func() // each is a function that ends it
}

// pinnings are those in use, by the source of the server and the store.
var pinnings = caddy.NewUsagePool()

// open finds how the tools of a server were defined.
func (p *pinStore) open(s *Server) error {
	key := s.source + "\x00" + p.storeID
	value, _, err := pinnings.LoadOrNew(key, func() (caddy.Destructor, error) { return new(pinning), nil })
	if err != nil {
		return err
	}
	s.pins, s.pinning = value.(*pinning), key
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
	_, err := pinnings.Delete(s.pinning)
	return err
}

// follow takes over what other replicas have pinned, from now on. If it is not known what they have, and
// there is no copy of it, all tools are withheld until it is.
func (p *pinStore) follow(servers []*Server, refresh func(server string)) {
	if !p.on || p.common == nil {
		return
	}
	p.refresh = refresh
	for _, s := range servers {
		p.following = append(p.following, p.common.Follow(s.pinsKey(), func(context.Context, string) error {
			return p.write(s, func() bool { return true })
		}))
	}
}

// flush saves what could not be saved before. Nothing is tried again after that.
func (p *pinStore) flush(servers []*Server) {
	for _, stop := range p.following {
		stop()
	}
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
		if p.common != nil {
			pins.waiting = true
			pins.Lose()
		}
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

// store saves the pins of a server, unless another goroutine has, or could not. If it cannot, it is tried again
// later.
func (p *pinStore) store(s *Server) error {
	return p.write(s, func() bool { return s.pins.Version() != s.pins.saved.Load() && !s.pins.paused() })
}

// write brings the pins of a server together with those of other replicas, and saves them, if that is
// needed.
func (p *pinStore) write(s *Server, needed func() bool) error {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if !needed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), saveTime)
	defer cancel()
	err := p.share(ctx, s)
	version := s.pins.Version()
	if version != s.pins.saved.Load() {
		err = errors.Join(err, p.copy(ctx, s))
	}
	if err != nil && !s.pins.failing {
		p.logger.Error("pinned tools not saved", zap.String("mcp_server", s.Name),
			zap.Bool("withheld", s.pins.waiting), zap.Error(err))
	}
	if s.pins.failing = err != nil; err != nil {
		s.pins.pause.Store(new(time.Now().Add(savePause)))
		if s.pins.retry != nil {
			s.pins.retry.Stop()
		}
		s.pins.retry = time.AfterFunc(savePause, func() { p.save(s) })
		return err
	}
	s.pins.saved.Store(version)
	return nil
}

// share brings the pins of a server together with those of other replicas. Nothing that one of them has
// seen first, or that was accepted there, is lost by that.
func (p *pinStore) share(ctx context.Context, s *Server) error {
	if p.common == nil {
		return nil
	}
	news := false
	changed, err := p.common.Change(ctx, s.pinsKey(), "", func(value []byte) ([]byte, error) {
		switch {
		case value != nil:
			others, err := s.pins.Merge(value)
			if news = news || others; err != nil {
				return nil, err
			}
		case s.pins.waiting:
			s.pins.Find()
			news = true
		}
		s.pins.waiting = false
		if value == nil && s.pins.Nothing() {
			return nil, nil
		}
		return s.pins.MarshalJSON()
	})
	if changed {
		_ = p.common.Announce(ctx, s.pinsKey(), "") // they look for themselves, too
	}
	if news && p.refresh != nil {
		p.refresh(s.Name)
	}
	return err
}

// copy saves the pins of a server in Caddy's storage.
func (p *pinStore) copy(ctx context.Context, s *Server) error {
	text, err := s.pins.MarshalJSON()
	if err == nil && !s.pins.loaded {
		err = p.keepBroken(ctx, s.pinsKey())
	}
	if err == nil {
		err = p.ctx.Storage().Store(ctx, s.pinsKey(), text)
	}
	s.pins.loaded = s.pins.loaded || err == nil
	return err
}

// How long Caddy's storage may take, and how long it is left alone after it has failed.
const saveTime, savePause = 5 * time.Second, 30 * time.Second

// changedTools returns the tools whose definition is not what it was when it was first
// seen.
func changedTools(h *Handler) (changes []adminapi.ToolChange) {
	for _, s := range h.Servers {
		for _, change := range s.pins.Changes() {
			changes = append(changes, adminapi.ToolChange{Gateway: h.Name, Server: s.Name, Change: change})
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
		h.gateway.RefreshHere(s.Name) // other replicas follow the pins
	}
	return accepted, err
}

// errNotSaved is that what was accepted is withheld again after a restart.
var errNotSaved = errors.New("accepted, but not saved")
