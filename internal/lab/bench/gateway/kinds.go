package main

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// A size is the length of a tool's result.
type size struct {
	name  string
	chars int
}

var kb1, kb100, mb5 = size{"1 KB", 1000}, size{"100 KB", 100_000}, size{"5 MB", 5_000_000}

// A cell is a load: clients that each make one call after the other, or a fixed rate of calls.
type cell struct {
	size    size
	clients int
	rate    int // calls per second, or 0 for one call after the other
}

// A kind is a way to make calls, with its own section of the report.
type kind struct {
	name, heading, intro string
	setup
	path       string // prefix of server paths, before the size
	cells      []cell // cells of the same size are adjacent
	turnFactor int    // factor for the length of a turn, if not 0
	figures    []figure

	// contestants selects contestants. If nil, all take part.
	contestants func([]contestant) []contestant
}

// kinds are all kinds of calls in the order of the report.
var kinds = []kind{
	{name: "stateful", heading: "Calls, with sessions (up to 2025-11-25)", path: upstream.CallPath,
		cells: cellsFor([]size{kb1, kb100, mb5}, 1, 16, 64), figures: closedLoopFigures},
	{name: "stateless", heading: "Calls, stateless (2026-07-28)", path: upstream.ModernPath, setup: setup{modern: true},
		cells: cellsFor([]size{kb1, kb100, mb5}, 1, 16), figures: closedLoopFigures},
	{name: "h2", heading: "Calls, HTTP/2 with TLS", path: upstream.CallPath, setup: setup{tls: true},
		intro: "Clients use HTTP/2 with TLS, each on its own connection. Contestants connect to servers over HTTP " +
			"as before. The other contestants do not serve TLS themselves.",
		cells: cellsFor([]size{kb1}, 1, 16), figures: closedLoopFigures,
		contestants: only(func(c *contestant) bool { return c.https && c.forwardsUnchanged() })},
	{name: "events", heading: "Calls, responses as event streams", path: upstream.EventsPath,
		intro: "Servers respond to each call with an event stream of one event, as most SDKs do by default. " +
			"Stdio servers have no such streams.",
		cells: []cell{{kb1, 16, 0}, {kb100, 16, 0}, {mb5, 1, 0}}, figures: closedLoopFigures,
		contestants: only((*contestant).forwardsUnchanged)},
	{name: "guarded", heading: "Calls, guarded", path: upstream.CallPath, setup: setup{guarded: true},
		intro: "mcp_gateway requires a token, applies rules that deny and allow tools, limits the rate of calls, and " +
			"searches results for secrets: two regular expressions and one member, none of which matches. " +
			baseline + ", the baseline, does none of this.",
		cells: []cell{{kb1, 16, 0}, {kb100, 16, 0}, {mb5, 1, 0}}, figures: closedLoopFigures,
		contestants: only(func(c *contestant) bool { return c.name == baseline || c.guards && c.forwardsUnchanged() })},
	{name: "paced", heading: "Calls at a given rate", path: upstream.CallPath,
		intro: "Calls are sent at a fixed rate, whether or not earlier ones are done. Latency counts from when " +
			"a call is due, so it includes waiting for earlier calls. 64 clients make the calls.",
		cells: []cell{{kb1, 64, 100}, {kb1, 64, 500}}, turnFactor: 3, figures: openLoopFigures,
		contestants: only((*contestant).forwardsUnchanged)},
	{name: "memory", heading: "Garbage collection", path: upstream.CallPath,
		intro: "Caddy with different settings of Go's garbage collector. Rows without a setting have the default, " +
			"`GOGC=100`.",
		cells: []cell{{kb1, 16, 0}, {mb5, 16, 0}}, figures: slices.Concat(closedLoopFigures, collectorFigures),
		contestants: collectorVariants},
}

// cellsFor returns a cell for each size and number of clients.
func cellsFor(sizes []size, clients ...int) (cells []cell) {
	for _, size := range sizes {
		for _, n := range clients {
			cells = append(cells, cell{size: size, clients: n})
		}
	}
	return cells
}

// only returns a function that selects contestants.
func only(fits func(*contestant) bool) func([]contestant) []contestant {
	return func(all []contestant) (chosen []contestant) {
		for i := range all {
			if fits(&all[i]) {
				chosen = append(chosen, all[i])
			}
		}
		return chosen
	}
}

// collectorVariants returns Caddy and mcp_gateway with several settings of the garbage collector,
// whose trace is in their output.
func collectorVariants(all []contestant) (variants []contestant) {
	for _, setting := range []string{"", "GOGC=200", "GOGC=400", "GOMEMLIMIT=64MiB"} {
		for _, c := range all {
			if c.name != baseline && !(c.guards && c.joins && c.forwardsUnchanged()) {
				continue
			}
			c.env = []string{"GODEBUG=gctrace=1"}
			if setting != "" {
				c.name, c.env = c.name+", "+setting, append(c.env, setting)
			}
			variants = append(variants, c)
		}
	}
	return variants
}

// A figure is what a table shows of a measure.
type figure struct {
	heading string
	cell    func(*measure) string
}

var (
	relative = figure{"Calls per second, relative to " + baseline, func(m *measure) string {
		return ratio(load.Quantile(m.ratios, .5))
	}}
	cpu  = figure{"Processor time per call in µs", func(m *measure) string { return microseconds(m.cpuPerCall()) }}
	peak = figure{"Memory, peak in MiB", func(m *measure) string { return mebibytes(m.peak) }}

	closedLoopFigures = []figure{relative, {"Latency, p50 and p99 in ms", quantiles(.5, .99)}, cpu, peak}
	openLoopFigures   = []figure{{"Latency, p50, p99 and p99.9 in ms", quantiles(.5, .99, .999)}, cpu}
	collectorFigures  = []figure{{"Collections per second, longest pause in ms, largest heap in MiB",
		func(m *measure) string {
			return m.collections.String(m.spent)
		}}}
)

// quantiles returns a figure with these quantiles of the latencies.
func quantiles(qs ...float64) func(*measure) string {
	return func(m *measure) (text string) {
		for i, q := range qs {
			if i > 0 {
				text += ", "
			}
			text += milliseconds(load.Quantile(m.latencies, q))
		}
		return text
	}
}
