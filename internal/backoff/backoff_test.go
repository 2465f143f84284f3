package backoff

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	e := Exponential{First: time.Second, Max: 30 * time.Second}
	for failures, want := range map[int]time.Duration{
		0: time.Second, 1: 2 * time.Second, 4: 16 * time.Second, 5: 30 * time.Second, 6: 30 * time.Second,
		math.MaxInt: 30 * time.Second,
	} {
		seen := map[time.Duration]bool{}
		for range 100 {
			pause := e.Pause(failures)
			if pause < want/2 || pause > want {
				t.Fatalf("after %d failures: %s, want %s to %s", failures, pause, want/2, want)
			}
			seen[pause] = true
		}
		if len(seen) < 2 {
			t.Errorf("after %d failures: the pause is not random", failures)
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("slept for %s", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if Sleep(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("slept for %s", time.Since(began))
		}
	})
}
