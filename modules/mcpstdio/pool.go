package mcpstdio

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// A pool holds the children of one transport configuration. It outlives the modules that use it.
// Its events and logs go to the latest of them.
type pool struct {
	*stdio.Pool
	key [sha256.Size]byte

	mu    sync.Mutex
	users []*user
}

// A user is a module that uses a pool.
type user struct {
	ctx    caddy.Context
	logger *zap.Logger
	events *caddyevents.App
	hosts  []string // hosts of its upstreams; empty if unknown
}

// serverLogger returns the logger with the server's name, if known.
func (u *user) serverLogger() *zap.Logger {
	if len(u.hosts) == 0 {
		return u.logger
	}
	name, _, _ := strings.Cut(u.hosts[0], ":")
	return u.logger.With(zap.String("mcp_server", name))
}

// soleClient reports whether this process serves one client.
var soleClient bool

// SetSoleClient makes one client the owner of all children of this process. It must be called
// before a configuration is loaded.
func SetSoleClient() { soleClient = true }

var (
	// pools holds the pools in use, by hash of their configuration.
	pools = caddy.NewUsagePool()
	// draining counts pools that no module uses and that still finish calls.
	draining sync.WaitGroup
	// exiting is done when Caddy exits, which ends the draining.
	exiting, exit = context.WithCancel(context.Background())
)

// Caddy cleans up modules one by one, so on exit it waits here for all children at once.
func init() {
	caddy.OnExit(func(context.Context) {
		exit()
		draining.Wait()
	})
}

// openPool returns the pool of a configuration. The key is a hash, because the configuration has
// secrets.
func openPool(config stdio.Config) (*pool, error) {
	text, err := json.Marshal(struct {
		stdio.Config
		Logger bool `json:",omitempty"` // replaces the function, which has no JSON
	}{Config: config})
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256(text)
	value, _, err := pools.LoadOrNew(key, func() (caddy.Destructor, error) {
		p := &pool{key: key}
		config.Logger = func() *zap.Logger { return p.latest().logger }
		p.Pool = stdio.NewPool(config, p)
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*pool), nil
}

// join adds a module, which becomes the latest user.
func (p *pool) join(u *user) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users = append(p.users, u)
	p.Use(u.hosts...)
}

// latest returns the latest user. After all modules have left, it is the last one.
func (p *pool) latest() *user {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.users[len(p.users)-1]
}

// leave removes a module, which may belong to a configuration that failed to load.
func (p *pool) leave(u *user) error {
	p.mu.Lock()
	if len(p.users) > 1 {
		p.users = slices.DeleteFunc(p.users, func(other *user) bool { return other == u })
	}
	p.mu.Unlock()
	deleted, err := pools.Delete(p.key)
	if !deleted && err == nil { // other modules use the pool, perhaps without some of its children
		p.drain(func(ctx context.Context) { p.Release(ctx, drainDelay, u.hosts...) })
	}
	return err
}

// drain runs end in the background, with drainTimeout.
func (p *pool) drain(end func(context.Context)) {
	draining.Go(func() {
		ctx, cancel := context.WithTimeout(exiting, drainTimeout)
		defer cancel()
		end(ctx)
		running.removeStopped()
	})
}

const (
	// drainTimeout is how long an unused pool may take to finish calls.
	drainTimeout = 5 * time.Minute
	// drainDelay is how long an unused pool waits for requests that are still being forwarded to it.
	drainDelay = 5 * time.Second
)

// Destruct implements caddy.Destructor. On exit it closes the pool; after a reload it drains it,
// because calls may still be in progress.
func (p *pool) Destruct() error {
	if caddy.Exiting() {
		draining.Go(p.Close)
		return nil
	}
	p.drain(func(ctx context.Context) { p.Drain(ctx, drainDelay) })
	return nil
}

// Handle implements caddyevents.Handler for the event stopping. When Caddy exits, it ends the
// streams of clients: Caddy waits for them first, and they would never end.
func (p *pool) Handle(context.Context, caddy.Event) error {
	if caddy.Exiting() {
		p.EndStreams()
	}
	return nil
}

// Started implements stdio.Observer.
func (p *pool) Started(server string, pid int, restart bool) {
	running.count(server, 1)
	countRestart(server, restart)
	p.emit("mcp_server_started", map[string]any{"server": server, "pid": pid, "restart": restart})
}

// NotStarted implements stdio.Observer. A server that never starts is in the metric, too.
func (p *pool) NotStarted(server string, restart bool) {
	running.count(server, 0)
	countRestart(server, restart)
}

// countRestart counts a restart, even one that has failed.
func countRestart(server string, restart bool) {
	if restart {
		restarts.WithLabelValues(server).Inc()
	}
}

// Exited implements stdio.Observer.
func (p *pool) Exited(server string, pid int, err error) {
	running.count(server, -1)
	p.emit("mcp_server_exited", map[string]any{"server": server, "pid": pid, "error": err.Error()})
}

// Noise implements stdio.Observer.
func (p *pool) Noise(server string) { noise.WithLabelValues(server).Inc() }

// Dropped implements stdio.Observer.
func (p *pool) Dropped(server string) { dropped.WithLabelValues(server).Inc() }

func (p *pool) emit(name string, data map[string]any) {
	u := p.latest()
	u.events.Emit(u.ctx, name, data)
}
