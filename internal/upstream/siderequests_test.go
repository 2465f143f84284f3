package upstream

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestSideRequestsAreLimited(t *testing.T) {
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
			t.Error("no message was sent after others ended")
		}
		a.Wait()
	}
}

func TestSideRequestsClose(t *testing.T) {
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
			t.Error("Close does not wait for running messages")
		}
		if a.Go(func() { t.Error("a message was sent after Close") }) {
			t.Error("Go accepted a message after Close")
		}
		close(hold)
		synctest.Wait()
		if !closed.Load() || !sent.Load() {
			t.Errorf("closed: %t, sent: %t", closed.Load(), sent.Load())
		}
		a.Close() // again
	})
}

// Side requests can be added while Close waits.
func TestSideRequestsAddedDuringClose(t *testing.T) {
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
