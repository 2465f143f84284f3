//go:build linux

package replicas

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// A deployment is a gateway: one process, or several behind a balancer.
type deployment struct {
	url      string // URL for clients
	replicas []*caddy
	servers  *servers
}

const (
	sessionKey  = "one-key-for-all-replicas-0123456789"
	testTimeout = time.Minute // only a failing test waits that long

	smallRate   = 4 // calls of *::fail per client
	stillRate   = 500
	flowingRate = 80
)

// startSingle starts a gateway without a store.
func startSingle(t *testing.T) *deployment {
	t.Helper()
	servers := newServers(t)
	gateway := newCaddy(t, site(servers))
	gateway.start(t)
	return &deployment{gateway.url, []*caddy{gateway}, servers}
}

// startReplicas starts n replicas that share a store, and a balancer in front of them.
func startReplicas(t *testing.T, n int, store string, lines ...string) *deployment {
	t.Helper()
	return startReplicasAt(t, slices.Repeat([]string{store}, n), lines...)
}

// startReplicasAt starts replicas that share a store, each with its own address of it.
func startReplicasAt(t *testing.T, stores []string, lines ...string) *deployment {
	t.Helper()
	w := &deployment{servers: newServers(t)}
	text := site(w.servers)
	for _, store := range stores {
		replica := newCaddy(t, text, block("mcp_store redis "+store, append(lines, "session_key {env.MCP_SESSION_KEY}",
			"timeout 2s")...)) // test machines may be busy
		replica.start(t)
		w.replicas = append(w.replicas, replica)
	}
	return w.balance(t, w.replicas...)
}

// balance starts a balancer in front of some replicas, and returns them as a deployment.
func (w *deployment) balance(t *testing.T, replicas ...*caddy) *deployment {
	t.Helper()
	var addresses []string
	for _, replica := range replicas {
		addresses = append(addresses, strings.TrimPrefix(replica.url, "http://"))
	}
	// As in docs/scale.md.
	balancer := newCaddy(t, block("reverse_proxy "+strings.Join(addresses, " "),
		"lb_policy random", "lb_try_duration 5s", "lb_try_interval 100ms", "fail_duration 2s"))
	balancer.start(t)
	return &deployment{balancer.url, replicas, w.servers}
}

// servers are the servers that all replicas use.
type servers struct {
	legacy, modern *mcptest.Remote
	lines          []string // lines for a gateway
}

func newServers(t *testing.T) *servers {
	t.Helper()
	s := &servers{legacy: &mcptest.Remote{Name: "legacy", Legacy: true}, modern: &mcptest.Remote{Name: "modern",
		Modern: true}}
	for _, remote := range []*mcptest.Remote{s.legacy, s.modern} {
		remote.Forgetful = true
		server := httptest.NewServer(remote)
		t.Cleanup(func() {
			remote.Close()
			server.CloseClientConnections() // otherwise Close waits for streams
			server.Close()
		})
		s.lines = append(s.lines, "server "+remote.Name+" "+server.URL+"/mcp")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = append(s.lines,
		"server child stdio "+self+" ds child",
		block("server asker stdio "+self+" ds asker", "isolation session"),
		block("server pruner", "mask off", block("mcp_pruner", "store_limit 100000 1GiB")))
	return s
}

// site returns the directives of the gateways: one for agents, one for signed requests, and two
// with rates.
func site(s *servers) string {
	var tokens, secrets []string
	for i := range maxAgents {
		tokens = append(tokens, agentName(i)+" "+agentToken(i))
		secrets = append(secrets, fmt.Sprintf("client %s {env.SECRET_%s}", agentName(i), agentName(i)))
	}
	gateway := func(path string, lines ...string) string {
		return block("mcp_gateway", append([]string{
			"name gateway" + strings.ReplaceAll(path, "/", "-"), "separator __", "session_key {env.MCP_SESSION_KEY}",
			"mcp_path " + path + "/mcp", "rpc_path " + path + "/api",
			block("mask", "max_chars 1000", "head_chars 300", "tail_chars 300", block("recover", "max_entries 100000",
				"max_bytes 1GiB")),
		}, slices.Concat(s.lines, lines)...)...)
	}
	rules := []string{"confirm *::link", fmt.Sprintf("rate *::fail %d/24h", smallRate), "default allow"}
	clients := []string{block("auth token", tokens...), block("client *", append([]string{"deny asker::*"}, rules...)...)}
	for i := range askerAgents {
		clients = append(clients, block("client "+agentName(i), rules...))
	}
	return strings.Join([]string{
		gateway("", clients...),
		gateway("/signed", block("auth hmac", secrets...)),
		gateway("/still", "auth token "+agentToken(0)+" one", fmt.Sprintf("rate %d/24h", stillRate)),
		gateway("/flowing", "auth token "+agentToken(0)+" one", fmt.Sprintf("rate %d/1s", flowingRate)),
	}, "\n")
}

// A caddy is a process that can be killed and restarted.
type caddy struct {
	url, admin string
	file       string
	log        string
	env        []string
	process    *caddyrun.Process
	isKilled   bool
}

// newCaddy writes the configuration of a site. It does not start the process.
func newCaddy(t *testing.T, site string, options ...string) *caddy {
	t.Helper()
	ports, err := loopback.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := &caddy{
		url: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), admin: fmt.Sprintf("http://127.0.0.1:%d", ports[1]),
		file: filepath.Join(dir, "Caddyfile"), log: filepath.Join(dir, "log"), env: []string{"MCP_SESSION_KEY=" + sessionKey},
	}
	for i := range maxAgents {
		c.env = append(c.env, "SECRET_"+agentName(i)+"="+agentSecret(i))
	}
	text := block("", append(options, "admin "+strings.TrimPrefix(c.admin, "http://"), "metrics")...) +
		block(fmt.Sprintf(":%d", ports[0]), "bind 127.0.0.1", site)
	if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !c.isKilled {
			if err := c.process.Stop(testTimeout); err != nil {
				t.Errorf("Caddy exited: %v", err)
			}
		}
		logged, _ := os.ReadFile(c.log)
		for _, bad := range []string{"panic", "DATA RACE", "fatal error"} {
			if i := strings.Index(string(logged), bad); i >= 0 {
				t.Errorf("logged %.4000s", logged[max(0, i-500):])
			}
		}
		if dir := os.Getenv("REPLICAS_LOGS"); dir != "" {
			name := strings.ReplaceAll(t.Name(), "/", "_") + "-" + filepath.Base(filepath.Dir(c.log)) + ".log"
			_ = os.WriteFile(filepath.Join(dir, name), append([]byte(text), logged...), 0o600)
		}
	})
	return c
}

// start starts or restarts the process.
func (c *caddy) start(t *testing.T) {
	t.Helper()
	binary, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	logged, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer logged.Close()
	cmd := caddyrun.Command(context.Background(), binary, filepath.Dir(c.file), "run", "--config", c.file)
	cmd.Stdout, cmd.Stderr = logged, logged
	cmd.Env = append(cmd.Env, c.env...)
	if c.process, err = caddyrun.Start(cmd); err != nil {
		text, _ := os.ReadFile(c.log)
		t.Fatalf("%v\n%s", err, text[max(0, len(text)-4000):])
	}
	c.isKilled = false
}

// kill ends the process with SIGKILL.
func (c *caddy) kill() {
	c.process.Kill()
	c.isKilled = true
}

// metric returns the value of a metric as text, or "".
func (c *caddy) metric(t *testing.T, name string) string {
	t.Helper()
	for line := range strings.Lines(c.metrics(t)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// sum returns the sum of a metric over its labels.
func (c *caddy) sum(t *testing.T, name string) (sum float64) {
	t.Helper()
	for line := range strings.Lines(c.metrics(t)) {
		if labels, value, ok := strings.Cut(line, "} "); ok && strings.HasPrefix(labels, name+"{") {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

func (c *caddy) metrics(t *testing.T) string {
	t.Helper()
	return c.adminGet(t, "/metrics")
}

// adminGet returns the response of the admin API.
func (c *caddy) adminGet(t *testing.T, path string) string {
	t.Helper()
	res, err := http.Get(c.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// awaitStore waits until all replicas can use the store.
func (w *deployment) awaitStore(t *testing.T) {
	t.Helper()
	for _, replica := range w.replicas {
		replica.awaitStore(t)
	}
}

func (c *caddy) awaitStore(t *testing.T) {
	t.Helper()
	await.Until(t, "the store to be up", func() bool { return c.metric(t, "caddy_mcp_store_up") == "1" })
}

// block returns a block of a Caddyfile.
func block(name string, lines ...string) string {
	return strings.TrimSpace(name+" {") + "\n" + strings.Join(lines, "\n") + "\n}\n"
}

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

// A relay is a connection to Redis that can delay or hold data.
type relay struct {
	addr  string
	to    string        // address of Redis
	delay time.Duration // delay of each chunk, in both directions

	mu      sync.Mutex
	passing chan struct{}         // closed unless data is held
	conns   map[net.Conn]struct{} // both ends of all connections
	running sync.WaitGroup
}

// newRelay starts a relay that ends with the test.
func newRelay(t *testing.T, to string, delay time.Duration) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String(), to: to, delay: delay, passing: make(chan struct{}),
		conns: map[net.Conn]struct{}{}}
	r.resume()
	r.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.serve(conn)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.cut()
		r.running.Wait()
	})
	return r
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		client.Close()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[client], r.conns[server] = struct{}{}, struct{}{}
	r.running.Go(func() { r.pass(client, server) })
	r.running.Go(func() { r.pass(server, client) })
}

// pass copies data from one end to the other until one of them is closed.
func (r *relay) pass(src, dst net.Conn) {
	defer func() {
		src.Close()
		dst.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, src)
		delete(r.conns, dst)
	}()
	piece := make([]byte, 64<<10)
	for {
		n, err := src.Read(piece)
		if err != nil {
			return
		}
		time.Sleep(r.delay)
		r.mu.Lock()
		passing := r.passing
		r.mu.Unlock()
		<-passing
		if _, err := dst.Write(piece[:n]); err != nil {
			return
		}
	}
}

// hold holds data back. Connections stay open.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passing = make(chan struct{})
}

// resume lets data pass again, including what was held.
func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.passing)
}

// cut closes all connections and discards held data. New connections are possible.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end := range r.conns {
		end.Close()
	}
	select {
	case <-r.passing:
	default:
		close(r.passing)
	}
}
