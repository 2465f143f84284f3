package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// joinedServers is how many servers are behind one endpoint, with joinedTools each.
var joinedServers = []int{1, 10, 100}

const joinedTools = 10

// reportFanOut tells what lists and calls cost where many servers are shown as one.
func (b *bench) reportFanOut(ctx context.Context, w io.Writer) error {
	t := table{title: fmt.Sprintf("servers, with %d tools each", joinedTools), heads: []string{
		"a new session and its list, ms", "list, p50 ms", "list, CPU µs", "call, p50 ms", "call, CPU µs", "peak, MiB"}}
	for _, n := range joinedServers {
		name := fmt.Sprintf("fanout/%d", n)
		if !b.cases.MatchString(name) {
			continue
		}
		for i := range b.contestants {
			c := &b.contestants[i]
			switch {
			case c.command == nil || c.name == baseline || c.masked || c.stdio:
				continue
			case !c.joins:
				t.note("%s: it has no endpoint for many servers", c.id())
				continue
			}
			progress("%s: %s", name, c.id())
			if err := b.fanOut(ctx, c, n, &t); err != nil {
				return fmt.Errorf("%s: %s: %w", name, c.id(), err)
			}
		}
	}
	if len(t.rows) > 0 {
		fmt.Fprint(w, "### Many servers behind one endpoint\n\n")
		t.print(w)
	}
	return nil
}

// fanOut adds the row of a contestant with n servers.
func (b *bench) fanOut(ctx context.Context, c *contestant, n int, t *table) error {
	name := fmt.Sprintf("%d: %s", n, c.id())
	up, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer up.Stop()
	var servers []server
	for i := range n {
		servers = append(servers, server{name: fmt.Sprintf("s%d", i), url: up.URL(fmt.Sprintf("%s%d/%d", upstream.FixedPath, joinedTools, i))})
	}
	list := func(ctx context.Context, client *load.Client) error { return client.List(ctx, n*joinedTools) }
	r, err := c.start(ctx, &b.installed, servers, false, list)
	if err != nil {
		t.addNone(name)
		t.note("%s: %s", name, firstLine(err))
		return ctx.Err()
	}
	defer r.stop()
	defer load.HTTP.CloseIdleConnections()
	client, err := load.Open(ctx, r.endpoint, r.dialect)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	tool := c.toolOf(servers[n-1].name, "tool_0")
	phases := [3]measure{}
	for i, do := range []func(ctx context.Context, _ int) error{
		func(ctx context.Context, _ int) error {
			fresh, err := load.Open(ctx, r.endpoint, r.dialect)
			if err != nil {
				return err
			}
			defer fresh.Close(ctx)
			return list(ctx, fresh)
		},
		func(ctx context.Context, _ int) error { return list(ctx, client) },
		func(ctx context.Context, _ int) error { return client.Call(ctx, tool, upstream.Small) },
	} {
		load.Loop(ctx, 1, b.budget/4, do)
		before := r.cpu()
		result := load.Loop(ctx, 1, b.budget, do)
		phases[i].add(result, r.cpu()-before)
		if err := phases[i].err; err != nil {
			t.note("%s: %d of %d failed: %s", name, phases[i].failed, phases[i].failed+len(phases[i].latencies), firstLine(err))
		}
	}
	t.add(name, p50(&phases[0]), p50(&phases[1]), microseconds(phases[1].cpuPerCall()),
		p50(&phases[2]), microseconds(phases[2].cpuPerCall()), mebibytes(r.memory().Peak))
	return ctx.Err()
}

func p50(m *measure) string {
	if len(m.latencies) == 0 {
		return none
	}
	return milliseconds(load.Quantile[time.Duration](m.latencies, .5))
}
