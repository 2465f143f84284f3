package mcpstdio

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"

var (
	restarts = telemetry.NewCounter("upstream_restarts_total", "Child processes started again after they ended.", "server")
	healthy  = telemetry.NewGauge("upstream_healthy", "Servers that answer: 1 or 0, or how many child processes run and are initialized.", "server")
	noise    = telemetry.NewCounter("stdio_noise_total", "Lines on a child's stdout that are not messages.", "server")
	dropped  = telemetry.NewCounter("stdio_dropped_total", "Messages of or to a child that had nobody to go to.", "server")
)
