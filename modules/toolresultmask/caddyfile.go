package toolresultmask

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("tool_result_mask", setting.Directive[Handler])
	httpcaddyfile.RegisterDirectiveOrder("tool_result_mask", httpcaddyfile.After, "intercept")
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	tool_result_mask [<matcher>] {
//		enabled              [on|off]
//		window_turns         <turns>
//		keep_errors          [on|off|precise]
//		keep_last_k_per_tool <results>
//		placeholder_template <text>
//		step_turns           <turns>
//		clear_at_least       <tokens>|auto
//		cache_prices         <read> <write>
//		cache_ttl            <duration>
//		max_loss             <percent>%
//		min_mask_chars       <characters>
//		exclude_tools        <names...>
//		buffer_limit         <size>
//		max_buffered         <size>
//		body_timeout         <duration>
//		route                <name>
//		recover              [on|off] {
//			ttl         <duration>
//			max_entries <number>
//			max_bytes   <size>
//		}
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.Errf("tool_result_mask takes no arguments, only a matcher and a block")
	}
	return setting.BlockChecked(d, setting.Lines{
		"enabled":              setting.Optional(&h.Enabled, setting.Switch),
		"window_turns":         setting.Optional(&h.WindowTurns, setting.Number),
		"keep_errors":          setting.Optional(&h.KeepErrors, errorsLine),
		"keep_last_k_per_tool": setting.Number(&h.KeepLastKPerTool),
		"placeholder_template": setting.Text(&h.PlaceholderTemplate),
		"step_turns": setting.NotZero(&h.StepTurns, setting.NotNegative,
			"step_turns: 0 would never move; 1 moves with every turn"),
		"clear_at_least": setting.Argument(&h.ClearAtLeast, parseTokens),
		"cache_prices":   h.parseCachePrices,
		"cache_ttl":      setting.Duration(&h.CacheTTL),
		"max_loss":       setting.Optional(&h.MaxLoss, percentage),
		"min_mask_chars": setting.NotNegative(&h.MinMaskChars),
		"exclude_tools":  setting.List(&h.ExcludeTools, "names"),
		"buffer_limit": setting.NotZero(&h.BufferLimit, setting.Size,
			"buffer_limit: 0 would mask nothing; write enabled off"),
		"max_buffered": setting.NotZero(&h.MaxBuffered, setting.Size,
			"max_buffered: 0 would mask nothing; write enabled off"),
		"body_timeout": setting.Duration(&h.BodyTimeout),
		"route":        setting.Name(&h.Route),
		"recover":      h.parseRecover,
	}, setting.CheckCopy(h, (*Handler).compile, (*Handler).Validate), "exclude_tools")
}

// percentage reads a percentage.
func percentage(field *float64) setting.Line {
	return setting.Argument(field, func(arg string) (float64, error) {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(arg, "%"), 64)
		if err != nil || !strings.HasSuffix(arg, "%") {
			return 0, fmt.Errorf("%q is not a percentage such as 5%%", arg)
		}
		return percent / 100, nil
	})
}

// errorsLine reads on, off or precise. Without an argument it is on.
func errorsLine(field *Errors) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		name := d.Val()
		args := d.RemainingArgs()
		if len(args) == 0 {
			args = []string{"on"}
		}
		switch args[0] {
		case "on", "true":
			*field = Errors(chat.ErrorsOn)
		case "off", "false":
			*field = Errors(chat.ErrorsOff)
		case precise:
			*field = Errors(chat.ErrorsPrecise)
		default:
			return d.Errf("%s must be on, off or precise, got %q", name, args[0])
		}
		if len(args) > 1 {
			return setting.Expected(d, name, "on | off | precise")
		}
		return nil
	}
}

func (h *Handler) parseRecover(d *caddyfile.Dispenser) error {
	var on bool
	if err := setting.Switch(&on)(d); err != nil {
		return err
	}
	bounds := new(storepool.Bounds)
	if on {
		h.Recover = bounds
	}
	return setting.Block(d, bounds.Lines())
}

func parseTokens(arg string) (Tokens, error) {
	if arg == auto {
		return chat.ClearAuto, nil
	}
	n, err := strconv.Atoi(arg)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is neither a number of tokens nor auto", arg)
	}
	return Tokens(n), nil
}

func (h *Handler) parseCachePrices(d *caddyfile.Dispenser) error {
	args := make([]string, 2)
	if !d.AllArgs(&args[0], &args[1]) {
		return setting.Expected(d, "cache_prices", "<read> <write>")
	}
	h.CachePrices = new(CachePrices)
	for i, field := range []*float64{&h.CachePrices.Read, &h.CachePrices.Write} {
		price, err := strconv.ParseFloat(args[i], 64)
		if err != nil || !(price > 0) || price > 1e9 {
			return d.Errf("cache_prices: %q is not a positive number", args[i])
		}
		*field = price
	}
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
