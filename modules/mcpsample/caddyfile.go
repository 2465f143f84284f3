package mcpsample

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("mcp_sample", setting.Directive[Sample])
	httpcaddyfile.RegisterDirectiveOrder("mcp_sample", httpcaddyfile.Before, "respond")
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	mcp_sample [<matcher>]
func (s *Sample) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.Errf("mcp_sample takes no arguments, only a matcher")
	}
	if d.NextBlock(0) {
		return d.Errf("mcp_sample takes no block")
	}
	return nil
}
