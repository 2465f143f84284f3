package observationmask

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	maskedStrings = telemetry.NewCounter("masked_strings_total", "Strings in tool results cut to head and tail.", "server")
	maskedChars   = telemetry.NewCounter("masked_chars_total", "Characters taken out of tool results.", "server")
)

// observations are the originals that are kept, as the metrics of all stores name them.
var observations = quota.NewKind("observations")
