package replicastest

import (
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// Replica returns a store that uses an engine, which is closed when the test ends.
func Replica(t testing.TB, engine replicas.Engine) *replicas.Store {
	s := replicas.Open(engine, replicas.Config{
		Key: []byte("0123456789abcdef0123456789abcdef"), Prefix: "test:",
		Timeout: 250 * time.Millisecond, Retry: 10 * time.Millisecond,
		OwnerBytes: 64 << 20, QueueBytes: 64 << 20,
		Logger: zaptest.NewLogger(t), Observer: silent{},
	})
	t.Cleanup(s.Close)
	return s
}

type silent struct{}

func (silent) Done(string, replicas.Outcome, time.Duration) {}
func (silent) Up(bool)                                      {}
