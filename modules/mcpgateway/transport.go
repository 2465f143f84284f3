package mcpgateway

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/unlogged"
)

func init() {
	caddy.RegisterModule(Transport{})
}

// Transport is the transport http of reverse_proxy, with the same settings. The gateway
// puts it in the place of that in its servers' routes, so that reverse_proxy does not log
// the credentials of servers, nor sessions.
type Transport struct {
	reverseproxy.HTTPTransport
}

// CaddyModule returns the Caddy module information.
func (Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport." + httpTransport,
		New: func() caddy.Module { return new(Transport) },
	}
}

const httpTransport = "mcp_http"

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return unlogged.RoundTrip(r, t.HTTPTransport.RoundTrip)
}

// withTransport returns the configuration of a handler in which each reverse_proxy that
// has the transport http, which is the default, has ours.
func withTransport(handler json.RawMessage) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(handler))
	decoder.UseNumber()
	var config any
	if decoder.Decode(&config) != nil {
		return handler // loading it reports what is wrong
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
				config["transport"] = map[string]any{"protocol": httpTransport}
			case transport["protocol"] == "http":
				transport["protocol"] = httpTransport
			}
		}
		for _, value := range config {
			replaceTransports(value)
		}
	}
}

// Interface guards
var (
	_ caddy.Provisioner                                = (*Transport)(nil)
	_ caddy.CleanerUpper                               = (*Transport)(nil)
	_ http.RoundTripper                                = (*Transport)(nil)
	_ reverseproxy.TLSTransport                        = (*Transport)(nil)
	_ reverseproxy.RequestHeaderOpsTransport           = (*Transport)(nil)
	_ reverseproxy.ProxyProtocolTransport              = (*Transport)(nil)
	_ reverseproxy.HealthCheckSchemeOverriderTransport = (*Transport)(nil)
)
