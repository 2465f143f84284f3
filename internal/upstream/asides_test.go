package upstream

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestAsidesAreBounded(t *testing.T) {
	for max, want := range map[int]int{0: maxAsides, 3: 3} {
		a := Asides{Max: max}
		hold := make(chan struct{})
		for i := range want + 2 {
			if begun := a.Go(func() { <-hold }); begun != (i < want) {
				t.Errorf("of %d, number %d is said: %t", want, i+1, begun)
			}
		}
		close(hold)
		a.Wait()
		if !a.Go(func() {}) {
			t.Error("nothing more is said")
		}
		a.Wait()
	}
}

func TestAsidesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a Asides
		hold := make(chan struct{})
		var said, closed atomic.Bool
		a.Go(func() {
			<-hold
			said.Store(true)
		})
		go func() {
			a.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("it does not wait for what has begun")
		}
		if a.Go(func() { t.Error("something is said") }) {
			t.Error("more has begun")
		}
		close(hold)
		synctest.Wait()
		if !closed.Load() || !said.Load() {
			t.Errorf("closed: %t, said: %t", closed.Load(), said.Load())
		}
		a.Close() // again
	})
}

// Those of a server are added to by all requests, whoever waits for them.
func TestAsidesAreWaitedForWhileTheyAreAddedTo(t *testing.T) {
	var a Asides
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10_000 {
				a.Go(func() {})
			}
		})
		all.Go(func() {
			for range 10_000 {
				a.Wait()
			}
		})
	}
	all.Wait()
	a.Close()
	if a.open != 0 {
		t.Errorf("%d are open", a.open)
	}
}
