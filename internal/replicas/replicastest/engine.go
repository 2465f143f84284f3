// Package replicastest has an engine for tests. Stores that share one are replicas within one
// process.
package replicastest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// An Engine keeps everything in memory.
type Engine struct {
	// Down makes all operations fail. Stalled makes them block until their context is done.
	Down, Stalled atomic.Bool
	// Full makes operations fail that need space.
	Full atomic.Bool
	// Deaf drops all messages until Reconnect is called.
	Deaf atomic.Bool
	// Operations is the number of operations so far.
	Operations atomic.Int64

	mu      sync.Mutex
	values  map[string]value
	owned   map[string][]string // keys, the oldest first
	buckets map[string]bucket
	topics  map[string][]*subscriber
}

type value struct {
	bytes   []byte
	expires time.Time // zero for never
}

type bucket struct {
	tokens float64
	at     time.Time
}

type subscriber struct{ f func([]byte) }

// New returns an empty Engine.
func New() *Engine {
	return &Engine{
		values: map[string]value{}, owned: map[string][]string{},
		buckets: map[string]bucket{}, topics: map[string][]*subscriber{},
	}
}

// Clear removes all values, like a restart of the server.
func (e *Engine) Clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.values)
	clear(e.owned)
	clear(e.buckets)
}

// Values returns all values by their keys.
func (e *Engine) Values() map[string][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string][]byte{}
	for key := range e.values {
		if v := e.get(key); v != nil {
			all[key] = v
		}
	}
	return all
}

var errDown = errors.New("connection refused")

// begin begins an operation. If it does not fail, the caller must unlock the engine.
func (e *Engine) begin(ctx context.Context) error {
	e.Operations.Add(1)
	if e.Stalled.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if e.Down.Load() {
		return errDown
	}
	e.mu.Lock()
	return nil
}

// get returns the value of a key. The caller holds the lock.
func (e *Engine) get(key string) []byte {
	v, ok := e.values[key]
	if !ok || !v.expires.IsZero() && time.Now().After(v.expires) {
		return nil
	}
	return v.bytes
}

func (e *Engine) put(key string, b []byte, ttl time.Duration) {
	v := value{bytes: bytes.Clone(b)}
	if ttl > 0 {
		v.expires = time.Now().Add(ttl)
	}
	e.values[key] = v
}

// Get implements replicas.Engine.
func (e *Engine) Get(ctx context.Context, keys ...string) (values [][]byte, err error) {
	if err := e.begin(ctx); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	for _, key := range keys {
		values = append(values, bytes.Clone(e.get(key)))
	}
	return values, nil
}

// Set implements replicas.Engine.
func (e *Engine) Set(ctx context.Context, key string, v []byte, ttl time.Duration) error {
	if err := e.begin(ctx); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.Full.Load() {
		return replicas.ErrFull
	}
	e.put(key, v, ttl)
	return nil
}

// Swap implements replicas.Engine.
func (e *Engine) Swap(ctx context.Context, key string, before, after []byte, ttl time.Duration) (bool, error) {
	if err := e.begin(ctx); err != nil {
		return false, err
	}
	defer e.mu.Unlock()
	switch current := e.get(key); {
	case (current == nil) != (before == nil) || !bytes.Equal(current, before):
		return false, nil
	case after == nil:
		delete(e.values, key)
	case e.Full.Load():
		return false, replicas.ErrFull
	default:
		e.put(key, after, ttl)
	}
	return true, nil
}

// Delete implements replicas.Engine.
func (e *Engine) Delete(ctx context.Context, key string) (bool, error) {
	if err := e.begin(ctx); err != nil {
		return false, err
	}
	defer e.mu.Unlock()
	existed := e.get(key) != nil
	delete(e.values, key)
	return existed, nil
}

// Keep implements replicas.Engine.
func (e *Engine) Keep(ctx context.Context, entry replicas.Entry) error {
	if err := e.begin(ctx); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.Full.Load() {
		return replicas.ErrFull
	}
	keys := slices.DeleteFunc(e.owned[entry.Owner], func(key string) bool { return key == entry.Key || e.get(key) == nil })
	e.put(entry.Key, entry.Value, entry.TTL)
	keys = append(keys, entry.Key)
	total := 0
	for _, key := range keys {
		total += len(e.get(key))
	}
	for ; int64(total) > entry.OwnerBytes; keys = keys[1:] {
		total -= len(e.get(keys[0]))
		delete(e.values, keys[0])
	}
	e.owned[entry.Owner] = keys
	return nil
}

// Spend implements replicas.Engine.
func (e *Engine) Spend(ctx context.Context, buckets []replicas.Bucket) (taken []float64, wait time.Duration,
	err error) {
	if err := e.begin(ctx); err != nil {
		return nil, 0, err
	}
	defer e.mu.Unlock()
	now := time.Now()
	for _, b := range buckets {
		current, ok := e.buckets[b.Key]
		if !ok {
			current = bucket{b.Burst, now}
		}
		tokens := min(b.Burst, current.tokens+now.Sub(current.at).Seconds()*b.Rate)
		if b.Want >= 0 {
			wait = max(wait, untilOne(tokens, b.Rate))
		}
		take := min(b.Want, max(1, math.Floor(tokens)))
		taken = append(taken, take)
		e.buckets[b.Key] = bucket{tokens, now}
	}
	if wait > 0 {
		return nil, wait, nil
	}
	for i, b := range buckets {
		e.buckets[b.Key] = bucket{min(b.Burst, e.buckets[b.Key].tokens-taken[i]), now}
	}
	return taken, 0, nil
}

// untilOne returns how long it takes until a bucket has a token. Less than a nanosecond counts as
// 0.
func untilOne(tokens, rate float64) time.Duration {
	switch nanoseconds := (1 - tokens) / rate * float64(time.Second); {
	case nanoseconds < 1:
		return 0
	case nanoseconds >= math.MaxInt64:
		return math.MaxInt64
	default:
		return time.Duration(math.Round(nanoseconds))
	}
}

// Publish implements replicas.Engine.
func (e *Engine) Publish(ctx context.Context, topic string, message []byte) (received bool, err error) {
	if err := e.begin(ctx); err != nil {
		return false, err
	}
	all := slices.Clone(e.topics[topic])
	e.mu.Unlock()
	if e.Deaf.Load() {
		return false, nil
	}
	for _, s := range all {
		s.f(message)
	}
	return len(all) > 0, nil
}

// Subscribe implements replicas.Engine.
func (e *Engine) Subscribe(ctx context.Context, topic string, f func([]byte)) (stop func(), err error) {
	if err := e.begin(ctx); err != nil {
		return nil, err
	}
	defer e.mu.Unlock()
	s := &subscriber{f}
	e.topics[topic] = append(e.topics[topic], s)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.topics[topic] = slices.DeleteFunc(e.topics[topic], func(other *subscriber) bool { return other == s })
	}, nil
}

// Reconnect delivers messages again, and tells subscribers that they may have missed some.
func (e *Engine) Reconnect() {
	e.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(e.topics))...)
	e.mu.Unlock()
	e.Deaf.Store(false)
	for _, s := range all {
		s.f(nil)
	}
}

// Close implements replicas.Engine. It does nothing, because other stores use the engine, too.
func (*Engine) Close() {}

// Replica returns a store that uses an engine, which is closed when the test ends.
func Replica(t testing.TB, engine replicas.Engine) *replicas.Store {
	s := replicas.Open(engine, replicas.Config{
		Key: []byte("0123456789abcdef0123456789abcdef"), Prefix: "test:",
		Timeout: 250 * time.Millisecond, Retry: 10 * time.Millisecond,
		OwnerBytes: 64 << 20, QueueBytes: 64 << 20,
		Logger: zaptest.NewLogger(t), Observer: silent{},
	})
	t.Cleanup(s.Close)
	return s
}

type silent struct{}

func (silent) Done(string, replicas.Outcome, time.Duration) {}
func (silent) Up(bool)                                      {}

// Interface guard
var _ replicas.Engine = (*Engine)(nil)
