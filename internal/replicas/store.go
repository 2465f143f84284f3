// Package replicas has the state that replicas of a gateway share.
//
// A [Store] makes an [Engine] fit for that: values are encrypted and keys are hashed, so that the
// engine knows nothing of clients; every operation has a time limit; and after one that has failed, the
// others fail at once until the engine can be used again. A [Space] is the part of a Store that has one
// purpose.
package replicas

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

// Config is how a [Store] works. All of it has to be set.
type Config struct {
	Key        []byte        // of all replicas
	Prefix     string        // of the engine's keys
	Timeout    time.Duration // of an operation
	Retry      time.Duration // how often an engine that has failed is tried
	OwnerBytes int64         // that are kept for an owner in a Space
	QueueBytes int64         // that wait to be written

	Logger   *zap.Logger
	Observer Observer
}

// An Observer is told what a [Store] does.
type Observer interface {
	// Done is called after each operation: get, set, swap, delete, keep, spend, publish or subscribe.
	Done(operation string, outcome Outcome, took time.Duration)
	// Up is called when the engine can be used, and when it cannot be used any longer.
	Up(up bool)
}

// An Outcome is how an operation has ended.
type Outcome string

const (
	OK          Outcome = "ok"
	Full        Outcome = "full"
	Unavailable Outcome = "unavailable"
	Refused     Outcome = "refused" // at once, because the engine is known to be unavailable
	Canceled    Outcome = "canceled"
)

// A Store is what replicas share. It is safe for concurrent use.
type Store struct {
	// Replica tells this process from the others.
	Replica string

	engine Engine
	config Config
	hashes []byte // the key by which keys are hashed
	sealer seal.Sealer

	down      atomic.Bool // the engine has failed, and is being tried
	outages   atomic.Uint64
	full      atomic.Bool // the engine had no room, and is being tried
	probing   sync.Mutex  // held to begin with either, and to close
	cause     error       // for which it was down the last time; guarded by probing
	recovered time.Time   // when that was over; guarded by probing
	closed    chan struct{}
	running   sync.WaitGroup
	behind    *behind
	reading   chan struct{} // has room for as many large values as are read at once
}

// Open returns a Store that uses an engine. It has to be closed.
func Open(engine Engine, config Config) *Store {
	s := &Store{
		Replica: rand.Text(),
		engine:  engine,
		config:  config,
		sealer:  seal.New("mcp store", config.Key),
		closed:  make(chan struct{}),
		reading: make(chan struct{}, maxReading),
	}
	s.hashes = s.Key("keys")
	s.behind = newBehind(s)
	config.Observer.Up(true)
	return s
}

// Close writes what waits to be written, as far as that does not take long, and closes the engine.
func (s *Store) Close() {
	s.behind.close()
	s.probing.Lock()
	close(s.closed)
	s.probing.Unlock()
	s.running.Wait()
	s.engine.Close()
}

// Key returns a key that all replicas have, for a purpose.
func (s *Store) Key(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, s.config.Key, nil, "mcp store "+purpose, sha256.Size)
	if err != nil {
		panic(err) // the length is right
	}
	return key
}

// Up reports whether the engine can be used, as far as that is known.
func (s *Store) Up() bool { return !s.down.Load() }

// Full reports whether the engine has no room, as far as that is known.
func (s *Store) Full() bool { return s.full.Load() }

// Cause returns why the engine cannot be used, as far as that is known, nil if it can.
func (s *Store) Cause() error {
	if s.Up() {
		return nil
	}
	return s.LastCause()
}

// LastCause returns why the engine could not be used the last time, nil if it always could.
func (s *Store) LastCause() error {
	s.probing.Lock()
	defer s.probing.Unlock()
	return s.cause
}

// Waiting returns how many writes have not been carried out yet.
func (s *Store) Waiting() int { return s.behind.waiting() }

// Outages returns how often the engine has become unavailable. What was told meanwhile is lost.
func (s *Store) Outages() uint64 { return s.outages.Load() }

// Timeout returns how long an operation may take.
func (s *Store) Timeout() time.Duration { return s.config.Timeout }

// do carries out an operation of the engine.
func (s *Store) do(ctx context.Context, operation string, f func(context.Context) error) error {
	if s.down.Load() {
		s.config.Observer.Done(operation, Refused, 0)
		return ErrUnavailable
	}
	limited, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	began := time.Now()
	err := f(limited)
	outcome := OK
	switch {
	case err == nil:
	case errors.Is(err, ErrFull):
		outcome = Full
		s.filled()
	case ctx.Err() != nil:
		outcome = Canceled
	default:
		outcome = Unavailable
		s.failed(err)
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s.config.Observer.Done(operation, outcome, time.Since(began))
	return err
}

// failed notes that the engine cannot be used, and tries it until it can.
func (s *Store) failed(err error) {
	s.probing.Lock()
	defer s.probing.Unlock()
	if s.isClosed() || s.down.Swap(true) {
		return
	}
	s.cause = err
	s.outages.Add(1)
	s.config.Observer.Up(false)
	s.config.Logger.Error("shared store is unavailable", zap.Error(err))
	// One that has just recovered only seems to be usable, and is left alone for a while.
	atOnce := time.Since(s.recovered) > s.config.Retry
	s.running.Go(func() { s.probe(atOnce) })
}

func (s *Store) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// probe tries the engine until it can be used. Other replicas may notice that later, and hear what they are
// told only then: so an engine that was gone has to answer twice.
func (s *Store) probe(atOnce bool) {
	began := time.Now()
	answers := func() bool { return usable(s.Ping(context.Background())) }
	if !atOnce || !answers() {
		for times := 0; times < 2; {
			select {
			case <-s.closed:
				return
			case <-time.After(s.config.Retry):
			}
			if times++; !answers() {
				times = 0
			}
		}
	}
	s.probing.Lock()
	defer s.probing.Unlock()
	s.recovered = time.Now()
	s.config.Observer.Up(true)
	s.config.Logger.Info("shared store is available again", zap.Duration("after", time.Since(began)))
	s.down.Store(false)
}

// roomPause is how often an engine that has no room is tried. One that has some now and then is full.
const roomPause = 10 * time.Second

// filled notes that the engine has no room, and tries it until it has.
func (s *Store) filled() {
	s.probing.Lock()
	defer s.probing.Unlock()
	if s.isClosed() || s.full.Swap(true) {
		return
	}
	s.config.Logger.Warn("shared store is full")
	s.running.Go(s.awaitRoom)
}

// awaitRoom tries the engine until it has room.
func (s *Store) awaitRoom() {
	for began := time.Now(); ; {
		select {
		case <-s.closed:
			return
		case <-time.After(roomPause):
		}
		if s.Ping(context.Background()) == nil {
			s.full.Store(false)
			s.config.Logger.Info("shared store has room again", zap.Duration("after", time.Since(began)))
			return
		}
	}
}

// Ping asks the engine whether it can be used, also if it is known that it could not. The error of one
// that can be used, but has no room, is [ErrFull].
func (s *Store) Ping(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	err := s.try(limited)
	if errors.Is(err, ErrFull) {
		s.filled()
	}
	if usable(err) || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", s.config.Timeout)
	}
	s.failed(err)
	return err
}

// try has the engine do what a user of it may lack the right to, and keep what it may have no room for.
func (s *Store) try(ctx context.Context) error {
	name := s.config.Prefix + "{ping}"
	if _, err := s.engine.Publish(ctx, name, nil); err != nil {
		return err
	}
	return s.engine.Keep(ctx, Entry{Owner: name, Key: name, TTL: time.Second, OwnerBytes: 1 << 10})
}

// usable reports whether what came of [Store.Ping] is that of an engine that can be used.
func usable(err error) bool { return err == nil || errors.Is(err, ErrFull) }

// A Space is a part of a [Store] that has a purpose of its own.
type Space struct {
	*Store
	name string
}

// Space returns the part of the store that has this name.
func (s *Store) Space(name string) *Space { return &Space{s, name} }

// Space returns the part of the space that has this name, nil for that of none.
func (s *Space) Space(name string) *Space {
	if s == nil {
		return nil
	}
	return s.Store.Space(s.name + "\x00" + name)
}

// hash returns a text that stands for others, and that tells nothing about them.
func (s *Space) hash(parts ...string) string {
	mac := hmac.New(sha256.New, s.hashes)
	for _, part := range append([]string{s.name}, parts...) {
		fmt.Fprintf(mac, "%d %s", len(part), part)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// key returns the engine's key of a value of an owner.
func (s *Space) key(owner, name string) string {
	return s.config.Prefix + "{" + s.hash("owner", owner) + "}" + s.hash("name", name)
}

// A Version is a value of a key at some time.
type Version struct{ sealed []byte }

// Get returns a value of an owner, nil if there is none.
func (s *Space) Get(ctx context.Context, owner, name string) (value []byte, v Version, err error) {
	key := s.key(owner, name)
	err = s.do(ctx, "get", func(ctx context.Context) error {
		values, err := s.engine.Get(ctx, key)
		if err == nil {
			v.sealed = values[0]
		}
		return err
	})
	if err != nil || v.sealed == nil {
		return nil, v, err
	}
	value, ok := s.sealer.OpenBytes(key, v.sealed)
	if !ok {
		// Another key, or damaged: for this replica it is not there, and another value can take its place.
		return nil, v, nil
	}
	return value, v, nil
}

// Set keeps a value for an owner.
func (s *Space) Set(ctx context.Context, owner, name string, value []byte, ttl time.Duration) error {
	key := s.key(owner, name)
	return s.do(ctx, "set", func(ctx context.Context) error {
		return s.engine.Set(ctx, key, s.sealer.SealBytes(key, value), ttl)
	})
}

// Swap keeps a value for an owner in place of the version that Get has returned, if that is still there.
// The zero Version is that of no value. A value of nil is removed, a ttl of 0 is forever.
func (s *Space) Swap(
	ctx context.Context, owner, name string, old Version, value []byte, ttl time.Duration,
) (swapped bool, err error) {
	key := s.key(owner, name)
	var sealed []byte
	if value != nil {
		sealed = s.sealer.SealBytes(key, value)
	}
	err = s.do(ctx, "swap", func(ctx context.Context) error {
		swapped, err = s.engine.Swap(ctx, key, old.sealed, sealed, ttl)
		return err
	})
	return swapped, err
}

// Delete removes a value, and reports whether there was one. Of several callers, one gets true.
func (s *Space) Delete(ctx context.Context, owner, name string) (deleted bool, err error) {
	key := s.key(owner, name)
	err = s.do(ctx, "delete", func(ctx context.Context) error {
		deleted, err = s.engine.Delete(ctx, key)
		return err
	})
	return deleted, err
}

// Spend takes tokens from buckets of an owner, see [Engine.Spend]. The keys of the buckets are names.
func (s *Space) Spend(
	ctx context.Context, owner string, buckets []Bucket,
) (taken []float64, wait time.Duration, err error) {
	hashed := make([]Bucket, len(buckets))
	for i, b := range buckets {
		hashed[i] = b
		hashed[i].Key = s.key(owner, b.Key)
	}
	err = s.do(ctx, "spend", func(ctx context.Context) error {
		taken, wait, err = s.engine.Spend(ctx, hashed)
		return err
	})
	return taken, wait, err
}

func (s *Space) topic(name string) string { return s.config.Prefix + "{" + s.hash("topic", name) + "}" }

// Publish sends a message to all replicas that have subscribed to a topic, and reports whether any has.
func (s *Space) Publish(ctx context.Context, topic string, message []byte) (heard bool, err error) {
	topic = s.topic(topic)
	err = s.do(ctx, "publish", func(ctx context.Context) error {
		heard, err = s.engine.Publish(ctx, topic, s.sealer.SealBytes(topic, message))
		return err
	})
	return heard, err
}

// Subscribe calls f with each message to a topic, and with nil when some may be lost, see [Engine.Subscribe].
func (s *Space) Subscribe(ctx context.Context, topic string, f func(message []byte)) (stop func(), err error) {
	topic = s.topic(topic)
	err = s.do(ctx, "subscribe", func(ctx context.Context) error {
		stop, err = s.engine.Subscribe(ctx, topic, func(sealed []byte) {
			if sealed == nil {
				f(nil)
			} else if message, ok := s.sealer.OpenBytes(topic, sealed); ok {
				f(message)
			}
		})
		return err
	})
	return stop, err
}

// Listen is Subscribe, as soon as the engine can be used, until stop is called. It must be called before
// the store is closed.
func (s *Space) Listen(topic string, f func(message []byte)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	unsubscribe, err := s.Subscribe(ctx, topic, f)
	var trying sync.WaitGroup
	if err != nil {
		trying.Go(func() {
			for err != nil {
				select {
				case <-ctx.Done():
					return
				case <-time.After(s.config.Retry):
					unsubscribe, err = s.Subscribe(ctx, topic, f)
				}
			}
		})
	}
	return func() {
		cancel()
		trying.Wait()
		if err == nil {
			unsubscribe()
		}
	}
}
