package mcpstdio

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// Status tells of the children at a host, which is the address of an upstream.
func (t *Transport) Status(host string) []stdio.Status { return t.pool.Status(host) }

// Restart ends the children at a host and starts others in their place. It returns when
// these are ready.
func (t *Transport) Restart(ctx context.Context, host string) error {
	return t.pool.Restart(ctx, host)
}

// Start starts a child at a host, unless one runs there. It returns when that is ready.
func (t *Transport) Start(ctx context.Context, host string) error { return t.pool.Start(ctx, host) }

// Hurry ends the pauses before children at a host are started again.
func (t *Transport) Hurry(host string) { t.pool.Hurry(host) }

// Check finds out whether the children at a host are alive. One that is not is started
// again. Those that nobody has needed yet are left alone; asked says whether there were
// others.
func (t *Transport) Check(ctx context.Context, host string) (asked bool, err error) {
	return t.pool.Alive(ctx, host)
}

// Shares reports whether another transport has the same children.
func (t *Transport) Shares(other *Transport) bool { return t.pool == other.pool }

// Healthy returns the gauge of healthy servers, for whoever watches those that are no
// child processes.
func Healthy() *prometheus.GaugeVec { return healthy }

// AnswerWith has questions of the children at a host answered in the place of any client,
// until it is released.
func (t *Transport) AnswerWith(host string, answerer stdio.Answerer) (release func()) {
	return t.pool.AnswerWith(host, answerer)
}

// Watch has a watcher told what the children at a host say of their lists, until it is released.
func (t *Transport) Watch(host string, watcher stdio.Watcher) (release func()) {
	return t.pool.Watch(host, watcher)
}
