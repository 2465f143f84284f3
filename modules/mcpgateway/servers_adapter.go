package mcpgateway

import (
	"cmp"
	"encoding/json"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

func init() {
	caddyconfig.RegisterAdapter("mcp", serversAdapter{})
}

// A serversAdapter turns a file in which an MCP client lists its servers into a Caddy
// configuration: a gateway at http://127.0.0.1:8080/mcp and the console, with the settings of
// `caddy mcp import`.
type serversAdapter struct{}

// Adapt implements caddyconfig.Adapter.
func (serversAdapter) Adapt(body []byte, options map[string]any) ([]byte, []caddyconfig.Warning, error) {
	gateway := &Handler{
		Separator: "__",
		Mask:      &observationmask.Handler{JSON: true, KeepMedia: true, Recover: new(observationmask.Recover)},
		Focus:     new(Focus),
	}
	warnings, err := gateway.useServersFile(body, options)
	if err != nil {
		return nil, nil, err
	}
	type object = map[string]any
	site := object{
		"listen": []string{"127.0.0.1:8080"},
		"routes": []any{object{"handle": []any{
			object{"handler": "mcp_console"}, caddyconfig.JSONModuleObject(gateway, "handler", "mcp_gateway", nil),
		}}},
	}
	config, err := json.Marshal(object{"apps": object{"http": object{"servers": object{"srv0": site}}}})
	return config, warnings, err
}

// useServersFile sets servers_from to the file, so that the gateway follows its changes and logs
// the notes on it. If the content comes from standard input, its servers become part of the
// configuration.
func (h *Handler) useServersFile(body []byte, options map[string]any) (warnings []caddyconfig.Warning, err error) {
	path, _ := options["filename"].(string)
	named := path != "" && path != "-"
	file, err := parseServersFile(body, cmp.Or(path, "-"))
	if err != nil {
		return nil, err
	}
	servers, err := file.newServers()
	switch {
	case err != nil:
		return nil, err
	case named:
		h.ServersFrom = []string{escapePlaceholders.Replace(file.path)}
		return nil, nil
	}
	h.Servers = servers
	for _, note := range file.Notes {
		warnings = append(warnings, caddyconfig.Warning{File: "stdin", Line: note.Line, Message: note.String()})
	}
	return warnings, nil
}

// Interface guard
var _ caddyconfig.Adapter = serversAdapter{}
