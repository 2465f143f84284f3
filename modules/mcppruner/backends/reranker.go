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

// A reranker is the part that DeepInfra and Rerank have in common.
type reranker struct {
	// How long the reranker may take from the dialing to the last byte of its answer,
	// between 1ms and 2m. A text is then pruned by our own estimate. Default: 20s
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many lines of a text are sent, at most 512. Of a text that has more they
	// are spread evenly over it, and the others are not scored. Default: 64
	MaxDocs int `json:"max_docs,omitempty"`

	client *rerank.Client
}

// Score asks the reranker.
func (r *reranker) Score(ctx context.Context, goal string, lines []string) (*mcppruner.Scored, *mcppruner.Fault) {
	scored, fault := r.client.Score(ctx, goal, lines)
	return (*mcppruner.Scored)(scored), (*mcppruner.Fault)(fault)
}

// Cleanup closes connections.
func (r *reranker) Cleanup() error {
	if r.client != nil {
		r.client.Close()
	}
	return nil
}

// open makes the client. If the settings cannot be used, it logs the warning, and every
// Score fails.
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

// limits returns the timeout and the number of lines: of environment variables, in
// milliseconds and lines, or as configured, or the default. Values out of bounds are
// clamped and logged.
func (r *reranker) limits(logger *zap.Logger, timeoutVar, docsVar string) (timeout time.Duration, docs int) {
	timeout, source := defaultTimeout, "timeout"
	if r.Timeout != 0 {
		timeout = time.Duration(r.Timeout)
	}
	if ms, ok := setting.EnvInt(timeoutVar); ok {
		// A day is out of bounds and can be multiplied.
		ms, _ = setting.Clamp(ms, 0, int(24*time.Hour/time.Millisecond))
		timeout, source = time.Duration(ms)*time.Millisecond, timeoutVar
	}
	if used := min(max(timeout, minTimeout), maxTimeout); used != timeout {
		logger.Warn("setting is out of bounds", zap.String("setting", source), zap.Duration("value", timeout), zap.Duration("used", used))
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
		logger.Warn("setting is out of bounds", zap.String("setting", source), zap.Int("value", docs), zap.Int("used", used))
		docs = used
	}
	return timeout, docs
}

// Validate refuses negative limits. Others that are out of bounds are clamped.
func (r *reranker) Validate() error {
	switch {
	case r.Timeout < 0:
		return fmt.Errorf("timeout: %s is negative", time.Duration(r.Timeout))
	case r.MaxDocs < 0:
		return fmt.Errorf("max_docs: %d is negative", r.MaxDocs)
	}
	return nil
}

// unmarshalBlock reads the block of a backend: the limits, and the lines that only this
// backend has. The hint says where a key belongs.
func (r *reranker) unmarshalBlock(d *caddyfile.Dispenser, hint string, lines setting.Lines) error {
	d.Next() // consume backend name
	if backend := d.Val(); d.NextArg() {
		return d.Errf("backend %s takes no arguments, only a block", backend) // the argument may be a key
	}
	lines["timeout"] = setting.Duration(&r.Timeout)
	lines["max_docs"] = setting.Positive(&r.MaxDocs)
	lines[setting.Unknown] = func(d *caddyfile.Dispenser) error {
		if err := refuseKey(d.Val(), hint); err != nil {
			return d.WrapErr(err)
		}
		return setting.Refused(d, lines.Words(), nil)
	}
	return setting.Block(d, lines)
}

// unmarshalJSON reads the configuration of a backend, and refuses unknown members. The
// hint says where a key belongs.
func unmarshalJSON(config []byte, into any, hint string) error {
	strict := caddy.StrictUnmarshalJSON(config, into)
	if strict == nil {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(config, &members) == nil {
		for name := range members {
			if err := refuseKey(name, hint); err != nil && strings.Contains(strict.Error(), fmt.Sprintf("unknown field %q", name)) {
				return err
			}
		}
	}
	return strict
}

// refuseKey refuses a setting with the name of a key. The error does not repeat the key.
func refuseKey(name, hint string) error {
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
