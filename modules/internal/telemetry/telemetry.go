// Package telemetry adds the metrics and access log fields of this project's modules to those of
// Caddy.
package telemetry

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
)

// NewCounter returns a counter named caddy_mcp_<name>. Counters live as long as the process, so
// that counts survive reloads.
func NewCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      name,
		Help:      help,
	}, labels)
}

// NewGauge returns a gauge named caddy_mcp_<name>.
func NewGauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      name,
		Help:      help,
	}, labels)
}

// NewHistogram returns a histogram of durations in seconds, with buckets from 1 ms to 5 minutes.
func NewHistogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy",
		Subsystem: "mcp",
		Name:      name,
		Help:      help,
		Buckets:   []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
	}, labels)
}

// newDesc describes a metric that is computed on collection.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("caddy", "mcp", name), help, labels, nil)
}

// Register adds collectors, and the usage of all stores, to the metrics registry of a
// configuration.
func Register(ctx caddy.Context, collectors ...prometheus.Collector) error {
	for _, c := range append(collectors, usageCollector{}) {
		err := replaceable.Registry(ctx).Register(c)
		if _, already := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !already {
			return err
		}
	}
	return nil
}

// JoinAccessLog adds fields to the access log entry of r, if there is one. The fields are read when
// the entry is written.
func JoinAccessLog(r *http.Request, fields zapcore.ObjectMarshaler) {
	ctx := r.Context()
	extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if server, known := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && known && server.Logs != nil {
		extra.Add(zap.Inline(fields))
	}
}

// usageCollector collects the usage of every [quota.Kind].
type usageCollector struct{}

var (
	keptEntries      = newDesc("kept_entries", "Entries kept in memory for clients and servers.", "kind")
	keptEntriesLimit = newDesc("kept_entries_limit", "Entries that may be kept; 0 if only bytes are limited.", "kind")
	keptBytes        = newDesc("kept_bytes", "Bytes kept in memory for clients and servers.", "kind")
	keptBytesLimit   = newDesc("kept_bytes_limit", "Bytes that may be kept; 0 if only entries are limited.", "kind")
	keptDropped      = newDesc("kept_dropped_total", "Entries dropped to make room for others.", "kind")
	keptRefused      = newDesc("kept_refused_total", "Entries rejected for lack of space.", "kind")
)

func (c usageCollector) Describe(descs chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, descs)
}

func (usageCollector) Collect(metrics chan<- prometheus.Metric) {
	for _, kind := range quota.Kinds() {
		usage := kind.Usage()
		collect := func(desc *prometheus.Desc, valueType prometheus.ValueType, value int64) {
			metrics <- prometheus.MustNewConstMetric(desc, valueType, float64(value), kind.Name)
		}
		collect(keptEntries, prometheus.GaugeValue, usage.Entries)
		collect(keptEntriesLimit, prometheus.GaugeValue, usage.MaxEntries)
		collect(keptBytes, prometheus.GaugeValue, usage.Bytes)
		collect(keptBytesLimit, prometheus.GaugeValue, usage.MaxBytes)
		collect(keptDropped, prometheus.CounterValue, usage.Dropped)
		collect(keptRefused, prometheus.CounterValue, usage.Refused)
	}
}
