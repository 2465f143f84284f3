package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

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

func (usageCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		keptEntries, keptEntriesLimit, keptBytes, keptBytesLimit, keptDropped, keptRefused,
	} {
		descs <- desc
	}
}

func (usageCollector) Collect(metrics chan<- prometheus.Metric) {
	for _, kind := range quota.Kinds() {
		usage := kind.Usage()
		gauge := func(desc *prometheus.Desc, value int64) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), kind.Name)
		}
		counter := func(desc *prometheus.Desc, value int64) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), kind.Name)
		}
		gauge(keptEntries, usage.Entries)
		gauge(keptEntriesLimit, usage.MaxEntries)
		gauge(keptBytes, usage.Bytes)
		gauge(keptBytesLimit, usage.MaxBytes)
		counter(keptDropped, usage.Dropped)
		counter(keptRefused, usage.Refused)
	}
}
