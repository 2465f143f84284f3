package replicas

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

const (
	// lockTime is how long a lock is held by a replica that has died.
	lockTime = 30 * time.Second
	// lockPause is how long one that waits for a lock waits at most until it tries again.
	lockPause = 250 * time.Millisecond
)

// Lock waits until the lock of this name is free at all replicas, and takes it. It is held until
// it is unlocked, or as long as this replica can say so: if the store has been unavailable for half a
// minute, others may take it.
func (s *Space) Lock(ctx context.Context, name string) (unlock func(), err error) {
	token := []byte(rand.Text())
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, lockPause) {
		taken, err := s.Swap(ctx, name, "lock", Version{}, token, lockTime)
		if err != nil {
			s.unlockBehind(name, token) // it may have been carried out all the same
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
			_ = s.holdLock(holding, name, token, token) // it is tried again
		}
	})
	return func() {
		release()
		renewing.Wait()
		if s.holdLock(context.WithoutCancel(ctx), name, token, nil) != nil {
			s.unlockBehind(name, token)
		}
	}, nil
}

// unlockBehind ends the lock when the store can be used again.
func (s *Space) unlockBehind(name string, token []byte) {
	s.Behind(name, "lock "+string(token), 0, func(ctx context.Context) error {
		return s.holdLock(ctx, name, token, nil)
	}, nil)
}

// holdLock gives a lock that is held another value, or none.
func (s *Space) holdLock(ctx context.Context, name string, token, value []byte) error {
	is, version, err := s.Get(ctx, name, "lock")
	if err != nil || string(is) != string(token) {
		return err
	}
	_, err = s.Swap(ctx, name, "lock", version, value, lockTime)
	return err
}
