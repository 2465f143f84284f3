package observationmask

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("observation_mask", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("observation_mask", httpcaddyfile.After, "intercept")
}

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	var handler Handler
	err := handler.UnmarshalCaddyfile(h.Dispenser)
	return &handler, err
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	observation_mask [<matcher>] [off | <max_chars> <head_chars> <tail_chars>] {
//		max_chars    <characters>
//		head_chars   <characters>
//		tail_chars   <characters>
//		buffer_limit <size>
//		keep_media   [on|off]
//		recover      [on|off] {
//			ttl         <duration>
//			max_entries <number>
//			max_bytes   <size>
//		}
//		exempt       <server::tool...>
//		server       <name>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name

	switch args := d.RemainingArgs(); {
	case len(args) == 0:
	case len(args) == 1 && args[0] == "off":
		h.MaxChars = new(int)
	case len(args) == 3:
		for i, field := range []**int{&h.MaxChars, &h.HeadChars, &h.TailChars} {
			n, err := strconv.Atoi(args[i])
			if err != nil {
				return d.Errf("%s: %q is not a whole number", []string{"max_chars", "head_chars", "tail_chars"}[i], args[i])
			}
			*field = &n
		}
	default:
		return d.ArgErr()
	}

	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		if name != "exempt" { // patterns may stand on several lines
			if err := subdirective.Once(d, seen); err != nil {
				return err
			}
		}
		switch name {
		case "max_chars":
			if err := parseChars(d, &h.MaxChars); err != nil {
				return err
			}
		case "head_chars":
			if err := parseChars(d, &h.HeadChars); err != nil {
				return err
			}
		case "tail_chars":
			if err := parseChars(d, &h.TailChars); err != nil {
				return err
			}
		case "buffer_limit":
			size, err := subdirective.Size(d)
			if err != nil {
				return err
			}
			h.BufferLimit = int(size)
		case "keep_media":
			on, err := subdirective.Switch(d)
			if err != nil {
				return err
			}
			h.KeepMedia = on
		case "recover":
			if err := h.parseRecover(d); err != nil {
				return err
			}
		case "exempt":
			if err := subdirective.List(d, &h.Exempt); err != nil {
				return err
			}
		case "server":
			if !d.AllArgs(&h.Server) {
				return d.ArgErr()
			}
		default:
			return d.Errf("unknown subdirective %s", name)
		}
	}
	return nil
}

func (h *Handler) parseRecover(d *caddyfile.Dispenser) error {
	on, err := subdirective.Switch(d)
	if err != nil {
		return err
	}
	recovery := new(Recover)
	if on {
		h.Recover = recovery
	}
	seen := map[string]bool{}
	for d.NextBlock(1) {
		if err := subdirective.Once(d, seen); err != nil {
			return err
		}
		switch name := d.Val(); name {
		case "ttl":
			var arg string
			if !d.AllArgs(&arg) {
				return d.ArgErr()
			}
			ttl, err := caddy.ParseDuration(arg)
			if err != nil {
				return d.Errf("recover ttl: %v", err)
			}
			if ttl == 0 {
				return d.Errf("recover ttl: 0 keeps nothing")
			}
			recovery.TTL = caddy.Duration(ttl)
		case "max_entries":
			if recovery.MaxEntries, err = subdirective.Number(d); err != nil {
				return err
			}
			if recovery.MaxEntries == 0 {
				return d.Errf("recover max_entries: 0 keeps nothing")
			}
		case "max_bytes":
			if recovery.MaxBytes, err = subdirective.Size(d); err != nil {
				return err
			}
			if recovery.MaxBytes == 0 {
				return d.Errf("recover max_bytes: 0 keeps nothing")
			}
		default:
			return d.Errf("unknown subdirective of recover: %s", name)
		}
	}
	return nil
}

// parseChars reads a number of characters that may stand behind the directive, too.
func parseChars(d *caddyfile.Dispenser, field **int) error {
	name := d.Val()
	n, err := subdirective.Number(d)
	if err != nil {
		return err
	}
	if *field != nil {
		return d.Errf("%s is given twice", name)
	}
	*field = &n
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
