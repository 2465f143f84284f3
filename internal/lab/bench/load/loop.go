// Package load has clients that call MCP servers and tells how that went. The loop is
// closed: each client makes its next call when the last one is answered.
package load

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Result is what became of the calls of all clients.
type Result struct {
	Latencies []time.Duration // of the calls that were answered, and rightly
	Failed    int             // the others
	Err       error           // why one of these failed
	Elapsed   time.Duration   // until the last client was done
}

// Rate returns how many calls were answered in a second.
func (r *Result) Rate() float64 { return float64(len(r.Latencies)) / r.Elapsed.Seconds() }

// giveUp is how many failures in a row make a client stop: what fails at once would
// otherwise fail a million times.
const giveUp = 3

// Loop has n clients make calls, one at least, until d is over or they fail again and
// again. What is under way then is waited for.
func Loop(ctx context.Context, n int, d time.Duration, call func(ctx context.Context, client int) error) Result {
	var all Result
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			var own Result
			inRow := 0
			for first := true; first || time.Since(start) < d && inRow < giveUp && ctx.Err() == nil; first = false {
				begin := time.Now()
				if err := call(ctx, i); err != nil {
					own.Failed, own.Err, inRow = own.Failed+1, cmp.Or(own.Err, err), inRow+1
					continue
				}
				own.Latencies, inRow = append(own.Latencies, time.Since(begin)), 0
			}
			mu.Lock()
			defer mu.Unlock()
			all.Latencies = append(all.Latencies, own.Latencies...)
			all.Failed += own.Failed
			all.Err = cmp.Or(all.Err, own.Err)
		})
	}
	wg.Wait()
	all.Elapsed = time.Since(start)
	return all
}

// Quantile returns the value that the share q of values does not exceed.
func Quantile[T float64 | time.Duration](values []T, q float64) T {
	return slices.Sorted(slices.Values(values))[int(q*float64(len(values)-1))]
}

// Each does something n times, several at once, and stops after the first failure. It
// returns how often it was done.
func Each(n, atOnce int, do func(i int) error) (done int, err error) {
	var next, succeeded atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if failure := do(i); failure != nil {
					next.Store(int64(n))
					mu.Lock()
					err = cmp.Or(err, failure)
					mu.Unlock()
					return
				}
				succeeded.Add(1)
			}
		})
	}
	wg.Wait()
	return int(succeeded.Load()), err
}
