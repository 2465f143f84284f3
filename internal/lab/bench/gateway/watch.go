package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
)

// A readingKey identifies the figures of a contestant in a case.
type readingKey struct{ name, contestant string }

// record records the figures of a contestant in a case, one per round if there are several.
func (b *bench) record(name, contestant string, values ...float64) {
	if b.readings == nil {
		b.readings = map[readingKey][]float64{}
	}
	b.readings[readingKey{name, contestant}] = values
}

const (
	perServer   = "mcp_gateway /mcp/{server}, mask off"
	joined      = "mcp_gateway /mcp"
	joinedStdio = joined + ", stdio"
	tbxarkStdio = "TBXark mcp-proxy, stdio"
)

// watchedCells are the cells that say most about mcp_gateway, and the contestants to show there.
var watchedCells = []struct {
	label, name string
	contestants []string
}{
	{"1 KB ×16", "calls/stateful/1KB/16", []string{perServer, joined}},
	{"100 KB ×16", "calls/stateful/100KB/16", []string{perServer, joined}},
	{"5 MB ×1", "calls/stateful/5MB/1", []string{perServer, joined}},
	{"1 KB ×16, stdio server", "calls/stateful/1KB/16", []string{joinedStdio, tbxarkStdio}},
	{"100 KB ×16, stdio server", "calls/stateful/100KB/16", []string{joinedStdio, tbxarkStdio}},
	{"5 MB ×1, stdio server", "calls/stateful/5MB/1", []string{joinedStdio, tbxarkStdio}},
	{"1 KB ×16, 2026-07-28", "calls/stateless/1KB/16", []string{perServer, joined}},
	{"1 KB ×16, HTTP/2 with TLS", "calls/h2/1KB/16", []string{perServer, joined}},
	{"1 KB ×16, responses as event streams", "calls/events/1KB/16", []string{perServer, joined}},
	{"5 MB ×1, responses as event streams", "calls/events/5MB/1", []string{perServer, joined}},
	{"1 KB ×16, guarded", "calls/guarded/1KB/16", []string{perServer, joined}},
	{"100 KB ×16, guarded", "calls/guarded/100KB/16", []string{perServer, joined}},
	{"5 MB ×1, guarded", "calls/guarded/5MB/1", []string{perServer, joined}},
	{"idle session with its stream, one server, KB", "idle/1/1000", []string{joined}},
	{"… for each further server, KB", furtherServer, []string{joined}},
	{"new session with 100 servers, ms", newSession(100), []string{joined}},
}

// printWatched prints the cells to watch that were measured.
func (b *bench) printWatched(w io.Writer) {
	t := table{title: "cell", heads: []string{"contestant", "median", "range"}}
	for _, cell := range watchedCells {
		for _, contestant := range cell.contestants {
			values := b.readings[readingKey{cell.name, contestant}]
			if len(values) == 0 {
				continue
			}
			spread := noFigure
			if len(values) > 1 {
				spread = ratio(slices.Min(values)) + " to " + ratio(slices.Max(values))
			}
			t.add(cell.label, contestant, ratio(load.Quantile(values, .5)), spread)
		}
	}
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "### Cells to watch\n\nCalls per second relative to %s, unless a row says otherwise: "+
		"the median of the rounds, the lowest and the highest.\n\n", baseline)
	t.print(w)
}
