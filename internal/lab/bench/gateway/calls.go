package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
)

// rounds is the number of turns of each contestant: several short ones, so that noise affects
// all alike, and an odd number, so that one of them is the median.
const rounds = 5

// A measure is the outcome of a case for one contestant.
type measure struct {
	rates     []float64 // calls per second, by round
	ratios    []float64 // rates relative to the baseline in the same round
	latencies []time.Duration
	failed    int
	err       error // why a call failed, or why there is no figure
	cpu       time.Duration
	peak      int // bytes
	spent     time.Duration
	pace      float64 // calls per second; if not measured, those with fewer clients

	collections collections // if they are traced
}

// add adds the result of a turn.
func (m *measure) add(result load.Result, cpu time.Duration) {
	m.rates = append(m.rates, result.Rate())
	m.latencies = append(m.latencies, result.Latencies...)
	m.failed += result.Failed
	if m.err == nil {
		m.err = result.Err
	}
	m.cpu += cpu
	m.spent += result.Elapsed
}

// cpuPerCall includes calls that failed, which also cost time.
func (m *measure) cpuPerCall() time.Duration {
	return m.cpu / time.Duration(max(1, len(m.latencies)+m.failed))
}

// A callCase is a cell of a kind.
type callCase struct {
	kind *kind
	cell
}

func (c callCase) String() string {
	n := c.clients
	if c.rate > 0 {
		n = c.rate
	}
	return fmt.Sprintf("calls/%s/%s/%d", c.kind.name, compact(c.size.name), n)
}

// head returns the head of the column.
func (c callCase) head() string {
	if c.rate > 0 {
		return fmt.Sprintf("%s, %d/s", c.size.name, c.rate)
	}
	return fmt.Sprintf("%s ×%d", c.size.name, c.clients)
}

// startCalls starts contestants for calls of this kind and size.
func (b *bench) startCalls(ctx context.Context, contestants []contestant, k *kind, size size) (*group, error) {
	return b.startGroup(ctx, contestants, fmt.Sprint(k.path, size.chars), k.setup, func(c *contestant) attempt {
		return func(ctx context.Context, client *load.Client) error {
			return client.Call(ctx, c.toolOf("bench", upstream.Tool), c.chars(size))
		}
	})
}

// chars returns the length of a result as clients receive it.
func (c *contestant) chars(size size) int {
	if c.masked {
		return maskedChars(size.chars)
	}
	return size.chars
}

// A loadedInstance is a contestant with open clients.
type loadedInstance struct {
	instance *instance
	measure  *measure
	call     func(ctx context.Context, client int) error
}

// maxWait is how long clients may wait for one call each. With slower calls, a case would
// take too long and say no more than one with fewer clients.
const maxWait = 5 * time.Second

// A tooSlow is the reason why a contestant is not measured with this many clients or more.
type tooSlow struct {
	clients int
	pace    float64 // calls per second with fewer clients
}

func (e tooSlow) Error() string {
	return fmt.Sprintf("not measured with %d clients or more: at %.2g calls/s each would wait %.0f s for a response",
		e.clients, e.pace, float64(e.clients)/e.pace)
}

// checkPace returns a tooSlow error if a contestant is too slow for this many clients,
// judged by its measure with fewer clients.
func checkPace(fewer *measure, clients int) error {
	switch {
	case fewer == nil || fewer.pace == 0:
		return nil
	case errors.As(fewer.err, new(tooSlow)):
		return fewer.err
	case float64(clients)/fewer.pace > maxWait.Seconds():
		return tooSlow{clients, fewer.pace}
	}
	return nil
}

// measureCalls sends the same calls to all contestants, in turns. fewer has their measures
// with fewer clients.
func (b *bench) measureCalls(ctx context.Context, f *group, c callCase,
	fewer map[string]*measure) (map[string]*measure, error) {
	measures := map[string]*measure{}
	for id, err := range f.absent {
		measures[id] = &measure{err: err}
	}
	var all []loadedInstance
	for _, r := range f.started {
		m := new(measure)
		measures[r.id()] = m
		if m.err = checkPace(fewer[r.id()], c.clients); m.err != nil {
			m.pace = fewer[r.id()].pace
			continue
		}
		var clients []*load.Client
		if clients, m.err = openClients(ctx, r, c.clients); m.err != nil {
			continue
		}
		defer closeClients(ctx, clients)
		tool, chars := r.toolOf("bench", upstream.Tool), r.chars(c.size)
		all = append(all, loadedInstance{r, m, func(ctx context.Context, i int) error {
			return clients[i].Call(ctx, tool, chars)
		}})
	}
	budget := b.budget * time.Duration(max(1, c.kind.turnFactor))
	run := func(call func(context.Context, int) error) load.Result {
		if c.rate > 0 {
			return load.Paced(ctx, c.clients, budget/rounds, c.rate, call)
		}
		return load.Loop(ctx, c.clients, budget/rounds, call)
	}
	warmup := map[*loadedInstance]int{} // length of the output after the first turn
	for i := range all {
		run(all[i].call) // the first turn opens connections and fills pools
		warmup[&all[i]] = len(all[i].instance.output())
	}
	for round := range rounds {
		for turn := range all {
			l := &all[(turn+round)%len(all)] // another one goes first in each round
			if l.measure.spent > 2*budget {
				continue // limit the time for calls that take longer than a turn
			}
			before := l.instance.cpu()
			result := run(l.call)
			if result.Elapsed > maxWait {
				progress("%s: a turn of %s took %s", c, l.instance.id(), result.Elapsed.Round(time.Second))
			}
			l.measure.add(result, l.instance.cpu()-before)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		compare(measures, round)
	}
	for i := range all {
		r, m := all[i].instance, all[i].measure
		m.peak, m.pace = r.memory().Peak, load.Quantile(m.rates, .5)
		m.collections = readCollections(r.output()[warmup[&all[i]]:])
		if len(m.ratios) > 0 {
			b.record(c.String(), r.id(), m.ratios...)
		}
	}
	return measures, nil
}

// compare computes the ratios of a round to the baseline.
func compare(measures map[string]*measure, round int) {
	base := measures[baseline]
	for _, m := range measures {
		if base != nil && len(m.rates) > round && len(base.rates) > round && base.rates[round] > 0 {
			m.ratios = append(m.ratios, m.rates[round]/base.rates[round])
		}
	}
}

// openClients opens a session for each client.
func openClients(ctx context.Context, r *instance, n int) ([]*load.Client, error) {
	clients := make([]*load.Client, n)
	_, err := load.Each(n, 16, func(i int) (err error) {
		clients[i], err = r.open(ctx)
		return err
	})
	if err != nil {
		closeClients(ctx, clients)
		return nil, fmt.Errorf("open a session: %w", err)
	}
	return clients, nil
}

func closeClients(ctx context.Context, clients []*load.Client) {
	_, _ = load.Each(len(clients), 16, func(i int) error {
		if clients[i] != nil {
			clients[i].Close(ctx)
		}
		return nil
	})
}

// maskedChars returns how many characters of a text the default mask of mcp_gateway leaves.
func maskedChars(chars int) (left int) {
	var out bytes.Buffer
	m := mask.NewMasker(&out, mask.Policy{MaxChars: mask.DefaultMaxChars, HeadChars: mask.DefaultHeadChars,
		TailChars: mask.DefaultTailChars})
	_, err := m.Write(jsonrpc.ResultResponse([]byte("1"), upstream.Result(chars)))
	err = errors.Join(err, m.End())
	err = errors.Join(err, jsonspan.CompilePaths("result.content.*.text").Find(out.Bytes(),
		func(_ int, v jsonspan.Value) { left = v.Chars }))
	if err != nil {
		panic(err) // the text is valid, and a buffer never fails
	}
	return left
}

// reportCalls measures calls of all kinds.
func (b *bench) reportCalls(ctx context.Context, w io.Writer) error {
	for i := range kinds {
		k := &kinds[i]
		contestants := b.contestants
		if k.contestants != nil {
			contestants = k.contestants(contestants)
		}
		var cases []callCase
		for _, cell := range k.cells {
			if c := (callCase{k, cell}); b.selects(c.String()) {
				cases = append(cases, c)
			}
		}
		var results []map[string]*measure
		for left := cases; len(left) > 0; {
			n := 1
			for n < len(left) && left[n].size == left[0].size {
				n++
			}
			measured, err := b.measureSize(ctx, contestants, left[:n])
			if err != nil {
				return err
			}
			results, left = append(results, measured...), left[n:]
		}
		if len(cases) > 0 {
			printCalls(w, contestants, cases, results)
		}
	}
	return nil
}

// measureSize measures cases that have the same size and a growing number of clients, with
// the same processes.
func (b *bench) measureSize(
	ctx context.Context, contestants []contestant, cases []callCase,
) (results []map[string]*measure, err error) {
	progress("%s: start %d contestants", cases[0], len(contestants))
	f, err := b.startCalls(ctx, contestants, cases[0].kind, cases[0].size)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	var fewer map[string]*measure
	for _, c := range cases {
		progress("%s: %d turns of %d", c, rounds, len(f.started))
		measures, err := b.measureCalls(ctx, f, c, fewer)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		results, fewer = append(results, measures), measures
	}
	return results, nil
}

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
