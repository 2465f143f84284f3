package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// joinedServers are the numbers of servers behind one endpoint, with joinedTools each.
var joinedServers = []int{1, 10, 100}

const joinedTools = 10

// freshProcesses is how often the first session is measured, each time with a new process.
const freshProcesses = 5

func newSession(servers int) string { return fmt.Sprintf("fanout/%d", servers) }

// reportFanOut measures sessions, lists and calls with many servers behind one endpoint.
func (b *bench) reportFanOut(ctx context.Context, w io.Writer) error {
	t := table{title: fmt.Sprintf("servers, with %d tools each", joinedTools), heads: []string{
		"first session, ms", "new session, ms", "16 at once, ms",
		"list, ms", "list, CPU µs", "call, ms", "call, CPU µs", "peak, MiB"}}
	for _, n := range joinedServers {
		name := newSession(n)
		if !b.selects(name) {
			continue
		}
		for i := range b.contestants {
			c := &b.contestants[i]
			switch {
			case c.command == nil || c.name == baseline || !c.forwardsUnchanged():
				continue
			case !c.joins:
				t.note("%s: no endpoint for many servers", c.id())
				continue
			}
			progress("%s: %s", name, c.id())
			if err := b.fanOut(ctx, c, n, &t); err != nil {
				return fmt.Errorf("%s: %s: %w", name, c.id(), err)
			}
		}
	}
	if len(t.rows) > 0 {
		fmt.Fprint(w, "### Many servers behind one endpoint\n\n"+
			"Medians. A session is `initialize`, `notifications/initialized` and `tools/list`; "+
			"the first is that of a new process.\n\n")
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
	servers, err := namedServers(up, fmt.Sprint(upstream.FixedPath, joinedTools, "/"), n, false)
	if err != nil {
		return err
	}
	list := func(ctx context.Context, client *load.Client) error { return client.List(ctx, n*joinedTools) }
	var first, session, joining, lists, calls measure
	for range freshProcesses {
		took, err := b.firstSession(ctx, c, servers, list)
		if err != nil {
			t.note("%s, first session: %s", name, firstLine(err))
			break
		}
		first.latencies = append(first.latencies, took)
	}
	r, err := c.start(ctx, &b.programs, servers, setup{}, list)
	if err != nil {
		t.addNone(name)
		t.note("%s: %s", name, firstLine(err))
		return ctx.Err()
	}
	defer r.stop()
	defer load.HTTP.CloseIdleConnections()
	client, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	tool := c.toolOf(servers[n-1].name, "tool_0")
	var timed stopwatch
	open := func(ctx context.Context, _ int) error { return timed.session(ctx, r, list) }
	for _, phase := range []struct {
		measure *measure
		clients int
		do      func(ctx context.Context, _ int) error
	}{
		{&session, 1, open},
		{&joining, 16, open},
		{&lists, 1, func(ctx context.Context, _ int) error { return list(ctx, client) }},
		{&calls, 1, func(ctx context.Context, _ int) error { return client.Call(ctx, tool, upstream.SmallChars) }},
	} {
		load.Loop(ctx, phase.clients, b.budget/4, phase.do)
		timed.took = nil
		before := r.cpu()
		result := load.Loop(ctx, phase.clients, b.budget, phase.do)
		if timed.took != nil {
			result.Latencies = timed.took
		}
		m := phase.measure
		m.add(result, r.cpu()-before)
		if m.err != nil {
			t.note("%s: %d of %d failed: %s", name, m.failed, m.failed+len(m.latencies), firstLine(m.err))
		}
	}
	if len(session.latencies) > 0 {
		b.record(newSession(n), c.id(), load.Quantile(session.latencies, .5).Seconds()*1000)
	}
	t.add(name, p50(&first), p50(&session), p50(&joining), p50(&lists), microseconds(lists.cpuPerCall()),
		p50(&calls), microseconds(calls.cpuPerCall()), mebibytes(r.memory().Peak))
	return ctx.Err()
}

// firstSession returns how long the first session of a new process takes.
func (b *bench) firstSession(
	ctx context.Context, c *contestant, servers []server, list attempt,
) (time.Duration, error) {
	r, err := c.start(ctx, &b.programs, servers, setup{}, nil)
	if err != nil {
		return 0, err
	}
	defer r.stop()
	defer load.HTTP.CloseIdleConnections()
	var timed stopwatch
	if err := timed.session(ctx, r, list); err != nil {
		return 0, err
	}
	return timed.took[0], nil
}

// A stopwatch records how long sessions took to open, without closing them.
type stopwatch struct {
	mu   sync.Mutex
	took []time.Duration
}

// session opens a session, lists tools and closes the session.
func (s *stopwatch) session(ctx context.Context, r *instance, list attempt) error {
	begin := time.Now()
	client, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	if err := list(ctx, client); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, time.Since(begin))
	return nil
}

func p50(m *measure) string {
	if len(m.latencies) == 0 {
		return noFigure
	}
	return milliseconds(load.Quantile[time.Duration](m.latencies, .5))
}
