package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// Concurrent failures count as one failure.
func TestFailuresAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, failure := new(Server), jsonrpc.ConnectError("a", jsonrpc.CauseRefused)
		began := time.Now()
		fails := func(began time.Time, least, most time.Duration) time.Duration {
			t.Helper()
			got := s.NoteAttempt(began, failure)
			if got < least || got > most {
				t.Errorf("it is tried again after %v, want %v to %v", got, least, most)
			}
			return got
		}
		time.Sleep(time.Second)
		pause := fails(began, time.Second/2, time.Second)
		for range 5 {
			fails(began, pause, pause)
		}
		if s.Unavailable() == nil || !s.BeginRetrying() || s.BeginRetrying() {
			t.Error("it is not tried once beside requests")
		}
		if !s.WaitForRetry(t.Context()) || time.Since(began) != time.Second+pause {
			t.Errorf("it is tried after %v", time.Since(began))
		}
		again := time.Now()
		fails(began, 0, 0) // does not affect the retry loop
		time.Sleep(time.Second)
		fails(again, time.Second, 2*time.Second)
		if s.Unavailable() == nil {
			t.Error("requests wait for it")
		}
		if s.NoteAttempt(again, nil); s.Unavailable() != nil || s.WaitForRetry(t.Context()) {
			t.Error("the outage is not over")
		}
		s.EndRetrying()
		fails(time.Now().Add(time.Nanosecond), time.Second/2, time.Second)
		if !s.BeginRetrying() {
			t.Error("another outage is not tried")
		}
		time.Sleep(retryTime + time.Second)
		if s.WaitForRetry(t.Context()) {
			t.Error("it is tried although clients do not want it")
		}
		if s.EndRetrying(); s.Unavailable() != nil {
			t.Error("a client that comes after long does not try it itself")
		}
	})
}
