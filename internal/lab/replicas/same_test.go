//go:build linux

package replicas

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestSame has agents do the same with one process and with three replicas, and compares the
// responses.
func TestSame(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	c := newAgentGroup(t, startReplicas(t, 3, "redis://"+redis.Addr), 0, maxAgents)
	defer c.close()
	c.work(byLength(60, 200), 0, runOnce)
	c.print(t, "three replicas")
}

// TestUser checks that the Redis user in docs/scale.md has all permissions that are needed.
func TestUser(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	c := newAgentGroup(t, startReplicas(t, 3, "redis://"+redis.Addr, asUser(t, redis)...), 0, faultAgents)
	defer c.close()
	c.work(phaseOperations, 0, runOnce)
	c.print(t, "with its own Redis user")
}

// asUser creates that user, and returns the lines with which replicas use it.
func asUser(t *testing.T, servers ...*replicastest.Redis) (lines []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(string(page))
	for _, server := range servers {
		expect(t, server, "+OK", strings.Fields(rule)...)
	}
	return []string{"username mcp", "password password"}
}

// TestReference runs one process twice, which shows that records are comparable.
func TestReference(t *testing.T) {
	c := newAgentGroup(t, startSingle(t), 0, faultAgents)
	defer c.close()
	c.work(byLength(60, 200), 0, runOnce)
	c.print(t, "one process, second run")
}
