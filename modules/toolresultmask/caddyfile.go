package toolresultmask

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("tool_result_mask", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("tool_result_mask", httpcaddyfile.After, "intercept")
}

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	var handler Handler
	err := handler.UnmarshalCaddyfile(h.Dispenser)
	return &handler, err
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	tool_result_mask [<matcher>] {
//		enabled              [on|off]
//		window_turns         <turns>
//		keep_errors          [on|off]
//		keep_last_k_per_tool <results>
//		placeholder_template <text>
//		step_turns           <turns>
//		clear_at_least       <tokens>|auto
//		cache_prices         <read> <write>
//		min_mask_chars       <characters>
//		exclude_tools        <names...>
//		buffer_limit         <size>
//		max_buffered         <size>
//		body_timeout         <duration>
//		route                <name>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		if name != "exclude_tools" { // names may stand on several lines
			if err := subdirective.Once(d, seen); err != nil {
				return err
			}
		}
		var err error
		switch name {
		case "enabled":
			h.Enabled = new(bool)
			*h.Enabled, err = subdirective.Switch(d)
		case "window_turns":
			h.WindowTurns = new(int)
			*h.WindowTurns, err = subdirective.Number(d)
		case "keep_errors":
			h.KeepErrors = new(bool)
			*h.KeepErrors, err = subdirective.Switch(d)
		case "keep_last_k_per_tool":
			h.KeepLastKPerTool, err = subdirective.Number(d)
		case "placeholder_template":
			if !d.AllArgs(&h.PlaceholderTemplate) {
				return d.ArgErr()
			}
			if h.PlaceholderTemplate == "" {
				return d.Errf("placeholder_template is empty")
			}
		case "step_turns":
			if h.StepTurns, err = subdirective.Number(d); err == nil && h.StepTurns == 0 {
				return d.Errf("step_turns: 0 would never move; 1 moves with every turn")
			}
		case "clear_at_least":
			err = h.parseClearAtLeast(d)
		case "cache_prices":
			err = h.parseCachePrices(d)
		case "min_mask_chars":
			h.MinMaskChars, err = subdirective.Number(d)
		case "exclude_tools":
			if err := subdirective.List(d, &h.ExcludeTools); err != nil {
				return err
			}
		case "buffer_limit":
			if h.BufferLimit, err = subdirective.Size(d); err == nil && h.BufferLimit == 0 {
				return d.Errf("buffer_limit: 0 holds nothing, so nothing would be masked")
			}
		case "max_buffered":
			if h.MaxBuffered, err = subdirective.Size(d); err == nil && h.MaxBuffered == 0 {
				return d.Errf("max_buffered: 0 holds nothing, so nothing would be masked")
			}
		case "body_timeout":
			h.BodyTimeout, err = subdirective.Duration(d)
		case "route":
			if !d.AllArgs(&h.Route) {
				return d.ArgErr()
			}
		default:
			return d.Errf("unknown subdirective %s", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) parseClearAtLeast(d *caddyfile.Dispenser) error {
	var arg string
	if !d.AllArgs(&arg) {
		return d.ArgErr()
	}
	if arg == auto {
		h.ClearAtLeast = chat.ClearAuto
		return nil
	}
	n, err := strconv.Atoi(arg)
	if err != nil || n < 0 {
		return d.Errf("clear_at_least: %q is neither a number of tokens nor auto", arg)
	}
	h.ClearAtLeast = Tokens(n)
	return nil
}

func (h *Handler) parseCachePrices(d *caddyfile.Dispenser) error {
	args := make([]string, 2)
	if !d.AllArgs(&args[0], &args[1]) {
		return d.ArgErr()
	}
	h.CachePrices = new(CachePrices)
	for i, field := range []*float64{&h.CachePrices.Read, &h.CachePrices.Write} {
		price, err := strconv.ParseFloat(args[i], 64)
		if err != nil || !(price > 0) || price > 1e9 {
			return d.Errf("cache_prices: %q is not a price", args[i])
		}
		*field = price
	}
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
