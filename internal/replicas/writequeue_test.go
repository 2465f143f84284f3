package replicas_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// settings returns the configuration of a store in a test.
func settings(t *testing.T) replicas.Config {
	return replicas.Config{
		Key: []byte("0123456789abcdef0123456789abcdef"), Prefix: "test:",
		Timeout: 250 * time.Millisecond, Retry: time.Second, OwnerBytes: 1 << 20, QueueBytes: 1000,
		Logger: zaptest.NewLogger(t), Observer: silent{},
	}
}

type silent struct{}

func (silent) Done(string, replicas.Outcome, time.Duration) {}
func (silent) Up(bool)                                      {}

// found reports whether a value is stored. The engine must be available.
func found(t *testing.T, s *replicas.Space, owner, name string) bool {
	t.Helper()
	value, err := s.Find(t.Context(), owner, name)
	if err != nil {
		t.Fatal(err)
	}
	return value != nil
}

// Writes during an outage of the engine are done after it.
func TestWriteQueueWaitsForTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		store := replicas.Open(engine, settings(t))
		defer store.Close()
		space := store.Space("s")
		engine.Stalled.Store(true)
		for i := range 10 {
			space.KeepLater("owner", fmt.Sprint(i), []byte("value"), time.Hour)
		}
		time.Sleep(time.Minute)
		// A write of each goroutine has failed. After that, the engine was tried once in 1.25 seconds.
		if n := engine.Operations.Load(); n > 60 {
			t.Errorf("%d operations in a minute", n)
		}
		if n := store.Waiting(); n != 10 {
			t.Errorf("%d writes wait", n)
		}
		engine.Stalled.Store(false)
		time.Sleep(4 * time.Second)
		for i := range 10 {
			if !found(t, space, "owner", fmt.Sprint(i)) {
				t.Errorf("entry %d was not written", i)
			}
		}
		if n := store.Waiting(); n != 0 {
			t.Errorf("%d writes wait after the outage", n)
		}
	})
}

// When the queue is full, the owner with the most bytes in it loses its oldest write, and lost is
// called for it.
func TestBehindIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		store := replicas.Open(engine, settings(t))
		defer store.Close()
		space := store.Space("s")
		engine.Down.Store(true)
		_, _ = space.Find(t.Context(), "", "") // the store notices that it is down
		var mu sync.Mutex
		lost := ""
		add := func(owner string, name, size int) {
			write := func(ctx context.Context) error {
				return space.Keep(ctx, owner, fmt.Sprint(name), make([]byte, size), time.Hour)
			}
			space.WriteLater(owner, fmt.Sprint(name), size, write, func() {
				mu.Lock()
				defer mu.Unlock()
				lost += fmt.Sprint(owner, name, " ")
			})
		}
		for i := range 4 {
			add("first", i, 10) // one for each goroutine
		}
		synctest.Wait()
		add("bob", 0, 300)
		for i := range 4 {
			add("alice", i, 300)
		}
		add("carol", 0, 1001)
		mu.Lock()
		if lost != "alice0 alice1 carol0 " {
			t.Errorf("lost %s", lost)
		}
		mu.Unlock()
		engine.Down.Store(false)
		time.Sleep(4 * time.Second)
		for key, there := range map[string]bool{"bob 0": true, "alice 1": false, "alice 2": true, "alice 3": true,
			"carol 0": false} {
			var owner, name string
			_, _ = fmt.Sscan(key, &owner, &name)
			if found(t, space, owner, name) != there {
				t.Errorf("%s was written: %t", key, !there)
			}
		}
	})
}

// Failing writes do not delay others.
func TestWriteQueueSkipsFailingWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		store := replicas.Open(engine, settings(t))
		defer store.Close()
		space := store.Space("s")
		lost := make(chan string, 10)
		for i := range 8 {
			write := func(context.Context) error { return replicas.ErrUnavailable }
			space.WriteLater("owner", fmt.Sprint(i), 1, write, func() { lost <- "failed" })
		}
		engine.Full.Store(true)
		space.WriteLater("owner", "full", 1, func(ctx context.Context) error {
			return space.Keep(ctx, "owner", "full", nil, time.Hour)
		}, func() { lost <- "full" })
		synctest.Wait()
		if len(lost) != 9 {
			t.Errorf("%d writes have failed", len(lost))
		}
		engine.Full.Store(false)
		space.KeepLater("owner", "good", nil, time.Hour)
		synctest.Wait()
		if !found(t, space, "owner", "good") {
			t.Error("the value was not written")
		}
	})
}

// When the store is closed during an outage, the engine is tried once more, for at most the timeout
// of an operation. Lost writes are logged.
func TestWriteQueueClosesDuringAnOutage(t *testing.T) {
	for name, test := range map[string]struct {
		at   func(*replicastest.Engine)
		want int
		took time.Duration // at most
	}{
		"back":    {func(e *replicastest.Engine) { e.Down.Store(false) }, 20, closeTimeout},
		"down":    {func(*replicastest.Engine) {}, 0, 0},
		"stalled": {func(e *replicastest.Engine) { e.Stalled.Store(true); e.Down.Store(false) }, 0, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				core, logs := zapobserver.New(zap.WarnLevel)
				config := settings(t)
				config.Logger = zap.New(core)
				store := replicas.Open(engine, config)
				engine.Down.Store(true)
				_, _ = store.Space("s").Find(t.Context(), "", "")
				for i := range 20 {
					store.Space("s").KeepLater("owner", fmt.Sprint(i), nil, time.Hour)
				}
				synctest.Wait()
				test.at(engine)
				began := time.Now()
				store.Close()
				if took := time.Since(began); took > test.took {
					t.Errorf("Close took %s", took)
				}
				engine.Stalled.Store(false)
				if n := len(engine.Values()); n != test.want {
					t.Errorf("%d of 20 were written", n)
				}
				said := logs.FilterMessage("some values were not written to the shared store before shutdown").All()
				switch {
				case test.want == 20 && len(said) == 0:
				case test.want == 0 && len(said) == 1 && said[0].ContextMap()["values"] == int64(20):
				default:
					t.Errorf("logged %v", said)
				}
			})
		})
	}
}

// closeTimeout is how long a closed store continues to write.
const closeTimeout = 5 * time.Second

// Waiting writes are done when the store is closed, unless the engine is unavailable.
func TestWriteQueueCloses(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			engine := replicastest.New()
			store := replicas.Open(engine, settings(t))
			for i := range 100 {
				if i == 50 && down {
					engine.Down.Store(true)
					_, _ = store.Space("s").Find(t.Context(), "", "")
				}
				store.Space("s").KeepLater("owner", fmt.Sprint(i), nil, time.Hour)
			}
			began := time.Now()
			store.Close()
			if took := time.Since(began); took > 0 {
				t.Errorf("Close took %s", took)
			}
			if n := len(engine.Values()); (n == 100) == down {
				t.Errorf("%d of 100 were written", n)
			}
			store.Space("s").KeepLater("owner", "late", nil, time.Hour)
		})
	}
}
