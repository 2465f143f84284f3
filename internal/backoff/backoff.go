// Package backoff computes pauses between failing attempts.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Exponential doubles the pause with each failure, from First to at most Max. First must be
// positive.
type Exponential struct{ First, Max time.Duration }

// Pause returns the pause after a number of failures in a row: a random time between half of the
// pause and all of it, so that clients of one server do not retry at the same time.
func (e Exponential) Pause(failures int) time.Duration {
	pause := e.First
	for range failures {
		if pause >= e.Max/2 {
			pause = e.Max
			break
		}
		pause *= 2
	}
	return pause - rand.N(pause/2+1)
}

// Sleep waits for d, and reports whether it did before ctx was done.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
