package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// reportAggregate measures the door to all servers at once: calls by reverse_proxy
// alone, lists from memory by those that are asked for, and what an idle session takes.
func reportAggregate(ctx context.Context, chosen *regexp.Regexp, caddy string, budget time.Duration) error {
	if err := reportJoinedCalls(ctx, chosen, caddy, budget); err != nil {
		return err
	}
	if err := reportLists(ctx, chosen, caddy, budget); err != nil {
		return err
	}
	return reportIdle(ctx, chosen, caddy)
}

// How the addresses of the server of this program begin or end, which say what it is
// like.
const (
	callPath     = "/call/"     // it answers calls with so many bytes
	fixedPath    = "/fixed/"    // it has listedTools, and says that they never change
	changingPath = "/changing/" // it has the same, and says that they may
	listenPath   = "/listen"    // it can be listened to
	silentPath   = "/silent"    // it cannot
)

const (
	joinedServers = 20
	listedTools   = 50
)

// callCaddyfile has three servers: a call has to find its own.
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
		{"legacy", "1KB", callPath + "1000", 1000, 1},
		{"legacy", "1KB", callPath + "1000", 1000, 16},
		{"legacy", "100KB", callPath + "100000", 100_000, 1},
		{"legacy", "100KB", callPath + "100000", 100_000, 16},
		{"modern", "1KB", callPath + "1000", 1000, 1},
		{"modern", "1KB", callPath + "1000", 1000, 16},
	} {
		name := fmt.Sprintf("aggregate/call/%s/%s/%dclients", c.era, c.size, c.clients)
		if !chosen.MatchString(name) {
			continue
		}
		if !headed {
			printHeading("calls/s of one of 3 joined servers", "plain", "joined")
			headed = true
		}
		if err := compareCalls(ctx, name, caddy, c.path, c.bytes, c.clients, c.era == "modern", budget); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func compareCalls(ctx context.Context, name, caddy, path string, size, clients int, modern bool, budget time.Duration) error {
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	gw, err := startGateway(ctx, caddy, callCaddyfile, server.port, path)
	if err != nil {
		return err
	}
	defer gw.stop()
	c := contest{name: name, connections: clients}
	for i, at := range []struct{ path, tool string }{{path, "read_log"}, {"/mcp", "bench__read_log"}} {
		var request []byte
		var sets []http.Header
		if modern {
			request, sets = modernCall(at.tool)
		} else {
			request = jsonrpc.Request(1, "tools/call", []byte(`{"name":"`+at.tool+`","arguments":{"lines":2000}}`))
			if sets, err = openSessions(ctx, gw.urls[i]+at.path, clients); err != nil {
				return err
			}
		}
		c.sites[i] = site{withHeaders(gw.urls[i]+at.path, sets), request, answer(size)}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// modernCall returns a call of the modern era and the headers it comes with.
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

// reportLists compares lists that are remembered with those of servers that may have
// changed since, and that nobody listens to.
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
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	var caddyfile strings.Builder
	caddyfile.WriteString(benchOptions)
	for i, path := range []string{changingPath, fixedPath} {
		fmt.Fprintf(&caddyfile, "http://:%%[%d]d {\n\tbind 127.0.0.1\n\tmcp_gateway {\n\t\tseparator __\n", i+1)
		for s := range joinedServers {
			fmt.Fprintf(&caddyfile, "\t\tserver s%d http://127.0.0.1:%d%s%d\n", s, server.port, path, s)
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
	want := jsonrpc.Answer([]byte("1"), toolList(prefixes...))
	c := contest{name: name, connections: clients}
	for i := range c.sites {
		sessions, err := openSessions(ctx, gw.urls[i]+"/mcp", clients)
		if err != nil {
			return err
		}
		c.sites[i] = site{withHeaders(gw.urls[i]+"/mcp", sessions), jsonrpc.Request(1, "tools/list", nil), want}
	}
	return c.run(ctx, gw, budget/(2*rounds))
}

// toolList is the result of tools/list where all tools are there under each prefix.
func toolList(prefixes ...string) []byte {
	list := []byte(`{"tools":[`)
	for _, prefix := range prefixes {
		for i := range listedTools {
			if list[len(list)-1] != '[' {
				list = append(list, ',')
			}
			list = fmt.Appendf(list, `{"name":"%stool_%d","description":"Reads the last lines of a log, oldest first, and says which of them were left out.",`+
				`"inputSchema":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}}`, prefix, i)
		}
	}
	return append(list, ']', '}')
}

// idleSessions is how many are opened, if there are file descriptors for them.
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

// What stands at the site that idle sessions are opened at. They get the port of the
// server of this program, and the path of this program.
const (
	idlePlain  = `reverse_proxy 127.0.0.1:%[1]d`
	idleHTTP   = "mcp_gateway {\n\t\tseparator __\n\t\tserver bench http://127.0.0.1:%[1]d" + listenPath + "\n\t}"
	idleSilent = "mcp_gateway {\n\t\tseparator __\n\t\tserver bench http://127.0.0.1:%[1]d" + silentPath + "\n\t}"
	idleStdio  = "mcp_gateway {\n\t\tseparator __\n\t\tserver bench stdio %[2]s serve 1000 {\n\t\t\tmax_sessions 100000\n\t\t}\n\t}"
)

// reportIdle opens many sessions, each with a stream, in a fresh process each time.
func reportIdle(ctx context.Context, chosen *regexp.Regexp, caddy string) error {
	headed := false
	for _, c := range []struct {
		name, path, handler string
		sockets             int // of caddy, by session
	}{
		{"plain", listenPath, idlePlain, 2},
		{"http", "/mcp", idleHTTP, 2},
		{"stdio", "/mcp", idleStdio, 1},
		{"http-without-stream", "/mcp", idleSilent, 1},
	} {
		name := "aggregate/idle/" + c.name
		if !chosen.MatchString(name) {
			continue
		}
		if !headed {
			fmt.Printf("\n%-41s %10s %10s %10s %10s\n", "memory of caddy, KB per idle session", "sessions", "resident", "live heap", "stacks")
			headed = true
		}
		n := min(idleSessions, (openFiles()-500)/c.sockets)
		if n <= 0 {
			fmt.Printf("%-41s %10s %10s %10s %10s\n", name, "n/a", "n/a", "n/a", "n/a") // it takes Linux, and file descriptors
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
		fmt.Println("Resident is VmRSS as it comes, garbage and all. The heap is what a collection leaves of it, with the 32 KiB")
		fmt.Println("of reverse_proxy for each stream from HTTP or stdio that nothing is ever written to, and so are not resident.")
	}
	return nil
}

// openFiles returns how many file descriptors a process may have, 0 if that is not
// known. Go programs raise the limit as far as they may by themselves.
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

// A memory is what a process takes, in bytes.
type memory struct {
	resident     int
	heap, stacks int // after a collection
}

func idleMemory(ctx context.Context, caddy, path, handler string, n int) (before, after memory, err error) {
	server, err := startServer(ctx)
	if err != nil {
		return before, after, err
	}
	defer server.stop()
	self, err := os.Executable()
	if err != nil {
		return before, after, err
	}
	// Of the two ports that a gateway has, one is that of the admin API.
	gw, err := startGateway(ctx, caddy, idleCaddyfile, fmt.Sprintf(handler, server.port, self))
	if err != nil {
		return before, after, err
	}
	defer gw.stop()
	// What the first sessions take is not what all take.
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

// memory asks the admin API. The resident memory is that before the collection, which
// the question begins with.
func (gw *gateway) memory(ctx context.Context) (m memory, err error) {
	_, after, _ := strings.Cut(gw.proc("status"), "VmRSS:")
	kib, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	m.resident, _ = strconv.Atoi(kib)
	m.resident *= 1 << 10
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gw.urls[0]+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return m, err
	}
	resp, err := client.Do(req)
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

// streams are connections by which somebody listens.
type streams []net.Conn

func (s streams) close() {
	for _, conn := range s {
		_ = conn.Close()
	}
}

// openStreams opens sessions with a stream each. The connections are bare: n clients
// of net/http would take more memory than what is measured.
func openStreams(ctx context.Context, address string, n int) (streams, error) {
	sessions, err := openSessions(ctx, address, n)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	opened := make(streams, n)
	err = inParallel(n, func(i int) (err error) {
		opened[i], err = openStream(ctx, at, sessions[i].Get(mcp.SessionHeader))
		return err
	})
	if err != nil {
		for _, conn := range opened {
			if conn != nil {
				_ = conn.Close()
			}
		}
		return nil, err
	}
	return opened, nil
}

func openStream(ctx context.Context, at *url.URL, session string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\nMcp-Protocol-Version: %s\r\nMcp-Session-Id: %s\r\n\r\n",
		at.Path, at.Host, mcp.Latest, session)
	status := make([]byte, len("HTTP/1.1 200"))
	if err == nil {
		_, err = io.ReadFull(conn, status)
	}
	if err == nil && string(status) != "HTTP/1.1 200" {
		err = fmt.Errorf("GET: %q", status)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// openSessions shakes hands n times. It returns the headers that tell the sessions.
func openSessions(ctx context.Context, address string, n int) ([]http.Header, error) {
	const hello = `{"protocolVersion":"` + mcp.Latest + `","capabilities":{"sampling":{},"elicitation":{}},"clientInfo":{"name":"bench","version":"1"}}`
	sets := make([]http.Header, n)
	err := inParallel(n, func(i int) error {
		header, err := post(ctx, address, nil, jsonrpc.Request(1, "initialize", []byte(hello)))
		if err != nil {
			return err
		}
		sets[i] = http.Header{mcp.VersionHeader: {mcp.Latest}, mcp.SessionHeader: {header.Get(mcp.SessionHeader)}}
		_, err = post(ctx, address, sets[i], jsonrpc.Notification("notifications/initialized", nil))
		return err
	})
	return sets, err
}

// inParallel does something n times, several at once.
func inParallel(n int, f func(i int) error) (err error) {
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if failure := f(i); failure != nil {
					next.Store(int64(n))
					mu.Lock()
					err = cmp.Or(err, failure)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return err
}

// post posts a message and returns the headers of the response.
func post(ctx context.Context, address string, header http.Header, message []byte) (http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, errors.New(resp.Status)
	}
	return resp.Header, nil
}

// headerScheme is the scheme of addresses whose requests get more headers before they
// are sent by HTTP.
const headerScheme = "bench"

func init() { client.Transport.(*http.Transport).RegisterProtocol(headerScheme, &headers) }

var headers headerTransport

// A headerTransport adds headers to requests, by host.
type headerTransport struct{ byHost sync.Map }

// headerSets are what the requests to a host get in turn.
type headerSets struct {
	sets []http.Header
	next atomic.Uint64
}

// withHeaders returns the address to use in place of another for each request to get
// one of the sets, in turn.
func withHeaders(address string, sets []http.Header) string {
	rest := strings.TrimPrefix(address, "http://")
	host, _, _ := strings.Cut(rest, "/")
	headers.byHost.Store(host, &headerSets{sets: sets})
	return headerScheme + "://" + rest
}

// RoundTrip implements http.RoundTripper.
func (t *headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	if known, ok := t.byHost.Load(r.URL.Host); ok {
		h := known.(*headerSets)
		maps.Copy(r.Header, h.sets[h.next.Add(1)%uint64(len(h.sets))])
	}
	return client.Transport.RoundTrip(r)
}

// served is this program as an MCP server.
type served struct {
	port int
	stop func() // waits until it has
}

func startServer(ctx context.Context) (*served, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ports, err := loopback.FreePorts(1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	server := exec.CommandContext(ctx, self, "serve-many", strconv.Itoa(ports[0]))
	if err := server.Start(); err != nil {
		cancel()
		return nil, err
	}
	s := &served{ports[0], func() {
		cancel()
		_ = server.Wait()
	}}
	if err := loopback.Await(ctx, ports[0]); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// serveMany is MCP servers of both eras, which differ by their paths.
func serveMany(port string) {
	results := map[string][]byte{}
	for _, size := range []int{1000, 100_000} {
		var m jsonrpc.Message
		if m.Read(answer(size)) != nil {
			panic("the answer is no message")
		}
		results[callPath+strconv.Itoa(size)] = m.Literal(jsonrpc.Result)
	}
	_ = http.ListenAndServe("127.0.0.1:"+port, &servers{results, toolList("")})
}

type servers struct {
	results map[string][]byte // of tools/call, by path
	list    []byte
}

func (s *servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == listenPath:
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	case r.Method == http.MethodDelete:
		return
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var m jsonrpc.Message
	if m.Read(body) != nil || !m.IsRequest() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	capabilities := `{"tools":{}}`
	if strings.HasPrefix(r.URL.Path, changingPath) {
		capabilities = `{"tools":{"listChanged":true}}`
	}
	result := []byte("{}")
	switch m.Text(jsonrpc.Method) {
	case "initialize":
		w.Header().Set(mcp.SessionHeader, rand.Text())
		result = []byte(`{"protocolVersion":"` + mcp.Latest + `","capabilities":` + capabilities + `,"serverInfo":{"name":"bench","version":"1"}}`)
	case "server/discover":
		result = []byte(`{"resultType":"complete","supportedVersions":["` + mcp.Stateless + `"],"capabilities":` + capabilities + `}`)
	case "tools/list":
		result = s.list
	case "tools/call":
		result = s.results[r.URL.Path]
	}
	body = jsonrpc.Answer(m.Literal(jsonrpc.ID), result)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}
