package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/process"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

const (
	replicaClients = 16
	replicaSize    = 1000
)

// replicaCaddyfile has clients with a rate limit that they do not reach. Its arguments after the
// ports are the port and path of the server, the mcp_store option, the tokens of clients and the
// rate.
const replicaCaddyfile = `{
	admin off
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
	%[5]s
}
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		separator __
		session_key one-key-for-all-replicas-0123456789
		auth token {
			%[6]s
		}
		rate %[7]d/1s
		server bench http://127.0.0.1:%[3]d%[4]s
	}
}
http://:%[2]d {
	bind 127.0.0.1
}
`

// reportReplicas compares rate limits in Redis with those in memory, and measures replicas behind a
// balancer.
func reportReplicas(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	const share = "replicas/share/"
	var rates []int
	for _, rate := range []int{1_000, 100_000} {
		if chosen.MatchString(limitName(rate)) {
			rates = append(rates, rate)
		}
	}
	if len(rates) == 0 && !chosen.MatchString(share) {
		return nil
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		fmt.Println("\nreplicas: redis-server is not installed")
		return nil
	}
	server, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	store, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer store.Stop()
	if len(rates) > 0 {
		printHeading("calls/s with a limit", "memory", "Redis")
	}
	for _, rate := range rates {
		if err := compareLimits(ctx, caddy, server.Port, store, rate, budget); err != nil {
			return fmt.Errorf("%s: %w", limitName(rate), err)
		}
	}
	if !chosen.MatchString(share) {
		return nil
	}
	fmt.Printf("\n%-41s %7s %18s %18s %18s\n", "replicas behind a balancer", "calls/s", "replica CPU ms/call",
		"Redis scripts/call", "Redis CPU µs/call")
	for n := 1; n <= 3; n++ {
		if err := measureReplicas(ctx, fmt.Sprintf("%s%d", share, n), caddy, server.Port, store, n, 4*budget); err != nil {
			return err
		}
	}
	return nil
}

func limitName(rate int) string {
	return fmt.Sprintf("replicas/limit/%d per second/1KB/%dclients", rate, replicaClients)
}

// startReplica starts a gateway. Without a store, its limits are in memory.
func startReplica(ctx context.Context, caddy string, port, rate int, store *redis) (*gateway, error) {
	option := ""
	if store != nil {
		option = fmt.Sprintf("mcp_store redis redis://127.0.0.1:%d {\n\t\tsession_key "+
			"one-key-for-all-replicas-0123456789\n\t}", store.port)
	}
	var tokens []string
	for i := range replicaClients {
		tokens = append(tokens, fmt.Sprintf("client%d %s", i, replicaToken(i)))
	}
	return startGateway(ctx, caddy, replicaCaddyfile, port, upstream.ModernPath+strconv.Itoa(replicaSize), option,
		strings.Join(tokens, "\n\t\t\t"), rate)
}

func replicaToken(i int) string { return fmt.Sprintf("token-of-client-%d-0123456789abcdef", i) }

// replicaSite returns the site at which clients call a gateway.
func replicaSite(url string) site {
	request, sets := modernCall("bench__read_log")
	var headers []http.Header
	for i := range replicaClients {
		header := sets[0].Clone()
		header.Set("Authorization", "Bearer "+replicaToken(i))
		headers = append(headers, header)
	}
	return site{url + "/mcp", request, jsonrpc.ResultResponse([]byte("1"), upstream.ModernResult(replicaSize)), headers}
}

// processes are several gateways.
type processes []*gateway

func (all processes) cpuTime() (sum time.Duration) {
	for _, gw := range all {
		sum += gw.cpuTime()
	}
	return sum
}

func (all processes) stop() {
	for _, gw := range all {
		gw.stop()
	}
}

func compareLimits(ctx context.Context, caddy string, port int, store *redis, rate int, budget time.Duration) error {
	var both processes
	defer func() { both.stop() }()
	c := contest{name: limitName(rate), connections: replicaClients}
	for i, store := range []*redis{nil, store} {
		gw, err := startReplica(ctx, caddy, port, rate, store)
		if err != nil {
			return err
		}
		both = append(both, gw)
		c.sites[i] = replicaSite(gw.urls[0])
	}
	return c.run(ctx, both, budget/(2*rounds))
}

const balancerCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	reverse_proxy %[3]s {
		lb_policy random
	}
}
http://:%[2]d {
	bind 127.0.0.1
}
`

// measureReplicas prints the cost of calls for n replicas and for Redis.
func measureReplicas(ctx context.Context, name, caddy string, port int, store *redis, n int, d time.Duration) error {
	var replicas processes
	defer func() { replicas.stop() }()
	var addresses []string
	for range n {
		gw, err := startReplica(ctx, caddy, port, 1_000, store)
		if err != nil {
			return err
		}
		replicas = append(replicas, gw)
		addresses = append(addresses, strings.TrimPrefix(gw.urls[0], "http://"))
	}
	balancer, err := startGateway(ctx, caddy, balancerCaddyfile, strings.Join(addresses, " "))
	if err != nil {
		return err
	}
	defer balancer.stop()
	all := replicaSite(balancer.urls[0])
	if err := all.check(ctx); err != nil {
		return err
	}
	if r := all.load(ctx, replicaClients, d/10); r.Err != nil {
		return r.Err
	}
	cpu, redisCPU, scripts := replicas.cpuTime(), store.Self().CPU, store.scripts()
	r := all.load(ctx, replicaClients, d)
	if r.Err != nil {
		return r.Err
	}
	calls := float64(len(r.Latencies))
	cpu, redisCPU, scripts = replicas.cpuTime()-cpu, store.Self().CPU-redisCPU, store.scripts()-scripts
	fmt.Printf("%-41s %7.0f %19.3f %18.2f %18.1f\n", name, r.Rate(), cpu.Seconds()*1000/calls, scripts/calls,
		redisCPU.Seconds()*1e6/calls)
	return nil
}

// A redis is a redis-server without persistence.
type redis struct {
	*process.Process
	port int
	dir  string
}

func startRedis(ctx context.Context) (*redis, error) {
	ports, err := loopback.FreePorts(1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	p, err := process.Start(exec.Command("redis-server", "--port", strconv.Itoa(ports[0]), "--bind", "127.0.0.1", "--dir",
		dir, "--save", ""))
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	r := &redis{p, ports[0], dir}
	if err := p.Await(ctx, r.port); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

// Stop ends the server and removes its directory.
func (r *redis) Stop() {
	load.HTTP.CloseIdleConnections()
	r.Process.Stop()
	_ = os.RemoveAll(r.dir)
}

// scripts returns how many scripts the server has run.
func (r *redis) scripts() float64 {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.port))
	if err != nil {
		return 0
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "INFO commandstats\r\nQUIT\r\n")
	text, _ := io.ReadAll(conn)
	_, after, _ := strings.Cut(string(text), "cmdstat_evalsha:calls=")
	n, _ := strconv.ParseFloat(strings.SplitN(after, ",", 2)[0], 64)
	return n
}
