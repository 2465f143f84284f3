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

// atOnce is the number of concurrent operations. While Redis is unavailable, most of them wait.
var atOnce = byLength(24, 96)

// reference has the records with one process, by agent and operation.
var reference struct {
	sync.Mutex
	records [][]string
}

// referenceOf returns the reference. The first call runs the process.
func referenceOf(t *testing.T) [][]string {
	t.Helper()
	reference.Lock()
	defer reference.Unlock()
	if reference.records != nil {
		return reference.records
	}
	records := make([][]string, maxAgents)
	c := newAgentGroup(t, startSingle(t), 0, maxAgents)
	defer c.close()
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
	reference.records = records
	return records
}

// An agentGroup is a group of agents at work.
type agentGroup struct {
	t          *testing.T
	deployment *deployment
	agents     []*agent
	next       []int // next operation of each agent
	slots      chan struct{}
	done       atomic.Int64 // finished operations
	killedAt   atomic.Int64 // when a replica was last killed, in nanoseconds of Unix time
	*tally
}

// newAgentGroup initializes the agents first to end-1.
func newAgentGroup(t *testing.T, w *deployment, first, end int) *agentGroup {
	t.Helper()
	c := &agentGroup{t: t, deployment: w, slots: make(chan struct{}, atOnce), tally: newTally(),
		agents: make([]*agent, end-first), next: make([]int, end-first)}
	var running sync.WaitGroup
	for i := range c.agents {
		running.Go(func() {
			c.slots <- struct{}{}
			defer func() { <-c.slots }()
			var err error
			if c.agents[i], err = newAgent(t.Context(), w, first+i); err != nil {
				t.Errorf("%s: %v", agentName(first+i), err)
			}
		})
	}
	running.Wait()
	if t.Failed() {
		c.close()
		t.FailNow()
	}
	return c
}

// close closes the streams of the agents and idle connections.
func (c *agentGroup) close() {
	for _, a := range c.agents {
		if a != nil {
			a.close()
		}
	}
	connections.CloseIdleConnections()
}

// each calls do for all agents, concurrently.
func (c *agentGroup) each(do func(*agent)) {
	var running sync.WaitGroup
	for _, a := range c.agents {
		running.Go(func() { do(a) })
	}
	running.Wait()
}

// do runs an operation of an agent, within the limit of concurrency.
func (c *agentGroup) do(a *agent, j int) (string, error) {
	c.slots <- struct{}{}
	defer func() { <-c.slots }()
	defer c.done.Add(1)
	return a.do(j)
}

// An operationRunner runs an operation of an agent and returns its outcome and record.
type operationRunner func(c *agentGroup, a *agent, j int, want string) (outcome, string)

// work runs the next n operations of each agent, with a pause after each.
func (c *agentGroup) work(n int, pause time.Duration, run operationRunner) {
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
				outcome, text := run(c, a, j, records[a.number][j])
				c.count(operationOf(a.number, j).name, outcome, time.Since(began))
				if outcome == different {
					got, want := fromDifference(text, records[a.number][j])
					c.fail(c.t, fmt.Sprintf("%s, operation %d (%s):\n%s\nwant\n%s", agentName(a.number), j,
						operationOf(a.number, j).name, got, want))
				}
				time.Sleep(pause)
			}
		})
	}
	running.Wait()
}

// awaitMore waits until n more operations are done, or over is closed.
func (c *agentGroup) awaitMore(n int64, over <-chan struct{}) {
	enough := c.done.Load() + n
	await.Within(testTimeout, func() bool {
		select {
		case <-over:
			return true
		default:
			return c.done.Load() >= enough
		}
	})
}

// runOnce expects the right response immediately.
func runOnce(c *agentGroup, a *agent, j int, want string) (outcome, string) {
	text, err := c.do(a, j)
	if err != nil {
		return different, text + err.Error()
	}
	if text == want || a.rateUnknown && operationOf(a.number, j).name == "limit" {
		return same, text
	}
	return different, text
}

// settling is how long operations may fail after a replica has died, because the balancer keeps
// connections to it, and clients must reopen their streams.
const settling = 5 * time.Second

// runWithRetries expects the right response immediately or, while replicas die, after repeating the
// operation, at most once per replica.
func runWithRetries(c *agentGroup, a *agent, j int, want string) (outcome, string) {
	handles := a.handles
	for repeats := 0; ; repeats++ {
		began := time.Now()
		outcome, text := runOnce(c, a, j, want)
		if withoutRepeatedUpdates(text, repeats) == want {
			outcome = same
		}
		switch {
		case outcome == same && repeats > 0:
			return repeated, text
		case outcome == same, repeats == len(c.deployment.replicas), c.killedAt.Load() < began.Add(-settling).UnixNano():
			return outcome, text
		}
		c.t.Logf("%s, operation %d (%s): %.300s", agentName(a.number), j, operationOf(a.number, j).name, text)
		time.Sleep(100 * time.Millisecond) // as clients do; also, a process takes a moment to die
		a.handles = handles
		a.rateUnknown = a.rateUnknown || operationOf(a.number, j).name == "limit"
		if a.stream != nil { // it may have ended with that replica
			if err := a.awaitStream(); err != nil {
				return different, err.Error()
			}
		}
	}
}

// withoutRepeatedUpdates returns the record of a subscription as if it had not been repeated. Each
// earlier attempt may have caused one more update.
func withoutRepeatedUpdates(text string, repeats int) string {
	for n := 2; n <= repeats+1; n++ {
		text = strings.Replace(text, fmt.Sprintf("\n%d updates\n", n), "\n1 updates\n", 1)
	}
	return text
}

// runDuringOutage expects the right response, or the one of operation.outageRecord. A call whose
// response does not arrive lasts until the timeout of the client.
func runDuringOutage(c *agentGroup, a *agent, j int, want string) (outcome, string) {
	a.limit = 5 * time.Second
	outcome, text := runOnce(c, a, j, want)
	a.limit = testTimeout
	o := operationOf(a.number, j)
	if o.name == "limit" {
		a.rateUnknown = true
	}
	if outcome == different && o.outageRecord != "" && regexp.MustCompile(o.outageRecord).MatchString(text) {
		return refused, text
	}
	return outcome, text
}

// runDuringPartition is runDuringOutage for a store that is unavailable to one replica only. The
// others do not know the originals of that one.
func runDuringPartition(c *agentGroup, a *agent, j int, want string) (outcome, string) {
	outcome, text := runDuringOutage(c, a, j, want)
	if outcome == different && operationOf(a.number, j).recovers && unknownOriginal.MatchString(text) {
		return refused, text
	}
	return outcome, text
}

// unknownOriginal matches the errors of recover_text, recover_observation and resources/read for an
// unknown original.
var unknownOriginal = regexp.MustCompile(`prune_id_not_found|Nothing is kept under|unknown or expired`)

// runWhileFull is runDuringOutage for operations that recover originals of other replicas, and
// runOnce for all others.
func runWhileFull(c *agentGroup, a *agent, j int, want string) (outcome, string) {
	if operationOf(a.number, j).recovers {
		return runDuringOutage(c, a, j, want)
	}
	return runOnce(c, a, j, want)
}

// An outcome is how an operation ended.
type outcome int

const (
	same      outcome = iota
	repeated          // the same after repeating it
	refused           // refused because the store is unavailable
	different         // an error of the test
	outcomes
)

// A tally counts operations by name.
type tally struct {
	mu       sync.Mutex
	rows     map[string]*row
	failures int
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

// fail fails the test. It prints only the first complaints.
func (t *tally) fail(tt *testing.T, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures++
	if t.failures <= 8 {
		tt.Error(text)
	} else {
		tt.Fail()
	}
}

// print logs the table and clears it.
func (t *tally) print(tt *testing.T, title string) {
	tt.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n| operation | same | when repeated | refused | different | slowest "+
		"|\n|---|--:|--:|--:|--:|--:|\n", title)
	var names []string
	for name := range t.rows {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		r := t.rows[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %.2f s |\n", name, r.ended[same], r.ended[repeated], r.ended[refused],
			r.ended[different], r.slowest.Seconds())
	}
	tt.Log(b.String())
	clear(t.rows)
}

// fromDifference returns two texts from where they differ, with some context before that.
func fromDifference(a, b string) (string, string) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	cut := func(text string) string { return text[max(0, n-200):min(len(text), n+600)] }
	return cut(a), cut(b)
}
