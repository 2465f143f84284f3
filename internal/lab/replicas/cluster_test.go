//go:build linux

package replicas

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// A cluster is a Redis Cluster of three masters with one replica each.
type cluster struct {
	addresses string // addresses of all nodes, as in mcp_store
	masters   []*replicastest.Redis
	nodes     []*replicastest.Redis
}

const clusterSlots = 16384

// startCluster starts a cluster and waits until its nodes know each other and are in sync.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := new(cluster)
	var buses, addresses []string
	for range 6 {
		bus := strconv.Itoa(replicastest.FreePort(t))
		node := replicastest.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout",
			"1000",
			"--repl-diskless-sync-delay", "0")
		buses, addresses, c.nodes = append(buses, bus), append(addresses, node.Addr), append(c.nodes, node)
	}
	c.addresses, c.masters = "redis://"+strings.Join(addresses, " "), c.nodes[:3]
	for i, master := range c.masters {
		expect(t, master, "+OK", "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*clusterSlots/3),
			strconv.Itoa((i+1)*clusterSlots/3-1))
		expect(t, master, "+OK", "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for i, node := range c.nodes[1:] {
		host, port, _ := net.SplitHostPort(node.Addr)
		expect(t, c.nodes[0], "+OK", "CLUSTER", "MEET", host, port, buses[i+1])
	}
	c.await(t, "cluster_known_nodes:6")
	for i, replica := range c.nodes[3:] {
		_, id, _ := strings.Cut(c.masters[i].Do("CLUSTER", "MYID"), "\r\n")
		await.Until(t, "the replica to know its master",
			func() bool { return replica.Do("CLUSTER", "REPLICATE", id) == "+OK" })
	}
	for _, master := range c.masters {
		await.Until(t, "the replica to be in sync", func() bool {
			return strings.Contains(master.Do("INFO", "replication"), "state=online")
		})
	}
	c.await(t, "cluster_state:ok")
	return c
}

// await waits until all nodes report this state of the cluster.
func (c *cluster) await(t *testing.T, state string) {
	t.Helper()
	for _, node := range c.nodes {
		await.Until(t, state, func() bool { return strings.Contains(node.Do("CLUSTER", "INFO"), state) })
	}
}

// masterOf returns the master that holds a key.
func (c *cluster) masterOf(t *testing.T, key string) *replicastest.Redis {
	t.Helper()
	slot, err := strconv.Atoi(strings.TrimPrefix(c.nodes[0].Do("CLUSTER", "KEYSLOT", key), ":"))
	if err != nil {
		t.Fatal(err)
	}
	for i, master := range c.masters {
		if slot < (i+1)*clusterSlots/3 {
			return master
		}
	}
	panic("no such slot")
}

func expect(t *testing.T, server *replicastest.Redis, want string, command ...string) {
	t.Helper()
	if got := server.Do(command...); got != want {
		t.Fatalf("%v: got %s, want %s", command, got, want)
	}
}
