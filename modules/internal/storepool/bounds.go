package storepool

import (
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// Bounds are the limits of a store of originals, configured as recover.
type Bounds struct {
	// How long an original is kept after its last use. Default: 1h
	TTL caddy.Duration `json:"ttl,omitempty"`

	// Maximum number of originals. Default: 1000
	MaxEntries int `json:"max_entries,omitempty"`

	// Maximum total size of the originals in bytes. Default: 64 MiB
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// Lines returns the subdirectives of a block with the bounds:
//
//	recover [on|off] {
//		ttl         <duration>
//		max_entries <number>
//		max_bytes   <size>
//	}
func (b *Bounds) Lines() setting.Lines {
	return setting.Lines{
		"ttl": b.parseTTL,
		"max_entries": setting.NotZero(&b.MaxEntries, setting.NotNegative,
			"recover max_entries: 0 keeps nothing; write recover off"),
		"max_bytes": setting.NotZero(&b.MaxBytes, setting.Size, "recover max_bytes: 0 keeps nothing; write recover off"),
	}
}

func (b *Bounds) parseTTL(d *caddyfile.Dispenser) error {
	var arg string
	if !d.AllArgs(&arg) {
		return setting.Expected(d, "ttl", "<duration>")
	}
	ttl, err := setting.ParseDuration(arg)
	if err != nil {
		return d.Errf("recover ttl: %v", err)
	}
	if ttl == 0 {
		return d.Errf("recover ttl: 0 keeps nothing; write recover off")
	}
	if ttl < 0 {
		return d.Errf("recover ttl: %s is negative", arg)
	}
	b.TTL = caddy.Duration(ttl)
	return nil
}

// SetDefaults sets the defaults.
func (b *Bounds) SetDefaults() {
	if b.TTL == 0 {
		b.TTL = caddy.Duration(time.Hour)
	}
	if b.MaxEntries == 0 {
		b.MaxEntries = 1000
	}
	if b.MaxBytes == 0 {
		b.MaxBytes = 64 << 20
	}
}

// Validate rejects negative bounds.
func (b *Bounds) Validate() error {
	switch {
	case b.TTL < 0:
		return fmt.Errorf("recover ttl: %s is negative", time.Duration(b.TTL))
	case b.MaxEntries < 0:
		return fmt.Errorf("recover max_entries: %d is negative", b.MaxEntries)
	case b.MaxBytes < 0:
		return fmt.Errorf("recover max_bytes: %d is negative", b.MaxBytes)
	}
	return nil
}

// Limits returns the bounds for a store.
func (b *Bounds) Limits() store.Limits {
	return store.Limits{Entries: b.MaxEntries, Bytes: b.MaxBytes, TTL: time.Duration(b.TTL)}
}
