package replicas

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"
)

// ErrContended reports that other replicas keep changing a value.
var ErrContended = fmt.Errorf("%w: other replicas keep changing the same value", ErrUnavailable)

const (
	maxRaces  = 64
	racePause = 5 * time.Millisecond // maximum
)

// Change changes a value of an owner, without a TTL. The function gets the value, or nil, and
// returns the new one, or an equal one if nothing is to be written. It is called again if another
// replica was faster.
func (s *Space) Change(
	ctx context.Context, owner, name string, change func(value []byte) ([]byte, error),
) (changed bool, err error) {
	for range maxRaces {
		value, version, err := s.Get(ctx, owner, name)
		if err != nil {
			return false, err
		}
		next, err := change(value)
		if err != nil || (next == nil) == (value == nil) && bytes.Equal(next, value) {
			return false, err
		}
		if swapped, err := s.Swap(ctx, owner, name, version, next, 0); err != nil || swapped {
			return swapped, err
		}
		if err := pause(ctx, mathrand.N(racePause)); err != nil {
			return false, err
		}
	}
	return false, ErrContended
}

// pause waits, unless the context is done.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	// lockTime is how long the lock of a dead replica is held.
	lockTime = 30 * time.Second
	// lockPause is the longest pause between two attempts to take a lock.
	lockPause = 250 * time.Millisecond
)

// Lock waits until the lock of this name is free at all replicas, and takes it. The lock is held
// until it is unlocked. If the store is unavailable for longer than lockTime, another replica may
// take it.
func (s *Space) Lock(ctx context.Context, name string) (unlock func(), err error) {
	token := []byte(rand.Text())
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, lockPause) {
		taken, err := s.Swap(ctx, name, "lock", Version{}, token, lockTime)
		if err != nil {
			s.unlockLater(name, token) // the engine may have taken it despite the error
			return nil, err
		}
		if taken {
			break
		}
		if err := pause(ctx, wait/2+mathrand.N(wait/2)); err != nil {
			return nil, err
		}
	}
	holding, release := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for pause(holding, lockTime/3) == nil {
			_ = s.swapLock(holding, name, token, token) // retried
		}
	})
	return func() {
		release()
		renewing.Wait()
		if s.swapLock(context.WithoutCancel(ctx), name, token, nil) != nil {
			s.unlockLater(name, token)
		}
	}, nil
}

// unlockLater releases the lock when the store is available again.
func (s *Space) unlockLater(name string, token []byte) {
	s.WriteLater(name, "lock "+string(token), 0, func(ctx context.Context) error {
		return s.swapLock(ctx, name, token, nil)
	}, nil)
}

// swapLock replaces the value of a lock that is held, or deletes it if value is nil.
func (s *Space) swapLock(ctx context.Context, name string, token, value []byte) error {
	current, version, err := s.Get(ctx, name, "lock")
	if err != nil || string(current) != string(token) {
		return err
	}
	_, err = s.Swap(ctx, name, "lock", version, value, lockTime)
	return err
}

const (
	// pollTime is how often a replica checks for announcements that it may have missed.
	pollTime = time.Minute
	// maxPendingMessages is how many messages wait for a follower that is busy.
	maxPendingMessages = 64
)

// Announce sends a message to the followers of a topic at all other replicas.
func (s *Space) Announce(ctx context.Context, topic string, message string) error {
	_, err := s.Publish(ctx, topic, []byte(s.Replica+" "+message))
	return err
}

// Follow calls f with each message that other replicas announce, and with "" when messages may have
// been lost: before it returns, once a minute, and instead of messages beyond maxPendingMessages.
// After an error of f, it calls f with "" again, soon. The calls are sequential, until stop is
// called.
func (s *Space) Follow(topic string, f func(ctx context.Context, message string) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &follower{
		space: s, topic: topic, f: f,
		messages: make(chan string, maxPendingMessages), missed: make(chan struct{}, 1),
	}
	failed := w.refresh(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx, failed) })
	return func() {
		cancel()
		running.Wait()
	}
}

type follower struct {
	space    *Space
	topic    string
	f        func(context.Context, string) error
	messages chan string
	missed   chan struct{}
	stop     func() // nil if not subscribed
}

// refresh subscribes, unless it is subscribed, and calls f with "".
func (w *follower) refresh(ctx context.Context) (failed bool) {
	if w.stop == nil {
		var err error
		w.stop, err = w.space.Subscribe(ctx, w.topic, w.receive)
		if err != nil {
			w.stop = nil
			failed = true
		}
	}
	return w.f(ctx, "") != nil || failed
}

// receive queues a message.
func (w *follower) receive(sealed []byte) {
	from, message, _ := strings.Cut(string(sealed), " ")
	if from == w.space.Replica {
		return
	}
	select {
	case w.messages <- message:
	default:
		select {
		case w.missed <- struct{}{}:
		default:
		}
	}
}

// run calls f until the context is done.
func (w *follower) run(ctx context.Context, failed bool) {
	next := time.NewTimer(w.delay(failed))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			if w.stop != nil {
				w.stop()
			}
			return
		case message := <-w.messages:
			if w.f(ctx, message) != nil {
				next.Reset(w.delay(true))
			}
		case <-w.missed:
			next.Reset(w.delay(w.refresh(ctx)))
		case <-next.C:
			next.Reset(w.delay(w.refresh(ctx)))
		}
	}
}

// delay returns how long to wait before the next call of f.
func (w *follower) delay(failed bool) time.Duration {
	if failed {
		return w.space.config.Retry
	}
	return pollTime
}
