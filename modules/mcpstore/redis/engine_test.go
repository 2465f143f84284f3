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

// openEngine returns an engine with these settings. It is closed when the test ends.
func openEngine(t testing.TB, settings Redis) replicas.Engine {
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
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, Redis{URL: "redis://" + server.Addr}) })
}

// wantUnusable checks that an operation fails before or at its deadline, and returns the error.
func wantUnusable(t testing.TB, e replicas.Engine) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Get(ctx, "test:v")
	if err == nil {
		t.Fatal("the engine is usable")
	}
	return err
}

// waitUsable waits until an engine can be used.
func waitUsable(t testing.TB, e replicas.Engine) {
	t.Helper()
	await.Until(t, "the engine is usable", func() bool { return try(t, e) == nil })
}

// try runs an operation of an engine.
func try(t testing.TB, e replicas.Engine) error {
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	return e.Set(ctx, "test:v", []byte("1"), time.Hour)
}
