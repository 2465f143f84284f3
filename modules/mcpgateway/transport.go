package mcpgateway

import (
	"bytes"
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcphttp"
)

// withTransport replaces the transport http, the default of reverse_proxy, by mcp_http in the
// configuration of a handler. mcp_http is faster, and keeps the credentials and sessions of servers
// out of logs.
func withTransport(handler json.RawMessage) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(handler))
	decoder.UseNumber()
	var config any
	if decoder.Decode(&config) != nil {
		return handler // loading it reports the error
	}
	replaceTransports(config)
	replaced, err := json.Marshal(config)
	if err != nil {
		return handler
	}
	return replaced
}

func replaceTransports(config any) {
	switch config := config.(type) {
	case []any:
		for _, value := range config {
			replaceTransports(value)
		}
	case map[string]any:
		if config["handler"] == "reverse_proxy" {
			switch transport, _ := config["transport"].(map[string]any); {
			case config["transport"] == nil:
				config["transport"] = map[string]any{"protocol": mcphttp.Name}
			case transport["protocol"] == "http":
				transport["protocol"] = mcphttp.Name
			}
		}
		for _, value := range config {
			replaceTransports(value)
		}
	}
}
