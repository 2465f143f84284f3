package mcpgateway

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"

var (
	requests = telemetry.NewCounter("requests_total",
		"Requests to MCP servers, by outcome.", "gateway", "server", "method", "outcome")
	durations = telemetry.NewHistogram("request_duration_seconds",
		"Duration of requests to MCP servers.", "gateway", "server", "method")

	loginCount = telemetry.NewCounter("logins_total",
		"OAuth logins to MCP servers that a person finished, by outcome.", "server", "outcome")
	tokenRequests = telemetry.NewCounter("token_requests_total",
		"Requests for access tokens of MCP servers, by grant.", "server", "grant", "outcome")

	fileLoads = telemetry.NewCounter("servers_file_loads_total",
		"Loads of the files in servers_from.", "gateway", "outcome")

	denials      = telemetry.NewCounter("denied_total", "Requests denied to clients, by reason.", "client", "reason")
	redactions   = telemetry.NewCounter("redacted_total", "Texts redacted in results.", "client")
	invalidTools = telemetry.NewCounter("invalid_tools_total",
		"Tools hidden because their definition is invalid.", "server")
	toolChanges = telemetry.NewCounter("tool_changes_total",
		"Tools whose definition changed after it was first seen.", "server")
)
