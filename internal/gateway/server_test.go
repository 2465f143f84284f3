package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// In time that is not real: clients that fail at the same time have found one failure.
func TestFailuresAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, failure := new(Server), jsonrpc.ConnectError("a", jsonrpc.CauseRefused)
		began := time.Now()
		fails := func(began time.Time, least, most time.Duration) time.Duration {
			t.Helper()
			got := s.noteAttempt(began, failure)
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
		time.Sleep(pause)
		if s.unavailable() != nil {
			t.Error("nobody tries again")
		}
		again := time.Now()
		fails(began, 0, 0) // which says nothing of the one who tries again
		if s.unavailable() == nil {
			t.Error("two try at the same time")
		}
		time.Sleep(time.Second)
		fails(again, time.Second, 2*time.Second)
		if s.unavailable() == nil {
			t.Error("it is tried at once")
		}
		if s.noteAttempt(again, nil); s.unavailable() != nil {
			t.Error("the outage is not over")
		}
	})
}
