// Package mcpstore is the app by which replicas of a gateway share their state.
package mcpstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

func init() { caddy.RegisterModule(App{}) }

// App is what replicas of a gateway share: what was cut from results and can be asked for, rates, nonces,
// sessions, logins and the like. Without it, each process has its own.
type App struct {
	// Where it is kept. Default: in the memory of the process, where other replicas do not see it.
	EngineRaw json.RawMessage `json:"engine,omitempty" caddy:"namespace=mcp_store inline_key=engine"`

	// The secret that all replicas have, at least 32 characters long. It encrypts what is kept, and is the
	// session_key of the gateways that have none of their own. It is needed if the engine is shared.
	SessionKey string `json:"session_key,omitempty"`

	// What the names of keys and topics begin with, which may have placeholders of the environment and of
	// files. Default: "caddy-mcp:"
	Prefix string `json:"prefix,omitempty"`

	// How long an operation may take. Default: 500ms
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How often a store that has failed is tried. Default: 1s
	Retry caddy.Duration `json:"retry,omitempty"`

	// What becomes of calls with a rate limit while the store is unavailable: refuse, or allow, by which
	// every replica has limits of its own. Default: refuse
	LimitsWhenDown string `json:"limits_when_down,omitempty"`

	// How many bytes of originals are kept for a client. Default: 64 MiB
	MaxClientBytes int64 `json:"max_client_bytes,omitempty"`

	// How many bytes may wait to be written. Default: 64 MiB
	MaxQueueBytes int64 `json:"max_queue_bytes,omitempty"`

	key    []byte
	store  *Store    // nil if nothing is shared
	claims *sync.Map // the owner of each claimed name
}

// An Opener is a module that opens an engine, in the namespace mcp_store.
type Opener interface {
	// Open returns the engine. A nil one means that nothing is shared. It does not wait for a server that
	// cannot be reached.
	Open(logger *zap.Logger) (replicas.Engine, error)
}

// An Addressed is an Opener that can tell where its engine is.
type Addressed interface {
	// Address returns where the engine is, for operators. It has no credentials.
	Address() string
}

// A FileReader is an Opener that reads files. One whose files have changed opens another engine.
type FileReader interface {
	// Files returns their names.
	Files() []string
}

// What becomes of limits while the store is unavailable.
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
	// Where it is, so that a store is known by it.
	if a.Prefix, err = caddy.NewReplacer().ReplaceOrErr(a.Prefix, true, true); err != nil {
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
		return errors.New("session_key: it is needed where replicas share a store")
	}
	if a.key, err = setting.SessionKey(a.SessionKey); err != nil {
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

// check reports settings that make no sense.
func (a *App) check() error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	switch {
	case strings.Trim(a.Prefix, letters+"0123456789-_.:") != "":
		return fmt.Errorf("prefix: %q has other characters than -_.:, letters and digits", a.Prefix)
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

// Cleanup gives the store back.
func (a *App) Cleanup() error { return a.store.Release() }

// appOf returns the app of a configuration, nil if there is none.
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

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
