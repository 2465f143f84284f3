// Package rerank has lines scored by any reranker that speaks as Cohere's does: the
// backend http.handlers.mcp_pruner.backends.rerank.
package rerank

import (
	"errors"
	"fmt"
	"strings"

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

// Backend has lines scored by a reranker of your choice, on this machine or elsewhere:
// Cohere, Jina, and what serves models of your own in the same form, such as vLLM and
// llama.cpp. The goal and lines of the text go there.
//
// Each text is one POST of {"query":"<goal>","documents":["<line>",…],"model":"…"}.
// The answer has results with index and relevance_score. If it fails, the text is
// pruned by our own estimate and the answer says so. Redirects are not followed.
type Backend struct {
	// Where requests go, such as http://127.0.0.1:8080/v1/rerank. Required.
	URL string `json:"url,omitempty"`

	// The model that requests name. Default: none
	Model string `json:"model,omitempty"`

	// The environment variable that has the key, which is sent as a bearer token. If
	// it has none when the configuration is loaded, every text is pruned by our own
	// estimate. Default: no key is sent
	KeyEnv string `json:"key_env,omitempty"`

	reranker.Limits

	reranker.Client
}

const hint = "put it in an environment variable, and that one's name in key_env"

// CaddyModule returns the Caddy module information.
func (Backend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner.backends.rerank",
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
		URL:      b.URL,
		Key:      setting.EnvText(b.KeyEnv),
		NeedsKey: b.KeyEnv != "",
		Wire:     rerank.Query,
		Model:    b.Model,
	}
	config.Timeout, config.MaxDocs = b.Bound(ctx.Logger(), "", "")
	if err := b.Open(config); err != nil {
		ctx.Logger().Warn("url or key_env cannot be used, texts are pruned without them", zap.Error(err))
	}
	return nil
}

// Validate ensures that the configuration makes sense.
func (b *Backend) Validate() error {
	if err := checkURL(b.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if err := checkName(b.KeyEnv); b.KeyEnv != "" && err != nil {
		return fmt.Errorf("key_env: %w", err)
	}
	return b.Check()
}

func checkURL(text string) error {
	if text == "" {
		return errors.New("missing")
	}
	u, err := rerank.ParseURL(text)
	if err != nil {
		return err
	}
	for name := range u.Query() {
		if err := reranker.RefuseKey(name, hint); err != nil {
			return err
		}
	}
	return nil
}

// checkName refuses what cannot be the name of a variable. It may be a key, so it is
// not repeated.
func checkName(name string) error {
	rest := strings.TrimLeft(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
	if rest != "" || name == "" || name[0] >= '0' && name[0] <= '9' {
		return errors.New("not the name of an environment variable")
	}
	return nil
}

// Name is what statistics, warnings and metrics call it.
func (*Backend) Name() string { return "rerank" }

// UnmarshalCaddyfile sets up the backend from Caddyfile tokens. Syntax:
//
//	backend rerank {
//		url      <url>
//		model    <name>
//		key_env  <name>
//		timeout  <duration>
//		max_docs <lines>
//	}
func (b *Backend) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	err := b.UnmarshalBlock(d, hint, setting.Lines{
		"url":     setting.Argument(&b.URL, checked(checkURL)),
		"model":   setting.Text(&b.Model),
		"key_env": setting.Argument(&b.KeyEnv, checked(checkName)),
	})
	if err == nil && b.URL == "" {
		return d.Errf("backend rerank: url: missing")
	}
	return err
}

func checked(check func(string) error) func(string) (string, error) {
	return func(arg string) (string, error) { return arg, check(arg) }
}

// Interface guards
var (
	_ mcppruner.Backend     = (*Backend)(nil)
	_ caddy.Provisioner     = (*Backend)(nil)
	_ caddy.Validator       = (*Backend)(nil)
	_ caddy.CleanerUpper    = (*Backend)(nil)
	_ caddyfile.Unmarshaler = (*Backend)(nil)
)
