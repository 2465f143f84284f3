package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
)

// A reading is what a case has given for a contestant.
type reading struct{ name, contestant string }

// watch keeps what a case has given for a contestant, by round if there were several.
func (b *bench) watch(name, contestant string, values ...float64) {
	if b.readings == nil {
		b.readings = map[reading][]float64{}
	}
	b.readings[reading{name, contestant}] = values
}

const (
	each        = "mcp_gateway /mcp/{server}, mask off"
	joined      = "mcp_gateway /mcp"
	joinedStdio = joined + ", stdio"
	tbxarkStdio = "TBXark mcp-proxy, stdio"
)

// watched are the cells that tell most about mcp_gateway, with the contestants whose
// readings they show.
var watched = []struct {
	label, name string
	contestants []string
}{
	{"1 KB ×16", "calls/stateful/1KB/16", []string{each, joined}},
	{"100 KB ×16", "calls/stateful/100KB/16", []string{each, joined}},
	{"5 MB ×1", "calls/stateful/5MB/1", []string{each, joined}},
	{"1 KB ×16, from a child on stdio", "calls/stateful/1KB/16", []string{joinedStdio, tbxarkStdio}},
	{"100 KB ×16, from a child on stdio", "calls/stateful/100KB/16", []string{joinedStdio, tbxarkStdio}},
	{"5 MB ×1, from a child on stdio", "calls/stateful/5MB/1", []string{joinedStdio, tbxarkStdio}},
	{"1 KB ×16, 2026-07-28", "calls/stateless/1KB/16", []string{each, joined}},
	{"1 KB ×16, HTTP/2 with TLS", "calls/h2/1KB/16", []string{each, joined}},
	{"1 KB ×16, answered with event streams", "calls/events/1KB/16", []string{each, joined}},
	{"5 MB ×1, answered with event streams", "calls/events/5MB/1", []string{each, joined}},
	{"1 KB ×16, guarded", "calls/guarded/1KB/16", []string{each, joined}},
	{"100 KB ×16, guarded", "calls/guarded/100KB/16", []string{each, joined}},
	{"5 MB ×1, guarded", "calls/guarded/5MB/1", []string{each, joined}},
	{"idle session with its stream, one server, KB", "idle/1/1000", []string{joined}},
	{"… for each further server, KB", furtherServer, []string{joined}},
	{"new session with 100 servers, ms", newSession(100), []string{joined}},
}

// printWatched prints those of the cells to watch that were measured.
func (b *bench) printWatched(w io.Writer) {
	t := table{title: "cell", heads: []string{"contestant", "median", "range"}}
	for _, cell := range watched {
		for _, contestant := range cell.contestants {
			values := b.readings[reading{cell.name, contestant}]
			if len(values) == 0 {
				continue
			}
			spread := none
			if len(values) > 1 {
				spread = ratio(slices.Min(values)) + " to " + ratio(slices.Max(values))
			}
			t.add(cell.label, contestant, ratio(load.Quantile(values, .5)), spread)
		}
	}
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "### Cells to watch\n\nCalls per second relative to %s, where nothing else is said: "+
		"the median of the rounds, the lowest and the highest.\n\n", baseline)
	t.print(w)
}
