package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// reportGateway compares a tools/call through the gateway with one through reverse_proxy,
// and a call to a stdio server with one to an HTTP server.
func reportGateway(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	sizes := []struct {
		name string
		size int
	}{{"1KB", 1000}, {"100KB", 100_000}}
	for _, contest := range []struct {
		title, name, baseline, measured string
		connections                     []int
		caddyfile                       string
	}{
		{"calls/s of mcp_gateway, masked", "gateway/mcp", "plain", "gateway", []int{1, 16}, gatewayCaddyfile},
		{"calls/s to a stdio server", "gateway/stdio", "http", "stdio", []int{1, 16}, stdioCaddyfile},
	} {
		headed := false
		for _, size := range sizes {
			for _, n := range contest.connections {
				name := fmt.Sprintf("%s/%s/%dclients", contest.name, size.name, n)
				if !chosen.MatchString(name) {
					continue
				}
				if !headed {
					printHeading(contest.title, contest.baseline, contest.measured)
					headed = true
				}
				if err := compareServers(ctx, name, caddy, contest.caddyfile, size.size, n, budget); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return nil
}

const (
	gatewayCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	reverse_proxy 127.0.0.1:%[3]d
}
http://:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		mask
		server bench http://127.0.0.1:%[3]d%[4]s
	}
}
`
	stdioCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		mask
		server bench http://127.0.0.1:%[3]d%[4]s
	}
}
http://:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		mask
		server bench stdio %[5]s
	}
}
`
)

func compareServers(ctx context.Context, name, caddy, caddyfile string, size, connections int,
	budget time.Duration) error {
	path := fmt.Sprint(upstream.CallPath, size)
	server, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	child, err := upstream.Stdio(path)
	if err != nil {
		return err
	}
	gw, err := startGateway(ctx, caddy, caddyfile, server.Port, path, strings.Join(child, " "))
	if err != nil {
		return err
	}
	defer gw.stop()
	body := toolsCallResponse(size)
	want, err := masker(policy)(body)
	if err != nil {
		return err
	}
	c := contest{name: name, connections: connections}
	for i := range c.sites {
		c.sites[i] = site{gw.urls[i] + "/mcp/bench", []byte(toolsCall), want, nil}
	}
	if strings.HasPrefix(name, "gateway/mcp") {
		c.sites[plain] = site{gw.urls[plain] + path, []byte(toolsCall), body, nil}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// toolsCallResponse returns the response to toolsCall.
func toolsCallResponse(size int) []byte {
	return jsonrpc.ResultResponse([]byte("1"), upstream.Result(size))
}

// reportAggregate measures the endpoint of all servers: calls compared with reverse_proxy,
// cached lists compared with requested ones, and the memory of an idle session.
func reportAggregate(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	if err := reportJoinedCalls(ctx, chosen, caddy, budget); err != nil {
		return err
	}
	if err := reportLists(ctx, chosen, caddy, budget); err != nil {
		return err
	}
	return reportIdle(ctx, chosen, caddy)
}

const (
	joinedServers = 20
	listedTools   = 50
)

// callCaddyfile has three servers, so that the gateway must route each call.
const callCaddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	reverse_proxy 127.0.0.1:%[3]d
}
http://:%[2]d {
	bind 127.0.0.1
	mcp_gateway {
		separator __
		server first http://127.0.0.1:%[3]d/call/1000
		server bench http://127.0.0.1:%[3]d%[4]s
		server last http://127.0.0.1:%[3]d/call/1000
	}
}
`

func reportJoinedCalls(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	headed := false
	for _, c := range []struct {
		era     string
		size    string
		path    string
		bytes   int
		clients int
	}{
		{"legacy", "1KB", upstream.CallPath + "1000", 1000, 1},
		{"legacy", "1KB", upstream.CallPath + "1000", 1000, 16},
		{"legacy", "100KB", upstream.CallPath + "100000", 100_000, 1},
		{"legacy", "100KB", upstream.CallPath + "100000", 100_000, 16},
		{"modern", "1KB", upstream.ModernPath + "1000", 1000, 1},
		{"modern", "1KB", upstream.ModernPath + "1000", 1000, 16},
	} {
		name := fmt.Sprintf("aggregate/call/%s/%s/%dclients", c.era, c.size, c.clients)
		if !chosen.MatchString(name) {
			continue
		}
		if !headed {
			printHeading("calls/s to one of 3 joined servers", "plain", "joined")
			headed = true
		}
		if err := compareCalls(ctx, name, caddy, c.path, c.bytes, c.clients, c.era == "modern", budget); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func compareCalls(ctx context.Context, name, caddy, path string, size, clients int, modern bool,
	budget time.Duration) error {
	server, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	gw, err := startGateway(ctx, caddy, callCaddyfile, server.Port, path)
	if err != nil {
		return err
	}
	defer gw.stop()
	c := contest{name: name, connections: clients}
	for i, target := range []struct{ path, tool string }{{path, "read_log"}, {"/mcp", "bench__read_log"}} {
		var request []byte
		var sets []http.Header
		want := toolsCallResponse(size)
		if modern {
			request, sets = modernCall(target.tool)
			want = jsonrpc.ResultResponse([]byte("1"), upstream.ModernResult(size))
		} else {
			request = jsonrpc.Request(1, "tools/call", []byte(`{"name":"`+target.tool+`","arguments":{"lines":2000}}`))
			if sets, err = openSessions(ctx, gw.urls[i]+target.path, clients); err != nil {
				return err
			}
		}
		c.sites[i] = site{gw.urls[i] + target.path, request, want, sets}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// modernCall returns a call of the modern era and its headers.
func modernCall(tool string) ([]byte, []http.Header) {
	request := jsonrpc.Request(1, "tools/call", []byte(`{"name":"`+tool+`","arguments":{"lines":2000},"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"`+mcp.Stateless+`",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},`+
		`"io.modelcontextprotocol/clientCapabilities":{}}}`))
	return request, []http.Header{{
		mcp.VersionHeader: {mcp.Stateless},
		"Mcp-Method":      {"tools/call"},
		"Mcp-Name":        {tool},
	}}
}

// reportLists compares cached lists with lists that the gateway requests each time,
// because the servers may change them and the gateway does not subscribe to changes.
func reportLists(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	headed := false
	for _, clients := range []int{1, 16} {
		name := fmt.Sprintf("aggregate/list/%dx%d/%dclients", joinedServers, listedTools, clients)
		if !chosen.MatchString(name) {
			continue
		}
		if !headed {
			printHeading("tools/list per second", "fan-out", "cached")
			headed = true
		}
		if err := compareLists(ctx, name, caddy, clients, budget); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func compareLists(ctx context.Context, name, caddy string, clients int, budget time.Duration) error {
	server, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	var caddyfile strings.Builder
	caddyfile.WriteString(benchOptions)
	for i, path := range []string{upstream.ChangingPath, upstream.FixedPath} {
		fmt.Fprintf(&caddyfile, "http://:%%[%d]d {\n\tbind 127.0.0.1\n\tmcp_gateway {\n\t\tseparator __\n", i+1)
		for s := range joinedServers {
			fmt.Fprintf(&caddyfile, "\t\tserver s%d http://127.0.0.1:%d%s%d/%d\n", s, server.Port, path, listedTools, s)
		}
		caddyfile.WriteString("\t}\n}\n")
	}
	gw, err := startGateway(ctx, caddy, caddyfile.String())
	if err != nil {
		return err
	}
	defer gw.stop()
	var prefixes []string
	for s := range joinedServers {
		prefixes = append(prefixes, fmt.Sprintf("s%d__", s))
	}
	want := jsonrpc.ResultResponse([]byte("1"), upstream.Tools(listedTools, prefixes...))
	c := contest{name: name, connections: clients}
	for i := range c.sites {
		sessions, err := openSessions(ctx, gw.urls[i]+"/mcp", clients)
		if err != nil {
			return err
		}
		c.sites[i] = site{gw.urls[i] + "/mcp", jsonrpc.Request(1, "tools/list", nil), want, sessions}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// idleSessions is the number of sessions to open, if the file descriptors suffice.
const idleSessions = 10_000

const idleCaddyfile = `{
	admin 127.0.0.1:%[1]d
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
}
http://:%[2]d {
	bind 127.0.0.1
	%[3]s
}
`

// Handlers of the site where idle sessions are opened. Their arguments are the port of the
// HTTP server and the command of the stdio server.
const (
	idlePlain  = `reverse_proxy 127.0.0.1:%[1]d`
	idleHTTP   = "mcp_gateway {\n\t\tseparator __\n\t\tserver bench http://127.0.0.1:%[1]d" + upstream.ListenPath + "\n\t}"
	idleSilent = "mcp_gateway {\n\t\tseparator __\n\t\tserver bench http://127.0.0.1:%[1]d" + upstream.SilentPath + "\n\t}"
	idleStdio  = "mcp_gateway {\n\t\tseparator __\n\t\tserver bench stdio %[2]s {\n\t\t\tmax_sessions 100000\n\t\t}\n\t}"
)

// reportIdle opens many sessions, each with a stream, in a new process for each case.
func reportIdle(ctx context.Context, chosen *regexp.Regexp, caddy string) error {
	headed := false
	for _, c := range []struct {
		name, path, handler string
		sockets             int // sockets of caddy per session
	}{
		{"plain", upstream.ListenPath, idlePlain, 2},
		{"http", "/mcp", idleHTTP, 2},
		{"stdio", "/mcp", idleStdio, 1},
		{"http-without-stream", "/mcp", idleSilent, 1},
	} {
		name := "aggregate/idle/" + c.name
		if !chosen.MatchString(name) {
			continue
		}
		if !headed {
			fmt.Printf("\n%-41s %10s %10s %10s %10s\n", "memory of caddy, KB per idle session", "sessions", "resident",
				"live heap", "stacks")
			headed = true
		}
		n := min(idleSessions, (openFiles()-500)/c.sockets)
		if n <= 0 {
			fmt.Printf("%-41s %10s %10s %10s %10s\n", name, "n/a", "n/a", "n/a", "n/a") // not Linux, or too few file descriptors
			continue
		}
		before, after, err := idleMemory(ctx, caddy, c.path, c.handler, n)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		each := func(before, after int) float64 { return float64(after-before) / float64(n) / 1000 }
		fmt.Printf("%-41s %10d %10.1f %10.1f %10.1f\n", name, n,
			each(before.resident, after.resident), each(before.heap, after.heap), each(before.stacks, after.stacks))
	}
	if headed {
		fmt.Println("Resident is VmRSS, garbage included. Live heap is the heap after a collection. It includes 32 KiB " +
			"of reverse_proxy")
		fmt.Println("for each stream from HTTP or stdio; nothing is ever written to these buffers, so they are not resident.")
	}
	return nil
}

// openFiles returns how many file descriptors a process may have, or 0 if unknown. Go
// programs raise their soft limit to the hard limit themselves.
func openFiles() int {
	limits, _ := os.ReadFile("/proc/self/limits")
	_, after, _ := strings.Cut(string(limits), "Max open files")
	fields := strings.Fields(after)
	switch {
	case len(fields) == 0:
		return 0
	case fields[0] == "unlimited":
		return math.MaxInt
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}

// A memory is the memory of a process, in bytes.
type memory struct {
	resident     int
	heap, stacks int // after a collection
}

func idleMemory(ctx context.Context, caddy, path, handler string, n int) (before, after memory, err error) {
	server, err := upstream.Start(ctx)
	if err != nil {
		return before, after, err
	}
	defer server.Stop()
	child, err := upstream.Stdio(upstream.ListenPath)
	if err != nil {
		return before, after, err
	}
	// One of the gateway's two ports is that of the admin API.
	gw, err := startGateway(ctx, caddy, idleCaddyfile, fmt.Sprintf(handler, server.Port, strings.Join(child, " ")))
	if err != nil {
		return before, after, err
	}
	defer gw.stop()
	// The first sessions take more memory than later ones.
	warm, err := openStreams(ctx, gw.urls[1]+path, 16)
	if err != nil {
		return before, after, err
	}
	defer warm.close()
	if before, err = gw.memory(ctx); err != nil {
		return before, after, err
	}
	streams, err := openStreams(ctx, gw.urls[1]+path, n)
	if err != nil {
		return before, after, err
	}
	defer streams.close()
	after, err = gw.memory(ctx)
	return before, after, err
}

// memory reads the heap profile of the admin API. That request starts a garbage collection;
// resident memory is read before it.
func (gw *gateway) memory(ctx context.Context) (m memory, err error) {
	m.resident = gw.Self().Memory().Resident
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gw.urls[0]+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return m, err
	}
	resp, err := load.HTTP.Do(req)
	if err != nil {
		return m, err
	}
	defer resp.Body.Close()
	profile, err := io.ReadAll(resp.Body)
	if err != nil {
		return m, err
	}
	figure := func(name string) int {
		_, after, _ := strings.Cut(string(profile), "\n# "+name+" = ")
		n, _ := strconv.Atoi(strings.Fields(after + " 0")[0])
		return n
	}
	m.heap, m.stacks = figure("HeapAlloc"), figure("Stack")
	return m, nil
}

// streams are the connections of open GET streams.
type streams []net.Conn

func (s streams) close() {
	for _, conn := range s {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// openStreams opens sessions with a stream each.
func openStreams(ctx context.Context, address string, n int) (streams, error) {
	sessions, err := openSessions(ctx, address, n)
	if err != nil {
		return nil, err
	}
	opened := make(streams, n)
	_, err = load.Each(n, connections, func(i int) (err error) {
		opened[i], err = load.Listen(ctx, address, sessions[i])
		return err
	})
	if err != nil {
		opened.close()
		return nil, err
	}
	return opened, nil
}

// openSessions initializes n sessions and returns the headers that identify them.
func openSessions(ctx context.Context, address string, n int) ([]http.Header, error) {
	sets := make([]http.Header, n)
	_, err := load.Each(n, connections, func(i int) error {
		client, err := load.Open(ctx, address, load.Legacy, "")
		if err != nil {
			return err
		}
		sets[i] = client.Header()
		return nil
	})
	return sets, err
}
