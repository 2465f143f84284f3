package replicastest_test

import (
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestEngine(t *testing.T) {
	engine := replicastest.New()
	replicastest.TestEngine(t, func() replicas.Engine { return engine })
}
