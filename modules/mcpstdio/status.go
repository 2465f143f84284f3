package mcpstdio

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// Status returns the states of the children at a host, which is the address of an upstream.
func (t *Transport) Status(host string) []stdio.Status { return t.pool.Status(host) }

// Restart ends the children at a host and starts new ones. It returns when these are ready.
func (t *Transport) Restart(ctx context.Context, host string) error {
	return t.pool.Restart(ctx, host)
}

// Start starts a child at a host, unless one is running. It returns when the child is ready.
func (t *Transport) Start(ctx context.Context, host string) error { return t.pool.Start(ctx, host) }

// SkipBackoff ends the pauses before children at a host are restarted.
func (t *Transport) SkipBackoff(host string) { t.pool.SkipBackoff(host) }

// Check checks whether the children at a host are alive, and restarts those that are not. It does
// not start children that have not been needed yet; attempted reports whether there were others to
// check.
func (t *Transport) Check(ctx context.Context, host string) (attempted bool, err error) {
	return t.pool.CheckStarted(ctx, host)
}

// Shares reports whether another transport uses the same children.
func (t *Transport) Shares(other *Transport) bool { return t.pool == other.pool }

// Healthy returns the gauge of healthy servers, for health checks of servers that are not child
// processes.
func Healthy() *prometheus.GaugeVec { return healthy }

// AnswerWith lets answerer respond to server requests of the children at a host, instead of a
// client, until release is called.
func (t *Transport) AnswerWith(host string, answerer stdio.Answerer) (release func()) {
	return t.pool.AnswerWith(host, answerer)
}

// Watch calls watcher when the children at a host report changed lists, until release is called.
func (t *Transport) Watch(host string, watcher stdio.Watcher) (release func()) {
	return t.pool.Watch(host, watcher)
}
