// Package replicas holds the state that replicas of a gateway share.
//
// A [Store] makes an [Engine] safe to use. Values are encrypted and keys are hashed, so that the
// engine learns nothing about clients. Every operation has a timeout. After a failure, all
// operations fail at once until the engine is available again. A [Space] is the part of a Store for
// one purpose.
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

// Config configures a [Store]. All fields are required.
type Config struct {
	Key        []byte        // secret, the same for all replicas
	Prefix     string        // prefix of keys in the engine
	Timeout    time.Duration // for an operation
	Retry      time.Duration // interval at which an unavailable engine is tried
	OwnerBytes int64         // limit for an owner in a Space
	QueueBytes int64         // limit of queued writes

	Logger   *zap.Logger
	Observer Observer
}

// An Observer receives events of a [Store], for metrics.
type Observer interface {
	// Done is called after each operation: get, set, swap, delete, keep, spend, publish or
	// subscribe.
	Done(operation string, outcome Outcome, took time.Duration)
	// Up is called when the engine becomes available or unavailable.
	Up(up bool)
}

// An Outcome is the outcome of an operation.
type Outcome string

// Outcomes of operations.
const (
	OK          Outcome = "ok"
	Full        Outcome = "full"
	Unavailable Outcome = "unavailable"
	Refused     Outcome = "refused" // not tried, because the engine is unavailable
	Canceled    Outcome = "canceled"
)

// A Store is the state that replicas share. It is safe for concurrent use.
type Store struct {
	// Replica identifies this process among the replicas.
	Replica string

	engine  Engine
	config  Config
	hashKey []byte // key for the hashes of keys
	sealer  seal.Sealer

	down       atomic.Bool // the engine is unavailable and being probed
	outages    atomic.Uint64
	full       atomic.Bool // the engine is full and being probed
	probeMu    sync.Mutex  // held to begin probing, and to close
	lastCause  error       // cause of the latest outage; guarded by probeMu
	recovered  time.Time   // end of the latest outage; guarded by probeMu
	closed     chan struct{}
	running    sync.WaitGroup
	queue      *writeQueue
	largeReads chan struct{} // limits how many large values are read at once
}

// Open returns a Store that uses an engine. The caller must close it.
func Open(engine Engine, config Config) *Store {
	s := &Store{
		Replica:    rand.Text(),
		engine:     engine,
		config:     config,
		sealer:     seal.New("mcp store", config.Key),
		closed:     make(chan struct{}),
		largeReads: make(chan struct{}, maxReading),
	}
	s.hashKey = s.Key("keys")
	s.queue = newWriteQueue(s)
	config.Observer.Up(true)
	return s
}

// Close waits a few seconds for queued writes, and closes the engine.
func (s *Store) Close() {
	s.queue.close()
	s.probeMu.Lock()
	close(s.closed)
	s.probeMu.Unlock()
	s.running.Wait()
	s.engine.Close()
}

// Key derives a key for a purpose. It is the same for all replicas.
func (s *Store) Key(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, s.config.Key, nil, "mcp store "+purpose, sha256.Size)
	if err != nil {
		panic(err) // only fails for a wrong length
	}
	return key
}

// Up reports whether the engine is available, as far as known.
func (s *Store) Up() bool { return !s.down.Load() }

// Full reports whether the engine is full, as far as known.
func (s *Store) Full() bool { return s.full.Load() }

// Cause returns why the engine is unavailable, or nil if it is available.
func (s *Store) Cause() error {
	if s.Up() {
		return nil
	}
	return s.LastCause()
}

// LastCause returns the cause of the latest outage, or nil if there was none.
func (s *Store) LastCause() error {
	s.probeMu.Lock()
	defer s.probeMu.Unlock()
	return s.lastCause
}

// Waiting returns how many writes are queued or in progress.
func (s *Store) Waiting() int { return s.queue.pending() }

// Outages returns how often the engine has become unavailable. Messages are lost during an outage.
func (s *Store) Outages() uint64 { return s.outages.Load() }

// Timeout returns how long an operation may take.
func (s *Store) Timeout() time.Duration { return s.config.Timeout }

// do runs an operation of the engine.
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
		s.noteFull()
	case ctx.Err() != nil:
		outcome = Canceled
	default:
		outcome = Unavailable
		s.noteFailure(err)
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s.config.Observer.Done(operation, outcome, time.Since(began))
	return err
}

// noteFailure marks the engine as unavailable, and probes it until it is available.
func (s *Store) noteFailure(err error) {
	s.probeMu.Lock()
	defer s.probeMu.Unlock()
	if s.isClosed() || s.down.Swap(true) {
		return
	}
	s.lastCause = err
	s.outages.Add(1)
	s.config.Observer.Up(false)
	s.config.Logger.Error("shared store is unavailable", zap.Error(err))
	// An engine that failed right after it recovered is not probed at once.
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

// probe tries the engine until it is available. Other replicas may notice that later and miss
// messages until then, so an engine that was unavailable must respond twice.
func (s *Store) probe(atOnce bool) {
	began := time.Now()
	responds := func() bool { return usable(s.Ping(context.Background())) }
	if !atOnce || !responds() {
		for times := 0; times < 2; {
			select {
			case <-s.closed:
				return
			case <-time.After(s.config.Retry):
			}
			times++
			if !responds() {
				times = 0
			}
		}
	}
	s.probeMu.Lock()
	defer s.probeMu.Unlock()
	s.recovered = time.Now()
	s.config.Observer.Up(true)
	s.config.Logger.Info("shared store is available again", zap.Duration("after", time.Since(began)))
	s.down.Store(false)
}

// roomPause is the interval at which a full engine is tried. An engine that has space only now and
// then counts as full.
const roomPause = 10 * time.Second

// noteFull marks the engine as full, and tries it until it has space.
func (s *Store) noteFull() {
	s.probeMu.Lock()
	defer s.probeMu.Unlock()
	if s.isClosed() || s.full.Swap(true) {
		return
	}
	s.config.Logger.Warn("shared store is full")
	s.running.Go(s.awaitRoom)
}

// awaitRoom tries the engine until it has space.
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

// Ping checks whether the engine is available, even if it was unavailable before. If it is
// available but full, the error is [ErrFull].
func (s *Store) Ping(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	err := s.tryEngine(limited)
	if errors.Is(err, ErrFull) {
		s.noteFull()
	}
	if usable(err) || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no response within %s", s.config.Timeout)
	}
	s.noteFailure(err)
	return err
}

// tryEngine runs operations that fail without permission or without space.
func (s *Store) tryEngine(ctx context.Context) error {
	name := s.config.Prefix + "{ping}"
	if _, err := s.engine.Publish(ctx, name, nil); err != nil {
		return err
	}
	return s.engine.Keep(ctx, Entry{Owner: name, Key: name, TTL: time.Second, OwnerBytes: 1 << 10})
}

// usable reports whether a result of [Store.Ping] means that the engine is available.
func usable(err error) bool { return err == nil || errors.Is(err, ErrFull) }

// A Space is the part of a [Store] for one purpose.
type Space struct {
	*Store
	name string
}

// Space returns the part of the store with a name.
func (s *Store) Space(name string) *Space { return &Space{s, name} }

// Space returns a part of the space with a name, or nil for a nil space.
func (s *Space) Space(name string) *Space {
	if s == nil {
		return nil
	}
	return s.Store.Space(s.name + "\x00" + name)
}

// hash returns a keyed hash that reveals nothing about the parts.
func (s *Space) hash(parts ...string) string {
	mac := hmac.New(sha256.New, s.hashKey)
	for _, part := range append([]string{s.name}, parts...) {
		fmt.Fprintf(mac, "%d %s", len(part), part)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// key returns the key of a value in the engine.
func (s *Space) key(owner, name string) string {
	return s.config.Prefix + "{" + s.hash("owner", owner) + "}" + s.hash("name", name)
}

// A Version identifies a value of a key at a point in time.
type Version struct{ sealed []byte }

// Get returns a value of an owner, or nil.
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
		// Encrypted with another key, or damaged. It counts as missing and can be replaced.
		return nil, v, nil
	}
	return value, v, nil
}

// Set stores a value of an owner.
func (s *Space) Set(ctx context.Context, owner, name string, value []byte, ttl time.Duration) error {
	key := s.key(owner, name)
	return s.do(ctx, "set", func(ctx context.Context) error {
		return s.engine.Set(ctx, key, s.sealer.SealBytes(key, value), ttl)
	})
}

// Swap replaces the version of a value that Get has returned, if it is still current. The zero
// Version stands for no value. A nil value is deleted, a ttl of 0 is forever.
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

// Delete deletes a value, and reports whether it existed. Only one of several callers gets true.
func (s *Space) Delete(ctx context.Context, owner, name string) (deleted bool, err error) {
	key := s.key(owner, name)
	err = s.do(ctx, "delete", func(ctx context.Context) error {
		deleted, err = s.engine.Delete(ctx, key)
		return err
	})
	return deleted, err
}

// Spend takes tokens from buckets of an owner, see [Engine.Spend]. Bucket keys are names.
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

// Publish sends a message to all replicas that have subscribed to a topic, and reports whether any
// has.
func (s *Space) Publish(ctx context.Context, topic string, message []byte) (received bool, err error) {
	topic = s.topic(topic)
	err = s.do(ctx, "publish", func(ctx context.Context) error {
		received, err = s.engine.Publish(ctx, topic, s.sealer.SealBytes(topic, message))
		return err
	})
	return received, err
}

// Subscribe calls f with each message to a topic, and with nil when messages may have been lost,
// see [Engine.Subscribe].
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

// Listen subscribes as soon as the engine is available, until stop is called. The caller must call
// stop before it closes the store.
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

// An Engine stores values that all replicas see, and sends messages between replicas. It is safe
// for concurrent use.
//
// Keys and topics are short, of letters, digits and -_:{}. Keys that are used together have the
// same text between braces: an Engine that distributes its keys over machines keeps them on the
// same one. Values and messages are any bytes.
//
// An operation that fails for lack of space returns [ErrFull]. Any other error means that the
// Engine is unavailable.
type Engine interface {
	// Get returns the values of keys, nil for a key without one.
	Get(ctx context.Context, keys ...string) (values [][]byte, err error)

	// Set sets the value of a key for a time.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error

	// Swap replaces the value of a key if it has the old one. A nil old value means that the key
	// must not exist, a nil new value deletes it. A ttl of 0 is forever.
	Swap(ctx context.Context, key string, old, new []byte, ttl time.Duration) (swapped bool, err error)

	// Delete deletes a key, and reports whether it existed. Only one of several callers gets true.
	Delete(ctx context.Context, key string) (deleted bool, err error)

	// Keep sets the value of a key as an entry of an owner. If the owner then has more than
	// OwnerBytes, it loses the entries that expire first. An Engine may also count the overhead of
	// an entry.
	Keep(ctx context.Context, e Entry) error

	// Spend takes tokens from all buckets, or from none. It takes as many whole tokens as a bucket
	// has, up to Want. If a bucket has less than one, Spend returns how long to wait until it has
	// one. All buckets have the same owner.
	Spend(ctx context.Context, buckets []Bucket) (taken []float64, wait time.Duration, err error)

	// Publish sends a message to all subscribers of a topic, and reports whether there are any.
	Publish(ctx context.Context, topic string, message []byte) (received bool, err error)

	// Subscribe calls f with each message that is published to a topic after it returns, one after
	// the other, until stop is called. f must not block. After a lost connection it subscribes
	// again and calls f with nil, because messages may have been lost.
	Subscribe(ctx context.Context, topic string, f func(message []byte)) (stop func(), err error)

	// Close releases the resources of the Engine.
	Close()
}

// An Entry is a value of an owner.
type Entry struct {
	Owner      string // key of the owner
	Key        string
	Value      []byte
	TTL        time.Duration
	OwnerBytes int64 // limit for all entries of the owner
}

// A Bucket fills with tokens at a rate, up to its burst.
type Bucket struct {
	Key   string
	Rate  float64 // tokens per second
	Burst float64
	Want  float64 // tokens to take; 0 only checks for a token, a negative number returns tokens
}

var (
	// ErrFull reports that the store has no space.
	ErrFull = errors.New("the shared store is full")
	// ErrUnavailable reports that the store cannot be used now.
	ErrUnavailable = errors.New("the shared store is unavailable")
)
