package observationmask

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"
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
			if err := once(d, seen); err != nil {
				return err
			}
		}
		switch name {
		case "max_chars":
			if err := parseNumber(d, &h.MaxChars); err != nil {
				return err
			}
		case "head_chars":
			if err := parseNumber(d, &h.HeadChars); err != nil {
				return err
			}
		case "tail_chars":
			if err := parseNumber(d, &h.TailChars); err != nil {
				return err
			}
		case "buffer_limit":
			size, err := parseSize(d)
			if err != nil {
				return err
			}
			h.BufferLimit = int(size)
		case "keep_media":
			on, err := parseSwitch(d)
			if err != nil {
				return err
			}
			h.KeepMedia = on
		case "recover":
			if err := h.parseRecover(d); err != nil {
				return err
			}
		case "exempt":
			patterns := d.RemainingArgs()
			if len(patterns) == 0 {
				return d.ArgErr()
			}
			h.Exempt = append(h.Exempt, patterns...)
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
	on, err := parseSwitch(d)
	if err != nil {
		return err
	}
	recovery := new(Recover)
	if on {
		h.Recover = recovery
	}
	seen := map[string]bool{}
	for d.NextBlock(1) {
		if err := once(d, seen); err != nil {
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
			var entries *int
			if err := parseNumber(d, &entries); err != nil {
				return err
			}
			if *entries == 0 {
				return d.Errf("recover max_entries: 0 keeps nothing")
			}
			recovery.MaxEntries = *entries
		case "max_bytes":
			if recovery.MaxBytes, err = parseSize(d); err != nil {
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

// once refuses a subdirective that has been seen already.
func once(d *caddyfile.Dispenser, seen map[string]bool) error {
	if seen[d.Val()] {
		return d.Errf("%s is given twice", d.Val())
	}
	seen[d.Val()] = true
	return nil
}

// parseNumber reads the one argument of a subdirective that takes a number.
func parseNumber(d *caddyfile.Dispenser, field **int) error {
	name := d.Val()
	var arg string
	if !d.AllArgs(&arg) {
		return d.ArgErr()
	}
	if *field != nil {
		return d.Errf("%s is given twice", name)
	}
	n, err := strconv.Atoi(arg)
	if err != nil {
		return d.Errf("%s: %q is not a whole number", name, arg)
	}
	*field = &n
	return nil
}

func parseSize(d *caddyfile.Dispenser) (int64, error) {
	name := d.Val()
	var arg string
	if !d.AllArgs(&arg) {
		return 0, d.ArgErr()
	}
	size, err := humanize.ParseBytes(arg)
	if err != nil || size > 1<<40 {
		return 0, d.Errf("%s: %q is not a size", name, arg)
	}
	return int64(size), nil
}

// parseSwitch reads on, off or nothing, which means on.
func parseSwitch(d *caddyfile.Dispenser) (bool, error) {
	name := d.Val()
	args := d.RemainingArgs()
	switch {
	case len(args) == 0, len(args) == 1 && args[0] == "on":
		return true, nil
	case len(args) == 1 && args[0] == "off":
		return false, nil
	}
	return false, d.Errf("%s is on or off, not %q", name, args)
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
