// Package load has clients that call MCP servers and tells how that went. In a Loop, which
// is closed, each client makes its next call when the last one is answered; Paced makes
// calls at a given rate.
package load

import (
	"cmp"
	"context"
	"errors"
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

// Paced makes so many calls per second, evenly spaced over d, by the first of n clients
// that is free. The latency of a call begins when it is due: a call that waits for a client
// has waited for the answers of others. Calls that are not under way after twice the time
// are not made, and count as failed.
func Paced(
	ctx context.Context, n int, d time.Duration, rate int, call func(ctx context.Context, client int) error,
) Result {
	var all Result
	var mu sync.Mutex
	free := make(chan int, n)
	for i := range n {
		free <- i
	}
	var wg sync.WaitGroup
	start := time.Now()
	for at := start; at.Sub(start) < d; at = at.Add(time.Second / time.Duration(rate)) {
		time.Sleep(time.Until(at))
		client := <-free
		if time.Since(start) > 2*d || ctx.Err() != nil {
			mu.Lock()
			all.Failed, all.Err = all.Failed+1, cmp.Or(all.Err, errTooManyCalls)
			mu.Unlock()
			free <- client
			continue
		}
		wg.Go(func() {
			err := call(ctx, client)
			took := time.Since(at)
			free <- client
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				all.Failed, all.Err = all.Failed+1, cmp.Or(all.Err, err)
				return
			}
			all.Latencies = append(all.Latencies, took)
		})
	}
	wg.Wait()
	all.Elapsed = time.Since(start)
	return all
}

var errTooManyCalls = errors.New("calls come faster than they are answered")

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
