package mcppruner

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("mcp_pruner", setting.Directive[Handler])
	httpcaddyfile.RegisterDirectiveOrder("mcp_pruner", httpcaddyfile.Before, "respond")
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
		return d.Errf("mcp_pruner takes no arguments, only a matcher and a block")
	}
	return setting.BlockChecked(d, setting.Lines{
		"max_input_chars":   setting.Positive(&h.MaxInputChars),
		"prune_id_ttl":      setting.Duration(&h.PruneIDTTL),
		"store_limit":       h.StoreLimit.unmarshal,
		"backend":           h.parseBackend,
		"cache_ttl":         setting.Duration(&h.CacheTTL),
		"cache_max_entries": setting.Positive(&h.CacheMaxEntries),
		"origins":           setting.Check(setting.List(&h.Origins, "origins"), h.Validate),
		"hosts":             setting.Check(setting.List(&h.Hosts, "hosts"), h.Validate),
	}, h.Validate, "origins", "hosts")
}

func (l *StoreLimit) unmarshal(d *caddyfile.Dispenser) error {
	var entries, size string
	if !d.AllArgs(&entries, &size) {
		return setting.Expected(d, "store_limit", "<entries> <size>")
	}
	n, err := strconv.Atoi(entries)
	if err != nil || n <= 0 {
		return d.Errf("store_limit: %q is not a positive whole number", entries)
	}
	bytes, err := humanize.ParseBytes(size)
	if err != nil || bytes == 0 || bytes > 1<<40 {
		return d.Errf("store_limit: %q is not a size such as 64MiB", size)
	}
	l.Entries, l.Bytes = n, int64(bytes)
	return nil
}

func (h *Handler) parseBackend(d *caddyfile.Dispenser) error {
	name, backend, err := setting.Module(d, backends, "backend")
	if err != nil {
		return err
	}
	h.BackendRaw = caddyconfig.JSONModuleObject(backend, "backend", name, nil)
	return nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Handler)(nil)
