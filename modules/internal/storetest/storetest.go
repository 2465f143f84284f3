// Package storetest sets up configurations with mcp_store for tests.
package storetest

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func init() { caddy.RegisterModule(opener{}) }

// opener opens an engine of a test.
type opener struct {
	Replica string `json:"replica"`
}

// engines are the engines of tests by replica.
var engines sync.Map

// CaddyModule returns the Caddy module information.
func (opener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "mcp_store.test", New: func() caddy.Module { return new(opener) }}
}

// Open implements mcpstore.Opener.
func (o *opener) Open(*zap.Logger) (replicas.Engine, error) {
	engine, ok := engines.Load(o.Replica)
	if !ok {
		return nil, fmt.Errorf("unknown replica %s", o.Replica)
	}
	return engine.(replicas.Engine), nil
}

// Replica returns the context of a configuration with its own store on an engine, and further
// settings of the store. It ends with the test.
func Replica(t testing.TB, engine replicas.Engine, settings mcpstore.App) caddy.Context {
	t.Helper()
	name := rand.Text()
	engines.Store(name, engine)
	settings.EngineRaw = caddyconfig.JSONModuleObject(opener{name}, "engine", "test", nil)
	settings.SessionKey = "0123456789abcdef0123456789abcdef"
	settings.Retry = caddy.Duration(10 * time.Millisecond)
	ctx, err := caddy.ProvisionContext(&caddy.Config{
		AppsRaw: caddy.ModuleMap{"mcp_store": caddyconfig.JSON(settings, nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	app, err := ctx.App("mcp_store")
	if err != nil {
		t.Fatal(err)
	}
	// Cleaned up after the modules that use it: only these end with the inner context.
	t.Cleanup(func() { _ = app.(*mcpstore.App).Cleanup() })
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}

// Interface guard
var _ mcpstore.Opener = (*opener)(nil)
