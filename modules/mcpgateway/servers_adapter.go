package mcpgateway

import (
	"bytes"
	"encoding/json"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

func init() {
	caddyconfig.RegisterAdapter("mcp", serversAdapter{})
}

// A serversAdapter makes a configuration of the file in which an MCP client lists its servers: a gateway at
// http://127.0.0.1:8080/mcp, set up as `caddy mcp import` does.
type serversAdapter struct{}

// Adapt implements caddyconfig.Adapter.
func (serversAdapter) Adapt(body []byte, options map[string]any) ([]byte, []caddyconfig.Warning, error) {
	path, _ := options["filename"].(string)
	if path == "" || path == "-" {
		path = "stdin"
	}
	file, err := parseServersFile(bytes.NewReader(body), path)
	if err != nil {
		return nil, nil, err
	}
	servers, err := file.newServers()
	if err != nil {
		return nil, nil, err
	}
	gateway := &Handler{
		Servers:   servers,
		Separator: "__",
		Mask:      &observationmask.Handler{JSON: true, KeepMedia: true, Recover: new(observationmask.Recover)},
		Focus:     new(Focus),
	}
	type object = map[string]any
	site := object{
		"listen": []string{"127.0.0.1:8080"},
		"routes": []any{object{"handle": []any{caddyconfig.JSONModuleObject(gateway, "handler", "mcp_gateway", nil)}}},
	}
	config, err := json.Marshal(object{"apps": object{"http": object{"servers": object{"srv0": site}}}})
	return config, file.warnings(), err
}

// warnings returns the notes on the file.
func (f *serversFile) warnings() (warnings []caddyconfig.Warning) {
	for _, note := range f.Notes {
		warnings = append(warnings, caddyconfig.Warning{File: f.path, Line: note.Line, Message: note.String()})
	}
	return warnings
}

// Interface guard
var _ caddyconfig.Adapter = serversAdapter{}
