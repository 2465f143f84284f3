package observationmask

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("observation_mask", setting.Directive[Handler])
	httpcaddyfile.RegisterDirectiveOrder("observation_mask", httpcaddyfile.After, "intercept")
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
//			hint        off | <sentence>
//		}
//		json         [on|off]
//		exempt       <patterns...>
//		server       <name>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	name := d.Val()

	switch args := d.RemainingArgs(); {
	case len(args) == 0:
	case len(args) == 1 && args[0] == "off":
		h.MaxChars = new(int)
	case len(args) == 3:
		for i, field := range []**int{&h.MaxChars, &h.HeadChars, &h.TailChars} {
			n, err := strconv.Atoi(args[i])
			if err != nil {
				return d.Errf("%s: %s: %q is not a whole number",
					name, []string{"max_chars", "head_chars", "tail_chars"}[i], args[i])
			}
			*field = &n
		}
	default:
		return setting.Expected(d, name, "off | <max_chars> <head_chars> <tail_chars>")
	}

	return setting.BlockChecked(d, setting.Lines{
		"max_chars":    chars(&h.MaxChars),
		"head_chars":   chars(&h.HeadChars),
		"tail_chars":   chars(&h.TailChars),
		"buffer_limit": h.parseBufferLimit,
		"keep_media":   setting.Switch(&h.KeepMedia),
		"recover":      h.parseRecover,
		"json":         setting.Switch(&h.JSON),
		"exempt":       setting.List(&h.Exempt, "patterns"),
		"server":       setting.Name(&h.Server),
	}, setting.CheckCopy(h, (*Handler).compile, (*Handler).Validate), "exempt")
}

// chars reads a number of characters, which an argument of the directive may have set already.
func chars(field **int) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		if *field != nil {
			return d.Errf("%s is given twice", d.Val())
		}
		return setting.Optional(field, setting.Number)(d)
	}
}

func (h *Handler) parseBufferLimit(d *caddyfile.Dispenser) error {
	var size int64
	err := setting.Size(&size)(d)
	h.BufferLimit = int(size)
	return err
}

func (h *Handler) parseRecover(d *caddyfile.Dispenser) error {
	var on bool
	if err := setting.Switch(&on)(d); err != nil {
		return err
	}
	recovery := new(Recover)
	h.Recover = nil
	if on {
		h.Recover = recovery
	}
	lines := recovery.Lines()
	lines["hint"] = recovery.parseHint
	return setting.Block(d, lines)
}

func (r *Recover) parseHint(d *caddyfile.Dispenser) error {
	var hint string
	if !d.AllArgs(&hint) {
		return setting.Expected(d, "hint", "off | <sentence>")
	}
	if hint == "off" {
		hint = ""
	}
	r.Hint = &hint
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
