package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// replicasOf returns the buckets of three replicas that share them.
func replicasOf(t testing.TB, engine replicas.Engine, allowWhenDown bool) []*Buckets {
	var all []*Buckets
	for range 3 {
		b := NewShared(10, replicastest.Replica(t, engine).Space("rates"), allowWhenDown)
		t.Cleanup(b.Close)
		all = append(all, b)
	}
	return all
}

// once allows n requests, without refill.
func once(key string, n int) Limit { return Limit{Key: key, N: n, Per: 1_000_000 * time.Hour} }

// takes calls Take until it fails, and returns the number of successes.
func takes(t *testing.T, b *Buckets, client string, limits ...Limit) (n int) {
	t.Helper()
	for {
		_, ok, err := b.Take(t.Context(), client, limits)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return n
		}
		n++
	}
}

// A slowEngine takes a millisecond for each operation.
type slowEngine struct{ *replicastest.Engine }

func (f slowEngine) Spend(ctx context.Context, buckets []replicas.Bucket) ([]float64, time.Duration, error) {
	time.Sleep(time.Millisecond)
	return f.Engine.Spend(ctx, buckets)
}

func TestReplicasShareALimit(t *testing.T) {
	for _, burst := range []int{1, 10, 100, 1000, 5000, 20_000} {
		t.Run(fmt.Sprint(burst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var total atomic.Int64
				var group sync.WaitGroup
				for _, b := range replicasOf(t, slowEngine{replicastest.New()}, false) {
					for range 8 {
						group.Go(func() { total.Add(int64(takes(t, b, "a", once("", burst)))) })
					}
				}
				group.Wait()
				if n := int(total.Load()); n > burst || float64(n) < 0.99*float64(burst) {
					t.Errorf("took %d of %d", n, burst)
				}
			})
		})
	}
}

func TestReplicasShareARate(t *testing.T) {
	for _, limit := range []Limit{{N: 50, Per: time.Second, Burst: 10}, {N: 1000, Per: time.Second},
		{N: 2000, Per: time.Second, Burst: 4000}} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lasts = 3 * time.Second
				began := time.Now()
				var total atomic.Int64
				var group sync.WaitGroup
				for _, b := range replicasOf(t, slowEngine{replicastest.New()}, false) {
					for g := range 4 {
						group.Go(func() {
							for time.Since(began) < lasts {
								if _, ok, _ := b.Take(t.Context(), "a", []Limit{limit}); ok {
									total.Add(1)
								}
								time.Sleep(time.Duration(g+1) * time.Millisecond / 2)
							}
						})
					}
				}
				group.Wait()
				most := float64(limit.burst()) + time.Since(began).Seconds()*float64(limit.rate())
				if n := float64(total.Load()); n > most || n < 0.99*most-1 {
					t.Errorf("took %v of %v", n, most)
				}
			})
		})
	}
}

func TestRefusalsOfReplicasTakeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := replicasOf(t, replicastest.New(), false)
		x, y := perMinute("x", 1), once("y", 3000)
		try(t, all[0], "a", 0, x, y)
		for i := range 30 {
			try(t, all[i%3], "a", time.Minute, x, y)
		}
		time.Sleep(2 * leaseTime) // until the first replica has returned its tokens of y
		synctest.Wait()
		n := 0
		for _, b := range all {
			n += takes(t, b, "a", y)
		}
		if n != 2999 {
			t.Errorf("%d of 2999 tokens remain", n)
		}
	})
}

// If concurrent calls cannot use tokens of one bucket because another bucket is empty, the tokens
// are returned.
func TestUnusedTokensAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := replicasOf(t, slowEngine{replicastest.New()}, false)
		var passed atomic.Int64
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				if _, ok, _ := all[0].Take(t.Context(), "a", []Limit{once("x", 10), once("y", 3)}); ok {
					passed.Add(1)
				}
			})
		}
		group.Wait()
		time.Sleep(2 * time.Millisecond)
		if n := takes(t, all[1], "a", once("x", 10)); passed.Load() != 3 || n != 7 {
			t.Errorf("%d of 3 calls passed, %d of 7 tokens remain", passed.Load(), n)
		}
	})
}

func TestTokensAreLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		all, limit := replicasOf(t, engine, false), once("", 7500)
		for range 50 {
			try(t, all[0], "a", 0, limit)
		}
		if n := engine.Operations.Load(); n != 6 {
			t.Errorf("%d operations for 50 tokens, in lots of 1, 2, 4, 8, 16 and 25", n)
		}
		try(t, all[0], "a", 0, limit)
		time.Sleep(2 * leaseTime) // the rest is returned
		synctest.Wait()
		if n := takes(t, all[1], "a", limit); n != 7500-51 {
			t.Errorf("%d of %d tokens remain", n, 7500-51)
		}
		before := engine.Operations.Load()
		time.Sleep(time.Hour)
		if n := engine.Operations.Load() - before; n != 0 {
			t.Errorf("%d operations without a lease", n)
		}
	})
}

// Calls of a busy client do not wait for the store. The store gets one request per lot.
func TestTokensAreLeasedAhead(t *testing.T) {
	for _, test := range []struct {
		limit      Limit
		operations int64 // for 1000 calls
	}{
		{once("", 3000), 103},   // in lots of 1, 2, 4, 8 and then 10, the maximum
		{once("", 100_000), 54}, // in lots of 1, 2, 4, 8, 16 and then 20, which last for lotTime
	} {
		t.Run(fmt.Sprint(test.limit.N), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				b := NewShared(10, replicastest.Replica(t, slowEngine{engine}).Space("rates"), false)
				for i := range 1000 {
					began := time.Now()
					try(t, b, "a", 0, test.limit)
					if waited := time.Since(began); waited > 0 && i > 1 {
						t.Fatalf("call %d waits for %v", i, waited)
					}
					time.Sleep(lotTime / 20)
				}
				if n := engine.Operations.Load(); n != test.operations {
					t.Errorf("%d operations, want %d", n, test.operations)
				}
				b.Close() // returns unused tokens
				if n := takes(t, replicasOf(t, engine, false)[0], "a", test.limit); n != test.limit.N-1000 {
					t.Errorf("%d of %d tokens remain", n, test.limit.N-1000)
				}
			})
		})
	}
}

// For a client that calls rarely, no tokens are taken ahead.
func TestRareCallsLeaseNothingAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		all, limit := replicasOf(t, slowEngine{engine}, false), once("", 100_000)
		for range 10 {
			try(t, all[0], "a", 0, limit)
			time.Sleep(2 * lotTime)
		}
		if n := engine.Operations.Load(); n != 10 {
			t.Errorf("%d operations for 10 calls", n)
		}
	})
}

// A new lease of a call does not evict another lease of the same call.
func TestLeasesOfACallAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := replicasOf(t, replicastest.New(), false)[0]
		gateway, tool := once("gateway", 10_000), once("tool", 500)
		try(t, b, "a", 0, gateway)
		time.Sleep(2 * leaseTime)
		for range 100 {
			try(t, b, "a", 0, gateway, tool)
		}
		if n := len(b.find("a").leases.all); n != 2 {
			t.Errorf("%d leases for two buckets", n)
		}
	})
}

func TestLeasesOfForgottenClientsAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, limit := replicasOf(t, replicastest.New(), false), once("", 5000)
		for i := range 20 { // twice the number of remembered clients
			try(t, all[0], fmt.Sprint(i), 0, limit)
		}
		time.Sleep(2 * leaseTime)
		synctest.Wait()
		for i := range 20 {
			if n := takes(t, all[1], fmt.Sprint(i), limit); n != 4999 {
				t.Errorf("client %d: %d of 4999 tokens remain", i, n)
			}
		}
	})
}

func TestLeasesAreReturnedOnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, limit := replicastest.New(), once("", 5000)
		b := NewShared(10, replicastest.Replica(t, engine).Space("rates"), false)
		try(t, b, "a", 0, limit)
		b.Close()
		if n := takes(t, replicasOf(t, engine, false)[0], "a", limit); n != 4999 {
			t.Errorf("%d of 4999 tokens remain", n)
		}
	})
}

func TestLimitsOfLeasesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := replicasOf(t, replicastest.New(), false)
		try(t, all[0], "a", 0, once("", 100_000)) // leases 99 more
		if n := takes(t, all[0], "a", once("", 20)); n != 20 {
			t.Errorf("took %d of 20", n)
		}
	})
}

func TestConcurrentCallsShareAnOperation(t *testing.T) {
	for _, test := range []struct{ limit, passed, operations int }{
		{1000, 100, 2}, // the first operation for one call, the second for the others
		{10, 10, 3},    // and one refusal for the rest
	} {
		t.Run(fmt.Sprint(test.limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine, limit := replicastest.New(), perMinute("", test.limit)
				b := replicasOf(t, slowEngine{engine}, false)[0]
				var mu sync.Mutex
				var waits []time.Duration
				var group sync.WaitGroup
				for range 100 {
					group.Go(func() {
						wait, _, err := b.Take(t.Context(), "a", []Limit{limit})
						mu.Lock()
						defer mu.Unlock()
						waits = append(waits, wait)
						if err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				slices.Sort(waits)
				passed, _ := slices.BinarySearch(waits, 1)
				if n := engine.Operations.Load(); passed != test.passed || n != int64(test.operations) {
					t.Errorf("%d calls passed with %d operations, want %d with %d", passed, n, test.passed, test.operations)
				}
				if refused := slices.Compact(waits[passed:]); len(refused) > 1 {
					t.Errorf("waits differ: %v", refused)
				}
			})
		})
	}
}

// A call may request tokens for others, too. These are not lost if that call is canceled.
func TestCanceledCallsLoseNoTokensOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := replicasOf(t, slowEngine{replicastest.New()}, false)[0]
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _, _, _ = b.Take(ctx, "a", []Limit{once("", 2)}) })
		synctest.Wait()
		group.Go(func() { try(t, b, "a", 0, once("", 2)) })
		synctest.Wait()
		cancel()
		group.Wait()
	})
}

func TestWaitsAreThoseOfAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		all, limits := replicasOf(t, engine, false), []Limit{perMinute("", 2)}
		wants := func(b *Buckets, want time.Duration) {
			t.Helper()
			if wait, err := b.Wait(t.Context(), "a", limits); wait != want || err != nil {
				t.Errorf("waits %v, %v, want %v", wait, err, want)
			}
		}
		try(t, all[0], "a", 0, limits...)
		wants(all[0], 0)
		try(t, all[1], "a", 0, limits...)
		for range 3 {
			wants(all[0], 30*time.Second)
			wants(all[1], 30*time.Second)
		}
		before := engine.Operations.Load()
		wants(all[2], 0) // this replica does not know the client
		if n := engine.Operations.Load() - before; n != 0 {
			t.Errorf("%d operations for an unknown client", n)
		}
		time.Sleep(30 * time.Second)
		wants(all[0], 0)
		try(t, all[1], "a", 0, limits...) // queries of the wait take no token
		if wait, err := all[0].Wait(t.Context(), "a", []Limit{{}}); wait != rate.InfDuration || err != nil {
			t.Errorf("without buckets: %v, %v", wait, err)
		}
	})
}

func TestStoreThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		closed, open := replicasOf(t, engine, false), replicasOf(t, engine, true)
		limit, leased := perMinute("", 2), once("leased", 5000)
		refuses := func() {
			t.Helper()
			wait, ok, err := closed[0].Take(t.Context(), "a", []Limit{limit})
			if wait != 0 || ok || !errors.Is(err, replicas.ErrUnavailable) {
				t.Errorf("takes %v, %v, %v", wait, ok, err)
			}
			if wait, err := closed[0].Wait(t.Context(), "a", []Limit{limit}); wait != 0 ||
				!errors.Is(err, replicas.ErrUnavailable) {
				t.Errorf("waits %v, %v", wait, err)
			}
		}
		lease := func() {
			t.Helper()
			for range 2 { // in lots of 1 and 2
				try(t, closed[0], "a", 0, leased)
			}
		}
		lease()
		for _, fail := range []*atomic.Bool{&engine.Down, &engine.Stalled} {
			fail.Store(true)
			began := time.Now()
			refuses()
			refuses()
			for _, b := range open { // each replica has its own buckets
				try(t, b, "a", 0, limit)
				try(t, b, "a", 0, limit)
				try(t, b, "a", 30*time.Second, limit)
				if wait, err := b.Wait(t.Context(), "a", []Limit{limit}); wait != 30*time.Second || err != nil {
					t.Errorf("waits %v, %v, want 30s", wait, err)
				}
			}
			try(t, closed[0], "a", 0, leased) // taken before
			if took := time.Since(began); fail == &engine.Stalled && took != 4*250*time.Millisecond {
				t.Errorf("took %v, want one timeout for each of four replicas", took)
			}
			if _, ok, err := closed[0].Take(t.Context(), "a", nil); !ok || err != nil {
				t.Errorf("without limits: %v, %v", ok, err)
			}
			fail.Store(false)
			time.Sleep(time.Second) // until the next attempt
			for _, b := range []*Buckets{closed[0], open[0]} {
				try(t, b, "a", 0, limit)
			}
			time.Sleep(time.Hour)
			lease()
		}
	})
}

func TestLeasesAllocateNothing(t *testing.T) {
	b, limits := replicasOf(t, replicastest.New(), false)[0], []Limit{perMinute("", 1_000_000_000),
		perMinute("x", 1_000_000_000)}
	_, _, _ = b.Take(t.Context(), "a", limits)
	if n := testing.AllocsPerRun(1000, func() { _, _, _ = b.Take(t.Context(), "a", limits) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTakeShared(b *testing.B) {
	for _, test := range []struct {
		name    string
		buckets func() *Buckets
		limit   Limit
	}{
		{"memory", func() *Buckets { return New(1000) }, perMinute("", 1_000_000_000)},
		{"leases", func() *Buckets { return replicasOf(b, replicastest.New(), false)[0] }, perMinute("", 1_000_000_000)},
		{"single tokens", func() *Buckets { return replicasOf(b, replicastest.New(), false)[0] },
			Limit{N: 1_000_000_000, Per: time.Second, Burst: 900}},
	} {
		b.Run(test.name, func(b *testing.B) {
			buckets, limits := test.buckets(), []Limit{test.limit}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, _, err := buckets.Take(b.Context(), "client", limits); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
