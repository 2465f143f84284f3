package mcpstore

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() { httpcaddyfile.RegisterGlobalOption("mcp_store", parseOption) }

// parseOption parses the global option. Syntax:
//
//	mcp_store <engine> [<arguments...>] {
//		session_key      <secret>
//		prefix           <text>
//		timeout          <duration>
//		retry            <duration>
//		limits_when_down refuse|allow
//		max_client_bytes <size>
//		max_queue_bytes  <size>
//		<settings of the engine>
//	}
func parseOption(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // consume option name
	if existing != nil {
		return nil, d.Errf("mcp_store is given twice")
	}
	a := new(App)
	lines := setting.Lines{
		"session_key":      setting.Secret(&a.SessionKey),
		"prefix":           setting.Text(&a.Prefix),
		"timeout":          setting.Duration(&a.Timeout),
		"retry":            setting.Duration(&a.Retry),
		"limits_when_down": setting.Text(&a.LimitsWhenDown),
		"max_client_bytes": setting.Size(&a.MaxClientBytes),
		"max_queue_bytes":  setting.Size(&a.MaxQueueBytes),
	}
	own, engine := split(d, lines.Words())
	name, module, err := setting.Module(engine, "mcp_store", "engine")
	if err != nil {
		return nil, err
	}
	check := setting.CheckCopy(a, func(a *App) error {
		if strings.Contains(a.Prefix, "{") {
			a.Prefix = "" // checked after placeholders are replaced
		}
		a.setDefaults()
		return a.check()
	})
	if err := setting.BlockChecked(own, lines, check); err != nil {
		return nil, err
	}
	a.EngineRaw = caddyconfig.JSONModuleObject(module, "engine", name, nil)
	return httpcaddyfile.App{Name: "mcp_store", Value: caddyconfig.JSON(a, nil)}, nil
}

// split splits the option in two. own has the lines of its block that begin with one of the words,
// engine has the arguments and all other lines.
func split(d *caddyfile.Dispenser, words []string) (own, engine *caddyfile.Dispenser) {
	ownTokens := []caddyfile.Token{d.Token()}
	engineTokens := slices.Clone(ownTokens)
	for d.NextArg() {
		engineTokens = append(engineTokens, d.Token())
	}
	var ownLines, engineLines []caddyfile.Token
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		line := d.NextSegment()
		if slices.Contains(words, line[0].Text) {
			ownLines = append(ownLines, line...)
		} else {
			engineLines = append(engineLines, line...)
		}
	}
	own, engine = withBlock(ownTokens, ownLines), withBlock(engineTokens, engineLines)
	own.Next()
	engine.Next()
	return own, engine
}

// withBlock returns tokens followed by a block of lines, if there are any.
func withBlock(tokens, lines []caddyfile.Token) *caddyfile.Dispenser {
	if len(lines) > 0 {
		begin, end := tokens[len(tokens)-1], lines[len(lines)-1]
		begin.Text, end.Text = "{", "}"
		end.Line++
		tokens = slices.Concat(tokens, []caddyfile.Token{begin}, lines, []caddyfile.Token{end})
	}
	return caddyfile.NewDispenser(tokens)
}
