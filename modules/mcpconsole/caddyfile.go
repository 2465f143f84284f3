package mcpconsole

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("mcp_console", setting.Directive[Handler])
	// The project's other handlers are ordered before respond, and so behind the console.
	httpcaddyfile.RegisterDirectiveOrder("mcp_console", httpcaddyfile.After, "copy_response")
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	mcp_console [<matcher>] {
//		path      <path>
//		read_only on | off
//		price     <number> [<currency>]
//		user      <placeholder>
//		auth      <provider> {
//			<options of the provider>
//		}
//		hosts     <hosts...>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.Errf("mcp_console takes no arguments, only a matcher and a block")
	}
	return setting.BlockChecked(d, setting.Lines{
		"path":      setting.Text(&h.Path),
		"read_only": setting.Optional(&h.ReadOnly, setting.Switch),
		"price":     h.parsePrice,
		"user":      setting.Text(&h.User),
		"auth":      h.parseAuth,
		"hosts":     setting.Check(setting.List(&h.Hosts, "hosts"), h.validateHosts),
	}, h.Validate, "auth", "hosts")
}

// validateHosts validates the hosts, so that the error is reported at their line.
func (h *Handler) validateHosts() error { return h.hostPolicy().Validate() }

func (h *Handler) parsePrice(d *caddyfile.Dispenser) (err error) {
	args := d.RemainingArgs()
	if len(args) < 1 || len(args) > 2 {
		return setting.Expected(d, "price", "<number> [<currency>]")
	}
	h.Price, err = strconv.ParseFloat(args[0], 64)
	if err != nil {
		return d.WrapErr(fmt.Errorf("price: %q is not a number", args[0]))
	}
	if len(args) == 2 {
		h.Currency = args[1]
	}
	return nil
}

func (h *Handler) parseAuth(d *caddyfile.Dispenser) error {
	name, provider, err := setting.Module(d, "http.handlers.mcp_gateway.auth", "provider")
	if err != nil {
		return err
	}
	h.AuthRaw = append(h.AuthRaw, caddyconfig.JSONModuleObject(provider, "provider", name, nil))
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
