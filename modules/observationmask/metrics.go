package observationmask

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// The collectors live as long as the process, so that counts survive reloads.
// Each configuration has a registry of its own, where they are registered anew.
var (
	maskedStrings = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      "masked_strings_total",
		Help:      "Strings in tool results cut to head and tail.",
	}, []string{"server"})
	maskedChars = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      "masked_chars_total",
		Help:      "Characters taken out of tool results.",
	}, []string{"server"})
)

func registerMetrics(registry *prometheus.Registry) error {
	for _, c := range []prometheus.Collector{maskedStrings, maskedChars} {
		var already prometheus.AlreadyRegisteredError
		if err := registry.Register(c); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}
