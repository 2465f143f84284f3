package backends

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/rerank"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
)

// A reranker holds what DeepInfra and Rerank have in common.
type reranker struct {
	// How long a request to the reranker may take, from dialing to the last byte of the response.
	// After that the built-in heuristic prunes the text. From 1ms to 2m. Default: 20s
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many lines of a text are sent to the reranker, spread evenly over the text. Other lines are
	// not scored. At most 512. Default: 64
	MaxDocs int `json:"max_docs,omitempty"`

	client *rerank.Client
}

// Score sends the lines to the reranker.
func (r *reranker) Score(ctx context.Context, goal string, lines []string) (*mcppruner.Scored, *mcppruner.Fault) {
	scored, fault := r.client.Score(ctx, goal, lines)
	return (*mcppruner.Scored)(scored), (*mcppruner.Fault)(fault)
}

// Cleanup closes idle connections.
func (r *reranker) Cleanup() error {
	if r.client != nil {
		r.client.Close()
	}
	return nil
}

// open creates the client. If its settings are unusable, open logs the warning, and every Score
// fails.
func (r *reranker) open(logger *zap.Logger, config rerank.Config, warning string) {
	r.client = rerank.New(config)
	if err := r.client.Err(); err != nil {
		logger.Warn(warning, zap.Error(err))
	}
}

const (
	minTimeout, defaultTimeout, maxTimeout = time.Millisecond, 20 * time.Second, 2 * time.Minute
	defaultDocs, maxDocs                   = 64, 512
)

// limits returns the timeout and the number of lines: from environment variables (the timeout in
// milliseconds), else as configured, else the default. Values out of bounds are clamped and logged.
func (r *reranker) limits(logger *zap.Logger, timeoutVar, docsVar string) (timeout time.Duration, docs int) {
	timeout, source := defaultTimeout, "timeout"
	if r.Timeout != 0 {
		timeout = time.Duration(r.Timeout)
	}
	if ms, ok := setting.EnvInt(timeoutVar); ok {
		// Clamp before multiplying, which could overflow. A day is out of bounds, too.
		ms, _ = setting.Clamp(ms, 0, int(24*time.Hour/time.Millisecond))
		timeout, source = time.Duration(ms)*time.Millisecond, timeoutVar
	}
	if used := min(max(timeout, minTimeout), maxTimeout); used != timeout {
		logger.Warn("setting is out of bounds", zap.String("setting", source),
			zap.Duration("value", timeout), zap.Duration("used", used))
		timeout = used
	}

	docs, source = defaultDocs, "max_docs"
	if r.MaxDocs != 0 {
		docs = r.MaxDocs
	}
	if n, ok := setting.EnvInt(docsVar); ok {
		docs, source = n, docsVar
	}
	if used, outside := setting.Clamp(docs, 1, maxDocs); outside {
		logger.Warn("setting is out of bounds", zap.String("setting", source),
			zap.Int("value", docs), zap.Int("used", used))
		docs = used
	}
	return timeout, docs
}

// Validate rejects negative limits. Other values out of bounds are clamped.
func (r *reranker) Validate() error {
	switch {
	case r.Timeout < 0:
		return fmt.Errorf("timeout: %s is negative", time.Duration(r.Timeout))
	case r.MaxDocs < 0:
		return fmt.Errorf("max_docs: %d is negative", r.MaxDocs)
	}
	return nil
}

// unmarshalBlock reads the block of a backend: the common limits and the given lines. hint says
// where an API key belongs.
func (r *reranker) unmarshalBlock(d *caddyfile.Dispenser, hint string, lines setting.Lines) error {
	d.Next() // consume backend name
	backend := d.Val()
	if d.NextArg() {
		return d.Errf("backend %s takes no arguments, only a block", backend) // do not repeat the argument: it may be a key
	}
	lines["timeout"] = setting.Duration(&r.Timeout)
	lines["max_docs"] = setting.Positive(&r.MaxDocs)
	lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
		if err := refuseKey(d.Val(), hint); err != nil {
			return d.WrapErr(err)
		}
		return setting.UnknownSubdirective(d, lines.Words(), nil)
	}
	return setting.Block(d, lines)
}

// unmarshalJSON reads the configuration of a backend and rejects unknown members. hint says where
// an API key belongs.
func unmarshalJSON(config []byte, into any, hint string) error {
	strict := caddy.StrictUnmarshalJSON(config, into)
	if strict == nil {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(config, &members) == nil {
		for name := range members {
			err := refuseKey(name, hint)
			if err != nil && strings.Contains(strict.Error(), fmt.Sprintf("unknown field %q", name)) {
				return err
			}
		}
	}
	return strict
}

// refuseKey rejects a setting whose name looks like that of an API key. The error does not repeat
// the key.
func refuseKey(name, hint string) error {
	lower := strings.ToLower(name)
	for _, word := range [...]string{"key", "token", "secret", "password", "auth", "bearer", "credential"} {
		if strings.Contains(lower, word) {
			if strings.Trim(lower, "abcdefghijklmnopqrstuvwxyz_") != "" {
				name = "backend" // the name may be the key itself
			}
			return fmt.Errorf("%s: keys do not belong in the configuration: %s", name, hint)
		}
	}
	return nil
}
