package mcpstore

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	operations = telemetry.NewCounter("store_operations_total",
		"Operations of the shared store.", "operation", "outcome")
	durations = telemetry.NewHistogram("store_operation_duration_seconds",
		"Duration of operations of the shared store.", "operation")
	up = telemetry.NewGauge("store_up", "1 while the shared store is available, else 0.")
)

// An observer updates the metrics.
type observer struct{}

// Done implements [replicas.Observer].
func (observer) Done(operation string, outcome replicas.Outcome, took time.Duration) {
	operations.WithLabelValues(operation, string(outcome)).Inc()
	if outcome != replicas.Refused {
		durations.WithLabelValues(operation).Observe(took.Seconds())
	}
}

// Up implements [replicas.Observer].
func (observer) Up(isUp bool) {
	value := 0.0
	if isUp {
		value = 1
	}
	up.WithLabelValues().Set(value)
}

// Interface guard
var _ replicas.Observer = observer{}
