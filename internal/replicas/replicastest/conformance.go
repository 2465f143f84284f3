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

// testTimeout is the timeout of a test.
const testTimeout = 10 * time.Second

// TestEngine tests that an engine does what [replicas.Engine] promises. The engines that open
// returns must share their values.
func TestEngine(t *testing.T, open func() replicas.Engine) {
	a, b := open(), open()
	t.Cleanup(func() { a.Close(); b.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			test(&conformance{t, ctx, a, b, "test:{" + rand.Text() + "}"})
		})
	}
}

// A conformance is a test with two engines that share their values. Its name begins its keys.
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

func (c *conformance) wantValue(e replicas.Engine, key string, want []byte) {
	c.Helper()
	values, err := e.Get(c.ctx, key)
	c.must(err)
	if len(values) != 1 || !bytes.Equal(values[0], want) || (values[0] == nil) != (want == nil) {
		c.Fatalf("value of %s is %q, want %q", key, values, want)
	}
}

// waitFor waits for a condition.
func (c *conformance) waitFor(what string, condition func() bool) {
	c.Helper()
	for !condition() {
		select {
		case <-c.ctx.Done():
			c.Fatalf("timeout while waiting for: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func (c *conformance) waitUntilGone(key string) {
	c.Helper()
	c.waitFor("end of "+key, func() bool {
		values, err := c.b.Get(c.ctx, key)
		c.must(err)
		return values[0] == nil
	})
}

func (c *conformance) values() {
	c.wantValue(c.a, c.key("v"), nil)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, value := range [][]byte{[]byte("1"), {}, all, bytes.Repeat(all, 4<<10)} {
		c.must(c.a.Set(c.ctx, c.key("v"), value, time.Hour))
		c.wantValue(c.b, c.key("v"), value)
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
		c.Error("Swap did not set a value that was missing")
	}
	for _, name := range []string{"set", "kept", "swapped"} {
		c.waitUntilGone(c.key(name))
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
		c.wantValue(c.b, key, step.is)
	}
}

// concurrently calls f many times at once, alternating between the two engines.
func (c *conformance) concurrently(times int, f func(e replicas.Engine)) {
	var all sync.WaitGroup
	for i := range times {
		all.Go(func() { f([]replicas.Engine{c.a, c.b}[i%2]) })
	}
	all.Wait()
}

func (c *conformance) swapsAtOnce() {
	const callers, each = 8, 20
	c.concurrently(callers, func(e replicas.Engine) {
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
	c.wantValue(c.a, c.key("n"), []byte(strconv.Itoa(callers*each)))
}

func (c *conformance) deleteOnce() {
	c.must(c.a.Set(c.ctx, c.key("v"), []byte("1"), time.Hour))
	var deleted atomic.Int64
	c.concurrently(32, func(e replicas.Engine) {
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
	c.wantValue(c.a, c.key("v"), nil)
}

// keepEntry keeps a value of 10 KiB for an owner whose limit is a little more than ten of them.
func (c *conformance) keepEntry(name any, ttl time.Duration) {
	c.Helper()
	c.must(c.a.Keep(c.ctx, replicas.Entry{
		Owner: c.name, Key: c.key(name), Value: bytes.Repeat([]byte{1}, 10<<10), TTL: ttl, OwnerBytes: 105 << 10,
	}))
}

// keptEntries returns the names below count whose values are still stored.
func (c *conformance) keptEntries(count int) (kept []int) {
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
		c.keepEntry(i, time.Hour+time.Duration(i)*time.Second)
	}
	if kept := c.keptEntries(25); !slices.Equal(kept, numbers(15, 25)) {
		c.Errorf("kept %v", kept)
	}
}

func (c *conformance) keepAgain() {
	for range 25 {
		c.keepEntry(1, time.Hour)
	}
	for i := 2; i < 11; i++ {
		c.keepEntry(i, 2*time.Hour)
	}
	if kept := c.keptEntries(11); !slices.Equal(kept, numbers(1, 11)) {
		c.Errorf("kept %v", kept)
	}
}

func (c *conformance) keepAfterEnd() {
	for i := range 5 {
		c.keepEntry(i, 2*time.Hour)
	}
	for i := 5; i < 10; i++ {
		c.keepEntry(i, time.Millisecond)
	}
	c.waitUntilGone(c.key(9))
	for i := 10; i < 15; i++ {
		c.keepEntry(i, time.Hour)
	}
	if kept, want := c.keptEntries(15), append(numbers(0, 5), numbers(10, 15)...); !slices.Equal(kept, want) {
		c.Errorf("kept %v, want %v", kept, want)
	}
}

func (c *conformance) keepForOwners() {
	c.keepEntry(0, time.Hour)
	for i := 1; i < 25; i++ {
		owner := c.name + ":other"
		c.must(c.b.Keep(c.ctx, replicas.Entry{
			Owner: owner, Key: owner + strconv.Itoa(i), Value: make([]byte, 10<<10), TTL: time.Hour, OwnerBytes: 105 << 10,
		}))
	}
	if kept := c.keptEntries(1); len(kept) != 1 {
		c.Error("an owner lost an entry because of another")
	}
}

func (c *conformance) keepTooLarge() {
	c.must(c.a.Keep(c.ctx, replicas.Entry{
		Owner: c.name, Key: c.key("large"), Value: make([]byte, 20<<10), TTL: time.Hour, OwnerBytes: 10 << 10,
	}))
	c.wantValue(c.b, c.key("large"), nil)
	c.keepEntry(0, time.Hour)
	if kept := c.keptEntries(1); len(kept) != 1 {
		c.Error("Keep stores nothing after a value that was too large")
	}
}

// slowRate is a rate at which a bucket does not fill during a test.
const slowRate = 1e-6

// takeTokens calls Spend and checks that its results agree.
func (c *conformance) takeTokens(buckets ...replicas.Bucket) (taken []float64, wait time.Duration) {
	c.Helper()
	taken, wait, err := c.a.Spend(c.ctx, buckets)
	c.must(err)
	if (taken == nil) != (wait > 0) || taken != nil && len(taken) != len(buckets) {
		c.Fatalf("taken %v, to wait %s", taken, wait)
	}
	return taken, wait
}

func (c *conformance) wantTaken(want float64, b replicas.Bucket) {
	c.Helper()
	if taken, wait := c.takeTokens(b); taken == nil || math.Abs(taken[0]-want) > 0.01 {
		c.Errorf("taken %v, to wait %s, want %g", taken, wait, want)
	}
}

func (c *conformance) spend() {
	key := c.key("b")
	c.wantTaken(1, replicas.Bucket{Key: key, Rate: slowRate, Burst: 5, Want: 1})
	c.wantTaken(2, replicas.Bucket{Key: key, Rate: slowRate, Burst: 5, Want: 2})
	c.wantTaken(0, replicas.Bucket{Key: key, Rate: slowRate, Burst: 5})
	c.wantTaken(2, replicas.Bucket{Key: key, Rate: slowRate, Burst: 5, Want: 10})
	if taken, wait := c.takeTokens(replicas.Bucket{Key: key, Rate: slowRate, Burst: 5}); taken != nil || wait == 0 {
		c.Errorf("an empty bucket has %v, to wait %s", taken, wait)
	}
	c.wantTaken(2, replicas.Bucket{Key: c.key("broken"), Rate: slowRate, Burst: 2.5, Want: 10}) // tokens are whole
	_, wait := c.takeTokens(replicas.Bucket{Key: key, Rate: 0.01, Burst: 5, Want: 1})
	if wait < 90*time.Second || wait > 100*time.Second {
		c.Errorf("to wait %s for a token of 100 s", wait)
	}
	// The bucket fills again.
	fast := replicas.Bucket{Key: c.key("fast"), Rate: 100, Burst: 1, Want: 1}
	c.wantTaken(1, fast)
	c.waitFor("another token", func() bool { taken, _ := c.takeTokens(fast); return taken != nil })
}

func (c *conformance) spendAllOrNone() {
	full := replicas.Bucket{Key: c.key("full"), Rate: slowRate, Burst: 3, Want: 1}
	empty := replicas.Bucket{Key: c.key("empty"), Rate: slowRate, Burst: 1, Want: 1}
	c.wantTaken(1, empty)
	for range 10 {
		if taken, _ := c.takeTokens(full, empty); taken != nil {
			c.Fatalf("taken %v from an empty bucket", taken)
		}
	}
	c.wantTaken(3, replicas.Bucket{Key: full.Key, Rate: slowRate, Burst: 3, Want: 5})
	if taken, _ := c.takeTokens(empty, full); taken != nil {
		c.Errorf("taken %v from empty buckets", taken)
	}
}

func (c *conformance) spendAtOnce() {
	var taken atomic.Int64
	c.concurrently(64, func(e replicas.Engine) {
		for range 10 {
			got, _, err := e.Spend(c.ctx, []replicas.Bucket{
				{Key: c.key("one"), Rate: slowRate, Burst: 300, Want: 1},
				{Key: c.key("two"), Rate: slowRate, Burst: 400, Want: 1},
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
	c.wantTaken(100, replicas.Bucket{Key: c.key("two"), Rate: slowRate, Burst: 400, Want: 1000})
}

func (c *conformance) giveBack() {
	b := replicas.Bucket{Key: c.key("b"), Rate: slowRate, Burst: 5, Want: 5}
	c.wantTaken(5, b)
	b.Want = -2
	c.wantTaken(-2, b)
	b.Want = 5
	c.wantTaken(2, b)
	b.Want = -100
	c.wantTaken(-100, b)
	b.Want = 100
	c.wantTaken(5, b)
}

func (c *conformance) otherLimits() {
	b := replicas.Bucket{Key: c.key("b"), Rate: slowRate, Burst: 100, Want: 10}
	c.wantTaken(10, b)
	b.Burst, b.Want = 5, 100
	c.wantTaken(5, b)
	if taken, _ := c.takeTokens(b); taken != nil {
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

func (c *conformance) send(topic, message string) (received bool) {
	c.Helper()
	received, err := c.a.Publish(c.ctx, topic, []byte(message))
	c.must(err)
	return received
}

// wantMessages waits for these messages, and checks that a recorder has no others.
func (c *conformance) wantMessages(r *recorder, want ...string) {
	c.Helper()
	c.waitFor(fmt.Sprint(len(want), " messages"), func() bool { return len(r.all()) >= len(want) })
	if got := r.all(); !slices.Equal(got, want) {
		c.Errorf("received %q, want %q", got, want)
	}
}

func (c *conformance) publish() {
	if c.send(c.name, "before") {
		c.Error("Publish reported a subscriber before there was one")
	}
	r, stop := c.subscribe(c.b, c.name)
	if !c.send(c.name, "\x00\xff") || !c.send(c.name, "") {
		c.Error("Publish reported no subscriber")
	}
	if c.send(c.name+"x", "other") {
		c.Error("Publish reported a subscriber of another topic")
	}
	c.wantMessages(r, "\x00\xff", "")
	stop()
	stop()
	c.waitFor("there are no listeners", func() bool { return !c.send(c.name, "after") })
}

func (c *conformance) publishInOrder() {
	r, stop := c.subscribe(c.b, c.name)
	defer stop()
	var want []string
	for i := range 500 {
		want = append(want, strconv.Itoa(i))
		c.send(c.name, want[i])
	}
	c.wantMessages(r, want...)
}

func (c *conformance) severalSubscribers() {
	one, stopOne := c.subscribe(c.a, c.name)
	two, stopTwo := c.subscribe(c.a, c.name)
	three, stopThree := c.subscribe(c.b, c.name)
	defer stopTwo()
	defer stopThree()
	c.send(c.name, "1")
	c.wantMessages(one, "1")
	stopOne()
	c.send(c.name, "2")
	c.wantMessages(two, "1", "2")
	c.wantMessages(three, "1", "2")
	c.wantMessages(one, "1")
}

func (c *conformance) subscribeAgain() {
	for range 20 {
		r, stop := c.subscribe(c.b, c.name)
		if !c.send(c.name, "1") {
			c.Fatal("Publish reported no subscriber")
		}
		c.wantMessages(r, "1")
		stop()
	}
	// A subscription that fails leaves nothing behind.
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	if stop, err := c.b.Subscribe(ended, c.name, func([]byte) {}); err == nil {
		stop()
	}
	c.waitFor("there are no listeners", func() bool { return !c.send(c.name, "after") })
}

func (c *conformance) endedContexts() {
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	// None of these calls blocks, and the engine still works afterwards.
	_, _ = c.a.Get(ended, c.key("v"))
	_ = c.a.Set(ended, c.key("ended"), nil, time.Hour)
	_, _, _ = c.a.Spend(ended, []replicas.Bucket{{Key: c.key("b"), Rate: slowRate, Burst: 1, Want: 1}})
	_, _ = c.a.Publish(ended, c.name, nil)
	c.must(c.a.Set(c.ctx, c.key("v"), []byte("1"), time.Hour))
	c.wantValue(c.a, c.key("v"), []byte("1"))
}
