//go:build linux

package replicas

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// A sentinelSet is a Redis master with a replica, and three sentinels.
type sentinelSet struct {
	addresses string // addresses of the sentinels, as in mcp_store
	master    *replicastest.Redis
	servers   []*replicastest.Redis // master and replica
}

// startSentinels starts a set and waits until its sentinels know each other and the replica.
func startSentinels(t *testing.T) *sentinelSet {
	t.Helper()
	if _, err := exec.LookPath("redis-sentinel"); err != nil {
		t.Skip("redis-sentinel is not installed: on Debian, apt-get install redis-sentinel")
	}
	master := replicastest.StartRedis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := replicastest.StartRedis(t, "--replicaof", host, port)
	await.Until(t, "the replica to be in sync", func() bool {
		return strings.Contains(master.Do("INFO", "replication"), "state=online")
	})
	ports, err := loopback.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, sentinel := range ports {
		startSentinel(t, sentinel, host, port)
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", sentinel))
	}
	for _, sentinel := range ports {
		await.Until(t, "the sentinels to know each other", func() bool {
			reply := redisCommand(sentinel, "SENTINEL", "MASTER", "mymaster")
			return field(reply, "num-slaves") == "1" && field(reply, "num-other-sentinels") == "2" &&
				field(reply, "flags") == "master"
		})
	}
	return &sentinelSet{"redis://" + strings.Join(addresses, " "), master, []*replicastest.Redis{master, replica}}
}

// startSentinel starts a sentinel that ends with the test.
func startSentinel(t *testing.T, port int, master, masterPort string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	config := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\n"+
		"sentinel monitor mymaster %s %s 2\nsentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout "+
		"mymaster 5000\n",
		port, filepath.Dir(file), master, masterPort)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-sentinel", file)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sentinel: %s", output.String())
		}
	})
}

// redisCommand sends a command and returns the raw reply, or "".
func redisCommand(port int, command ...string) string {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return ""
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s\r\n", strings.Join(command, " "))
	reply := make([]byte, 64<<10)
	n, _ := conn.Read(reply)
	return string(reply[:n])
}

// field returns the value after a name in a reply of Redis.
func field(reply, name string) string {
	lines := strings.Split(reply, "\r\n")
	for i := range lines {
		if lines[i] == name && i+2 < len(lines) {
			return lines[i+2]
		}
	}
	return ""
}
