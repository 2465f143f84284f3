package main

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// A size is how much a tool answers.
type size struct {
	name  string
	chars int
}

var kb1, kb100, mb5 = size{"1 KB", 1000}, size{"100 KB", 100_000}, size{"5 MB", 5_000_000}

// A cell is what clients ask for: one call after the other, or so many per second.
type cell struct {
	size    size
	clients int
	rate    int // calls per second, in a loop that is not closed
}

// A kind is a way of making calls, with a section of the report.
type kind struct {
	name, heading, about string
	setup
	path    string // of the servers, before the size
	cells   []cell // those of a size in a row
	longer  int    // a turn takes so many times as long as usual
	figures []figure

	// contestants are those that it is for. If it is nil, it is for all.
	contestants func([]contestant) []contestant
}

// kinds are all ways of making calls, in the order in which they are shown.
var kinds = []kind{
	{name: "stateful", heading: "Calls, with sessions (up to 2025-11-25)", path: upstream.CallPath,
		cells: cross([]size{kb1, kb100, mb5}, 1, 16, 64), figures: closed},
	{name: "stateless", heading: "Calls, stateless (2026-07-28)", path: upstream.ModernPath, setup: setup{modern: true},
		cells: cross([]size{kb1, kb100, mb5}, 1, 16), figures: closed},
	{name: "h2", heading: "Calls, HTTP/2 with TLS", path: upstream.CallPath, setup: setup{tls: true},
		about: "Clients speak HTTP/2 with TLS, each on a connection of its own; servers are reached over HTTP " +
			"as before. The other contestants do not serve TLS themselves.",
		cells: cross([]size{kb1}, 1, 16), figures: closed,
		contestants: only(func(c *contestant) bool { return c.https && c.isPlain() })},
	{name: "events", heading: "Calls, answered with event streams", path: upstream.EventsPath,
		about: "Servers answer each call with an event stream of one event, as most SDKs do by default. " +
			"Children on stdio have no such streams.",
		cells: []cell{{kb1, 16, 0}, {kb100, 16, 0}, {mb5, 1, 0}}, figures: closed,
		contestants: only((*contestant).isPlain)},
	{name: "guarded", heading: "Calls, guarded", path: upstream.CallPath, setup: setup{guarded: true},
		about: "mcp_gateway asks for a token, has rules that deny and allow tools, limits the rate of calls, and " +
			"looks for secrets in results: two regular expressions and one member, none of which is found. " +
			baseline + " does nothing of that: it is the baseline.",
		cells: []cell{{kb1, 16, 0}, {kb100, 16, 0}, {mb5, 1, 0}}, figures: closed,
		contestants: only(func(c *contestant) bool { return c.name == baseline || c.guards && c.isPlain() })},
	{name: "paced", heading: "Calls at a given rate", path: upstream.CallPath,
		about: "Calls come at a fixed rate, whether those before them are answered or not. Latency counts from when " +
			"a call is due, so it includes waiting behind others. 64 clients make the calls.",
		cells: []cell{{kb1, 64, 100}, {kb1, 64, 500}}, longer: 3, figures: open,
		contestants: only((*contestant).isPlain)},
	{name: "memory", heading: "Garbage collection", path: upstream.CallPath,
		about: "Caddy with other settings of Go's garbage collector. Where none is named, it is the default, " +
			"`GOGC=100`.",
		cells: []cell{{kb1, 16, 0}, {mb5, 16, 0}}, figures: slices.Concat(closed, collector),
		contestants: collected},
}

// cross is all sizes with all numbers of clients.
func cross(sizes []size, clients ...int) (cells []cell) {
	for _, size := range sizes {
		for _, n := range clients {
			cells = append(cells, cell{size: size, clients: n})
		}
	}
	return cells
}

// only chooses contestants.
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

// collected are Caddy and mcp_gateway, by settings of the garbage collector. It tells about
// its work in their output.
func collected(all []contestant) (variants []contestant) {
	for _, setting := range []string{"", "GOGC=200", "GOGC=400", "GOMEMLIMIT=64MiB"} {
		for _, c := range all {
			if c.name != baseline && !(c.guards && c.joins && c.isPlain()) {
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

// A figure is what a table of calls shows of a measure.
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

	closed    = []figure{relative, {"Latency, p50 and p99 in ms", quantiles(.5, .99)}, cpu, peak}
	open      = []figure{{"Latency, p50, p99 and p99.9 in ms", quantiles(.5, .99, .999)}, cpu}
	collector = []figure{{"Collections per second, longest pause in ms, largest heap in MiB", func(m *measure) string {
		return m.collections.String(m.spent)
	}}}
)

// quantiles shows these of the latencies.
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
