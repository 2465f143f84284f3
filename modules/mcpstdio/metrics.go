package mcpstdio

import (
	"maps"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	restarts = telemetry.NewCounter("upstream_restarts_total",
		"Restarts of child processes.", "server")
	healthy = telemetry.NewGauge("upstream_healthy",
		"Health of servers: 1 or 0, or the number of running and initialized child processes.", "server")
	noise = telemetry.NewCounter("stdio_noise_total",
		"Lines on a child's stdout that are not messages.", "server")
	dropped = telemetry.NewCounter("stdio_dropped_total",
		"Messages from or to a child process without a recipient.", "server")
)

// running counts running child processes by server.
var running = processes{counts: map[string]int{}}

// processes sets the metric of healthy servers to the counts.
type processes struct {
	mu     sync.Mutex
	counts map[string]int
}

func (p *processes) count(server string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[server] += n
	healthy.WithLabelValues(server).Set(float64(p.counts[server]))
}

// removeStopped removes servers without running processes from the metric. A server returns to it
// when a process starts.
func (p *processes) removeStopped() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.counts, func(server string, n int) bool {
		if n == 0 {
			healthy.DeleteLabelValues(server)
		}
		return n == 0
	})
}
