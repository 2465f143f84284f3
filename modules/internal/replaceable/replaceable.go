// Package replaceable loads modules that can be replaced while their configuration runs.
package replaceable

import (
	"context"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// registryKey is the context key of the configuration's metrics registry.
type registryKey struct{}

// NewContext returns a context for modules that may end before the configuration of ctx. They end
// when the returned function is called.
func NewContext(ctx caddy.Context) (caddy.Context, context.CancelFunc) {
	inner, end := caddy.NewContext(ctx)
	inner.Context = context.WithValue(inner.Context, registryKey{}, ctx.GetMetricsRegistry())
	return inner, end
}

// Is reports whether ctx comes from NewContext. A module in such a context may be loaded after the
// configuration has started, and cannot subscribe to events.
func Is(ctx caddy.Context) bool { return ctx.Value(registryKey{}) != nil }

// Registry returns the metrics registry of the configuration. A context from NewContext has its own
// registry, which is not served.
func Registry(ctx caddy.Context) *prometheus.Registry {
	if registry, ok := ctx.Value(registryKey{}).(*prometheus.Registry); ok {
		return registry
	}
	return ctx.GetMetricsRegistry()
}
