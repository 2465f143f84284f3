package mcpgateway

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"

var (
	requests  = telemetry.NewCounter("requests_total", "Requests to MCP servers, by how they ended.", "gateway", "server", "method", "outcome")
	durations = telemetry.NewHistogram("request_duration_seconds", "How long requests to MCP servers took.", "gateway", "server", "method")

	denials     = telemetry.NewCounter("denied_total", "What clients were refused.", "client", "reason")
	redactions  = telemetry.NewCounter("redacted_total", "What was replaced in results.", "client")
	toolChanges = telemetry.NewCounter("tool_changes_total", "Tools whose definition is not what it was when it was first seen.", "server")
)

// How a request can end beside with a failure, which has its own symbol.
const (
	outcomeOK       = "ok"
	outcomeError    = "error"    // the server answered with a JSON-RPC error
	outcomeCanceled = "canceled" // the client has left
	outcomePanic    = "panic"    // of a handler of the server
)

// outcomeHTTP has the outcomes of statuses by their first digit.
var outcomeHTTP = [10]string{3: "http_3xx", 4: "http_4xx", 5: "http_5xx", 6: "http_xxx", 7: "http_xxx", 8: "http_xxx", 9: "http_xxx"}

// The labels of what is asked for other than by one of the protocol's methods.
const (
	methodStream = "stream" // GET
	methodDelete = "delete" // DELETE
	methodAnswer = "answer" // of the client to a server's request
	methodOther  = "other"
)
