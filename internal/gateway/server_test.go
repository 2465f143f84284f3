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
		s, failure := new(Server), jsonrpc.ConnectError("a")
		began := time.Now()
		fails := func(began time.Time, want time.Duration) {
			t.Helper()
			if got := s.tried(began, failure); got != want {
				t.Errorf("it is tried again after %v, want %v", got, want)
			}
		}
		time.Sleep(time.Second)
		for range 6 {
			fails(began, time.Second)
		}
		time.Sleep(time.Second)
		if s.out() != nil {
			t.Error("nobody tries again")
		}
		again := time.Now()
		fails(began, 0) // which says nothing of the one who tries again
		if s.out() == nil {
			t.Error("two try at the same time")
		}
		time.Sleep(time.Second)
		fails(again, 2*time.Second)
		if s.out() == nil {
			t.Error("it is tried at once")
		}
		if s.tried(again, nil); s.out() != nil {
			t.Error("the outage is not over")
		}
	})
}
