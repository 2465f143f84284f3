package replicas_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// An observer records outcomes and changes of availability.
type observer struct {
	mu       sync.Mutex
	outcomes []replicas.Outcome
	ups      []bool
}

func (o *observer) Done(_ string, outcome replicas.Outcome, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes = append(o.outcomes, outcome)
}

func (o *observer) Up(up bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ups = append(o.ups, up)
}

// recorded returns the outcomes and the changes of availability.
func (o *observer) recorded() ([]replicas.Outcome, []bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.outcomes), slices.Clone(o.ups)
}

// A broken is a space of a store whose engine fails.
type broken struct {
	*replicas.Space
	observer observer
	engine   *replicastest.Engine
}

func newBroken(t *testing.T, timeout, retry time.Duration) *broken {
	b := &broken{engine: replicastest.New()}
	b.open(t, b.engine, timeout, retry)
	t.Cleanup(b.Close)
	return b
}

func (b *broken) open(t *testing.T, engine replicas.Engine, timeout, retry time.Duration) {
	b.Space = replicas.Open(engine, replicas.Config{
		Key: make([]byte, 32), Prefix: "test:", Timeout: timeout, Retry: retry, OwnerBytes: 1 << 20, QueueBytes: 1 << 20,
		Logger: zaptest.NewLogger(t), Observer: &b.observer,
	}).Space("test")
}

func (b *broken) set(ctx context.Context) error {
	return b.Set(ctx, "owner", "name", []byte("1"), time.Hour)
}

func TestOperationsFailAtOnceWhileDown(t *testing.T) {
	b := newBroken(t, time.Hour, time.Hour)
	b.engine.Down.Store(true)
	if err := b.set(t.Context()); !errors.Is(err, replicas.ErrUnavailable) {
		t.Fatal(err)
	}
	if b.Up() {
		t.Error("the store is up")
	}
	await.Until(t, "the engine is tried", func() bool { return b.engine.Operations.Load() == 2 })
	// If operations reached the stalled engine, they would last until their timeout.
	b.engine.Stalled.Store(true)
	for range 100 {
		if err := b.set(t.Context()); !errors.Is(err, replicas.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if n := b.engine.Operations.Load(); n != 2 {
		t.Errorf("the engine got %d operations", n)
	}
	outcomes, ups := b.observer.recorded()
	if len(outcomes) != 101 || outcomes[0] != replicas.Unavailable || outcomes[100] != replicas.Refused {
		t.Errorf("outcomes: %v", outcomes)
	}
	if !slices.Equal(ups, []bool{true, false}) {
		t.Errorf("up: %v", ups)
	}
}

func TestStalledEngineFailsInTime(t *testing.T) {
	b := newBroken(t, 10*time.Millisecond, 10*time.Millisecond)
	b.engine.Stalled.Store(true)
	if err := b.set(t.Context()); !errors.Is(err, replicas.ErrUnavailable) {
		t.Fatal(err)
	}
	b.engine.Stalled.Store(false)
	await.Until(t, "the store is up", b.Up)
	if err := b.set(t.Context()); err != nil {
		t.Error(err)
	}
	if _, ups := b.observer.recorded(); !slices.Equal(ups, []bool{true, false, true}) {
		t.Errorf("up: %v", ups)
	}
}

func TestConcurrentFailuresAreReportedOnce(t *testing.T) {
	b := newBroken(t, time.Hour, time.Hour)
	b.engine.Down.Store(true)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { _ = b.set(t.Context()) })
	}
	all.Wait()
	if _, ups := b.observer.recorded(); !slices.Equal(ups, []bool{true, false}) {
		t.Errorf("up: %v", ups)
	}
}

func TestEndedCallersDoNotOpenTheBreaker(t *testing.T) {
	b := newBroken(t, time.Hour, time.Hour)
	b.engine.Stalled.Store(true)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.set(canceled); !errors.Is(err, context.Canceled) || errors.Is(err, replicas.ErrUnavailable) {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := b.set(short); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, replicas.ErrUnavailable) {
		t.Error(err)
	}
	if !b.Up() {
		t.Error("the store is down")
	}
	if outcomes, _ := b.observer.recorded(); !slices.Equal(
		outcomes,
		[]replicas.Outcome{replicas.Canceled,
			replicas.Canceled},
	) {
		t.Errorf("outcomes: %v", outcomes)
	}
}

func TestFullDoesNotOpenTheBreaker(t *testing.T) {
	b := newBroken(t, time.Hour, time.Hour)
	b.engine.Full.Store(true)
	if err := b.set(t.Context()); !errors.Is(err, replicas.ErrFull) {
		t.Error(err)
	}
	if !b.Up() {
		t.Error("the store is down")
	}
}

// A full engine is logged once, and once more when it has room again.
func TestFullIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := zapobserver.New(zap.InfoLevel)
		config, engine := settings(t), replicastest.New()
		config.Logger = zap.New(core)
		store := replicas.Open(engine, config)
		defer store.Close()
		for range 2 {
			engine.Full.Store(true)
			for range 10 {
				if err := store.Space("s").Keep(t.Context(), "owner", "name", nil, time.Hour); !errors.Is(err, replicas.ErrFull) {
					t.Error(err)
				}
			}
			time.Sleep(time.Minute)
			if err := store.Ping(t.Context()); !errors.Is(err, replicas.ErrFull) || !store.Full() || !store.Up() {
				t.Errorf("%v; full: %t, up: %t", err, store.Full(), store.Up())
			}
			engine.Full.Store(false)
			time.Sleep(time.Minute)
			if store.Full() {
				t.Error("the store is full")
			}
		}
		var got []string
		for _, line := range logs.All() {
			got = append(got, line.Message)
		}
		want := slices.Repeat([]string{"shared store is full", "shared store has room again"}, 2)
		if !slices.Equal(got, want) {
			t.Errorf("logged %q", got)
		}
	})
}

func TestEngineThatOnlySeemsUsable(t *testing.T) {
	b := &broken{engine: replicastest.New()}
	b.open(t, setFails{b.engine}, time.Hour, time.Hour)
	t.Cleanup(b.Close)
	// After the first failure, the engine is tried at once and seems usable.
	_ = b.set(t.Context())
	await.Until(t, "the store is up", b.Up)
	before := b.engine.Operations.Load()
	for range 10 {
		_ = b.set(t.Context())
	}
	if b.Up() || b.engine.Operations.Load() != before {
		t.Error("the engine is tried without a pause")
	}
}

// setFails is an engine whose Set fails.
type setFails struct{ *replicastest.Engine }

func (setFails) Set(context.Context, string, []byte, time.Duration) error {
	return errors.New("refused")
}

func TestCloseWhileDown(t *testing.T) {
	for range 50 {
		b := &broken{engine: replicastest.New()}
		b.open(t, b.engine, time.Hour, time.Hour)
		b.engine.Down.Store(true)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { _ = b.set(t.Context()) })
		}
		b.Close()
		all.Wait()
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
