package toolresults

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

// kept are the originals, as the metrics of all stores name them.
var kept = quota.NewKind("tool_results")

// Recovered counts the originals that a client has asked for.
var Recovered = telemetry.NewCounter("tool_results_recovered_total", "Masked tool results that a client has asked for, each counted once.")
