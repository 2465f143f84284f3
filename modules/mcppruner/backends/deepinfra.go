package backends

import (
	"cmp"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/rerank"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
)

func init() {
	caddy.RegisterModule(DeepInfra{})
}

// DeepInfra scores lines with a reranker at DeepInfra. It sends the goal and lines of the text to
// DeepInfra; the backend heuristic sends nothing.
//
// Each text is one POST of {"queries":["<goal>"],"documents":["<line>",…]}. If the request fails,
// the built-in heuristic prunes the text and a warning in the result says so. Redirects are not
// followed.
//
// The API key comes from the environment; a key in the configuration is an error. Environment
// variables are read when the configuration is loaded, and override it. A number that is not a
// whole number is ignored.
//
// Variable | Meaning
// ---------|-------------
// `DEEPINFRA_API_KEY` | The API key. Without it the built-in heuristic prunes every text
// `DEEPINFRA_ENDPOINT_URL` | URL of the reranker. Default: Qwen3-Reranker-0.6B at api.deepinfra.com
// `DEEPINFRA_TIMEOUT_MS` | timeout, in milliseconds
// `DEEPINFRA_MAX_DOCS` | max_docs
type DeepInfra struct {
	reranker
}

const (
	deepInfraURL  = "https://api.deepinfra.com/v1/inference/Qwen/Qwen3-Reranker-0.6B"
	deepInfraHint = "put the key in the environment variable DEEPINFRA_API_KEY"
)

// CaddyModule returns the Caddy module information.
func (DeepInfra) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.deepinfra",
		New: func() caddy.Module { return new(DeepInfra) },
	}
}

// UnmarshalJSON rejects an API key in the configuration with a helpful error.
func (b *DeepInfra) UnmarshalJSON(config []byte) error {
	type plain DeepInfra
	return unmarshalJSON(config, (*plain)(b), deepInfraHint)
}

// Provision sets up the backend.
func (b *DeepInfra) Provision(ctx caddy.Context) error {
	config := rerank.Config{
		URL:      cmp.Or(setting.EnvText("DEEPINFRA_ENDPOINT_URL"), deepInfraURL),
		Key:      setting.EnvText("DEEPINFRA_API_KEY"),
		NeedsKey: true,
		Wire:     rerank.Queries,
	}
	config.Timeout, config.MaxDocs = b.limits(ctx.Logger(), "DEEPINFRA_TIMEOUT_MS", "DEEPINFRA_MAX_DOCS")
	b.open(ctx.Logger(), config,
		"DEEPINFRA_API_KEY or DEEPINFRA_ENDPOINT_URL is unusable, pruning without the backend")
	return nil
}

// Name returns the backend's name in statistics, warnings and metrics.
func (*DeepInfra) Name() string { return "deepinfra" }

// UnmarshalCaddyfile sets up the backend from Caddyfile tokens. Syntax:
//
//	backend deepinfra {
//		timeout  <duration>
//		max_docs <lines>
//	}
func (b *DeepInfra) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return b.unmarshalBlock(d, deepInfraHint, setting.Lines{})
}

// Interface guards
var (
	_ mcppruner.Backend     = (*DeepInfra)(nil)
	_ caddy.Provisioner     = (*DeepInfra)(nil)
	_ caddy.Validator       = (*DeepInfra)(nil)
	_ caddy.CleanerUpper    = (*DeepInfra)(nil)
	_ caddyfile.Unmarshaler = (*DeepInfra)(nil)
)
