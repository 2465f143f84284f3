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

// rounds is in how many turns each contestant is measured: many and short, for noise to
// meet all of them alike.
const rounds = 4

// A size is how much a tool answers.
type size struct {
	name  string
	chars int
}

var callSizes = []size{{"1 KB", 1000}, {"100 KB", 100_000}, {"5 MB", 5_000_000}}

var callClients = []int{1, 16, 64}

// A measure is what became of a contestant in a case.
type measure struct {
	rates     []float64 // calls per second, by round
	ratios    []float64 // of these to the baseline's in the same round
	latencies []time.Duration
	failed    int
	err       error // why a call failed or, if there is nothing else, all of it
	cpu       time.Duration
	peak      int // bytes
	spent     time.Duration
	pace      float64 // calls per second, with fewer clients if it was not measured with these
}

// add adds a turn.
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

// cpuPerCall includes the calls that failed: they have cost something, too.
func (m *measure) cpuPerCall() time.Duration {
	return m.cpu / time.Duration(max(1, len(m.latencies)+m.failed))
}

// A callCase is calls of a kind.
type callCase struct {
	modern  bool
	size    size
	clients int
}

func (c callCase) String() string {
	era := "stateful"
	if c.modern {
		era = "stateless"
	}
	return fmt.Sprintf("calls/%s/%s/%d", era, compact(c.size.name), c.clients)
}

// startCalls starts contestants for calls of that size.
func (b *bench) startCalls(ctx context.Context, size size, modern bool) (*field, error) {
	return b.startField(ctx, fmt.Sprint(upstream.CallPath, size.chars), modern, func(c *contestant) attempt {
		return func(ctx context.Context, client *load.Client) error {
			return client.Call(ctx, c.toolOf("bench", upstream.Tool), c.chars(size))
		}
	})
}

// chars returns how many characters there are in a result when it has passed.
func (c *contestant) chars(size size) int {
	if c.masked {
		return maskedChars(size.chars)
	}
	return size.chars
}

// A loaded is a contestant with clients.
type loaded struct {
	running *running
	measure *measure
	call    func(ctx context.Context, client int) error
}

// patience is how long all clients may be expected to wait for one call each. Where calls
// take longer, a turn of them would take all day, and tell what fewer clients have told.
const patience = 5 * time.Second

// A tooSlow is why a contestant is not measured with so many clients, and no more.
type tooSlow struct {
	clients int
	pace    float64 // with fewer
}

func (e tooSlow) Error() string {
	return fmt.Sprintf("not measured with %d clients or more: at %.2g calls/s each would wait %.0f s for an answer", e.clients, e.pace, float64(e.clients)/e.pace)
}

// impatient says why a contestant is not measured with so many clients, if it is not:
// with fewer it was measured before.
func impatient(fewer *measure, clients int) error {
	switch {
	case fewer == nil || fewer.pace == 0:
		return nil
	case errors.As(fewer.err, new(tooSlow)):
		return fewer.err
	case float64(clients)/fewer.pace > patience.Seconds():
		return tooSlow{clients, fewer.pace}
	}
	return nil
}

// measureCalls has contestants answer the same calls in turns. Fewer is what became of
// them with fewer clients.
func (b *bench) measureCalls(ctx context.Context, f *field, c callCase, fewer map[string]*measure) (map[string]*measure, error) {
	measures := map[string]*measure{}
	for id, err := range f.absent {
		measures[id] = &measure{err: err}
	}
	var all []loaded
	for _, r := range f.started {
		m := new(measure)
		measures[r.id()] = m
		if m.err = impatient(fewer[r.id()], c.clients); m.err != nil {
			m.pace = fewer[r.id()].pace
			continue
		}
		var clients []*load.Client
		if clients, m.err = openClients(ctx, r, c.clients); m.err != nil {
			continue
		}
		defer closeClients(ctx, clients)
		tool, chars := r.toolOf("bench", upstream.Tool), r.chars(c.size)
		all = append(all, loaded{r, m, func(ctx context.Context, i int) error { return clients[i].Call(ctx, tool, chars) }})
	}
	slice := b.budget / rounds
	for _, l := range all { // a first turn opens connections and fills pools
		load.Loop(ctx, c.clients, slice, l.call)
	}
	for round := range rounds {
		for turn := range all {
			l := all[(turn+round)%len(all)] // who goes first changes, too
			if l.measure.spent > 2*b.budget {
				continue // calls that take longer than a turn must not take all day
			}
			before := l.running.cpu()
			result := load.Loop(ctx, c.clients, slice, l.call)
			l.measure.add(result, l.running.cpu()-before)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		compare(measures, round)
	}
	for _, l := range all {
		l.measure.peak, l.measure.pace = l.running.memory().Peak, load.Quantile(l.measure.rates, .5)
	}
	return measures, nil
}

// compare sets the rates of a round beside that of the baseline.
func compare(measures map[string]*measure, round int) {
	base := measures[baseline]
	for _, m := range measures {
		if base != nil && len(m.rates) > round && len(base.rates) > round && base.rates[round] > 0 {
			m.ratios = append(m.ratios, m.rates[round]/base.rates[round])
		}
	}
}

// openClients opens a session for each client.
func openClients(ctx context.Context, r *running, n int) ([]*load.Client, error) {
	clients := make([]*load.Client, n)
	_, err := load.Each(n, 16, func(i int) (err error) {
		clients[i], err = load.Open(ctx, r.endpoint, r.dialect)
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

// maskedChars returns how many characters mcp_gateway leaves of a text, by its defaults.
func maskedChars(chars int) (left int) {
	var out bytes.Buffer
	m := mask.NewMasker(&out, mask.Policy{MaxChars: mask.DefaultMaxChars, HeadChars: mask.DefaultHeadChars, TailChars: mask.DefaultTailChars})
	_, err := m.Write(jsonrpc.Answer([]byte("1"), upstream.Result(chars)))
	err = errors.Join(err, m.End())
	err = errors.Join(err, jsonspan.CompilePaths("result.content.*.text").Find(out.Bytes(), func(_ int, v jsonspan.Value) { left = v.Chars }))
	if err != nil {
		panic(err) // it is our own text, and goes to memory
	}
	return left
}

// reportCalls measures calls in both eras.
func (b *bench) reportCalls(ctx context.Context, w io.Writer) error {
	for _, era := range []struct {
		heading string
		modern  bool
	}{
		{"### Calls, with sessions (up to 2025-11-25)", false},
		{"### Calls, stateless (2026-07-28)", true},
	} {
		var cases []callCase
		var results []map[string]*measure
		for _, size := range callSizes {
			var own []callCase
			for _, clients := range callClients {
				if c := (callCase{era.modern, size, clients}); b.cases.MatchString(c.String()) {
					own = append(own, c)
				}
			}
			if len(own) == 0 {
				continue
			}
			measured, err := b.measureSize(ctx, own)
			if err != nil {
				return err
			}
			cases, results = append(cases, own...), append(results, measured...)
		}
		if len(cases) > 0 {
			fmt.Fprintf(w, "%s\n\n", era.heading)
			printCalls(w, b.contestants, cases, results)
		}
	}
	return nil
}

// measureSize measures cases that differ in nothing but their clients, of which there are
// more from one to the next: the same processes serve them.
func (b *bench) measureSize(ctx context.Context, cases []callCase) (results []map[string]*measure, err error) {
	progress("%s: start", cases[0])
	f, err := b.startCalls(ctx, cases[0].size, cases[0].modern)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	var fewer map[string]*measure
	for _, c := range cases {
		progress("%s", c)
		measures, err := b.measureCalls(ctx, f, c, fewer)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		results, fewer = append(results, measures), measures
	}
	return results, nil
}
