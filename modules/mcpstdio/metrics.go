package mcpstdio

import (
	"maps"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	restarts = telemetry.NewCounter("upstream_restarts_total", "Child processes started again after they ended.", "server")
	healthy  = telemetry.NewGauge("upstream_healthy", "Servers that answer: 1 or 0, or how many child processes run and are initialized.", "server")
	noise    = telemetry.NewCounter("stdio_noise_total", "Lines on a child's stdout that are not messages.", "server")
	dropped  = telemetry.NewCounter("stdio_dropped_total", "Messages of or to a child that had nobody to go to.", "server")
)

// running counts the child processes that run, by server.
var running = processes{of: map[string]int{}}

type processes struct {
	mu sync.Mutex
	of map[string]int
}

func (p *processes) count(server string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[server] += n
	healthy.WithLabelValues(server).Set(float64(p.of[server]))
}

// forget takes servers of which none runs out of the metrics. One that is still there
// comes back when it is started.
func (p *processes) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.of, func(server string, n int) bool {
		if n == 0 {
			healthy.DeleteLabelValues(server)
		}
		return n == 0
	})
}
