// Package mcpstore implements the app mcp_store, through which replicas of a gateway share state.
package mcpstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

func init() { caddy.RegisterModule(App{}) }

// App configures the store through which replicas of a gateway share state: originals of masked
// results, rate limits, nonces, sessions, logins and so on. Without it, each replica has its own
// state.
type App struct {
	// The engine that stores the state, such as redis. Default: memory, which shares nothing
	EngineRaw json.RawMessage `json:"engine,omitempty" caddy:"namespace=mcp_store inline_key=engine"`

	// The secret that all replicas have in common, at least 32 characters long. It encrypts the state,
	// and is the default session_key of gateways. Required if the engine is shared.
	SessionKey string `json:"session_key,omitempty"`

	// Prefix of all keys and topics, for engines that other programs use, too. It may have
	// placeholders such as {env.NAME} and {file./path}. Default: "caddy-mcp:"
	Prefix string `json:"prefix,omitempty"`

	// How long an operation of the store may take. Default: 500ms
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How often to try an unavailable store again. Default: 1s
	Retry caddy.Duration `json:"retry,omitempty"`

	// What to do with calls that have a rate limit while the store is unavailable. refuse rejects
	// them; with allow, each replica applies the limit on its own. Default: refuse
	LimitsWhenDown string `json:"limits_when_down,omitempty"`

	// Maximum size in bytes of all originals of one client. Default: 64 MiB
	MaxClientBytes int64 `json:"max_client_bytes,omitempty"`

	// Maximum size in bytes of entries that wait to be written. Default: 64 MiB
	MaxQueueBytes int64 `json:"max_queue_bytes,omitempty"`

	key    []byte
	store  *Store    // nil if nothing is shared
	claims *sync.Map // owners by claimed name
}

// An Opener is a module that opens an engine, in the namespace mcp_store.
type Opener interface {
	// Open returns the engine, or nil if nothing is shared. It does not wait for an unreachable
	// server.
	Open(logger *zap.Logger) (replicas.Engine, error)
}

// An Addressed is an Opener whose engine has an address.
type Addressed interface {
	// Address returns the address for operators, without credentials.
	Address() string
}

// A FileReader is an Opener that reads files. If they change, a reload opens a new engine.
type FileReader interface {
	// Files returns the names of the files.
	Files() []string
}

// Values of limits_when_down.
const (
	refuseWhenDown = "refuse"
	allowWhenDown  = "allow"
)

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "mcp_store", New: func() caddy.Module { return new(App) }}
}

// Provision opens the store.
func (a *App) Provision(ctx caddy.Context) (err error) {
	a.setDefaults()
	// Replaced in place, because the settings identify the store.
	a.Prefix, err = caddy.NewReplacer().ReplaceOrErr(a.Prefix, true, true)
	if err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	a.claims = new(sync.Map)
	if err := telemetry.Register(ctx, operations, durations, up); err != nil {
		return err
	}
	if a.EngineRaw == nil {
		return a.check()
	}
	module, err := ctx.LoadModule(a, "EngineRaw")
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if _, local := module.(*Memory); local {
		return a.check()
	}
	if err := a.check(); err != nil {
		return err
	}
	if a.SessionKey == "" {
		return errors.New("session_key: required for a shared engine")
	}
	a.key, err = setting.SessionKey(a.SessionKey)
	if err != nil {
		return fmt.Errorf("session_key: %w", err)
	}
	a.store, err = a.open(module.(Opener), ctx.Logger())
	return err
}

func (a *App) setDefaults() {
	if a.Prefix == "" {
		a.Prefix = "caddy-mcp:"
	}
	if a.Timeout == 0 {
		a.Timeout = caddy.Duration(500 * time.Millisecond)
	}
	if a.Retry == 0 {
		a.Retry = caddy.Duration(time.Second)
	}
	if a.LimitsWhenDown == "" {
		a.LimitsWhenDown = refuseWhenDown
	}
	if a.MaxClientBytes == 0 {
		a.MaxClientBytes = 64 << 20
	}
	if a.MaxQueueBytes == 0 {
		a.MaxQueueBytes = 64 << 20
	}
}

// check validates the settings.
func (a *App) check() error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	switch {
	case strings.Trim(a.Prefix, letters+"0123456789-_.:") != "":
		return fmt.Errorf("prefix: only letters, digits and -_.: are allowed, got %q", a.Prefix)
	case a.Timeout < 0:
		return fmt.Errorf("timeout: %s is negative", time.Duration(a.Timeout))
	case a.Retry < 0:
		return fmt.Errorf("retry: %s is negative", time.Duration(a.Retry))
	case a.LimitsWhenDown != refuseWhenDown && a.LimitsWhenDown != allowWhenDown:
		return fmt.Errorf("limits_when_down: expected refuse or allow, got %q", a.LimitsWhenDown)
	case a.MaxClientBytes < 0:
		return fmt.Errorf("max_client_bytes: %d is negative", a.MaxClientBytes)
	case a.MaxQueueBytes < 0:
		return fmt.Errorf("max_queue_bytes: %d is negative", a.MaxQueueBytes)
	}
	return nil
}

// Start implements caddy.App.
func (*App) Start() error { return nil }

// Stop implements caddy.App.
func (*App) Stop() error { return nil }

// Cleanup releases the store.
func (a *App) Cleanup() error { return a.store.Release() }

// appOf returns the app of a configuration, or nil.
func appOf(ctx caddy.Context) (*App, error) {
	app, err := ctx.AppIfConfigured("mcp_store")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return app.(*App), nil
}

func init() { caddy.RegisterModule(Memory{}) }

// Memory keeps state in the memory of the process. Nothing is shared, as without mcp_store.
type Memory struct{}

// CaddyModule returns the Caddy module information.
func (Memory) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "mcp_store.memory", New: func() caddy.Module { return new(Memory) }}
}

// Open implements Opener.
func (*Memory) Open(*zap.Logger) (replicas.Engine, error) { return nil, nil }

// UnmarshalCaddyfile sets up the engine from Caddyfile tokens. Syntax:
//
//	mcp_store memory
func (*Memory) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume engine name
	if d.NextArg() {
		return d.Errf("mcp_store memory takes no arguments")
	}
	return setting.Block(d, setting.Lines{})
}

// Interface guards
var (
	_ caddy.App             = (*App)(nil)
	_ caddy.Provisioner     = (*App)(nil)
	_ caddy.CleanerUpper    = (*App)(nil)
	_ Opener                = (*Memory)(nil)
	_ caddyfile.Unmarshaler = (*Memory)(nil)
)
