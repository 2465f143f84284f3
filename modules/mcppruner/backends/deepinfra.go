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

// DeepInfra scores lines by a reranker at DeepInfra. The goal and lines of the text leave
// this machine; the backend heuristic is for those who do not want that.
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
type DeepInfra struct {
	reranker
}

const (
	deepInfraURL  = "https://api.deepinfra.com/v1/inference/Qwen/Qwen3-Reranker-0.6B"
	deepInfraHint = "put it in the environment variable DEEPINFRA_API_KEY"
)

// CaddyModule returns the Caddy module information.
func (DeepInfra) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.deepinfra",
		New: func() caddy.Module { return new(DeepInfra) },
	}
}

// UnmarshalJSON refuses a key in its own words.
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
	b.open(ctx.Logger(), config, "DEEPINFRA_API_KEY or DEEPINFRA_ENDPOINT_URL cannot be used, texts are pruned without them")
	return nil
}

// Name is what statistics, warnings and metrics call it.
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
