package replicas

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

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
