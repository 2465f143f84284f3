package redis

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opened returns an engine with these settings, which is closed when the test ends.
func opened(t testing.TB, settings Redis) replicas.Engine {
	t.Helper()
	if err := settings.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	e, err := settings.Open(zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestServer(t *testing.T) {
	server := replicastest.StartRedis(t)
	replicastest.TestEngine(t, func() replicas.Engine { return opened(t, Redis{URL: "redis://" + server.Addr}) })
}

// unusable tests that an engine fails at the deadline, or before.
func unusable(t testing.TB, e replicas.Engine) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Get(ctx, "test:v")
	if err == nil {
		t.Fatal("it can be used")
	}
	return err
}

// usable waits until an engine can be used.
func usable(t testing.TB, e replicas.Engine) {
	t.Helper()
	await.Until(t, "it can be used", func() bool { return try(t, e) == nil })
}

// try uses an engine.
func try(t testing.TB, e replicas.Engine) error {
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	return e.Set(ctx, "test:v", []byte("1"), time.Hour)
}
