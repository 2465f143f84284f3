// Package replicastest has an engine for tests: several stores that use one are replicas in one process.
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
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// An Engine keeps everything in memory.
type Engine struct {
	// Down has all operations fail, Stalled has them wait until their contexts end.
	Down, Stalled atomic.Bool
	// Full has everything fail that needs room.
	Full atomic.Bool
	// Deaf has subscribers hear nothing, until Reconnect is called.
	Deaf atomic.Bool
	// Operations counts them all.
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

// Clear forgets all values, as a server does that is started again.
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

// begin waits for the engine. If it does not fail, the caller has to unlock it.
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
	switch is := e.get(key); {
	case (is == nil) != (before == nil) || !bytes.Equal(is, before):
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
	there := e.get(key) != nil
	delete(e.values, key)
	return there, nil
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
		is, ok := e.buckets[b.Key]
		if !ok {
			is = bucket{b.Burst, now}
		}
		tokens := min(b.Burst, is.tokens+now.Sub(is.at).Seconds()*b.Rate)
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

// untilOne returns how long it takes until a bucket has a token. Less than a nanosecond is nothing.
func untilOne(tokens, rate float64) time.Duration {
	switch short := (1 - tokens) / rate * float64(time.Second); {
	case short < 1:
		return 0
	case short >= math.MaxInt64:
		return math.MaxInt64
	default:
		return time.Duration(math.Round(short))
	}
}

// Publish implements replicas.Engine.
func (e *Engine) Publish(ctx context.Context, topic string, message []byte) (heard bool, err error) {
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

// Reconnect has subscribers hear again, and know that they may have missed something.
func (e *Engine) Reconnect() {
	e.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(e.topics))...)
	e.mu.Unlock()
	e.Deaf.Store(false)
	for _, s := range all {
		s.f(nil)
	}
}

// Close implements replicas.Engine. The engine stays as it is: other stores use it, too.
func (*Engine) Close() {}

// Interface guard
var _ replicas.Engine = (*Engine)(nil)
