package replicastest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// TestEngine tests that engines are as [replicas.Engine] says. Those that open returns see the same values.
func TestEngine(t *testing.T, open func() replicas.Engine) {
	a, b := open(), open()
	t.Cleanup(func() { a.Close(); b.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := b.Get(ctx, "test:{v}"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*conformance){
		"values":                   (*conformance).values,
		"values end":               (*conformance).valuesEnd,
		"swap":                     (*conformance).swap,
		"swaps at once":            (*conformance).swapsAtOnce,
		"delete once":              (*conformance).deleteOnce,
		"keep the newest":          (*conformance).keepNewest,
		"keep again":               (*conformance).keepAgain,
		"keep after others ended":  (*conformance).keepAfterEnd,
		"keep for owners":          (*conformance).keepForOwners,
		"keep what is too large":   (*conformance).keepTooLarge,
		"spend":                    (*conformance).spend,
		"spend from all or none":   (*conformance).spendAllOrNone,
		"spend at once":            (*conformance).spendAtOnce,
		"spend and give back":      (*conformance).giveBack,
		"spend with other limits":  (*conformance).otherLimits,
		"publish":                  (*conformance).publish,
		"publish in order":         (*conformance).publishInOrder,
		"several subscribers":      (*conformance).severalSubscribers,
		"subscribe after stopping": (*conformance).subscribeAgain,
		"ended contexts":           (*conformance).endedContexts,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			test(&conformance{t, ctx, a, b, "test:{" + rand.Text() + "}"})
		})
	}
}

// A conformance is a test with two engines that see the same values, and with a name of its own.
type conformance struct {
	*testing.T
	ctx  context.Context
	a, b replicas.Engine
	name string
}

func (c *conformance) key(name any) string { return c.name + fmt.Sprint(name) }

func (c *conformance) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *conformance) wants(e replicas.Engine, key string, want []byte) {
	c.Helper()
	values, err := e.Get(c.ctx, key)
	c.must(err)
	if len(values) != 1 || !bytes.Equal(values[0], want) || (values[0] == nil) != (want == nil) {
		c.Fatalf("%s is %q, want %q", key, values, want)
	}
}

// until waits for a condition.
func (c *conformance) until(what string, condition func() bool) {
	c.Helper()
	for !condition() {
		select {
		case <-c.ctx.Done():
			c.Fatalf("in vain: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func (c *conformance) gone(key string) {
	c.Helper()
	c.until(key+" ends", func() bool {
		values, err := c.b.Get(c.ctx, key)
		c.must(err)
		return values[0] == nil
	})
}

func (c *conformance) values() {
	c.wants(c.a, c.key("v"), nil)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, value := range [][]byte{[]byte("1"), {}, all, bytes.Repeat(all, 4<<10)} {
		c.must(c.a.Set(c.ctx, c.key("v"), value, time.Hour))
		c.wants(c.b, c.key("v"), value)
	}
	c.must(c.b.Set(c.ctx, c.key("w"), []byte("w"), time.Hour))
	values, err := c.a.Get(c.ctx, c.key("w"), c.key("none"), c.key("v"))
	c.must(err)
	if len(values) != 3 || string(values[0]) != "w" || values[1] != nil || len(values[2]) != 1<<20 {
		c.Errorf("values of three keys: %d, %q", len(values), values[0])
	}
}

func (c *conformance) valuesEnd() {
	c.must(c.a.Set(c.ctx, c.key("set"), []byte("1"), 20*time.Millisecond))
	c.must(c.a.Keep(c.ctx, replicas.Entry{
		Owner: c.name, Key: c.key("kept"), Value: []byte("1"), TTL: 20 * time.Millisecond, OwnerBytes: 1 << 20,
	}))
	swapped, err := c.a.Swap(c.ctx, c.key("swapped"), nil, []byte("1"), 20*time.Millisecond)
	c.must(err)
	if !swapped {
		c.Error("there was no value, and none was set")
	}
	for _, name := range []string{"set", "kept", "swapped"} {
		c.gone(c.key(name))
	}
}

func (c *conformance) swap() {
	key := c.key("v")
	for i, step := range []struct {
		old, new []byte
		swapped  bool
		is       []byte
	}{
		{nil, nil, true, nil},
		{[]byte("1"), []byte("2"), false, nil},
		{[]byte{}, []byte("2"), false, nil},
		{nil, []byte("1"), true, []byte("1")},
		{nil, []byte("2"), false, []byte("1")},
		{nil, nil, false, []byte("1")},
		{[]byte("1"), []byte{}, true, []byte{}},
		{nil, []byte("2"), false, []byte{}},
		{[]byte{}, []byte("2"), true, []byte("2")},
		{[]byte("1"), nil, false, []byte("2")},
		{[]byte("2"), nil, true, nil},
	} {
		swapped, err := c.a.Swap(c.ctx, key, step.old, step.new, 0)
		c.must(err)
		if swapped != step.swapped {
			c.Errorf("step %d: swapped %t, want %t", i, swapped, step.swapped)
		}
		c.wants(c.b, key, step.is)
	}
}

// both calls f many times at once, with one engine and the other.
func (c *conformance) both(times int, f func(e replicas.Engine)) {
	var all sync.WaitGroup
	for i := range times {
		all.Go(func() { f([]replicas.Engine{c.a, c.b}[i%2]) })
	}
	all.Wait()
}

func (c *conformance) swapsAtOnce() {
	const callers, each = 8, 20
	c.both(callers, func(e replicas.Engine) {
		for done := 0; done < each; {
			values, err := e.Get(c.ctx, c.key("n"))
			if err != nil {
				c.Error(err)
				return
			}
			n, _ := strconv.Atoi(string(values[0]))
			swapped, err := e.Swap(c.ctx, c.key("n"), values[0], []byte(strconv.Itoa(n+1)), time.Hour)
			if err != nil {
				c.Error(err)
				return
			}
			if swapped {
				done++
			}
		}
	})
	c.wants(c.a, c.key("n"), []byte(strconv.Itoa(callers*each)))
}

func (c *conformance) deleteOnce() {
	c.must(c.a.Set(c.ctx, c.key("v"), []byte("1"), time.Hour))
	var deleted atomic.Int64
	c.both(32, func(e replicas.Engine) {
		was, err := e.Delete(c.ctx, c.key("v"))
		if err != nil {
			c.Error(err)
		}
		if was {
			deleted.Add(1)
		}
	})
	if deleted.Load() != 1 {
		c.Errorf("deleted %d times", deleted.Load())
	}
	c.wants(c.a, c.key("v"), nil)
}

// keep keeps a value of 10 KiB of an owner who may have ten of them, and a bit.
func (c *conformance) keep(name any, ttl time.Duration) {
	c.Helper()
	c.must(c.a.Keep(c.ctx, replicas.Entry{
		Owner: c.name, Key: c.key(name), Value: bytes.Repeat([]byte{1}, 10<<10), TTL: ttl, OwnerBytes: 105 << 10,
	}))
}

// kept returns those of the names that are kept.
func (c *conformance) kept(count int) (kept []int) {
	c.Helper()
	for i := range count {
		values, err := c.b.Get(c.ctx, c.key(i))
		c.must(err)
		if values[0] != nil {
			kept = append(kept, i)
		}
	}
	return kept
}

func numbers(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

func (c *conformance) keepNewest() {
	for i := range 25 {
		c.keep(i, time.Hour+time.Duration(i)*time.Second)
	}
	if kept := c.kept(25); !slices.Equal(kept, numbers(15, 25)) {
		c.Errorf("kept %v", kept)
	}
}

func (c *conformance) keepAgain() {
	for range 25 {
		c.keep(1, time.Hour)
	}
	for i := 2; i < 11; i++ {
		c.keep(i, 2*time.Hour)
	}
	if kept := c.kept(11); !slices.Equal(kept, numbers(1, 11)) {
		c.Errorf("kept %v", kept)
	}
}

func (c *conformance) keepAfterEnd() {
	for i := range 5 {
		c.keep(i, 2*time.Hour)
	}
	for i := 5; i < 10; i++ {
		c.keep(i, time.Millisecond)
	}
	c.gone(c.key(9))
	for i := 10; i < 15; i++ {
		c.keep(i, time.Hour)
	}
	if kept, want := c.kept(15), append(numbers(0, 5), numbers(10, 15)...); !slices.Equal(kept, want) {
		c.Errorf("kept %v, want %v", kept, want)
	}
}

func (c *conformance) keepForOwners() {
	c.keep(0, time.Hour)
	for i := 1; i < 25; i++ {
		owner := c.name + ":other"
		c.must(c.b.Keep(c.ctx, replicas.Entry{
			Owner: owner, Key: owner + strconv.Itoa(i), Value: make([]byte, 10<<10), TTL: time.Hour, OwnerBytes: 105 << 10,
		}))
	}
	if kept := c.kept(1); len(kept) != 1 {
		c.Error("an owner lost an entry because of another")
	}
}

func (c *conformance) keepTooLarge() {
	c.must(c.a.Keep(c.ctx, replicas.Entry{
		Owner: c.name, Key: c.key("large"), Value: make([]byte, 20<<10), TTL: time.Hour, OwnerBytes: 10 << 10,
	}))
	c.wants(c.b, c.key("large"), nil)
	c.keep(0, time.Hour)
	if kept := c.kept(1); len(kept) != 1 {
		c.Error("after a value that was too large, nothing is kept")
	}
}

// slow is a rate at which a bucket does not fill during a test.
const slow = 1e-6

// take spends, and returns what it has got.
func (c *conformance) take(buckets ...replicas.Bucket) (taken []float64, wait time.Duration) {
	c.Helper()
	taken, wait, err := c.a.Spend(c.ctx, buckets)
	c.must(err)
	if (taken == nil) != (wait > 0) || taken != nil && len(taken) != len(buckets) {
		c.Fatalf("taken %v, to wait %s", taken, wait)
	}
	return taken, wait
}

func (c *conformance) takes(want float64, b replicas.Bucket) {
	c.Helper()
	if taken, wait := c.take(b); taken == nil || math.Abs(taken[0]-want) > 0.01 {
		c.Errorf("taken %v, to wait %s, want %g", taken, wait, want)
	}
}

func (c *conformance) spend() {
	key := c.key("b")
	c.takes(1, replicas.Bucket{Key: key, Rate: slow, Burst: 5, Want: 1})
	c.takes(2, replicas.Bucket{Key: key, Rate: slow, Burst: 5, Want: 2})
	c.takes(0, replicas.Bucket{Key: key, Rate: slow, Burst: 5})
	c.takes(2, replicas.Bucket{Key: key, Rate: slow, Burst: 5, Want: 10})
	if taken, wait := c.take(replicas.Bucket{Key: key, Rate: slow, Burst: 5}); taken != nil || wait == 0 {
		c.Errorf("an empty bucket has %v, to wait %s", taken, wait)
	}
	c.takes(2, replicas.Bucket{Key: c.key("broken"), Rate: slow, Burst: 2.5, Want: 10}) // tokens are whole
	_, wait := c.take(replicas.Bucket{Key: key, Rate: 0.01, Burst: 5, Want: 1})
	if wait < 90*time.Second || wait > 100*time.Second {
		c.Errorf("to wait %s for a token of 100 s", wait)
	}
	// It fills: what is waited for comes.
	fast := replicas.Bucket{Key: c.key("fast"), Rate: 100, Burst: 1, Want: 1}
	c.takes(1, fast)
	c.until("another token", func() bool { taken, _ := c.take(fast); return taken != nil })
}

func (c *conformance) spendAllOrNone() {
	full := replicas.Bucket{Key: c.key("full"), Rate: slow, Burst: 3, Want: 1}
	empty := replicas.Bucket{Key: c.key("empty"), Rate: slow, Burst: 1, Want: 1}
	c.takes(1, empty)
	for range 10 {
		if taken, _ := c.take(full, empty); taken != nil {
			c.Fatalf("taken %v from an empty bucket", taken)
		}
	}
	c.takes(3, replicas.Bucket{Key: full.Key, Rate: slow, Burst: 3, Want: 5})
	if taken, _ := c.take(empty, full); taken != nil {
		c.Errorf("taken %v from empty buckets", taken)
	}
}

func (c *conformance) spendAtOnce() {
	var taken atomic.Int64
	c.both(64, func(e replicas.Engine) {
		for range 10 {
			got, _, err := e.Spend(c.ctx, []replicas.Bucket{
				{Key: c.key("one"), Rate: slow, Burst: 300, Want: 1}, {Key: c.key("two"), Rate: slow, Burst: 400, Want: 1},
			})
			if err != nil {
				c.Error(err)
			}
			if got != nil {
				taken.Add(1)
			}
		}
	})
	if taken.Load() != 300 {
		c.Errorf("taken %d of 300", taken.Load())
	}
	c.takes(100, replicas.Bucket{Key: c.key("two"), Rate: slow, Burst: 400, Want: 1000})
}

func (c *conformance) giveBack() {
	b := replicas.Bucket{Key: c.key("b"), Rate: slow, Burst: 5, Want: 5}
	c.takes(5, b)
	b.Want = -2
	c.takes(-2, b)
	b.Want = 5
	c.takes(2, b)
	b.Want = -100
	c.takes(-100, b)
	b.Want = 100
	c.takes(5, b)
}

func (c *conformance) otherLimits() {
	b := replicas.Bucket{Key: c.key("b"), Rate: slow, Burst: 100, Want: 10}
	c.takes(10, b)
	b.Burst, b.Want = 5, 100
	c.takes(5, b)
	if taken, _ := c.take(b); taken != nil {
		c.Errorf("taken %v of none", taken)
	}
}

// A recorder keeps messages.
type recorder struct {
	mu       sync.Mutex
	messages []string
}

func (r *recorder) add(message []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, string(message))
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

func (c *conformance) subscribe(e replicas.Engine, topic string) (r *recorder, stop func()) {
	c.Helper()
	r = new(recorder)
	stop, err := e.Subscribe(c.ctx, topic, r.add)
	c.must(err)
	return r, stop
}

func (c *conformance) say(topic, message string) (heard bool) {
	c.Helper()
	heard, err := c.a.Publish(c.ctx, topic, []byte(message))
	c.must(err)
	return heard
}

// hears waits until a recorder has exactly these messages.
func (c *conformance) hears(r *recorder, want ...string) {
	c.Helper()
	c.until(fmt.Sprint(len(want), " messages"), func() bool { return len(r.all()) >= len(want) })
	if got := r.all(); !slices.Equal(got, want) {
		c.Errorf("heard %q, want %q", got, want)
	}
}

func (c *conformance) publish() {
	if c.say(c.name, "before") {
		c.Error("said to be heard, without a listener")
	}
	r, stop := c.subscribe(c.b, c.name)
	if !c.say(c.name, "\x00\xff") || !c.say(c.name, "") {
		c.Error("not heard")
	}
	if c.say(c.name+"x", "other") {
		c.Error("said to be heard, without a listener")
	}
	c.hears(r, "\x00\xff", "")
	stop()
	stop()
	c.until("there are no listeners", func() bool { return !c.say(c.name, "after") })
}

func (c *conformance) publishInOrder() {
	r, stop := c.subscribe(c.b, c.name)
	defer stop()
	var want []string
	for i := range 500 {
		want = append(want, strconv.Itoa(i))
		c.say(c.name, want[i])
	}
	c.hears(r, want...)
}

func (c *conformance) severalSubscribers() {
	one, stopOne := c.subscribe(c.a, c.name)
	two, stopTwo := c.subscribe(c.a, c.name)
	three, stopThree := c.subscribe(c.b, c.name)
	defer stopTwo()
	defer stopThree()
	c.say(c.name, "1")
	c.hears(one, "1")
	stopOne()
	c.say(c.name, "2")
	c.hears(two, "1", "2")
	c.hears(three, "1", "2")
	c.hears(one, "1")
}

func (c *conformance) subscribeAgain() {
	for range 20 {
		r, stop := c.subscribe(c.b, c.name)
		if !c.say(c.name, "1") {
			c.Fatal("not heard")
		}
		c.hears(r, "1")
		stop()
	}
	// A topic that is not wanted any longer does not end when it was subscribed to in vain.
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	if stop, err := c.b.Subscribe(ended, c.name, func([]byte) {}); err == nil {
		stop()
	}
	c.until("there are no listeners", func() bool { return !c.say(c.name, "after") })
}

func (c *conformance) endedContexts() {
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	// No caller is kept waiting, and the engine stays as it is.
	_, _ = c.a.Get(ended, c.key("v"))
	_ = c.a.Set(ended, c.key("ended"), nil, time.Hour)
	_, _, _ = c.a.Spend(ended, []replicas.Bucket{{Key: c.key("b"), Rate: slow, Burst: 1, Want: 1}})
	_, _ = c.a.Publish(ended, c.name, nil)
	c.must(c.a.Set(c.ctx, c.key("v"), []byte("1"), time.Hour))
	c.wants(c.a, c.key("v"), []byte("1"))
}
