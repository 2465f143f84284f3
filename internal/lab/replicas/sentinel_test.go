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

// A sentinelSet is a Redis master with a replica, and three sentinels that watch them.
type sentinelSet struct {
	addresses string // of the sentinels, as mcp_store takes them
	master    *replicastest.Redis
	servers   []*replicastest.Redis // the master and its replica
}

// startSentinels starts a set, and waits until its sentinels know each other and the replica.
func startSentinels(t *testing.T) *sentinelSet {
	t.Helper()
	if _, err := exec.LookPath("redis-sentinel"); err != nil {
		t.Skip("redis-sentinel is not installed: on Debian, apt-get install redis-sentinel")
	}
	master := replicastest.StartRedis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := replicastest.StartRedis(t, "--replicaof", host, port)
	await.Until(t, "the replica to have what the master has", func() bool { return strings.Contains(master.Do("INFO", "replication"), "state=online") })
	ports, err := loopback.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, at := range ports {
		startSentinel(t, at, host, port)
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", at))
	}
	for _, at := range ports {
		await.Until(t, "the sentinels to know each other", func() bool {
			said := askRedis(at, "SENTINEL", "MASTER", "mymaster")
			return field(said, "num-slaves") == "1" && field(said, "num-other-sentinels") == "2" && field(said, "flags") == "master"
		})
	}
	return &sentinelSet{"redis://" + strings.Join(addresses, " "), master, []*replicastest.Redis{master, replica}}
}

// startSentinel starts a sentinel that is ended with the test.
func startSentinel(t *testing.T, port int, master, masterPort string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	config := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\n"+
		"sentinel monitor mymaster %s %s 2\nsentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n",
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

// askRedis sends a command, and returns the answer as it comes, "" if there is none.
func askRedis(port int, command ...string) string {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return ""
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s\r\n", strings.Join(command, " "))
	answer := make([]byte, 64<<10)
	n, _ := conn.Read(answer)
	return string(answer[:n])
}

// field returns the value after a name in an answer of Redis.
func field(answer, name string) string {
	lines := strings.Split(answer, "\r\n")
	for i := range lines {
		if lines[i] == name && i+2 < len(lines) {
			return lines[i+2]
		}
	}
	return ""
}
