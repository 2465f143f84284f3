package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/process"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

const (
	connections = 16
	rounds      = 40 // turns of each site: many and short, so that noise affects both alike
	toolsCall   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_log","arguments":{"lines":2000}}}`
)

// conversationPath is the path with long requests and short responses.
const conversationPath = "/conversation/"

// The sites of the measured binary.
const (
	plain = iota
	masked
)

func reportProxy(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	var loads []string
	for _, path := range []string{"/1KB", "/100KB", "/5MB"} {
		if chosen.MatchString("proxy" + path) {
			loads = append(loads, path)
		}
	}
	memory := chosen.MatchString("proxy/memory/")
	if err := reportTalks(ctx, chosen, caddy, budget); err != nil {
		return err
	}
	if len(loads) == 0 && !memory {
		return nil
	}
	up, err := startPreparedServer()
	if err != nil {
		return err
	}
	defer up.server.Close()
	if len(loads) > 0 {
		if err := reportLoads(ctx, loads, caddy, up, budget); err != nil {
			return err
		}
	}
	if memory {
		return reportMemory(ctx, caddy, up)
	}
	return nil
}

func reportLoads(ctx context.Context, paths []string, caddy string, up *preparedServer, budget time.Duration) error {
	gw, err := startGateway(ctx, caddy, caddyfile, up.addr)
	if err != nil {
		return err
	}
	defer gw.stop()
	printHeading(fmt.Sprintf("calls/s, %d connections", connections), "plain", "masked")
	for _, path := range paths {
		c := contest{name: "proxy" + path, connections: connections}
		for i := range c.sites {
			c.sites[i] = site{gw.urls[i] + path, up.requests[path], up.responses[path][i], nil}
		}
		if err := c.run(ctx, gw, budget/(2*rounds)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	fmt.Println("Client and upstream share the cores with caddy, so the work that masking saves them counts in its favor.")
	fmt.Println("The last column is the processor time of caddy alone: plain, masked.")
	return nil
}

// A contest sends the same calls to two sites, in turns.
type contest struct {
	name        string
	connections int
	sites       [2]callTarget // the baseline, and the site compared with it
}

// callTarget is a target of calls.
type callTarget interface {
	check(context.Context) error // makes one call
	load(ctx context.Context, connections int, d time.Duration) load.Result
}

// A site is the target of calls. Clients share its headers in turn, if there are any.
type site struct {
	url           string
	request, want []byte
	headers       []http.Header
}

// header returns the headers of a client's requests.
func (s site) header(client int) http.Header {
	if len(s.headers) == 0 {
		return nil
	}
	return s.headers[client%len(s.headers)]
}

func printHeading(title, baseline, measured string) {
	fmt.Printf("\n%-41s %7s %7s %13s %18s %18s %18s\n", title, baseline, measured, measured+"/"+baseline,
		baseline+" p50, p99 ms", measured+" p50, p99", "caddy CPU ms/call")
}

// run measures both sites and prints a row. gw reports the processor time of the process that
// serves them.
func (c contest) run(ctx context.Context, gw interface{ cpuTime() time.Duration }, slice time.Duration) error {
	var results [2]struct {
		rates     []float64
		latencies []time.Duration
		cpu       time.Duration
	}
	var ratios []float64
	for _, s := range c.sites { // the first turn opens connections and fills pools
		if err := s.check(ctx); err != nil {
			return err
		}
		if r := s.load(ctx, c.connections, 4*slice); r.Err != nil {
			return r.Err
		}
	}
	for round := range rounds {
		for turn := range c.sites {
			i := (turn + round) % len(c.sites) // another site goes first in each round
			result, before := &results[i], gw.cpuTime()
			calls := c.sites[i].load(ctx, c.connections, slice)
			if calls.Err != nil {
				return calls.Err
			}
			result.rates = append(result.rates, calls.Rate())
			result.latencies = append(result.latencies, calls.Latencies...)
			result.cpu += gw.cpuTime() - before
		}
		ratios = append(ratios, results[1].rates[round]/results[0].rates[round])
	}

	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	var latency, cpu [2]string
	for i, result := range results {
		latency[i] = fmt.Sprintf("%.2f, %.2f", ms(load.Quantile(result.latencies, .5)),
			ms(load.Quantile(result.latencies, .99)))
		cpu[i] = "n/a"
		if result.cpu > 0 {
			cpu[i] = fmt.Sprintf("%.3f", ms(result.cpu)/float64(len(result.latencies)))
		}
	}
	fmt.Printf("%-41s %7.0f %7.0f %12.2fx %18s %18s %18s\n", c.name,
		load.Quantile(results[0].rates, .5), load.Quantile(results[1].rates, .5), load.Quantile(ratios, .5),
		latency[0], latency[1], cpu[0]+", "+cpu[1])
	return nil
}

// reportMemory sends one huge response through a new process for each case, so that
// nothing else has raised its peak.
func reportMemory(ctx context.Context, caddy string, up *preparedServer) error {
	printMemoryHeading()
	for _, c := range []struct {
		name, path string
		site       int
	}{
		{"64MiB,plain,content-length", "/64MiB", plain},
		{"64MiB,masked,content-length", "/64MiB", masked},
		{"64MiB,masked,chunked", "/64MiB?chunked", masked},
		{"64MiB,masked,result-first", "/64MiB?result-first", masked}, // buffered until the member jsonrpc arrives
	} {
		before, peak, err := peakMemory(ctx, caddy, up, c.path, c.site)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		printMemory("proxy/memory/"+c.name, before, peak)
	}
	return nil
}

func printMemoryHeading() {
	fmt.Printf("\n%-41s %10s %10s %10s\n", "memory of caddy (VmHWM), MiB", "before", "peak", "growth")
}

func printMemory(name string, before, peak float64) {
	figures := fmt.Sprintf("%10.1f %10.1f %10.1f", before, peak, peak-before)
	if peak == 0 {
		figures = fmt.Sprintf("%10s %10s %10s", "n/a", "n/a", "n/a")
	}
	fmt.Printf("%-41s %s\n", name, figures)
}

func peakMemory(ctx context.Context, caddy string, up *preparedServer, path string, i int) (before, peak float64,
	err error) {
	gw, err := startGateway(ctx, caddy, caddyfile, up.addr)
	if err != nil {
		return 0, 0, err
	}
	defer gw.stop()
	target := func(path string) site { return site{gw.urls[i] + path, up.requests[path], up.responses[path][i], nil} }
	// The first call takes memory that later ones do not.
	if err := target("/100KB").check(ctx); err != nil {
		return 0, 0, err
	}
	before = gw.peakMiB()
	err = target(path).check(ctx)
	return before, gw.peakMiB(), err
}

// A preparedServer is an HTTP server with one prepared response for each path.
type preparedServer struct {
	server    *http.Server
	addr      string
	requests  map[string][]byte
	responses map[string][2][]byte // expected responses, by path and site
}

func startPreparedServer() (*preparedServer, error) {
	up := &preparedServer{requests: map[string][]byte{}, responses: map[string][2][]byte{}}
	for path, size := range map[string]int{
		"/1KB": 1000, "/100KB": 100_000, "/5MB": 5_000_000,
		"/64MiB": 64 << 20, "/64MiB?chunked": 64 << 20, "/64MiB?result-first": 64 << 20,
	} {
		result := text("An observation of no consequence, with nothing to escape. ")(size)
		body := response(result, strings.HasSuffix(path, "result-first"))
		short, err := masker(policy)(body)
		if err != nil {
			return nil, err
		}
		up.requests[path] = []byte(toolsCall)
		up.responses[path] = [2][]byte{plain: body, masked: short}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	up.addr, up.server = listener.Addr().String(), &http.Server{Handler: up}
	go func() { _ = up.server.Serve(listener) }() // until Close
	return up, nil
}

func (up *preparedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	body := up.responses[r.URL.RequestURI()][plain]
	w.Header().Set("Content-Type", "application/json")
	if r.URL.RawQuery != "chunked" {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	_, _ = w.Write(body)
}

// call makes one call, writes the response to dst and returns its length.
func (s site) call(ctx context.Context, client int, dst io.Writer, buf []byte) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(s.request))
	if err != nil {
		return 0, err
	}
	maps.Copy(req.Header, s.header(client))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := load.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	return io.CopyBuffer(dst, resp.Body, buf)
}

// check makes one call and compares the response byte for byte.
func (s site) check(ctx context.Context) error {
	var got bytes.Buffer
	if _, err := s.call(ctx, 0, &got, nil); err != nil {
		return err
	}
	if !bytes.Equal(got.Bytes(), s.want) {
		return fmt.Errorf("got a response of %d bytes, which differs from the expected one of %d bytes", got.Len(),
			len(s.want))
	}
	return nil
}

// load makes calls on all connections for the duration d.
func (s site) load(ctx context.Context, connections int, d time.Duration) load.Result {
	sink := struct{ io.Writer }{io.Discard} // hides ReadFrom, which reads 8 KiB at a time
	buffers := make([][]byte, connections)
	for i := range buffers {
		buffers[i] = make([]byte, 64<<10)
	}
	return load.Loop(ctx, connections, d, func(ctx context.Context, i int) error {
		n, err := s.call(ctx, i, sink, buffers[i])
		if err == nil && n != int64(len(s.want)) {
			err = fmt.Errorf("got a response of %d bytes, want %d", n, len(s.want))
		}
		return err
	})
}

// A gateway is a running Caddy with two sites.
type gateway struct {
	*process.Process
	urls [2]string
	dir  string
}

const benchOptions = `{
	admin off
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
}
`

const caddyfile = benchOptions + `
http://:%[1]d {
	bind 127.0.0.1
	reverse_proxy %[3]s
}
http://:%[2]d {
	bind 127.0.0.1
	tool_result_mask /conversation/* {
		max_buffered 1GiB
	}
	observation_mask
	reverse_proxy %[3]s
}
`

// startGateway runs Caddy with a Caddyfile. The Caddyfile is a format string; its arguments
// are the ports of the two sites, then args.
func startGateway(ctx context.Context, caddy, caddyfile string, args ...any) (*gateway, error) {
	ports, err := loopback.FreePorts(2)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-caddy-")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(caddy, "run", "--adapter", "caddyfile", "--config", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(caddyfile, append([]any{ports[0], ports[1]}, args...)...))
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	p, err := process.Start(cmd)
	if err != nil {
		_ = os.RemoveAll(dir)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w; build it with make -f xcaddy.mk build", err)
		}
		return nil, err
	}
	gw := &gateway{Process: p, dir: dir}
	for site, port := range ports {
		gw.urls[site] = fmt.Sprintf("http://127.0.0.1:%d", port)
		if err := p.Await(ctx, port); err != nil {
			gw.stop()
			return nil, err
		}
	}
	return gw, nil
}

func (gw *gateway) stop() {
	load.HTTP.CloseIdleConnections()
	gw.Stop()
	_ = os.RemoveAll(gw.dir)
}

// cpuTime returns the processor time of Caddy without its children, or 0 if unknown.
func (gw *gateway) cpuTime() time.Duration { return gw.Self().CPU }

// peakMiB returns the peak memory of Caddy, or 0 if unknown.
func (gw *gateway) peakMiB() float64 { return float64(gw.Self().Memory().Peak) / (1 << 20) }
