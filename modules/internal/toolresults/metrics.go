package toolresults

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

// kind is the kind of stored originals in the store metrics.
var kind = quota.NewKind("tool_results")

// Recovered counts recovered originals.
var Recovered = telemetry.NewCounter("tool_results_recovered_total",
	"Masked tool results recovered by clients, each counted once.")
