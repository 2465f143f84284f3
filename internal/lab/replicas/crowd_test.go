//go:build linux

package replicas

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// atOnce is how many operations are under way at a time. While Redis is away, most of them wait.
var atOnce = more(24, 96)

// reference is what agents are answered by one process: what they have written down, by agent and
// operation.
var reference [][]string

// referenceOf runs that process, if that has not been done.
func referenceOf(t *testing.T) [][]string {
	t.Helper()
	if reference != nil {
		return reference
	}
	records := make([][]string, maxAgents)
	c := newCrowd(t, oneProcess(t), 0, maxAgents)
	defer c.leave()
	c.each(func(a *agent) {
		for j := range operationsOf(a.number) {
			text, err := c.do(a, j)
			if err != nil {
				t.Errorf("%s, operation %d: %v", agentName(a.number), j, err)
			}
			records[a.number] = append(records[a.number], text)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	reference = records
	return records
}

// A crowd is agents at work.
type crowd struct {
	t      *testing.T
	world  *world
	agents []*agent
	next   []int // operation of each
	places chan struct{}
	done   atomic.Int64 // operations
	died   atomic.Int64 // when a replica did, in nanoseconds of Unix time
	*tally
}

// newCrowd introduces agents.
func newCrowd(t *testing.T, w *world, from, to int) *crowd {
	t.Helper()
	c := &crowd{t: t, world: w, places: make(chan struct{}, atOnce), tally: newTally(), agents: make([]*agent, to-from), next: make([]int, to-from)}
	var running sync.WaitGroup
	for i := range c.agents {
		running.Go(func() {
			c.places <- struct{}{}
			defer func() { <-c.places }()
			var err error
			if c.agents[i], err = newAgent(t.Context(), w, from+i); err != nil {
				t.Errorf("%s: %v", agentName(from+i), err)
			}
		})
	}
	running.Wait()
	if t.Failed() {
		c.leave()
		t.FailNow()
	}
	return c
}

// leave ends what the agents hold.
func (c *crowd) leave() {
	for _, a := range c.agents {
		if a != nil {
			a.leave()
		}
	}
	connections.CloseIdleConnections()
}

// each has all agents do something.
func (c *crowd) each(do func(*agent)) {
	var running sync.WaitGroup
	for _, a := range c.agents {
		running.Go(func() { do(a) })
	}
	running.Wait()
}

// do has an agent carry out an operation, when there is room.
func (c *crowd) do(a *agent, j int) (string, error) {
	c.places <- struct{}{}
	defer func() { <-c.places }()
	defer c.done.Add(1)
	return a.do(j)
}

// A judge carries out an operation of an agent, and says how it went.
type judge func(c *crowd, a *agent, j int, want string) (outcome, string)

// work has each agent do its next operations, with a pause after each.
func (c *crowd) work(n int, pause time.Duration, judge judge) {
	c.t.Helper()
	records := referenceOf(c.t)
	var running sync.WaitGroup
	for i, a := range c.agents {
		running.Go(func() {
			for range n {
				j := c.next[i]
				if j == operationsOf(a.number) {
					return
				}
				c.next[i]++
				began := time.Now()
				outcome, text := judge(c, a, j, records[a.number][j])
				c.count(operationOf(a.number, j).name, outcome, time.Since(began))
				if outcome == different {
					got, want := apart(text, records[a.number][j])
					c.complain(c.t, fmt.Sprintf("%s, operation %d (%s):\n%s\nwant\n%s", agentName(a.number), j, operationOf(a.number, j).name, got, want))
				}
				time.Sleep(pause)
			}
		})
	}
	running.Wait()
}

// awaitMore waits until so many more operations are done, or all are.
func (c *crowd) awaitMore(n int64, over <-chan struct{}) {
	enough := c.done.Load() + n
	await.Within(patience, func() bool {
		select {
		case <-over:
			return true
		default:
			return c.done.Load() >= enough
		}
	})
}

// once wants the right answer at once.
func once(c *crowd, a *agent, j int, want string) (outcome, string) {
	text, err := c.do(a, j)
	if err != nil {
		return different, text + err.Error()
	}
	if text == want || a.anyRate && operationOf(a.number, j).name == "limit" {
		return same, text
	}
	return different, text
}

// settling is how long after the death of a replica others may still notice: connections that the balancer
// has kept, and streams that clients open again.
const settling = 5 * time.Second

// again wants the right answer, if not at once, then when the operation is repeated: as often as replicas die
// meanwhile.
func again(c *crowd, a *agent, j int, want string) (outcome, string) {
	handles := a.handles
	for repeats := 0; ; repeats++ {
		began := time.Now()
		outcome, text := once(c, a, j, want)
		switch {
		case outcome == same && repeats > 0:
			return repeated, text
		case outcome == same, repeats == len(c.world.replicas), c.died.Load() < began.Add(-settling).UnixNano():
			return outcome, text
		}
		c.t.Logf("%s, operation %d (%s): %.300s", agentName(a.number), j, operationOf(a.number, j).name, text)
		time.Sleep(100 * time.Millisecond) // as clients do; and a process takes a moment to die
		want = withoutCount(want, text)
		a.handles = handles
		a.anyRate = a.anyRate || operationOf(a.number, j).name == "limit"
		if a.stream != nil { // it may have been with that replica
			if err := a.tune(); err != nil {
				return different, err.Error()
			}
		}
	}
}

// withoutCount returns what is wanted of a subscription that is made again: what was told before counts.
func withoutCount(want, first string) string {
	if strings.Contains(first, "told 1 times") {
		return strings.Replace(want, "told 1 times", "told 2 times", 1)
	}
	return want
}

// whileAway wants the right answer, or what is to be expected while the store is unavailable.
// A call whose answers do not arrive lasts until its client has had enough.
func whileAway(c *crowd, a *agent, j int, want string) (outcome, string) {
	a.limit = 5 * time.Second
	outcome, text := once(c, a, j, want)
	a.limit = patience
	o := operationOf(a.number, j)
	if o.name == "limit" {
		a.anyRate = true
	}
	if outcome == different && o.away != "" && regexp.MustCompile(o.away).MatchString(text) {
		return refused, text
	}
	return outcome, text
}

// whileApart is whileAway if the store is unavailable to one replica only. The others do not know what that one
// has cut.
func whileApart(c *crowd, a *agent, j int, want string) (outcome, string) {
	outcome, text := whileAway(c, a, j, want)
	if outcome == different && operationOf(a.number, j).recovers && unknownOriginal.MatchString(text) {
		return refused, text
	}
	return outcome, text
}

// unknownOriginal is how recover_text, recover_observation and resources/read say that there is none.
var unknownOriginal = regexp.MustCompile(`prune_id_not_found|Nothing is kept under|not known, or not anymore`)

// whileFull is whileAway for what a replica asks others for, and once for everything else.
func whileFull(c *crowd, a *agent, j int, want string) (outcome, string) {
	if operationOf(a.number, j).recovers {
		return whileAway(c, a, j, want)
	}
	return once(c, a, j, want)
}

// An outcome is how an operation has ended.
type outcome int

const (
	same      outcome = iota
	repeated          // the same, when it was done again
	refused           // because the store is unavailable
	different         // which must not be
	outcomes
)

// A tally counts operations by their names.
type tally struct {
	mu     sync.Mutex
	rows   map[string]*row
	blamed int
}

type row struct {
	ended   [outcomes]int
	slowest time.Duration
}

func newTally() *tally { return &tally{rows: map[string]*row{}} }

func (t *tally) count(name string, o outcome, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[name] == nil {
		t.rows[name] = new(row)
	}
	t.rows[name].ended[o]++
	t.rows[name].slowest = max(t.rows[name].slowest, took)
}

// complain fails the test. Of many complaints, the first are printed.
func (t *tally) complain(tt *testing.T, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.blamed++; t.blamed <= 8 {
		tt.Error(text)
	} else {
		tt.Fail()
	}
}

// print logs the table, and begins another one.
func (t *tally) print(tt *testing.T, title string) {
	tt.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n| operation | same | when repeated | refused | different | slowest |\n|---|--:|--:|--:|--:|--:|\n", title)
	var names []string
	for name := range t.rows {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		r := t.rows[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %.2f s |\n", name, r.ended[same], r.ended[repeated], r.ended[refused], r.ended[different], r.slowest.Seconds())
	}
	tt.Log(b.String())
	clear(t.rows)
}

// apart returns two texts from where they differ, with a little before that.
func apart(a, b string) (string, string) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	cut := func(text string) string { return text[max(0, n-200):min(len(text), n+600)] }
	return cut(a), cut(b)
}
