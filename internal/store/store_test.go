package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// newStore returns an empty store and its quota kind.
func newStore(limits Limits) (*Store, *quota.Kind) {
	kind := quota.NewKind("test")
	return New(kind, limits, nil), kind
}

func TestStoreReturnsWhatWasPut(t *testing.T) {
	s, _ := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
	original := []byte("as it was\x00\xff")
	if !s.Put("alice", "h", original) {
		t.Fatal("not kept")
	}
	original[0] = 'X'
	if got, ok := s.Get("alice", "h"); !ok || string(got) != "as it was\x00\xff" {
		t.Errorf("got %q, %v", got, ok)
	}
	for _, k := range [][2]string{{"bob", "h"}, {"", "h"}, {"alice", "g"}} {
		if _, ok := s.Get(k[0], k[1]); ok {
			t.Errorf("%q got alice's original with the handle %q", k[0], k[1])
		}
	}
}

// If two originals have the same handle, which is very unlikely, the first stays.
func TestStoreKeepsTheFirstUnderAHandle(t *testing.T) {
	s, kind := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
	s.Put("alice", "h", []byte("first"))
	for _, other := range []string{"other", "firs", "", "first and more"} {
		if s.Put("alice", "h", []byte(other)) {
			t.Errorf("%q was kept", other)
		}
	}
	if !s.Put("bob", "h", []byte("other")) || !s.Put("alice", "h", []byte("first")) {
		t.Error("not kept")
	}
	for owner, want := range map[string]string{"alice": "first", "bob": "other"} {
		if got, ok := s.Get(owner, "h"); !ok || string(got) != want {
			t.Errorf("%s got %q, %v", owner, got, ok)
		}
	}
	if n := kind.Usage().Bytes; n != 10 {
		t.Errorf("%d bytes are kept", n)
	}
}

func TestGetFirst(t *testing.T) {
	s, _ := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
	s.Put("alice", "h", []byte("a"))
	s.Put("bob", "h", []byte("b"))
	for i, test := range []struct {
		owner     string
		first, ok bool
	}{{"alice", true, true}, {"alice", false, true}, {"bob", true, true}, {"carol", false, false}} {
		if _, first, ok := s.GetFirst(test.owner, "h"); first != test.first || ok != test.ok {
			t.Errorf("%d, %s: %t, %t", i, test.owner, first, ok)
		}
	}
	s.Put("alice", "h", []byte("a"))
	if _, first, _ := s.GetFirst("alice", "h"); first {
		t.Error("a renewed original counts as new")
	}
}

func TestStoreIsBounded(t *testing.T) {
	have := func(s *Store, n int) (kept string) {
		for i := range n {
			if _, ok := s.Get("", fmt.Sprint(i)); ok {
				kept += fmt.Sprint(i)
			}
		}
		return kept
	}
	s, _ := newStore(Limits{Entries: 3, Bytes: 1000, TTL: time.Minute})
	for i := range 5 {
		s.Put("", fmt.Sprint(i), []byte("x"))
	}
	if got := have(s, 5); got != "234" {
		t.Errorf("of 5 entries kept %s", got)
	}
	s, kind := newStore(Limits{Entries: 100, Bytes: 25, TTL: time.Minute})
	for i := range 5 {
		s.Put("", fmt.Sprint(i), bytes.Repeat([]byte("x"), 10))
	}
	s.Put("", "3", bytes.Repeat([]byte("x"), 10)) // renewed, not counted twice
	s.Put("", "5", bytes.Repeat([]byte("x"), 10))
	if got := have(s, 6); got != "35" || kind.Usage().Bytes != 20 {
		t.Errorf("of 6 entries kept %s, %d bytes", got, kind.Usage().Bytes)
	}
	if s.Put("", "huge", make([]byte, 26)) || have(s, 6) != "35" {
		t.Error("an original larger than the store was kept, or evicted others")
	}
}

func TestStoreKeepsOriginalsOfOtherOwners(t *testing.T) {
	s, _ := newStore(Limits{Entries: 10, Bytes: 1000, TTL: time.Minute})
	s.Put("bob", "b", []byte("b"))
	for i := range 100 {
		s.Put("alice", fmt.Sprint(i), []byte("x"))
	}
	if _, ok := s.Get("bob", "b"); !ok {
		t.Error("alice's originals evicted bob's")
	}
}

func TestStoreExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kind := newStore(Limits{Entries: 10, Bytes: 100, TTL: time.Minute})
		s.Put("", "a", []byte("a"))
		s.Put("", "b", []byte("b"))
		time.Sleep(40 * time.Second)
		s.Put("", "a", []byte("a")) // a repeated call renews
		time.Sleep(40 * time.Second)
		if _, ok := s.Get("", "b"); ok {
			t.Error("b has not expired")
		}
		if _, ok := s.Get("", "a"); !ok {
			t.Error("a was not renewed")
		}
		time.Sleep(20 * time.Second)
		if _, ok := s.Get("", "a"); ok || kind.Usage().Bytes != 0 {
			t.Error("a has not expired")
		}
		s.Put("", "c", []byte("c"))
		time.Sleep(2 * time.Minute)
		if s.Put("", "d", []byte("d")); kind.Usage().Bytes != 1 {
			t.Error("expired originals keep memory")
		}
	})
}

func TestStoreIsSafeForConcurrentUse(t *testing.T) {
	s, kind := newStore(Limits{Entries: 50, Bytes: 500, TTL: time.Minute})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				h := fmt.Sprint(i % 100)
				s.Put(fmt.Sprint(g), h, []byte(h))
				if got, ok := s.Get(fmt.Sprint(g), h); ok && string(got) != h {
					t.Errorf("got %q for %q", got, h)
				}
			}
		})
	}
	wg.Wait()
	if kind.Usage().Bytes > 500 || s.entries.Len() > 50 {
		t.Errorf("grew to %d bytes, %d entries", kind.Usage().Bytes, s.entries.Len())
	}
}

func TestHandle(t *testing.T) {
	form := regexp.MustCompile(`^obs_[A-Za-z0-9]{10}$`)
	seen := map[string]bool{}
	for _, handle := range []func(string, ...[]byte) string{Handles(nil).New, Handles("key").New, ContentHandle} {
		for _, parts := range [][][]byte{{[]byte("a")}, {[]byte("b")}, {[]byte("a"), []byte("b")}, {[]byte("ab")},
			{nil, []byte("ab")}} {
			h := handle("obs_", parts...)
			if !form.MatchString(h) || seen[h] || h != handle("obs_", parts...) {
				t.Errorf("%q: %q", parts, h)
			}
			seen[h] = true
			if after, ok := CutHandle([]byte(h+"0"), "obs_"); !ok || string(after) != "0" {
				t.Errorf("after %s comes %q, %t", h, after, ok)
			}
		}
	}
	for _, text := range []string{"", "obs_", "obs_012345678", "obs_012345678-", "Obs_0123456789"} {
		if after, ok := CutHandle([]byte(text), "obs_"); ok {
			t.Errorf("%q is taken for a handle, followed by %q", text, after)
		}
	}
}

var (
	sharedKind   = quota.NewKind("test")
	sharedLimits = Limits{Entries: 1000, Bytes: 64 << 20, TTL: time.Hour}
)

// replica returns the store of a replica.
func replica(t *testing.T, engine replicas.Engine, limits Limits) *Store {
	s := New(sharedKind, limits, replicastest.Replica(t, engine).Space("originals"))
	t.Cleanup(s.Close)
	return s
}

// fetched fetches an original and returns it, or "unknown".
func fetched(t *testing.T, s *Store, owner, handle string) string {
	t.Helper()
	found, err := s.Fetch(t.Context(), handle, owner)
	if err != nil {
		return err.Error()
	}
	original, ok := s.Get(owner, handle)
	switch {
	case found != ok:
		t.Errorf("Fetch reports %t, Get %t", found, ok)
	case !ok:
		return "unknown"
	}
	return string(original)
}

const handleA = "obs_AAAAAAAAAA"

func TestReplicasMakeTheSameHandles(t *testing.T) {
	engine := replicastest.New()
	a, b := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
	alone, _ := newStore(sharedLimits)
	handle := a.Handles.New("obs_", []byte("text"))
	if handle != b.Handles.New("obs_", []byte("text")) {
		t.Error("the handles of two replicas differ")
	}
	if handle == alone.Handles.New("obs_", []byte("text")) {
		t.Error("a process without a shared store makes the same handle")
	}
}

// A replica finds the originals of another, even if they were not written, or the engine has lost
// them.
func TestReplicasFindOriginalsOfOthers(t *testing.T) {
	large := strings.Repeat("large ", 1<<20)
	for _, test := range []struct {
		name   string
		before func(*replicastest.Engine) // a stores the originals
		after  func(*replicastest.Engine)
	}{
		{"written", nil, nil},
		{"lost by the engine", nil, func(e *replicastest.Engine) { e.Clear() }},
		{"never written", func(e *replicastest.Engine) { e.Full.Store(true) },
			func(e *replicastest.Engine) { e.Full.Store(false) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				a, b, c := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
				if test.before != nil {
					test.before(engine)
				}
				for _, original := range []string{"", "small", large} {
					a.Put("alice", a.Handles.New("obs_", []byte(original)), []byte(original))
				}
				synctest.Wait()
				if test.after != nil {
					test.after(engine)
				}
				for _, original := range []string{"", "small", large} {
					handle := b.Handles.New("obs_", []byte(original))
					if got := fetched(t, b, "alice", handle); got != original {
						t.Errorf("found %.100q, want %.100q", got, original)
					}
					if got := fetched(t, c, "bob", handle); got != "unknown" {
						t.Errorf("bob has found %.100q", got)
					}
				}
				for key, value := range engine.Values() {
					if strings.Contains(key, "alice") || strings.Contains(key, "obs_") || bytes.Contains(value, []byte("large")) {
						t.Fatalf("%q reveals a client or original", key)
					}
				}
			})
		})
	}
}

// A client may ask for an original before it has been written.
func TestReplicasFindOriginalsBeingWritten(t *testing.T) {
	engine := replicastest.New()
	a, b := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			owner := fmt.Sprint("client ", g)
			for i := range 100 {
				original := fmt.Sprint(owner, " ", i)
				handle := a.Handles.New("obs_", []byte(original))
				if !a.Put(owner, handle, []byte(original)) {
					t.Errorf("%s is not kept", original)
				}
				if got := fetched(t, b, owner, handle); got != original {
					t.Errorf("found %q, want %q", got, original)
				}
			}
		})
	}
	wg.Wait()
}

func TestReplicasSearchForSeveralOwners(t *testing.T) {
	engine := replicastest.New()
	a, b := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
	a.Put("user ann", handleA, []byte("original"))
	engine.Clear() // as if it was not written yet
	if found, err := b.Fetch(t.Context(), handleA, "address 192.0.2.1", "user ann"); !found || err != nil {
		t.Fatal(found, err)
	}
	if _, ok := b.Get("address 192.0.2.1", handleA); ok {
		t.Error("another owner has it")
	}
	if got, ok := b.Get("user ann", handleA); !ok || string(got) != "original" {
		t.Errorf("got %q, %t", got, ok)
	}
}

// While the engine is unavailable, a replica returns its own originals. Others are reported as
// unavailable, not as unknown.
func TestReplicasWithoutTheEngine(t *testing.T) {
	for name, fail := range map[string]func(*replicastest.Engine){
		"down":    func(e *replicastest.Engine) { e.Down.Store(true) },
		"stalled": func(e *replicastest.Engine) { e.Stalled.Store(true) },
		"full":    func(e *replicastest.Engine) { e.Full.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				a, b := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
				fail(engine)
				if !a.Put("alice", handleA, []byte("original")) {
					t.Error("not kept")
				}
				if got, ok := a.Get("alice", handleA); !ok || string(got) != "original" {
					t.Errorf("got %q, %t", got, ok)
				}
				synctest.Wait()
				began := time.Now()
				if _, err := b.Fetch(t.Context(), handleA, "alice"); !errors.Is(err, replicas.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took > 250*time.Millisecond {
					t.Errorf("Fetch took %s to fail", took)
				}
				engine.Down.Store(false)
				engine.Stalled.Store(false)
				engine.Full.Store(false)
				time.Sleep(time.Second)
				if got := fetched(t, b, "alice", handleA); got != "original" {
					t.Errorf("afterwards, found %q", got)
				}
			})
		})
	}
}

// Replicas that start while the engine is unavailable receive each other's messages later.
func TestReplicasThatBeginWithoutTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		engine.Down.Store(true)
		a, b := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
		never := replica(t, engine, sharedLimits)
		a.Put("alice", handleA, []byte("original"))
		never.Close()
		engine.Down.Store(false)
		time.Sleep(time.Second)
		engine.Clear()
		if got := fetched(t, b, "alice", handleA); got != "original" {
			t.Errorf("found %q", got)
		}
	})
}

// A replica that receives no messages does not know whether others have an original.
func TestReplicasWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := replica(t, replicastest.New(), sharedLimits)
		b.sharing.unsubscribe()
		b.sharing.unsubscribe = func() {}
		if _, err := b.Fetch(t.Context(), handleA, "alice"); !errors.Is(err, replicas.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

// A request for an original that does not exist waits for as long as an operation may take. After a
// burst of them, other replicas are not asked and Fetch returns ErrUnavailable: the original may
// exist, so the client can retry.
func TestReplicasAreNotAskedTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a, b := replica(t, engine, sharedLimits), replica(t, engine, sharedLimits)
		var refused atomic.Int64
		fetch := func(owner, handle string) (operations int64, took time.Duration) {
			before, began := engine.Operations.Load(), time.Now()
			found, err := b.Fetch(t.Context(), handle, owner)
			if errors.Is(err, replicas.ErrUnavailable) {
				refused.Add(1)
			} else if err != nil || found {
				t.Errorf("found %t, %v", found, err)
			}
			return engine.Operations.Load() - before, time.Since(began)
		}
		for _, wrong := range []string{"", "obs_", "obs_ABCDEFGHI-", "x"} {
			if n, _ := fetch("mallory", wrong); n != 0 {
				t.Errorf("%d operations for %q", n, wrong)
			}
		}
		if n, took := fetch("mallory", handleA); n != 1+attempts || took.Round(time.Millisecond) != 250*time.Millisecond {
			t.Errorf("%d operations in %s for an unknown original", n, took)
		}
		before := engine.Operations.Load()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { fetch("mallory", handleA) })
		}
		wg.Wait()
		if n := engine.Operations.Load() - before; n != 100+lookupBurst*attempts {
			t.Errorf("%d operations for 100 at once", n)
		}
		if n := refused.Load(); n != 100-lookupBurst {
			t.Errorf("%d of 100 at once can be retried", n)
		}
		time.Sleep(time.Second)
		if fetch("mallory", handleA); refused.Load() != 100-lookupBurst {
			t.Error("a fetch was refused a second later")
		}
		a.Put("alice", handleA, []byte("original"))
		engine.Clear()
		if got := fetched(t, b, "alice", handleA); got != "original" {
			t.Errorf("found %q", got)
		}
	})
}

// An original that is put repeatedly is written at intervals. It does not expire earlier at other
// replicas than here.
func TestReplicasRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := replica(t, engine, sharedLimits)
		writes := func(f func()) int64 {
			synctest.Wait()
			before := engine.Operations.Load()
			f()
			synctest.Wait()
			return engine.Operations.Load() - before
		}
		put := func() { a.Put("alice", handleA, []byte("original")) }
		if n := writes(put); n != 1 {
			t.Errorf("%d operations at first", n)
		}
		if n := writes(func() { a.Get("alice", handleA); a.GetFirst("alice", handleA) }); n != 0 {
			t.Errorf("%d operations to get a local original", n)
		}
		for range 10 {
			time.Sleep(time.Minute)
			if n := writes(put); n != 0 {
				t.Errorf("%d operations for a written original", n)
			}
		}
		time.Sleep(4*time.Minute + 59*time.Second)
		if n := writes(put); n != 0 {
			t.Errorf("%d operations for a written original", n)
		}
		a.Close() // right after the last Put
		time.Sleep(59 * time.Minute)
		b := replica(t, engine, sharedLimits)
		if got := fetched(t, b, "alice", handleA); got != "original" {
			t.Errorf("before it expires, found %q", got)
		}
		time.Sleep(20 * time.Minute)
		c := replica(t, engine, sharedLimits)
		if n := writes(func() { b.Put("alice", handleA, []byte("original")) }); n != 1 {
			t.Errorf("%d operations at another replica", n)
		}
		engine.Clear()
		if got := fetched(t, c, "alice", handleA); got != "original" {
			t.Errorf("found %q", got)
		}
		if n := writes(func() { time.Sleep(16 * time.Minute); b.Put("alice", handleA, []byte("original")) }); n != 1 {
			t.Errorf("%d operations after a quarter of the time", n)
		}
	})
}

// An original that is no longer stored is not written for others.
func TestReplicasDoNotWriteDroppedOriginals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := replica(t, engine, Limits{Entries: 1, Bytes: 100, TTL: time.Hour})
		engine.Down.Store(true)
		for i := range 10 {
			a.Put("alice", fmt.Sprint("obs_AAAAAAAAA", i), []byte("original"))
		}
		synctest.Wait()
		engine.Down.Store(false)
		time.Sleep(time.Second)
		if n := len(engine.Values()); n != 1 {
			t.Errorf("%d originals are written", n)
		}
	})
}

// Originals that a store has not written when it is closed are written later.
func TestReplicasWriteOriginalsOfAClosedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := New(sharedKind, sharedLimits, replicastest.Replica(t, engine).Space("originals"))
		b := replica(t, engine, sharedLimits)
		engine.Down.Store(true)
		a.Put("alice", handleA, []byte("original"))
		synctest.Wait()
		a.Close()
		engine.Down.Store(false)
		time.Sleep(time.Second)
		if got := fetched(t, b, "alice", handleA); got != "original" {
			t.Errorf("found %q", got)
		}
	})
}

// A fetch ends with its request.
func TestFetchEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := replica(t, replicastest.New(), sharedLimits)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		if _, err := b.Fetch(ctx, handleA, "alice"); !errors.Is(err, context.Canceled) ||
			time.Since(began) != time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
