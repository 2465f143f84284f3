// Package telemetry is how the modules report to Caddy's metrics and access log.
package telemetry

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
)

// NewCounter returns a counter of this project. Counters live as long as the
// process, so that counts survive reloads.
func NewCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      name,
		Help:      help,
	}, labels)
}

// NewGauge returns a gauge of this project.
func NewGauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      name,
		Help:      help,
	}, labels)
}

// NewHistogram returns a histogram of how long things take, in seconds: from the
// millisecond of a server next door to the minutes of one that thinks.
func NewHistogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      name,
		Help:      help,
		Buckets:   []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
	}, labels)
}

// newDesc describes a metric of this project that is read when it is asked for.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("caddy", "mcp", name), help, labels, nil)
}

// Register makes collectors part of the metrics of a configuration, and with them
// how full the stores of this project are. Each configuration has a registry of its
// own.
func Register(ctx caddy.Context, collectors ...prometheus.Collector) error {
	for _, c := range append(collectors, kept{}) {
		var already prometheus.AlreadyRegisteredError
		if err := replaceable.Registry(ctx).Register(c); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

// JoinAccessLog has the access log, if there is one, ask for fields when it is
// written.
func JoinAccessLog(r *http.Request, fields zapcore.ObjectMarshaler) {
	ctx := r.Context()
	extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if server, is := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && is && server.Logs != nil {
		extra.Add(zap.Inline(fields))
	}
}
