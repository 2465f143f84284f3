package backends

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

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

// Interface guards
var (
	_ mcppruner.Backend     = (*Rerank)(nil)
	_ caddy.Provisioner     = (*Rerank)(nil)
	_ caddy.Validator       = (*Rerank)(nil)
	_ caddy.CleanerUpper    = (*Rerank)(nil)
	_ caddyfile.Unmarshaler = (*Rerank)(nil)
)
