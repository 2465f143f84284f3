package mcpgateway

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"

var (
	requests  = telemetry.NewCounter("requests_total", "Requests to MCP servers, by how they ended.", "gateway", "server", "method", "outcome")
	durations = telemetry.NewHistogram("request_duration_seconds", "How long requests to MCP servers took.", "gateway", "server", "method")

	loginCount    = telemetry.NewCounter("logins_total", "Logins to MCP servers by OAuth that a person has finished.", "server", "outcome")
	tokenRequests = telemetry.NewCounter("token_requests_total", "Requests for access tokens of MCP servers, by grant.", "server", "grant", "outcome")

	fileLoads = telemetry.NewCounter("servers_file_loads_total", "Loads of the files in servers_from.", "gateway", "outcome")

	denials      = telemetry.NewCounter("denied_total", "What clients were refused.", "client", "reason")
	redactions   = telemetry.NewCounter("redacted_total", "What was replaced in results.", "client")
	invalidTools = telemetry.NewCounter("invalid_tools_total", "Tools that were left out because their definition is invalid.", "server")
	toolChanges  = telemetry.NewCounter("tool_changes_total", "Tools whose definition is not what it was when it was first seen.", "server")
)
