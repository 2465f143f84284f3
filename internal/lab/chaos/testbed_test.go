//go:build linux

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A testbed is a Caddy process with a gateway, the servers of other clients, and the servers of
// the test.
type testbed struct {
	process      *caddyrun.Process
	url, admin   string
	config       string
	log          string
	idle         int // KiB of memory when idle
	upstreams    []*httpServer
	otherClients []*otherClient
	neverReady   []string // names of servers that never start successfully
}

// binary returns the path of the Caddy under test.
func binary(t *testing.T) string {
	t.Helper()
	path, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A testbedConfig configures what a test adds to a testbed.
type testbedConfig struct {
	binary     string   // binary to use instead of the default
	env        []string // environment of Caddy
	gateway    []string // lines in the gateway
	neverReady []string // names of servers that never start successfully
	site       []string // directives next to the gateway
	servers    []*httpServer
}

// newTestbed starts Caddy and its servers.
func newTestbed(t *testing.T, p testbedConfig) *testbed {
	t.Helper()
	if !long { // which measures
		t.Parallel()
	}
	ports, err := loopback.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &testbed{
		url:   fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		admin: fmt.Sprintf("127.0.0.1:%d", ports[1]),
		log:   filepath.Join(dir, "log"),

		neverReady: p.neverReady,
	}
	far := newServer(t, nil)
	remote := newUpstream(t, &mcptest.Remote{Name: "remote", Legacy: true, Modern: true})
	s.upstreams = append(p.servers, far.Server, remote)
	s.config = block("", "admin "+s.admin) + block(fmt.Sprintf(":%d", ports[0]), append([]string{
		"bind 127.0.0.1",
		block("mcp_gateway", append([]string{
			"separator __",
			child("near", "--modern"),
			"server far " + far.URL + "/mcp",
			"server remote " + remote.URL + "/mcp",
		}, p.gateway...)...),
	}, p.site...)...)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(s.config), 0o600); err != nil {
		t.Fatal(err)
	}
	logged, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer logged.Close()
	if p.binary == "" {
		p.binary = binary(t)
	}
	cmd := caddyrun.Command(context.Background(), p.binary, dir, "run", "--config", file)
	cmd.Stdout, cmd.Stderr = logged, logged
	cmd.Env = append(cmd.Env, caddyrun.DefaultGC)
	cmd.Env = append(cmd.Env, p.env...)
	s.process, err = caddyrun.Start(cmd)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, s.config, s.logged())
	}
	t.Cleanup(func() {
		if err := s.process.Stop(testTimeout); err != nil {
			t.Errorf("Caddy exited: %v", err)
		}
		logged := s.logged()
		for _, bad := range []string{"panic", "DATA RACE", "fatal error"} {
			if i := strings.Index(logged, bad); i >= 0 {
				t.Errorf("logged %.4000s", logged[max(0, i-500):])
			}
		}
		if dir := os.Getenv("CHAOS_LOGS"); dir != "" {
			_ = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+".log"), []byte(logged), 0o600)
		}
	})
	s.warmUp(t)
	return s
}

// warmUp lets the other clients call each of their servers, then measures the idle process.
func (s *testbed) warmUp(t *testing.T) {
	t.Helper()
	for _, w := range endpoints {
		c := s.initializedClient(t, w)
		for _, server := range []string{"near", "far", "remote"} {
			if server == "remote" && (w == rpc || w == oneServer) {
				continue // it would need a session of the legacy era
			}
			s.otherClients = append(s.otherClients, &otherClient{testClient: c, server: server})
		}
	}
	load := s.startOthers(t)
	load.finish(t)
	s.awaitCounts(t, s.countAtRest(t))
	s.idle = s.memory(t).now
}

// logged returns the log of Caddy.
func (s *testbed) logged() string {
	text, _ := os.ReadFile(s.log)
	return string(text)
}

// block returns a block of a Caddyfile.
func block(name string, lines ...string) string {
	return strings.TrimSpace(name+" {") + "\n" + strings.Join(lines, "\n") + "\n}\n"
}

// child returns the line of a stdio server that runs this program.
func child(name string, flags ...string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err) // cannot happen
	}
	return strings.Join(append([]string{"server", name, "stdio", self, "ds", name}, flags...), " ")
}

// newUpstream serves a handler. Connections to it are closed when the test ends.
func newUpstream(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = quiet // handlers of faults abort
	server.Start()
	t.Cleanup(func() {
		if closer, ok := handler.(interface{ Close() }); ok {
			closer.Close()
		}
		server.CloseClientConnections() // otherwise Close waits for streams
		server.Close()
	})
	return server
}

// counts are the resources that must be the same after a fault.
type counts struct {
	goroutines, files int
	children          []string
}

func (c counts) String() string {
	return fmt.Sprintf("%d goroutines, %d files, children %s", c.goroutines, c.files, strings.Join(c.children, " "))
}

var total = regexp.MustCompile(`goroutine profile: total (\d+)`)

// count counts what an idle Caddy has in use.
func (s *testbed) count(t *testing.T) (c counts) {
	t.Helper()
	for _, upstream := range s.upstreams { // close the connections that Caddy keeps
		upstream.Config.SetKeepAlivesEnabled(false)
		upstream.Config.SetKeepAlivesEnabled(true)
	}
	if m := total.FindStringSubmatch(s.adminRequest(t, "GET", "/debug/pprof/goroutine?debug=1", "")); m != nil {
		c.goroutines, _ = strconv.Atoi(m[1])
	}
	files, err := os.ReadDir(s.proc("fd"))
	if err != nil {
		t.Fatalf("Caddy has exited: %v\n%s", err, s.logEnd())
	}
	c.files = len(files)
	c.children = s.children()
	return c
}

// logEnd returns the last lines of the log.
func (s *testbed) logEnd() string {
	logged := s.logged()
	return logged[max(0, len(logged)-4000):]
}

func (s *testbed) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.process.Process.Pid), name)
}

// A process is a child of Caddy.
type process struct {
	pid   int
	name  string // name of the server
	state byte   // as in /proc
}

// zombie is the name of a child that has exited and that Caddy has not yet waited for.
const zombie = "a zombie"

// processes returns the children of Caddy.
func (s *testbed) processes() (all []process) {
	for _, c := range procfs.Children(s.process.Process.Pid) {
		p := process{pid: c.PID, name: zombie, state: c.State}
		if args := c.Args(); len(args) > 2 {
			p.name = args[2]
		}
		all = append(all, p)
	}
	return all
}

// children returns the names of the servers that run as children of Caddy, except those in
// neverReady: the gateway starts those in the background, so one may run at any moment.
func (s *testbed) children() (names []string) {
	for _, p := range s.processes() {
		if !slices.Contains(s.neverReady, p.name) {
			names = append(names, p.name)
		}
	}
	slices.Sort(names)
	return names
}

// countAtRest counts while no child is a zombie. Those in neverReady may start and exit at any
// moment.
func (s *testbed) countAtRest(t *testing.T) (c counts) {
	t.Helper()
	await.Until(t, "zombies to disappear", func() bool {
		c = s.count(t)
		return !slices.Contains(c.children, zombie)
	})
	return c
}

// slack is the number of additional goroutines and files that are not a leak: Caddy has some
// work of its own. Each fault affects more calls than that.
const slack = 3

// awaitCounts waits until only as much is in use as before.
func (s *testbed) awaitCounts(t *testing.T, before counts) {
	t.Helper()
	var now counts
	settled := await.Within(testTimeout, func() bool {
		now = s.count(t)
		return now.goroutines <= before.goroutines+slack && now.files <= before.files+slack && slices.Equal(now.children,
			before.children)
	})
	if !settled {
		t.Errorf("leaked: %s before, %s now\n%.6000s", before, now,
			s.adminRequest(t, "GET", "/debug/pprof/goroutine?debug=1", ""))
	}
}

// memory is the memory of the process, in KiB.
type memory struct{ now, peak int }

func (s *testbed) memory(t *testing.T) memory {
	t.Helper()
	caddy, ok := procfs.Read(s.process.Process.Pid)
	if !ok {
		t.Fatalf("Caddy has exited\n%s", s.logEnd())
	}
	m := caddy.Memory()
	return memory{now: m.Resident >> 10, peak: m.Peak >> 10}
}

// resetPeak resets the peak.
func (s *testbed) resetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(s.proc("clear_refs"), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// adminRequest makes a request to Caddy's admin API. It retries, because a reload may drop a
// request.
func (s *testbed) adminRequest(t *testing.T, method, path, body string) string {
	t.Helper()
	var reply []byte
	var failure error
	done := await.Within(testTimeout, func() bool {
		req, err := mcpclient.NewRequest(t.Context(), method, "http://"+s.admin+path, body, "Content-Type: text/caddyfile")
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		failure = err
		if err != nil {
			return false
		}
		defer res.Body.Close()
		reply, _ = io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: got %d %s, want 200", method, path, res.StatusCode, reply)
		}
		return true
	})
	if !done {
		t.Fatal(failure)
	}
	return string(reply)
}

// A faultRun is a running fault and its observation.
type faultRun struct {
	*testing.T
	*testbed
	load *otherLoad // calls of other clients

	mu      sync.Mutex
	classes []string // how calls ended, by endpoint, in order of first occurrence
	seen    map[string]bool
	calls   int
	took    time.Duration
}

// record records how a call ended.
func (o *faultRun) record(w endpoint, got outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	o.took = max(o.took, got.took)
	if class := w.path() + " " + got.class; !o.seen[class] {
		o.seen[class] = true
		o.classes = append(o.classes, class)
	}
}

// awaitOtherCalls waits until each of the other clients has made this many more calls.
func (o *faultRun) awaitOtherCalls(calls int) {
	o.Helper()
	enough := o.load.calls() + calls*len(o.otherClients)
	if !await.Within(testTimeout, func() bool { return o.load.calls() >= enough }) {
		o.Errorf("other clients made %d calls, want %d", o.load.calls(), enough)
	}
}

// failOnce fails the test, once for each endpoint.
func (o *faultRun) failOnce(w endpoint, format string, args ...any) {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.seen[string(w)] {
		o.seen[string(w)] = true
		o.Errorf(string(w)+" "+format, args...)
	}
}

// runFault runs a fault. It checks that afterwards everything is as before, that memory has not
// grown by more than budget MiB, and that other clients were not affected.
func (s *testbed) runFault(t *testing.T, name string, budget int, fault func(*faultRun)) {
	t.Run(name, func(t *testing.T) {
		before := s.countAtRest(t)
		s.resetPeak(t)
		load := s.startOthers(t)
		o := &faultRun{T: t, testbed: s, load: load, seen: map[string]bool{}}
		fault(o)
		good := load.finish(t)
		s.awaitCounts(t, before)
		peak := (s.memory(t).peak - s.idle) >> 10
		if peak > budget && !raceDetector {
			t.Errorf("memory has grown by %d MiB, want at most %d", peak, budget)
		}
		report.add(t, row{name: name, classes: o.summary(), took: o.took, calls: o.calls, peak: peak, good: good})
	})
}

// summary returns how calls ended, in the order of the endpoints.
func (o *faultRun) summary() string {
	byClass := map[string][]string{}
	var classes []string
	for _, w := range append(slices.Clone(endpoints), model) {
		for _, answer := range o.classes {
			path, class, _ := strings.Cut(answer, " ")
			if path != w.path() || slices.Contains(byClass[class], path) {
				continue
			}
			if byClass[class] == nil {
				classes = append(classes, class)
			}
			byClass[class] = append(byClass[class], path)
		}
	}
	for i, class := range classes {
		if len(classes) > 1 {
			classes[i] = class + " (" + strings.Join(byClass[class], ", ") + ")"
		}
	}
	return strings.Join(classes, "; ")
}

// A fault is a fault of a tool or its server.
type fault struct {
	name         string
	start        func(*faultRun) (end func()) // starts the fault, or nil
	gateway      string                       // path prefix of another gateway, or ""
	server, tool string
	arguments    string
	want         map[endpoint]string // expected class of outcome, by endpoint
	calls        int                 // concurrent calls at each endpoint; 0 for 4
	counter      *server             // server that counts calls of the tool, or nil
	budget       int                 // MiB of memory; 0 for 64
}

// raceDetector reports whether the binary has the race detector, which takes many times the memory.
var raceDetector = os.Getenv("CHAOS_RACE") != ""

// runCallFault makes calls that are affected by a fault, and checks how they end.
func (s *testbed) runCallFault(t *testing.T, f fault) {
	calls := f.calls
	if calls == 0 {
		calls = byLength(4, 16)
	}
	budget := f.budget
	if budget == 0 {
		budget = 64
	}
	hopeless := slices.Contains(s.neverReady, f.server)
	// New clients and their sessions must not count as a leak.
	callers := map[endpoint]*testClient{}
	for w := range f.want {
		callers[w] = s.initializedClientAt(t, f.gateway, w)
		if !hopeless {
			callers[w].initialize(t, f.server)
			callers[w].awaitRecovery(t, f.server)
		}
	}
	s.runFault(t, f.name, budget, func(o *faultRun) {
		end := func() {}
		if f.start != nil {
			end = f.start(o)
		}
		before := 0
		if f.counter != nil {
			before = f.counter.times(f.tool)
		}
		var running sync.WaitGroup
		for w, class := range f.want {
			for range calls {
				running.Go(func() {
					got := callers[w].call(o, f.server, f.tool, f.arguments)
					o.record(w, got)
					if !slices.Contains(strings.Split(class, " or "), got.class) {
						o.failOnce(w, "ended with %s, want %s: %.300q", got.class, class, got.body)
					}
				})
			}
		}
		running.Wait()
		if f.counter != nil && f.counter.times(f.tool)-before > o.calls {
			o.Errorf("the server ran %[2]d calls, want at most %[1]d", o.calls, f.counter.times(f.tool)-before)
		}
		end()
		for _, c := range callers {
			if !hopeless {
				c.awaitRecovery(t, f.server)
			}
			c.http.CloseIdleConnections()
		}
	})
}

// awaitRecovery waits until the server works for this client again.
func (c *testClient) awaitRecovery(t *testing.T, server string) {
	t.Helper()
	var got outcome
	recovered := await.Within(testTimeout, func() bool {
		got = c.call(t, server, "echo", `{"text":"again"}`)
		return got.class == "200 result" && echoed(got.text) == "again"
	})
	if !recovered {
		t.Errorf("%s of %s still returns %s %.300q", c.endpoint, server, got.class, got.body)
	}
}

// quiet is the error log of servers whose handlers abort.
var quiet = log.New(io.Discard, "", 0)

// A server is an MCP server over HTTP without sessions. Requests other than calls succeed. Its
// tools are echo and one for each fault.
type server struct {
	*httptest.Server
	script *mcptest.Script
}

// An exchange is a call of a tool that fails.
type exchange struct {
	w  http.ResponseWriter
	r  *http.Request
	id json.RawMessage
}

func newServer(t *testing.T, faults map[string]func(*exchange)) *server {
	t.Helper()
	script := &mcptest.Script{
		Sessionless: true, Legacy: true, Capabilities: `{"tools":{}}`,
		Tools: append(slices.Sorted(maps.Keys(faults)), "echo"),
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			fault := faults[r.Tool()]
			if fault != nil {
				fault(&exchange{w, r.HTTP, r.ID})
			}
			return fault != nil
		},
	}
	return &server{newUpstream(t, script), script}
}

// times returns how often a tool was called.
func (s *server) times(tool string) (n int) {
	for _, call := range s.script.Received("tools/call") {
		if call.Tool() == tool {
			n++
		}
	}
	return n
}

func answer(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":`, id)
	_, _ = io.WriteString(w, result)
	_, _ = io.WriteString(w, "}")
}

// text returns the result of a tool with this text.
func text(s string) string {
	quoted, _ := json.Marshal(s)
	return `{"content":[{"type":"text","text":` + string(quoted) + `}]}`
}

// raw takes over the connection, to send bytes that no HTTP server would.
func (x *exchange) raw() (net.Conn, *bufio.ReadWriter) {
	conn, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(err) // HTTP/1.1 always supports it
	}
	return conn, rw
}

// sends returns a handler that sends bytes and closes the connection.
func sends(format string) func(*exchange) {
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, _ = io.WriteString(conn, strings.ReplaceAll(format, "{id}", string(x.id)))
	}
}

// sendsRepeatedly returns a handler that sends a start and then the same bytes repeatedly, until
// the client disconnects or limit bytes are sent.
func sendsRepeatedly(start, repeated string, limit int) func(*exchange) {
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, err := io.WriteString(conn, strings.ReplaceAll(start, "{id}", string(x.id)))
		for sent := 0; err == nil && sent < limit; sent += len(repeated) {
			_, err = io.WriteString(conn, repeated)
		}
	}
}

// hangs sends no response until the client disconnects.
func hangs(x *exchange) {
	<-x.r.Context().Done()
	panic(http.ErrAbortHandler) // otherwise the server would send a response
}

type httpServer = httptest.Server
