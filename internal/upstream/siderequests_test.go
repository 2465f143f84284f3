package upstream

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestAsidesAreBounded(t *testing.T) {
	for max, want := range map[int]int{0: maxSideRequests, 3: 3} {
		a := SideRequests{Max: max}
		hold := make(chan struct{})
		for i := range want + 2 {
			if begun := a.Go(func() { <-hold }); begun != (i < want) {
				t.Errorf("limit %d: message %d is sent: %t", want, i+1, begun)
			}
		}
		close(hold)
		a.Wait()
		if !a.Go(func() {}) {
			t.Error("no more messages are sent")
		}
		a.Wait()
	}
}

func TestAsidesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a SideRequests
		hold := make(chan struct{})
		var sent, closed atomic.Bool
		a.Go(func() {
			<-hold
			sent.Store(true)
		})
		go func() {
			a.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("it does not wait for what has begun")
		}
		if a.Go(func() { t.Error("a message is sent after Close") }) {
			t.Error("more has begun")
		}
		close(hold)
		synctest.Wait()
		if !closed.Load() || !sent.Load() {
			t.Errorf("closed: %t, sent: %t", closed.Load(), sent.Load())
		}
		a.Close() // again
	})
}

// All requests for a server add to its Asides, even while Close waits for them.
func TestAsidesAreWaitedForWhileTheyAreAddedTo(t *testing.T) {
	var a SideRequests
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
	if a.running != 0 {
		t.Errorf("%d are open", a.running)
	}
}
