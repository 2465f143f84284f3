// Package heuristic leaves the choice of lines to the pruner itself: the backend
// http.handlers.mcp_pruner.backends.heuristic.
package heuristic

import (
	"context"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
)

func init() {
	caddy.RegisterModule(Backend{})
}

// Backend has lines chosen by rules, on this machine: nothing of a text leaves it.
// There is nothing to configure.
type Backend struct{}

// CaddyModule returns the Caddy module information.
func (Backend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.heuristic",
		New: func() caddy.Module { return new(Backend) },
	}
}

// Name is what statistics, warnings and metrics call it.
func (Backend) Name() string { return "heuristic" }

// Score leaves the work to the pruner's own estimate.
func (Backend) Score(context.Context, string, []string) (*mcppruner.Scored, *mcppruner.Fault) {
	return nil, nil
}

// UnmarshalCaddyfile sets up the backend from Caddyfile tokens. Syntax:
//
//	backend heuristic
func (*Backend) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume backend name
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown subdirective of backend heuristic: %s", d.Val())
	}
	return nil
}

// Interface guards
var (
	_ mcppruner.Backend     = (*Backend)(nil)
	_ caddyfile.Unmarshaler = (*Backend)(nil)
)
