package observationmask

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	maskedStrings = telemetry.NewCounter("masked_strings_total", "Strings in tool results that were cut.", "server")
	maskedChars   = telemetry.NewCounter("masked_chars_total", "Characters taken out of tool results.", "server")

	focusCalls = telemetry.NewCounter("focus_calls_total", "Calls of tools that say what they look for in the result.", "server", "tool", "client")
	focusedIn  = telemetry.NewCounter("focus_chars_in_total", "Characters of results that were cut to what their calls look for.", "server", "tool", "client")
	focusedOut = telemetry.NewCounter("focus_chars_out_total", "Characters that were left of them.", "server", "tool", "client")

	originals = telemetry.NewCounter("originals_total", "Originals of texts in results that were kept, by whether the call says what it looks for.", "server", "tool", "client", "focus")
	recovered = telemetry.NewCounter("recovered_total", "Originals that a client has asked for, each counted once.", "server", "tool", "client", "focus")

	collectors = []prometheus.Collector{maskedStrings, maskedChars, focusCalls, focusedIn, focusedOut, originals, recovered}
)

// observations are the originals that are kept, as the metrics of all stores name them.
var observations = quota.NewKind("observations")
