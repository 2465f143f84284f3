// Package replaceable loads modules that are replaced while their configuration runs.
package replaceable

import (
	"context"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// registryKey is where a context has the metrics registry of its configuration.
type registryKey struct{}

// NewContext returns a context for modules that end before the configuration of ctx does: when the
// returned function is called.
func NewContext(ctx caddy.Context) (caddy.Context, context.CancelFunc) {
	inner, end := caddy.NewContext(ctx)
	inner.Context = context.WithValue(inner.Context, registryKey{}, ctx.GetMetricsRegistry())
	return inner, end
}

// Is reports whether NewContext has made ctx. A module in such a context may be loaded after the
// configuration has started, and cannot subscribe to events.
func Is(ctx caddy.Context) bool { return ctx.Value(registryKey{}) != nil }

// Registry returns the metrics registry of the configuration. The registry of a context that
// NewContext has made is its own, and its metrics are not served.
func Registry(ctx caddy.Context) *prometheus.Registry {
	if registry, ok := ctx.Value(registryKey{}).(*prometheus.Registry); ok {
		return registry
	}
	return ctx.GetMetricsRegistry()
}
