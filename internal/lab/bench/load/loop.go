// Package load has clients that call MCP servers and measures their calls. In Loop, a closed
// loop, each client makes its next call after the response to the last one. Paced makes
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

// A Result summarizes the calls of all clients.
type Result struct {
	Latencies []time.Duration // latencies of successful calls
	Failed    int             // number of failed calls
	Err       error           // error of one of the failed calls
	Elapsed   time.Duration   // time until the last client was done
}

// Rate returns the successful calls per second.
func (r *Result) Rate() float64 { return float64(len(r.Latencies)) / r.Elapsed.Seconds() }

// maxFailures is the number of failures in a row after which a client stops. A call that fails at
// once would otherwise fail a million times.
const maxFailures = 3

// Loop lets n clients make calls until d is over or maxFailures calls in a row fail. Each client
// makes at least one call, and Loop waits for calls in progress.
func Loop(ctx context.Context, n int, d time.Duration, call func(ctx context.Context, client int) error) Result {
	var all Result
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			var own Result
			inRow := 0
			for first := true; first || time.Since(start) < d && inRow < maxFailures && ctx.Err() == nil; first = false {
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

// Paced makes rate calls per second, evenly spaced over d. The first free one of n clients
// makes each call. The latency of a call counts from when it is due, so it includes waiting
// for a client. Calls that have not started after 2*d are not made and count as failed.
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
	for due := start; due.Sub(start) < d; due = due.Add(time.Second / time.Duration(rate)) {
		time.Sleep(time.Until(due))
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
			took := time.Since(due)
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

var errTooManyCalls = errors.New("calls are due faster than they complete")

// Quantile returns the quantile q of values: q = .5 is the median.
func Quantile[T float64 | time.Duration](values []T, q float64) T {
	return slices.Sorted(slices.Values(values))[int(q*float64(len(values)-1))]
}

// Each calls do for 0 to n-1, atOnce at a time, and stops after the first failure. It returns
// the number of calls that succeeded.
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
