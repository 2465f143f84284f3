package ratelimit

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// perMinute returns a limit of n requests per minute.
func perMinute(key string, n int) Limit { return Limit{Key: key, N: n, Per: time.Minute} }

// try calls Take and checks the wait.
func try(t *testing.T, b *Buckets, client string, want time.Duration, limits ...Limit) {
	t.Helper()
	wait, ok, err := b.Take(t.Context(), client, limits)
	if wait != want || ok != (want == 0) || err != nil {
		t.Errorf("%s waits %v, %v, %v, want %v", client, wait, ok, err, want)
	}
}

func TestTake(t *testing.T) {
	const s = time.Second
	minute := perMinute("", 5)
	type step struct {
		after  time.Duration
		client string
		limits []Limit
		wait   time.Duration
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"without limits", []step{{0, "a", nil, 0}, {0, "a", []Limit{}, 0}}},
		{"five in a minute, then one after twelve seconds (A32)", []step{
			{0, "a", []Limit{minute}, 0}, {0, "a", []Limit{minute}, 0}, {0, "a", []Limit{minute}, 0}, {0, "a", []Limit{minute},
				0}, {0, "a", []Limit{minute}, 0},
			{0, "a", []Limit{minute}, 12 * s}, {0, "a", []Limit{minute}, 12 * s}, {5 * s, "a", []Limit{minute}, 7 * s},
			{7 * s, "a", []Limit{minute}, 0}, {0, "a", []Limit{minute}, 12 * s},
		}},
		{"each client has its own buckets (A63)", []step{
			{0, "t1", []Limit{perMinute("", 1)}, 0}, {0, "t1", []Limit{perMinute("", 1)}, 60 * s},
			{0, "t2", []Limit{perMinute("", 2)}, 0}, {0, "t2", []Limit{perMinute("", 2)}, 0}, {0, "t2",
				[]Limit{perMinute("", 2)}, 30 * s},
			{30 * s, "t1", []Limit{perMinute("", 1)}, 30 * s}, {0, "t2", []Limit{perMinute("", 2)}, 0},
		}},
		{"each tool has its own bucket (A64)", []step{
			{0, "a", []Limit{minute, perMinute("alpha::slow", 1)}, 0}, {0, "a", []Limit{minute, perMinute("alpha::slow", 1)},
				60 * s},
			{0, "a", []Limit{minute}, 0}, {0, "a", []Limit{minute, perMinute("alpha::echo", 1)}, 0},
			{0, "a", []Limit{minute, perMinute("alpha::slow", 1)}, 60 * s},
		}},
		{"a burst within a sustained rate (A65)", []step{
			{0, "a", []Limit{{"burst", 1, s, 2}, {"long", 3, time.Minute, 0}}, 0}, {0, "a", []Limit{{"burst", 1, s, 2},
				{"long", 3, time.Minute, 0}}, 0},
			{0, "a", []Limit{{"burst", 1, s, 2}, {"long", 3, time.Minute, 0}}, s},
			{s, "a", []Limit{{"burst", 1, s, 2}, {"long", 3, time.Minute, 0}}, 0},
			{s, "a", []Limit{{"burst", 1, s, 2}, {"long", 3, time.Minute, 0}}, 18 * s}, // has 2/20 of the next token
		}},
		{"a refusal takes no tokens of the other bucket (A65)", []step{
			{0, "a", []Limit{perMinute("x", 1), perMinute("y", 2)}, 0}, {0, "a", []Limit{perMinute("x", 1), perMinute("y", 2)},
				60 * s},
			{0, "a", []Limit{perMinute("y", 2), perMinute("x", 1)}, 60 * s}, {0, "a", []Limit{perMinute("y", 2)}, 0}, {0, "a",
				[]Limit{perMinute("y", 2)}, 30 * s},
		}},
		{"the longest wait is returned", []step{
			{0, "a", []Limit{perMinute("x", 1), perMinute("y", 2), {"z", 1, time.Hour, 0}}, 0},
			{0, "a", []Limit{{"z", 1, time.Hour, 0}, perMinute("x", 1)}, time.Hour}, {0, "a", []Limit{perMinute("x", 1),
				perMinute("y", 2)}, 60 * s},
		}},
		{"a repeated limit counts once", []step{
			{0, "a", []Limit{perMinute("x", 2), perMinute("x", 2)}, 0}, {0, "a", []Limit{perMinute("x", 2)}, 0}, {0, "a",
				[]Limit{perMinute("x", 2)}, 30 * s},
		}},
		{"a separate burst", []step{
			{0, "a", []Limit{{"", 60, time.Minute, 1}}, 0}, {0, "a", []Limit{{"", 60, time.Minute, 1}}, s}, {time.Hour, "a",
				[]Limit{{"", 60, time.Minute, 1}}, 0}, {0, "a", []Limit{{"", 60, time.Minute, 1}}, s},
		}},
		{"a lower limit applies at once", []step{
			{0, "a", []Limit{perMinute("", 10)}, 0}, {0, "a", []Limit{perMinute("", 1)}, 0}, {0, "a", []Limit{perMinute("", 1)},
				60 * s},
			{30 * s, "a", []Limit{perMinute("", 1)}, 30 * s},
		}},
		{"a higher limit applies at once, without free tokens", []step{
			{0, "a", []Limit{perMinute("", 1)}, 0}, {0, "a", []Limit{perMinute("", 6)}, 10 * s}, {10 * s, "a",
				[]Limit{perMinute("", 6)}, 0}, {0, "a", []Limit{perMinute("", 6)}, 10 * s},
		}},
		{"a limit that is removed and restored keeps its bucket", []step{
			{0, "a", []Limit{perMinute("x", 1)}, 0}, {0, "a", []Limit{perMinute("y", 9)}, 0}, {0, "a",
				[]Limit{perMinute("z", 9)}, 0}, {0, "a", []Limit{perMinute("u", 9)}, 0},
			{0, "a", []Limit{perMinute("v", 9)}, 0}, {0, "a", []Limit{perMinute("x", 1)}, 60 * s},
		}},
		{"a bucket without capacity", []step{
			{0, "a", []Limit{perMinute("x", 0)}, rate.InfDuration}, {0, "a", []Limit{{"y", 1, time.Minute, -1}},
				rate.InfDuration},
		}},
		{"an infinite wait", []step{
			{0, "a", []Limit{{"", 1, math.MaxInt64, 0}}, 0}, {0, "a", []Limit{{"", 1, math.MaxInt64, 0}}, rate.InfDuration},
		}},
	} {
		for name, buckets := range map[string]func(*testing.T) []*Buckets{
			"single":   func(*testing.T) []*Buckets { return []*Buckets{New(10)} },
			"replicas": func(t *testing.T) []*Buckets { return replicasOf(t, replicastest.New(), false) },
		} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					all := buckets(t)
					for i, step := range test.steps {
						time.Sleep(step.after)
						wait, ok, err := all[i%len(all)].Take(t.Context(), step.client, step.limits)
						if wait != step.wait || ok != (step.wait == 0) || err != nil {
							t.Errorf("step %d: waits %v, %v, %v, want %v", i, wait, ok, err, step.wait)
						}
					}
				})
			})
		}
	}
}

func TestBucketThatNeverFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, limit := New(1), Limit{"", 1, 0, 0}
		try(t, b, "a", 0, limit)
		time.Sleep(time.Hour)
		try(t, b, "a", rate.InfDuration, limit)
	})
}

func TestTryAfterTheWaitSucceeds(t *testing.T) { // A32
	synctest.Test(t, func(t *testing.T) {
		b := New(1000)
		for _, n := range []int{1, 3, 7, 59, 61, 1000, 999_983} {
			for _, per := range []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 31 * 24 * time.Hour,
				7_777_777_777} {
				client, limit := fmt.Sprint(n, per), []Limit{{N: n, Per: per, Burst: 2}}
				for range 50 {
					wait, ok, _ := b.Take(t.Context(), client, limit)
					if ok {
						continue
					}
					time.Sleep(wait)
					if again, ok, _ := b.Take(t.Context(), client, limit); !ok {
						t.Fatalf("%d in %v: %v after %v", n, per, again, wait)
					}
				}
			}
		}
	})
}

func TestFullBucketsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(1)
		for i := range 1000 {
			try(t, b, "a", 0, perMinute(fmt.Sprint("tool ", i), 1), perMinute("", 10))
			time.Sleep(time.Minute)
		}
		if c := b.find("a"); len(c.buckets) > 8 {
			t.Errorf("got %d buckets", len(c.buckets))
		}
	})
}

func TestIdleClientsAreForgotten(t *testing.T) { // A33
	synctest.Test(t, func(t *testing.T) {
		b, limit := New(2), perMinute("", 1)
		try(t, b, "a", 0, limit)
		try(t, b, "b", 0, limit)
		try(t, b, "a", time.Minute, limit)
		try(t, b, "c", 0, limit) // evicts b
		try(t, b, "a", time.Minute, limit)
		try(t, b, "b", 0, limit) // evicts c
		try(t, b, "a", time.Minute, limit)
		if n := b.Len(); n != 2 {
			t.Errorf("got %d clients", n)
		}
		for i := range 1000 {
			try(t, b, fmt.Sprint(i), 0, limit)
		}
		if n := b.Len(); n != 2 {
			t.Errorf("got %d clients", n)
		}
	})
}

func TestClientsInUseAreNotForgotten(t *testing.T) { // A33
	b, limit := New(1), perMinute("", 1)
	a := b.find("a")
	for _, name := range []string{"b", "c", "d"} {
		_, _, _ = b.Take(t.Context(), name, []Limit{limit})
		if b.find("a") != a {
			t.Fatalf("client a was replaced after %s", name)
		}
		a.users.Add(-1)
	}
	if n := b.Len(); n != 2 {
		t.Errorf("got %d clients", n)
	}
	a.users.Add(-1)
	_, _, _ = b.Take(t.Context(), "e", []Limit{limit})
	if n := b.Len(); n != 1 || b.find("a") == a {
		t.Errorf("got %d clients", n)
	}
}

func TestOneClientIsAlwaysRemembered(t *testing.T) {
	b := New(0)
	try(t, b, "a", 0, perMinute("", 1))
	if b.Len() != 1 {
		t.Errorf("got %d clients", b.Len())
	}
}

// An ideal bucket counts exactly, in fractions of a token.
type ideal struct {
	limit  Limit
	tokens *big.Rat
	last   time.Time
}

func (i *ideal) fill(now time.Time) {
	if i.tokens == nil {
		i.tokens = big.NewRat(int64(i.limit.burst()), 1)
	} else {
		i.tokens.Add(i.tokens, new(big.Rat).Mul(big.NewRat(int64(now.Sub(i.last)), int64(i.limit.Per)),
			big.NewRat(int64(i.limit.N), 1)))
	}
	if burst := big.NewRat(int64(i.limit.burst()), 1); i.tokens.Cmp(burst) > 0 {
		i.tokens = burst
	}
	i.last = now
}

// allowed returns how many requests at these times get a token of every bucket.
func allowed(times []time.Time, limits []Limit) (n int) {
	var buckets []*ideal
	for _, limit := range limits {
		buckets = append(buckets, &ideal{limit: limit})
	}
	one := big.NewRat(1, 1)
	for _, now := range times {
		all := true
		for _, b := range buckets {
			b.fill(now)
			all = all && b.tokens.Cmp(one) >= 0
		}
		if !all {
			continue
		}
		n++
		for _, b := range buckets {
			b.tokens.Sub(b.tokens, one)
		}
	}
	return n
}

func TestConcurrentCallsAreCountedExactly(t *testing.T) { // A63, A64, A65
	clients := map[string][]Limit{
		"one":   {{"", 7, time.Second, 0}},
		"two":   {{"", 30, time.Second, 5}, {"long", 100, time.Minute, 0}},
		"three": {{"", 11, time.Second, 3}, {"tool", 90, 7 * time.Second, 20}, {"long", 999, time.Hour, 400}},
	}
	names := []string{"one", "two", "three"}
	synctest.Test(t, func(t *testing.T) {
		b := New(len(clients))
		var mu sync.Mutex
		times, got := make(map[string][]time.Time), make(map[string]int)
		var group sync.WaitGroup
		for g := range 8 {
			group.Go(func() {
				for i := range 1250 {
					name := names[(g+i)%len(names)]
					now := time.Now()
					_, ok, _ := b.Take(t.Context(), name, clients[name])
					mu.Lock()
					times[name] = append(times[name], now)
					if ok {
						got[name]++
					}
					mu.Unlock()
					time.Sleep(time.Duration(1+g*i%17) * 3_333_333)
				}
			})
		}
		group.Wait()
		for _, name := range names {
			slices.SortFunc(times[name], time.Time.Compare)
			want := allowed(times[name], clients[name])
			if got[name] < want-1 || got[name] > want+1 {
				t.Errorf("%s: %d of %d passed, want %d", name, got[name], len(times[name]), want)
			}
		}
	})
}

func TestEvictionUnderLoad(t *testing.T) {
	b := New(3)
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 2000 {
				_, _, _ = b.Take(t.Context(), fmt.Sprint((g*i)%11), []Limit{perMinute("", 5), perMinute(fmt.Sprint(i%5), 1+i%2)})
			}
		})
	}
	group.Wait()
	_, _, _ = b.Take(t.Context(), "last", []Limit{perMinute("", 5)})
	if n := b.Len(); n > 3 {
		t.Errorf("got %d clients", n)
	}
}

func TestAddress(t *testing.T) { // R14
	for _, test := range []struct{ name, remote, want string }{
		{"IPv4 with a port", "192.0.2.1:1234", "192.0.2.1"},
		{"IPv4", "192.0.2.1", "192.0.2.1"},
		{"IPv6 with a port", "[2001:db8:1:2:3:4:5:6]:1234", "2001:db8:1:2::/64"},
		{"IPv6", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"IPv6 in brackets", "[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64"},
		{"IPv6 with a zone", "[fe80::1%eth0]:1234", "fe80::/64"},
		{"IPv6 with a zone alone", "fe80::1%eth0", "fe80::/64"},
		{"loopback", "[::1]:1234", "::/64"},
		{"IPv4 in IPv6", "[::ffff:192.0.2.1]:1234", "192.0.2.1"},
		{"IPv4 in IPv6 with a zone", "::ffff:192.0.2.1%eth0", "192.0.2.1"},
		{"a Unix socket", "@", "@"},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Address(test.remote); got != test.want {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	b, limits := New(10), []Limit{perMinute("", 1000), perMinute("alpha::slow", 500)}
	_, _, _ = b.Take(t.Context(), "a", limits)
	if n := testing.AllocsPerRun(1000, func() { _, _, _ = b.Take(t.Context(), "a", limits) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	for _, test := range []struct {
		name    string
		clients int
		limits  []Limit
	}{
		{"one bucket", 1, []Limit{perMinute("", 1_000_000_000)}},
		{"three buckets", 1, []Limit{perMinute("", 1_000_000_000), perMinute("x", 1_000_000_000), perMinute("y", 5)}},
		{"a thousand clients", 1000, []Limit{perMinute("", 1_000_000_000)}},
	} {
		b.Run(test.name, func(b *testing.B) {
			buckets := New(1000)
			var names []string
			for i := range test.clients {
				names = append(names, strings.Repeat("client", 3)+fmt.Sprint(i))
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					_, _, _ = buckets.Take(b.Context(), names[i%len(names)], test.limits)
				}
			})
		})
	}
}
