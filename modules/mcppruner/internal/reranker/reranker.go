// Package reranker is what the backends of mcp_pruner that are rerankers have in
// common.
package reranker

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// Limits are how much is asked of a reranker, and how long it may take.
type Limits struct {
	// How long the reranker may take from the dialing to the last byte of its answer,
	// between 1ms and 2m. A text is then pruned by our own estimate. Default: 20s
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many lines of a text are sent, at most 512. Of a text that has more they
	// are spread evenly over it, and the others are not scored. Default: 64
	MaxDocs int `json:"max_docs,omitempty"`
}

const (
	shortest, usual, longest = time.Millisecond, 20 * time.Second, 2 * time.Minute
	usualDocs, mostDocs      = 64, 512
)

// Bound returns the limits that hold: what variables of the environment say, in
// milliseconds and lines, or what is configured, or the default.
func (l Limits) Bound(logger *zap.Logger, timeoutMS, maxDocs string) (timeout time.Duration, docs int) {
	timeout, source := usual, "timeout"
	if l.Timeout != 0 {
		timeout = time.Duration(l.Timeout)
	}
	if ms, ok := setting.EnvInt(timeoutMS); ok {
		// A day is out of bounds and can be multiplied.
		ms, _ = setting.Clamp(ms, 0, int(24*time.Hour/time.Millisecond))
		timeout, source = time.Duration(ms)*time.Millisecond, timeoutMS
	}
	if used := min(max(timeout, shortest), longest); used != timeout {
		logger.Warn("setting is out of bounds", zap.String("setting", source), zap.Duration("value", timeout), zap.Duration("used", used))
		timeout = used
	}

	docs, source = usualDocs, "max_docs"
	if l.MaxDocs != 0 {
		docs = l.MaxDocs
	}
	if n, ok := setting.EnvInt(maxDocs); ok {
		docs, source = n, maxDocs
	}
	if used, beyond := setting.Clamp(docs, 1, mostDocs); beyond {
		logger.Warn("setting is out of bounds", zap.String("setting", source), zap.Int("value", docs), zap.Int("used", used))
		docs = used
	}
	return timeout, docs
}

// Check refuses limits that make no sense. Those that are out of bounds are not
// refused.
func (l Limits) Check() error {
	switch {
	case l.Timeout < 0:
		return fmt.Errorf("timeout: %s is negative", time.Duration(l.Timeout))
	case l.MaxDocs < 0:
		return fmt.Errorf("max_docs: %d is negative", l.MaxDocs)
	}
	return nil
}

// UnmarshalBlock reads the block of a backend: the limits, and the lines that only this
// backend has. The hint says where a key belongs.
func (l *Limits) UnmarshalBlock(d *caddyfile.Dispenser, hint string, lines setting.Lines) error {
	d.Next() // consume backend name
	if backend := d.Val(); d.NextArg() {
		return d.Errf("backend %s takes no arguments, only a block", backend) // the argument may be a key
	}
	lines["timeout"] = setting.Duration(&l.Timeout)
	lines["max_docs"] = setting.Positive(&l.MaxDocs)
	lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
		if err := RefuseKey(d.Val(), hint); err != nil {
			return d.WrapErr(err)
		}
		return d.Errf("unknown subdirective %s", d.Val())
	}
	return setting.Block(d, lines)
}

// Decode reads a configuration in JSON into a struct, and refuses members that it does
// not have. Hint says where a key belongs.
func Decode(config []byte, into any, hint string) error {
	strict := caddy.StrictUnmarshalJSON(config, into)
	if strict == nil {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(config, &members) == nil {
		for name := range members {
			if err := RefuseKey(name, hint); err != nil && strings.Contains(strict.Error(), fmt.Sprintf("unknown field %q", name)) {
				return err
			}
		}
	}
	return strict
}

// RefuseKey refuses a setting that is a key by its name. It does not look at what the
// key is, and so cannot repeat it.
func RefuseKey(name, hint string) error {
	lower := strings.ToLower(name)
	for _, word := range [...]string{"key", "token", "secret", "password", "auth", "bearer", "credential"} {
		if strings.Contains(lower, word) {
			if strings.Trim(lower, "abcdefghijklmnopqrstuvwxyz_") != "" {
				name = "backend" // it may be the key itself
			}
			return fmt.Errorf("%s: keys do not belong in the configuration: %s", name, hint)
		}
	}
	return nil
}
