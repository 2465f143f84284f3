package backends

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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

func init() {
	caddy.RegisterModule(Rerank{})
}

// Rerank scores lines with a reranker of your choice, local or remote: Cohere, Jina, and servers
// with the same API for your own models, such as vLLM and llama.cpp. It sends the goal and lines of
// the text to that reranker.
//
// Each text is one POST of {"query":"<goal>","documents":["<line>",…],"model":"…"}. The response
// has results with index and relevance_score. If the request fails, the built-in heuristic prunes
// the text and a warning in the result says so. Redirects are not followed.
type Rerank struct {
	// URL of the reranker, such as http://127.0.0.1:8080/v1/rerank. Required.
	URL string `json:"url,omitempty"`

	// Name of the model, sent with each request. Default: none
	Model string `json:"model,omitempty"`

	// Name of the environment variable with the API key, which is sent as a bearer token. If the
	// variable is empty when the configuration is loaded, the built-in heuristic prunes every text.
	// Default: no key is sent
	KeyEnv string `json:"key_env,omitempty"`

	reranker
}

const rerankHint = "put the key in an environment variable, and its name in key_env"

// CaddyModule returns the Caddy module information.
func (Rerank) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.rerank",
		New: func() caddy.Module { return new(Rerank) },
	}
}

// UnmarshalJSON rejects an API key in the configuration with a helpful error.
func (b *Rerank) UnmarshalJSON(config []byte) error {
	type plain Rerank
	return unmarshalJSON(config, (*plain)(b), rerankHint)
}

// Provision sets up the backend.
func (b *Rerank) Provision(ctx caddy.Context) error {
	config := rerank.Config{
		URL:      b.URL,
		Key:      setting.EnvText(b.KeyEnv),
		NeedsKey: b.KeyEnv != "",
		Wire:     rerank.Query,
		Model:    b.Model,
	}
	config.Timeout, config.MaxDocs = b.limits(ctx.Logger(), "", "")
	b.open(ctx.Logger(), config, "url or key_env is unusable, pruning without the backend")
	return nil
}

// Validate ensures that the configuration makes sense.
func (b *Rerank) Validate() error {
	if err := checkURL(b.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if err := checkName(b.KeyEnv); b.KeyEnv != "" && err != nil {
		return fmt.Errorf("key_env: %w", err)
	}
	return b.reranker.Validate()
}

// checkURL checks the URL of a reranker, which must not contain an API key.
func checkURL(text string) error {
	if text == "" {
		return errors.New("missing")
	}
	u, err := rerank.ParseURL(text)
	if err != nil {
		return err
	}
	for name := range u.Query() {
		if err := refuseKey(name, rerankHint); err != nil {
			return err
		}
	}
	return nil
}

// checkName checks the name of an environment variable. The error does not repeat an invalid name,
// which may be a key.
func checkName(name string) error {
	rest := strings.TrimLeft(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
	if rest != "" || name == "" || name[0] >= '0' && name[0] <= '9' {
		return errors.New("not the name of an environment variable")
	}
	return nil
}

// Name returns the backend's name in statistics, warnings and metrics.
func (*Rerank) Name() string { return "rerank" }

// UnmarshalCaddyfile sets up the backend from Caddyfile tokens. Syntax:
//
//	backend rerank {
//		url      <url>
//		model    <name>
//		key_env  <name>
//		timeout  <duration>
//		max_docs <lines>
//	}
func (b *Rerank) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	err := b.unmarshalBlock(d, rerankHint, setting.Lines{
		"url":     setting.Argument(&b.URL, checked(checkURL)),
		"model":   setting.Text(&b.Model),
		"key_env": setting.Argument(&b.KeyEnv, checked(checkName)),
	})
	if err == nil && b.URL == "" {
		return d.Errf("backend rerank: url: missing")
	}
	return err
}

// checked returns a parser that returns its argument if check accepts it.
func checked(check func(string) error) func(string) (string, error) {
	return func(arg string) (string, error) { return arg, check(arg) }
}

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
	timeout, source := cmp.Or(time.Duration(r.Timeout), defaultTimeout), "timeout"
	if ms, ok := setting.EnvInt(timeoutVar); ok {
		// Clamp before multiplying, which could overflow. A day is out of bounds, too.
		ms, _ = setting.Clamp(ms, 0, int(24*time.Hour/time.Millisecond))
		timeout, source = time.Duration(ms)*time.Millisecond, timeoutVar
	}
	timeout = setting.Bounded(logger, source, timeout, minTimeout, maxTimeout)

	docs, source = cmp.Or(r.MaxDocs, defaultDocs), "max_docs"
	if n, ok := setting.EnvInt(docsVar); ok {
		docs, source = n, docsVar
	}
	return timeout, setting.Bounded(logger, source, docs, 1, maxDocs)
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

// Interface guards
var (
	_ mcppruner.Backend     = (*Rerank)(nil)
	_ caddy.Provisioner     = (*Rerank)(nil)
	_ caddy.Validator       = (*Rerank)(nil)
	_ caddy.CleanerUpper    = (*Rerank)(nil)
	_ caddyfile.Unmarshaler = (*Rerank)(nil)
)
