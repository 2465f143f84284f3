package quota

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// keys returns the keys of a cache, sorted.
func keys(c *Cache[string, int]) string {
	var all []string
	for key := range c.All {
		all = append(all, key)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestTheOwnerOfTheLargestShareMakesRoom(t *testing.T) {
	var dropped []string
	kind := NewKind("test of shares")
	c := NewCache(kind, Limits{Entries: 4, Bytes: 100}, 0, func(key string, _ int) { dropped = append(dropped, key) })
	c.Put("alice", "a1", 1, 1)
	c.Put("bob", "b1", 1, 1)
	for _, key := range []string{"a2", "a3", "a4", "a5"} {
		if !c.Put("alice", key, 1, 1) {
			t.Errorf("%s not kept", key)
		}
	}
	if got := keys(c); got != "a3 a4 a5 b1" {
		t.Errorf("kept %s", got)
	}
	if got := strings.Join(dropped, " "); got != "a1 a2" {
		t.Errorf("dropped %s", got)
	}
	c.Put("bob", "b2", 1, 1)
	c.Put("carol", "c1", 1, 1)
	if got := keys(c); got != "a5 b1 b2 c1" && got != "a4 a5 b2 c1" {
		t.Errorf("kept %s", got)
	}
	if got := kind.Usage(); got.Entries != 4 || got.MaxEntries != 4 || got.Bytes != 4 || got.Dropped != 4 {
		t.Errorf("usage: %+v", got)
	}
	c.Close()
	if got := kind.Usage(); got.Entries != 0 || got.MaxEntries != 0 || got.Bytes != 0 || got.MaxBytes != 0 {
		t.Errorf("usage of a closed cache: %+v", got)
	}
	if c.Put("bob", "late", 1, 1) || kind.Usage().Entries != 0 {
		t.Error("a closed cache keeps something")
	}
}

func TestSharesOfBytesCountToo(t *testing.T) {
	c := NewCache[string, int](NewKind("test of bytes"), Limits{Entries: 100, Bytes: 100}, 0, nil)
	for i := range 5 {
		c.Put("bob", fmt.Sprint("b", i), i, 10)
	}
	if c.Put("alice", "large", 1, 101) {
		t.Error("a value larger than the cache is kept")
	}
	if c.Put("alice", "most", 1, 90) {
		t.Error("alice would hold more than bob, but evicted his entries")
	}
	if !c.Put("alice", "half", 1, 50) {
		t.Error("a value that fits is not kept")
	}
	if got := keys(c); got != "b0 b1 b2 b3 b4 half" {
		t.Errorf("kept %s", got)
	}
	if !c.Put("alice", "half", 2, 40) || c.total.bytes != 90 {
		t.Errorf("a replaced value counts twice: %d bytes", c.total.bytes)
	}
}

func TestOldestOfEqualSharesIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCache[string, int](NewKind("test of age"), Limits{Entries: 3}, 0, nil)
		for _, name := range []string{"b", "c", "a", "d"} {
			c.Put(name, name, 1, 0)
			time.Sleep(time.Second)
		}
		if got := keys(c); got != "a c d" {
			t.Errorf("kept %s", got)
		}
	})
}

func TestLimitsOfAnOwner(t *testing.T) {
	c := NewCache[string, int](NewKind("test of owners"), Limits{Entries: 10, OwnerEntries: 2}, 0, nil)
	for _, key := range []string{"a1", "a2", "a3"} {
		c.Put("alice", key, 1, 0)
	}
	if got := keys(c); got != "a2 a3" {
		t.Errorf("kept %s", got)
	}
	c.SetLimits(Limits{Entries: 10, OwnerEntries: 1})
	if got := keys(c); got != "a3" {
		t.Errorf("kept %s", got)
	}
}

func TestEntriesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped string
		kind := NewKind("test of time")
		c := NewCache(kind, Limits{Entries: 10}, time.Minute, func(key string, _ int) { dropped += key })
		c.Put("", "a", 1, 5)
		time.Sleep(40 * time.Second)
		c.Put("", "b", 2, 5)
		if left := c.Expire(); left != 20*time.Second {
			t.Errorf("the next entry expires in %v", left)
		}
		time.Sleep(20 * time.Second)
		if _, ok := c.Get("a"); ok || dropped != "a" {
			t.Errorf("a has not expired; dropped %q", dropped)
		}
		if value, ok := c.Get("b"); !ok || value != 2 {
			t.Errorf("b: %v, %v", value, ok)
		}
		if value, ok := c.Remove("b"); !ok || value != 2 || dropped != "a" {
			t.Errorf("removed %v, %v; dropped %q", value, ok, dropped)
		}
		if got := kind.Usage(); got.Entries != 0 || got.Bytes != 0 || got.Dropped != 0 {
			t.Errorf("usage: %+v", got)
		}
	})
}

// The limits always hold, and an owner with no more than an equal share loses nothing.
func TestSharesAreFair(t *testing.T) {
	limits := Limits{Entries: 60, Bytes: 6_000}
	const owners = 4
	c := NewCache[string, string](NewKind("test of fairness"), limits, 0, nil)
	quiet := amount{}
	for quiet.entries < limits.Entries/owners-1 {
		c.Put("quiet", fmt.Sprint("quiet", quiet.entries), "quiet", 100)
		quiet.entries++
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		name := fmt.Sprint(random.IntN(owners - 1))
		key := fmt.Sprint(name, random.IntN(200))
		if i%7 == 0 {
			c.Remove(key)
		} else {
			c.Put(name, key, name, random.Int64N(1_000))
		}
		sum, owned, all := amount{}, 0, 0
		for name, o := range c.owners {
			sum.entries += o.amount.entries
			sum.bytes += o.amount.bytes
			for range c.Owned(name) {
				owned++
			}
		}
		for range c.All {
			all++
		}
		if sum != c.total || sum.entries != len(c.entries) || sum.entries != all || sum.entries != owned ||
			sum.exceeds(limits.Entries, limits.Bytes) {
			t.Fatalf("step %d: owners hold %+v, in all %+v, %d entries", i, sum, c.total, len(c.entries))
		}
	}
	if got := c.owners["quiet"].amount.entries; got != quiet.entries {
		t.Errorf("the quiet owner has %d of %d entries", got, quiet.entries)
	}
}

func TestMeterRefuses(t *testing.T) {
	kind := NewKind("test of a meter")
	m := NewMeter(kind, Limits{Entries: 3, Bytes: 100, OwnerEntries: 2, OwnerBytes: 60})
	for i, step := range []struct {
		owner string
		bytes int64
		want  bool
	}{
		{"alice", 50, true},
		{"alice", 20, false}, // bytes of the owner
		{"alice", 10, true},
		{"alice", 0, false}, // entries of the owner
		{"bob", 50, false},  // bytes in all
		{"bob", 40, true},
		{"carol", 0, false}, // entries in all
	} {
		if got := m.Take(step.owner, step.bytes); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
	if got := kind.Usage(); got.Entries != 3 || got.Bytes != 100 || got.Refused != 4 {
		t.Errorf("usage: %+v", got)
	}
	if m.Grow("alice", 1) {
		t.Error("alice grows beyond her limit")
	}
	m.Give("bob", 40)
	if !m.Take("bob", 20) || !m.Grow("bob", 20) || m.Grow("bob", 20) {
		t.Error("bob cannot grow up to the limit")
	}
	m.Give("alice", 50)
	m.Give("alice", 10)
	if !m.Take("carol", 60) || len(m.owners) != 2 {
		t.Errorf("amounts that were given back still count: %+v", m.owners)
	}
	m.Close()
	m.Give("carol", 60)
	m.Take("dave", 1)
	if got := kind.Usage(); got.Entries != 0 || got.Bytes != 0 || got.MaxEntries != 0 {
		t.Errorf("usage of a closed meter: %+v", got)
	}
}

func TestKindsAreSorted(t *testing.T) {
	NewKind("zebra")
	NewKind("ant")
	names := []string{}
	for _, kind := range Kinds() {
		names = append(names, kind.Name)
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "zebra") {
		t.Errorf("%q", names)
	}
}

func TestCacheOwned(t *testing.T) {
	c := NewCache[string, int](NewKind("owned"), Limits{}, 0, nil)
	defer c.Close()
	for i, key := range []string{"a1", "b1", "a2", "a3"} {
		c.Put(key[:1], key, i, 1)
	}
	c.Remove("a2")
	for owner, want := range map[string]string{"a": "a3 a1 ", "b": "b1 ", "c": ""} {
		got := ""
		for key := range c.Owned(owner) {
			got += key + " "
		}
		if got != want {
			t.Errorf("%s owns %q, want %q", owner, got, want)
		}
	}
}
