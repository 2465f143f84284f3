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

// A pool is the children of one configuration of the transport. It outlives the
// modules that use it, and reports to the latest of them.
type pool struct {
	*stdio.Pool
	key [sha256.Size]byte

	mu    sync.Mutex
	users []*user
}

// A user is a module that uses a pool, and where what happens is reported to.
type user struct {
	ctx    caddy.Context
	logger *zap.Logger
	events *caddyevents.App
	hosts  []string // of its upstreams; none if these are not known
}

// named returns the logger with the name of the server, if that is known.
func (u *user) named() *zap.Logger {
	if len(u.hosts) == 0 {
		return u.logger
	}
	name, _, _ := strings.Cut(u.hosts[0], ":")
	return u.logger.With(zap.String("mcp_server", name))
}

// soleClient says that this process serves one client.
var soleClient bool

// SoleClient says that this process serves one client, to which all of its children
// belong. It is called before a configuration is loaded.
func SoleClient() { soleClient = true }

var (
	// pools are the pools in use, by their configuration.
	pools = caddy.NewUsagePool()
	// draining are the pools that nobody uses any more but those who already did.
	draining sync.WaitGroup
	// exiting ends the draining.
	exiting, exit = context.WithCancel(context.Background())
)

// Caddy cleans up one module after the other, so it is here that its exit waits for
// all children at once.
func init() {
	caddy.OnExit(func(context.Context) {
		exit()
		draining.Wait()
	})
}

// openPool returns the pool of a configuration. There are secrets in that, so the
// key is its hash.
func openPool(config stdio.Config) (*pool, error) {
	text, err := json.Marshal(struct {
		stdio.Config
		Logger bool `json:",omitempty"` // in the place of a function
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

// join makes a module the one that is reported to.
func (p *pool) join(u *user) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users = append(p.users, u)
	p.Use(u.hosts...)
}

// latest returns the module to report to. When all have left, what is still to be
// said goes to the last one.
func (p *pool) latest() *user {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.users[len(p.users)-1]
}

// leave ends the use of the pool by a module, which may be one of a configuration
// that has failed to load.
func (p *pool) leave(u *user) error {
	p.mu.Lock()
	if len(p.users) > 1 {
		p.users = slices.DeleteFunc(p.users, func(other *user) bool { return other == u })
	}
	p.mu.Unlock()
	deleted, err := pools.Delete(p.key)
	if !deleted && err == nil { // other modules go on with some of its children, or with none
		p.drain(func(ctx context.Context) { p.Release(ctx, linger, u.hosts...) })
	}
	return err
}

// drain has something come to its end in the background.
func (p *pool) drain(end func(context.Context)) {
	draining.Go(func() {
		ctx, cancel := context.WithTimeout(exiting, drainTime)
		defer cancel()
		end(ctx)
		running.forget()
	})
}

// The time that a pool which is no longer used has for what is in flight, and how
// long it waits for requests that are still on their way to it.
const (
	drainTime = 5 * time.Minute
	linger    = 5 * time.Second
)

// Destruct implements caddy.Destructor. At the exit of Caddy everybody has left, and
// after a reload some may still be waiting.
func (p *pool) Destruct() error {
	if caddy.Exiting() {
		draining.Go(p.Close)
		return nil
	}
	p.drain(func(ctx context.Context) { p.Drain(ctx, linger) })
	return nil
}

// Handle is told that a configuration is being stopped. If it is the end of Caddy,
// the streams of clients end now: Caddy waits for them before anything else, and
// they would never end.
func (p *pool) Handle(context.Context, caddy.Event) error {
	if caddy.Exiting() {
		p.Hangup()
	}
	return nil
}

// Started implements stdio.Observer.
func (p *pool) Started(server string, pid int, restart bool) {
	running.count(server, 1)
	if restart {
		restarts.WithLabelValues(server).Inc()
	}
	p.emit("mcp_server_started", map[string]any{"server": server, "pid": pid, "restart": restart})
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
