//go:build linux

package replicas

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestSame has agents do the same with one process and with three, and compares what they are answered.
func TestSame(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	c := newCrowd(t, several(t, 3, "redis://"+redis.Addr), 0, maxAgents)
	defer c.leave()
	c.work(more(60, 200), 0, once)
	c.print(t, "three replicas")
}

// TestUser has the user of Redis that docs/scale.md makes be all that is needed.
func TestUser(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	c := newCrowd(t, several(t, 3, "redis://"+redis.Addr, asUser(t, redis)...), 0, meetFault)
	defer c.leave()
	c.work(share, 0, once)
	c.print(t, "with a user of its own")
}

// asUser makes that user, and returns the lines by which replicas are it.
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

// TestReference has one process do it twice, which shows what the comparison is worth.
func TestReference(t *testing.T) {
	c := newCrowd(t, oneProcess(t), 0, meetFault)
	defer c.leave()
	c.work(more(60, 200), 0, once)
	c.print(t, "one process, once more")
}
