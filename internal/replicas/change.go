package replicas

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
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
		if err := pause(ctx, rand.N(racePause)); err != nil {
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
