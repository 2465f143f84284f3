package observationmask

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	maskedStrings = telemetry.NewCounter("masked_strings_total", "Strings masked in tool results.", "server")
	maskedChars   = telemetry.NewCounter("masked_chars_total", "Characters removed from tool results.", "server")

	focusCalls = telemetry.NewCounter("focus_calls_total",
		"Tool calls with a goal.", "server", "tool", "client")
	focusedIn = telemetry.NewCounter("focus_chars_in_total",
		"Characters of results before they were cut to a goal.", "server", "tool", "client")
	focusedOut = telemetry.NewCounter("focus_chars_out_total",
		"Characters of results after they were cut to a goal.", "server", "tool", "client")

	originals = telemetry.NewCounter("originals_total",
		"Originals of masked texts that were kept, by whether the call has a goal.", "server", "tool", "client", "focus")
	recovered = telemetry.NewCounter("recovered_total",
		"Originals recovered by clients, each counted once.", "server", "tool", "client", "focus")

	collectors = []prometheus.Collector{
		maskedStrings, maskedChars, focusCalls, focusedIn, focusedOut, originals, recovered,
	}
)

// observations is the kind of stored originals in the store metrics.
var observations = quota.NewKind("observations")
