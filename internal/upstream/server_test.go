package upstream

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// Concurrent failures count as one failure.
func TestConcurrentFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, failure := new(Server), jsonrpc.ConnectError("a", jsonrpc.CauseRefused)
		began := time.Now()
		fails := func(began time.Time, least, most time.Duration) time.Duration {
			t.Helper()
			got := s.NoteAttempt(began, failure)
			if got < least || got > most {
				t.Errorf("retried after %v, want %v to %v", got, least, most)
			}
			return got
		}
		time.Sleep(time.Second)
		pause := fails(began, time.Second/2, time.Second)
		for range 5 {
			fails(began, pause, pause)
		}
		if s.Unavailable() == nil || !s.BeginRetrying() || s.BeginRetrying() {
			t.Error("not retried once in the background")
		}
		if !s.WaitForRetry(t.Context()) || time.Since(began) != time.Second+pause {
			t.Errorf("retried after %v", time.Since(began))
		}
		again := time.Now()
		fails(began, 0, 0) // does not affect the retry loop
		time.Sleep(time.Second)
		fails(again, time.Second, 2*time.Second)
		if s.Unavailable() == nil {
			t.Error("requests wait for the server")
		}
		if s.NoteAttempt(again, nil); s.Unavailable() != nil || s.WaitForRetry(t.Context()) {
			t.Error("the outage has not ended")
		}
		s.EndRetrying()
		fails(time.Now().Add(time.Nanosecond), time.Second/2, time.Second)
		if !s.BeginRetrying() {
			t.Error("no retry in another outage")
		}
		time.Sleep(retryTime + time.Second)
		if s.WaitForRetry(t.Context()) {
			t.Error("retried although no client needs the server")
		}
		if s.EndRetrying(); s.Unavailable() != nil {
			t.Error("a late client does not try the server itself")
		}
	})
}

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
