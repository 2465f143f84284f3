package mcpstore

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

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
	_ Opener                = (*Memory)(nil)
	_ caddyfile.Unmarshaler = (*Memory)(nil)
)
