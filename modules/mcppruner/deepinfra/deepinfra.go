// Package deepinfra has lines scored by a reranker at DeepInfra: the backend
// http.handlers.mcp_pruner.backends.deepinfra.
package deepinfra

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/rerank"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner/internal/reranker"
)

func init() {
	caddy.RegisterModule(Backend{})
}

// Backend has lines scored by a reranker at DeepInfra. The goal and lines of the text
// leave this machine; for one that does not want that there is the backend heuristic.
//
// Each text is one POST of {"queries":["<goal>"],"documents":["<line>",…]}. If it
// fails, the text is pruned by our own estimate and the answer says so. Redirects are
// not followed.
//
// The key is read from the environment, and refused in the configuration. Variables
// are read when the configuration is loaded, and win over it; of those that are
// numbers, a value that is not a whole number is ignored.
//
// Variable | What it says
// ---------|-------------
// `DEEPINFRA_API_KEY` | The key. Without it every text is pruned by our own estimate
// `DEEPINFRA_ENDPOINT_URL` | Where requests go. Default: https://api.deepinfra.com/v1/inference/Qwen/Qwen3-Reranker-0.6B
// `DEEPINFRA_TIMEOUT_MS` | timeout, in milliseconds
// `DEEPINFRA_MAX_DOCS` | max_docs
type Backend struct {
	reranker.Limits

	reranker.Client
}

const (
	defaultEndpoint = "https://api.deepinfra.com/v1/inference/Qwen/Qwen3-Reranker-0.6B"
	hint            = "put it in the environment variable DEEPINFRA_API_KEY"
)

// CaddyModule returns the Caddy module information.
func (Backend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.deepinfra",
		New: func() caddy.Module { return new(Backend) },
	}
}

// UnmarshalJSON refuses a key in its own words.
func (b *Backend) UnmarshalJSON(config []byte) error {
	type plain Backend
	return reranker.Decode(config, (*plain)(b), hint)
}

// Provision sets up the backend.
func (b *Backend) Provision(ctx caddy.Context) error {
	config := rerank.Config{
		URL:      setting.EnvText("DEEPINFRA_ENDPOINT_URL"),
		Key:      setting.EnvText("DEEPINFRA_API_KEY"),
		NeedsKey: true,
		Wire:     rerank.Queries,
	}
	if config.URL == "" {
		config.URL = defaultEndpoint
	}
	config.Timeout, config.MaxDocs = b.Bound(ctx.Logger(), "DEEPINFRA_TIMEOUT_MS", "DEEPINFRA_MAX_DOCS")
	if err := b.Open(config); err != nil {
		ctx.Logger().Warn("DEEPINFRA_API_KEY or DEEPINFRA_ENDPOINT_URL cannot be used, texts are pruned without them", zap.Error(err))
	}
	return nil
}

// Validate ensures that the configuration makes sense.
func (b *Backend) Validate() error { return b.Check() }

// Name is what statistics, warnings and metrics call it.
func (*Backend) Name() string { return "deepinfra" }

// UnmarshalCaddyfile sets up the backend from Caddyfile tokens. Syntax:
//
//	backend deepinfra {
//		timeout  <duration>
//		max_docs <lines>
//	}
func (b *Backend) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return b.UnmarshalBlock(d, hint, setting.Lines{})
}

// Interface guards
var (
	_ mcppruner.Backend     = (*Backend)(nil)
	_ caddy.Provisioner     = (*Backend)(nil)
	_ caddy.Validator       = (*Backend)(nil)
	_ caddy.CleanerUpper    = (*Backend)(nil)
	_ caddyfile.Unmarshaler = (*Backend)(nil)
)
