// Package storepool holds the stores in which modules keep originals, so that they survive
// configuration reloads.
package storepool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// A Store holds originals of one kind. All modules that store this kind within the same limits
// share it.
type Store struct {
	*store.Store
	key    key
	shared *mcpstore.Store // store of all replicas, or nil
}

type key struct {
	kind   *quota.Kind
	limits store.Limits
	shared [sha256.Size]byte // ID of the store of all replicas
}

var stores = caddy.NewUsagePool()

// Open returns the store of a kind within limits. The caller must release it.
func Open(kind *quota.Kind, limits store.Limits) (*Store, error) {
	return open(key{kind: kind, limits: limits}, nil)
}

// OpenShared is Open for a store that replicas share if mcp_store is configured.
func OpenShared(ctx caddy.Context, kind *quota.Kind, limits store.Limits) (*Store, error) {
	common, err := mcpstore.Open(ctx)
	if err != nil {
		return nil, err
	}
	if common == nil {
		return Open(kind, limits)
	}
	return open(key{kind, limits, common.ID}, common)
}

// open opens a store. It takes over the reference to common.
func open(k key, common *mcpstore.Store) (*Store, error) {
	value, loaded, err := stores.LoadOrNew(k, func() (caddy.Destructor, error) {
		var space *replicas.Space
		if common != nil {
			space = common.Space("originals " + k.kind.Name)
		}
		return &Store{store.New(k.kind, k.limits, space), k, common}, nil
	})
	if loaded {
		err = errors.Join(err, common.Release())
	}
	if err != nil {
		return nil, err
	}
	return value.(*Store), nil
}

// A Place is a store and owner under which an original may be kept.
type Place struct {
	Store *Store // nil if nothing is kept
	Owner string
}

// Fetch fetches an original from other replicas into the stores of places, where Get then finds it.
func Fetch(ctx context.Context, handle string, places ...Place) error {
	owners := map[*Store][]string{}
	for _, p := range places {
		if p.Store != nil && p.Store.shared != nil {
			owners[p.Store] = append(owners[p.Store], p.Owner)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		found bool
		err   error
	}
	results := make(chan result, len(owners))
	for s, names := range owners {
		go func() {
			found, err := s.Fetch(ctx, handle, names...)
			results <- result{found, err}
		}()
	}
	var all result
	for range owners {
		r := <-results
		if r.found {
			all.found = true
			cancel() // stop the others
		}
		all.err = errors.Join(all.err, r.err)
	}
	if all.found {
		return nil
	}
	return all.err
}

// All returns the open stores of a kind.
func All(kind *quota.Kind) (all []*Store) {
	stores.Range(func(_, value any) bool {
		if s := value.(*Store); s.key.kind == kind {
			all = append(all, s)
		}
		return true
	})
	return all
}

// readable is the events app of the latest configuration with a gateway.
var readable atomic.Pointer[caddyevents.App]

// SetReadable notes that the configuration with this events app has a gateway, whose clients can
// read originals.
func SetReadable(events *caddyevents.App) { readable.Store(events) }

// WarnIfUnreadable logs a warning when the configuration of ctx has started, unless it has a
// gateway. With a store of all replicas, the gateway may be in another process.
func (s *Store) WarnIfUnreadable(ctx caddy.Context) error {
	if s.shared != nil || replaceable.Is(ctx) { // a gateway has loaded it
		return nil
	}
	app, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting events app: %w", err)
	}
	events := app.(*caddyevents.App)
	return events.On("started", unreadable{events, ctx.Logger()})
}

// An unreadable logs the warning.
type unreadable struct {
	events *caddyevents.App
	logger *zap.Logger
}

// Handle is called when the configuration has started.
func (u unreadable) Handle(context.Context, caddy.Event) error {
	if readable.Load() != u.events {
		u.logger.Warn("recover keeps originals that no client can read, because there is no mcp_gateway; " +
			"add one, or write recover off")
	}
	return nil
}

// Release releases the store; a nil Store is fine. After the last release its content is gone.
func (s *Store) Release() error {
	if s == nil {
		return nil
	}
	_, err := stores.Delete(s.key)
	return err
}

// Destruct implements caddy.Destructor.
func (s *Store) Destruct() error {
	s.Close()
	return s.shared.Release()
}

// Bounds are the limits of a store of originals, configured as recover.
type Bounds struct {
	// How long an original is kept after its last use. Default: 1h
	TTL caddy.Duration `json:"ttl,omitempty"`

	// Maximum number of originals. Default: 1000
	MaxEntries int `json:"max_entries,omitempty"`

	// Maximum total size of the originals in bytes. Default: 64 MiB
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// Lines returns the subdirectives of a block with the bounds:
//
//	recover [on|off] {
//		ttl         <duration>
//		max_entries <number>
//		max_bytes   <size>
//	}
func (b *Bounds) Lines() setting.Lines {
	return setting.Lines{
		"ttl": b.parseTTL,
		"max_entries": setting.NotZero(&b.MaxEntries, setting.NotNegative,
			"recover max_entries: 0 keeps nothing; write recover off"),
		"max_bytes": setting.NotZero(&b.MaxBytes, setting.Size, "recover max_bytes: 0 keeps nothing; write recover off"),
	}
}

func (b *Bounds) parseTTL(d *caddyfile.Dispenser) error {
	var arg string
	if !d.AllArgs(&arg) {
		return setting.Expected(d, "ttl", "<duration>")
	}
	ttl, err := setting.ParseDuration(arg)
	if err != nil {
		return d.Errf("recover ttl: %v", err)
	}
	if ttl == 0 {
		return d.Errf("recover ttl: 0 keeps nothing; write recover off")
	}
	if ttl < 0 {
		return d.Errf("recover ttl: %s is negative", arg)
	}
	b.TTL = caddy.Duration(ttl)
	return nil
}

// SetDefaults sets the defaults.
func (b *Bounds) SetDefaults() {
	b.TTL = cmp.Or(b.TTL, caddy.Duration(time.Hour))
	b.MaxEntries = cmp.Or(b.MaxEntries, 1000)
	b.MaxBytes = cmp.Or(b.MaxBytes, 64<<20)
}

// Validate rejects negative bounds.
func (b *Bounds) Validate() error {
	switch {
	case b.TTL < 0:
		return fmt.Errorf("recover ttl: %s is negative", time.Duration(b.TTL))
	case b.MaxEntries < 0:
		return fmt.Errorf("recover max_entries: %d is negative", b.MaxEntries)
	case b.MaxBytes < 0:
		return fmt.Errorf("recover max_bytes: %d is negative", b.MaxBytes)
	}
	return nil
}

// Limits returns the bounds for a store.
func (b *Bounds) Limits() store.Limits {
	return store.Limits{Entries: b.MaxEntries, Bytes: b.MaxBytes, TTL: time.Duration(b.TTL)}
}
