package main

import (
	"context"
	"fmt"
	"io"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

var growthSizes = []size{{"1 KB", 1000}, {"10 KB", 10_000}, {"100 KB", 100_000}, {"1 MB", 1_000_000},
	{"5 MB", 5_000_000}, {"50 MB", 50_000_000}}

// reportGrowth measures how time and memory of one client's call grow with the result. Each
// size has new processes, so that nothing else has raised their peak.
func (b *bench) reportGrowth(ctx context.Context, w io.Writer) error {
	latency := table{title: "p50 of a call in ms, results of"}
	peak := table{title: "peak of memory in MiB, results of"}
	var results []map[string]*measure
	for _, size := range growthSizes {
		name := "growth/" + compact(size.name)
		if !b.selects(name) {
			continue
		}
		progress("%s", name)
		measures, err := b.growth(ctx, size)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, measures)
		latency.heads, peak.heads = append(latency.heads, size.name), append(peak.heads, size.name)
	}
	if len(results) == 0 {
		return nil
	}
	for i := range b.contestants {
		id := b.contestants[i].id()
		var times, peaks []string
		for j, measures := range results {
			m := measures[id]
			times, peaks = append(times, p50(m)), append(peaks, mebibytes(m.peak))
			if m.err != nil {
				latency.note("%s, %s: %s", id, latency.heads[j], firstLine(m.err))
			}
		}
		latency.add(id, times...)
		peak.add(id, peaks...)
	}
	fmt.Fprint(w, "### Growth with the result\n\n")
	latency.print(w)
	peak.print(w)
	return nil
}

// growth measures calls of one client, one contestant after the other.
func (b *bench) growth(ctx context.Context, size size) (map[string]*measure, error) {
	f, err := b.startCalls(ctx, b.contestants, &kinds[0], size)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	measures := map[string]*measure{}
	for id, err := range f.absent {
		measures[id] = &measure{err: err}
	}
	for _, r := range f.started {
		m := new(measure)
		measures[r.id()] = m
		var clients []*load.Client
		if clients, m.err = openClients(ctx, r, 1); m.err != nil {
			continue
		}
		tool, chars := r.toolOf("bench", upstream.Tool), r.chars(size)
		before := r.cpu()
		result := load.Loop(ctx, 1, b.budget/2, func(ctx context.Context, _ int) error {
			return clients[0].Call(ctx, tool, chars)
		})
		m.add(result, r.cpu()-before)
		m.peak = r.memory().Peak
		closeClients(ctx, clients)
	}
	return measures, ctx.Err()
}
