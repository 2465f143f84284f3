package mcppruner

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("mcp_pruner", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("mcp_pruner", httpcaddyfile.Before, "respond")
}

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	var handler Handler
	err := handler.UnmarshalCaddyfile(h.Dispenser)
	return &handler, err
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	mcp_pruner [<matcher>] {
//		max_input_chars   <characters>
//		prune_id_ttl      <duration>
//		store_limit       <entries> <size>
//		backend           <name> {
//			...
//		}
//		cache_ttl         <duration>
//		cache_max_entries <number>
//		origins           <origins...>
//		hosts             <hosts...>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		if name != "origins" && name != "hosts" { // which may stand on several lines
			if err := subdirective.Once(d, seen); err != nil {
				return err
			}
		}
		var err error
		switch name {
		case "max_input_chars":
			h.MaxInputChars, err = positive(d)
		case "prune_id_ttl":
			h.PruneIDTTL, err = subdirective.Duration(d)
		case "store_limit":
			err = h.StoreLimit.unmarshal(d)
		case "backend":
			err = h.parseBackend(d)
		case "cache_ttl":
			h.CacheTTL, err = subdirective.Duration(d)
		case "cache_max_entries":
			h.CacheMaxEntries, err = positive(d)
		case "origins":
			err = subdirective.List(d, &h.Origins)
		case "hosts":
			err = subdirective.List(d, &h.Hosts)
		default:
			return d.Errf("unknown subdirective %s", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// positive reads the one argument of a subdirective that takes a number above 0.
func positive(d *caddyfile.Dispenser) (int, error) {
	name := d.Val()
	n, err := subdirective.Number(d)
	if err == nil && n <= 0 {
		return 0, d.Errf("%s: %d is not positive", name, n)
	}
	return n, err
}

func (l *StoreLimit) unmarshal(d *caddyfile.Dispenser) error {
	var entries, size string
	if !d.AllArgs(&entries, &size) {
		return d.ArgErr()
	}
	n, err := strconv.Atoi(entries)
	if err != nil || n <= 0 {
		return d.Errf("store_limit: %q is not a positive whole number", entries)
	}
	bytes, err := humanize.ParseBytes(size)
	if err != nil || bytes == 0 || bytes > 1<<40 {
		return d.Errf("store_limit: %q is not a size", size)
	}
	l.Entries, l.Bytes = n, int64(bytes)
	return nil
}

func (h *Handler) parseBackend(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	name := d.Val()
	backend, err := caddyfile.UnmarshalModule(d, backends+name)
	if err != nil {
		return err
	}
	h.BackendRaw = caddyconfig.JSONModuleObject(backend, "backend", name, nil)
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
