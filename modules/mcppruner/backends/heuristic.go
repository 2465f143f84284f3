// Package backends implements the backends of mcp_pruner: heuristic, deepinfra and rerank.
package backends

import (
	"context"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
)

func init() {
	caddy.RegisterModule(Heuristic{})
}

// Heuristic scores lines with built-in rules. Texts do not leave this machine. It has no settings.
type Heuristic struct{}

// CaddyModule returns the Caddy module information.
func (Heuristic) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.heuristic",
		New: func() caddy.Module { return new(Heuristic) },
	}
}

// Name returns the backend's name in statistics, warnings and metrics.
func (Heuristic) Name() string { return "heuristic" }

// Score returns nothing, so that the built-in rules score the lines.
func (Heuristic) Score(context.Context, string, []string) (*mcppruner.Scored, *mcppruner.Fault) {
	return nil, nil
}

// UnmarshalCaddyfile sets up the backend from Caddyfile tokens. Syntax:
//
//	backend heuristic
func (*Heuristic) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume backend name
	if d.NextArg() {
		return d.Errf("backend heuristic takes no arguments")
	}
	if d.NextBlock(0) {
		return d.Errf("backend heuristic takes no block")
	}
	return nil
}

// Interface guards
var (
	_ mcppruner.Backend     = (*Heuristic)(nil)
	_ caddyfile.Unmarshaler = (*Heuristic)(nil)
)
