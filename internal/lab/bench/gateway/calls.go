package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
