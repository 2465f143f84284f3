package replicas_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// Concurrent changes of two replicas are not lost.
func TestChangesAreNotLost(t *testing.T) {
	engine := replicastest.New()
	var changing sync.WaitGroup
	const each = 50
	for range 3 {
		space := replicastest.Replica(t, engine).Space("test")
		changing.Go(func() {
			for range each {
				if changed, err := space.Change(t.Context(), "", "count", func(value []byte) ([]byte, error) {
					n, _ := strconv.Atoi(string(value))
					return strconv.AppendInt(nil, int64(n+1), 10), nil
				}); !changed || err != nil {
					t.Errorf("changed %t, %v", changed, err)
				}
			}
		})
	}
	changing.Wait()
	space := replicastest.Replica(t, engine).Space("test")
	if value, _, err := space.Get(t.Context(), "", "count"); string(value) != strconv.Itoa(3*each) || err != nil {
		t.Errorf("%s, %v", value, err)
	}
	before := engine.Operations.Load()
	if changed, err := space.Change(t.Context(), "", "count", func(value []byte) ([]byte, error) {
		return value, nil
	}); changed ||
		err != nil {
		t.Errorf("changed %t, %v", changed, err)
	}
	if n := engine.Operations.Load() - before; n != 1 {
		t.Errorf("%d operations without a change", n)
	}
	failure := errors.New("no")
	if _, err := space.Change(t.Context(), "", "count", func([]byte) ([]byte, error) {
		return nil, failure
	}); err != failure {
		t.Errorf("got %v", err)
	}
}

// A recordingFollower records messages. Its calls can fail.
type recordingFollower struct {
	mu    sync.Mutex
	all   []string
	fails atomic.Bool
}

func (f *recordingFollower) take(_ context.Context, message string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, message)
	if f.fails.Load() {
		return errors.New("no")
	}
	return nil
}

func (f *recordingFollower) has(messages ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Equal(f.all, messages)
}

func (f *recordingFollower) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

func TestFollow(t *testing.T) {
	engine := replicastest.New()
	a, b := replicastest.Replica(t, engine).Space("test"), replicastest.Replica(t, engine).Space("test")
	atA, atB := new(recordingFollower), new(recordingFollower)
	defer a.Follow("topic", atA.take)()
	stop := b.Follow("topic", atB.take)
	if !atA.has("") || !atB.has("") {
		t.Fatalf("before any message: %q, %q", atA.all, atB.all)
	}
	for _, message := range []string{"1", "2 3"} {
		if err := a.Announce(t.Context(), "topic", message); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, "the messages", func() bool { return atB.has("", "1", "2 3") })
	stop()
	if err := a.Announce(t.Context(), "topic", "4"); err != nil {
		t.Fatal(err)
	}
	if !atA.has("") || !atB.has("", "1", "2 3") {
		t.Errorf("after the last message: %q, %q", atA.all, atB.all)
	}
}

// A follower whose start or call failed is called again.
func TestFollowAfterAnOutage(t *testing.T) {
	engine := replicastest.New()
	a, b := replicastest.Replica(t, engine).Space("test"), replicastest.Replica(t, engine).Space("test")
	engine.Down.Store(true)
	atB := new(recordingFollower)
	atB.fails.Store(true)
	defer b.Follow("topic", atB.take)()
	await.Until(t, "more calls", func() bool { return atB.count() > 3 })
	engine.Down.Store(false)
	atB.fails.Store(false)
	await.Until(t, "a message", func() bool {
		_ = a.Announce(t.Context(), "topic", "1")
		atB.mu.Lock()
		defer atB.mu.Unlock()
		return slices.Contains(atB.all, "1")
	})
}

// Only one holder at a time has a lock, of all replicas.
func TestLock(t *testing.T) {
	engine := replicastest.New()
	var holders, most atomic.Int32
	var all sync.WaitGroup
	for range 3 {
		space := replicastest.Replica(t, engine).Space("test")
		for range 5 {
			all.Go(func() {
				unlock, err := space.Lock(t.Context(), "lock")
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n > 1 {
					most.Store(n)
				}
				holders.Add(-1)
				unlock()
			})
		}
	}
	all.Wait()
	if n := most.Load(); n > 0 {
		t.Errorf("%d holders at once", n)
	}
	if left := engine.Values(); len(left) != 0 {
		t.Errorf("%d values remain", len(left))
	}
}

// A lock is held as long as its holder runs, and not much longer.
func TestLockIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a, b := replicastest.Replica(t, engine).Space("test"), replicastest.Replica(t, engine).Space("test")
		unlock, err := a.Lock(t.Context(), "lock")
		if err != nil {
			t.Fatal(err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := b.Lock(impatient, "lock"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after an hour: %v", err)
		}
		unlock()
		if _, err := b.Swap(t.Context(), "lock", "lock", replicas.Version{}, []byte("of one that has died"),
			30*time.Second); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if unlock, err = b.Lock(t.Context(), "lock"); err != nil || time.Since(began) > time.Minute {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
		unlock()
	})
}

func TestLockThatIsTaken(t *testing.T) {
	engine := replicastest.New()
	a, b := replicastest.Replica(t, engine).Space("test"), replicastest.Replica(t, engine).Space("test")
	unlock, err := a.Lock(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Lock(ctx, "lock")
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	engine.Clear() // the lease expires, and another replica takes it
	unlockB, err := b.Lock(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if left := engine.Values(); len(left) != 1 {
		t.Error("one replica unlocked the lock of another")
	}
	unlockB()
	engine.Down.Store(true)
	if _, err := a.Lock(t.Context(), "lock"); !errors.Is(err, replicas.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
