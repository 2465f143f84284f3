//go:build linux

package chaos

import (
	"context"
	"fmt"
	"io"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A stage is a Caddy process with a gateway, the servers of its neighbours, and those
// that a test adds.
type stage struct {
	process    *caddyrun.Process
	url, admin string
	config     string
	log        string
	idle       int // KiB of memory
	upstreams  []*httpServer
	neighbours []*neighbour
	hopeless   []string // names of servers that never serve
}

// binary returns the path of the Caddy that is put to the test.
func binary(t *testing.T) string {
	t.Helper()
	path, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A play is what a stage is made of beside the neighbours.
type play struct {
	binary   string   // in place of that under test
	env      []string // of Caddy
	gateway  []string // lines in the gateway
	hopeless []string // names of servers in it that never serve
	site     []string // directives beside the gateway
	servers  []*httpServer
}

// newStage starts Caddy.
func newStage(t *testing.T, p play) *stage {
	t.Helper()
	if !long { // in which numbers matter
		t.Parallel()
	}
	ports, err := loopback.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &stage{
		url:   fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		admin: fmt.Sprintf("127.0.0.1:%d", ports[1]),
		log:   filepath.Join(dir, "log"),

		hopeless: p.hopeless,
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
	cmd.Env = append(cmd.Env, p.env...)
	s.process, err = caddyrun.Start(cmd)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, s.config, s.logged())
	}
	t.Cleanup(func() {
		if err := s.process.Stop(guard); err != nil {
			t.Errorf("Caddy exited: %v", err)
		}
		logged := s.logged()
		for _, bad := range []string{"panic", "DATA RACE", "fatal error"} {
			if at := strings.Index(logged, bad); at >= 0 {
				t.Errorf("logged %.4000s", logged[max(0, at-500):])
			}
		}
		if dir := os.Getenv("CHAOS_LOGS"); dir != "" {
			_ = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+".log"), []byte(logged), 0o600)
		}
	})
	s.settleIn(t)
	return s
}

// settleIn has everybody meet everybody, and sees what the process takes when idle.
func (s *stage) settleIn(t *testing.T) {
	t.Helper()
	for _, w := range everyWay {
		c := s.caller(t, w)
		for _, server := range []string{"near", "far", "remote"} {
			if server == "remote" && (w == rpc || w == oneServer) {
				continue // which wants a session of the legacy era, or none at all
			}
			s.neighbours = append(s.neighbours, &neighbour{caller: c, server: server})
		}
	}
	load := s.visit(t)
	load.leave(t)
	s.settle(t, s.atRest(t))
	s.idle = s.memory(t).now
}

// logged returns what Caddy has written.
func (s *stage) logged() string {
	text, _ := os.ReadFile(s.log)
	return string(text)
}

// block is anything in a Caddyfile that has lines in braces.
func block(name string, lines ...string) string {
	return strings.TrimSpace(name+" {") + "\n" + strings.Join(lines, "\n") + "\n}\n"
}

// child is the line of a server that is a child process: this program.
func child(name string, flags ...string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err) // it was just started
	}
	return strings.Join(append([]string{"server", name, "stdio", self, "ds", name}, flags...), " ")
}

// newUpstream serves a handler. Idle connections to it are closed when counts are
// taken, and all when the test ends.
func newUpstream(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = quiet // faults abort handlers
	server.Start()
	t.Cleanup(func() {
		if closer, ok := handler.(interface{ Close() }); ok {
			closer.Close()
		}
		server.CloseClientConnections() // else Close waits for streams
		server.Close()
	})
	return server
}

// counts is what must be again as it was.
type counts struct {
	goroutines, files int
	children          []string
}

func (c counts) String() string {
	return fmt.Sprintf("%d goroutines, %d files, children %s", c.goroutines, c.files, strings.Join(c.children, " "))
}

var total = regexp.MustCompile(`goroutine profile: total (\d+)`)

// count counts what Caddy has in use while nobody uses it.
func (s *stage) count(t *testing.T) (c counts) {
	t.Helper()
	for _, upstream := range s.upstreams { // else Caddy keeps connections for later
		upstream.Config.SetKeepAlivesEnabled(false)
		upstream.Config.SetKeepAlivesEnabled(true)
	}
	if m := total.FindStringSubmatch(s.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=1", "")); m != nil {
		c.goroutines, _ = strconv.Atoi(m[1])
	}
	files, err := os.ReadDir(s.proc("fd"))
	if err != nil {
		t.Fatalf("Caddy is gone: %v\n%s", err, s.end())
	}
	c.files = len(files)
	c.children = s.children()
	return c
}

// end returns the last lines of the log.
func (s *stage) end() string {
	logged := s.logged()
	return logged[max(0, len(logged)-4000):]
}

func (s *stage) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.process.Process.Pid), name)
}

// A process is a child of Caddy.
type process struct {
	pid   int
	name  string // of the server
	state byte   // as Linux has it
}

// zombie is the name of a child that has ended, and that Caddy has not waited for yet.
const zombie = "a zombie"

// processes returns the children of Caddy.
func (s *stage) processes() (all []process) {
	for _, c := range procfs.Children(s.process.Process.Pid) {
		p := process{pid: c.PID, name: zombie, state: c.State}
		if args := c.Args(); len(args) > 2 {
			p.name = args[2]
		}
		all = append(all, p)
	}
	return all
}

// children returns the names of the servers that run as children of Caddy, but for those that never serve: the gateway
// tries them beside requests, so one may be there at any moment.
func (s *stage) children() (names []string) {
	for _, p := range s.processes() {
		if !slices.Contains(s.hopeless, p.name) {
			names = append(names, p.name)
		}
	}
	slices.Sort(names)
	return names
}

// atRest counts when no child is a zombie: those that never serve are tried, and end, at any moment.
func (s *stage) atRest(t *testing.T) (c counts) {
	t.Helper()
	await.Until(t, "children that have ended to be gone", func() bool {
		c = s.count(t)
		return !slices.Contains(c.children, zombie)
	})
	return c
}

// slack is how many goroutines and files more are no leak: Caddy has some work of its
// own. A fault is met by more calls than that.
const slack = 3

// settle waits until nothing is in use but what was before.
func (s *stage) settle(t *testing.T, before counts) {
	t.Helper()
	var now counts
	settled := await.Within(guard, func() bool {
		now = s.count(t)
		return now.goroutines <= before.goroutines+slack && now.files <= before.files+slack && slices.Equal(now.children, before.children)
	})
	if !settled {
		t.Errorf("leaked: %s before, %s now\n%.6000s", before, now, s.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=1", ""))
	}
}

// memory is how much of it the process has, in KiB.
type memory struct{ now, peak int }

func (s *stage) memory(t *testing.T) memory {
	t.Helper()
	caddy, ok := procfs.Read(s.process.Process.Pid)
	if !ok {
		t.Fatalf("Caddy is gone\n%s", s.end())
	}
	m := caddy.Memory()
	return memory{now: m.Resident >> 10, peak: m.Peak >> 10}
}

// forgetPeak has the peak begin anew.
func (s *stage) forgetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(s.proc("clear_refs"), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// askAdmin asks Caddy's admin API. While one configuration takes the place of another,
// a request may be lost.
func (s *stage) askAdmin(t *testing.T, method, path, body string) string {
	t.Helper()
	var said []byte
	var lost error
	answered := await.Within(guard, func() bool {
		req, err := mcpclient.NewRequest(t.Context(), method, "http://"+s.admin+path, body, "Content-Type: text/caddyfile")
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if lost = err; err != nil {
			return false
		}
		defer res.Body.Close()
		said, _ = io.ReadAll(res.Body)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: got %d %s, want 200", method, path, res.StatusCode, said)
		}
		return true
	})
	if !answered {
		t.Fatal(lost)
	}
	return string(said)
}

// An ordeal is what a fault is watched by.
type ordeal struct {
	*testing.T
	*stage
	load *load // neighbours at work

	mu      sync.Mutex
	answers []string // by way, as they first came
	seen    map[string]bool
	calls   int
	took    time.Duration
}

// ended notes how a call that met the fault has ended.
func (o *ordeal) ended(w way, got outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	o.took = max(o.took, got.took)
	if class := w.path() + " " + got.class; !o.seen[class] {
		o.seen[class] = true
		o.answers = append(o.answers, class)
	}
}

// meanwhile has the fault last until each neighbour has made so many more calls.
func (o *ordeal) meanwhile(calls int) {
	o.Helper()
	enough := o.load.calls() + calls*len(o.neighbours)
	if !await.Within(guard, func() bool { return o.load.calls() >= enough }) {
		o.Errorf("the neighbours made %d calls, want %d", o.load.calls(), enough)
	}
}

// wrong fails the test, once for each way.
func (o *ordeal) wrong(w way, format string, args ...any) {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.seen[string(w)] {
		o.seen[string(w)] = true
		o.Errorf(string(w)+" "+format, args...)
	}
}

// endure watches a fault: everything is as before when it is over, memory has not grown
// by more than so many MiB, and the neighbours have noticed nothing.
func (s *stage) endure(t *testing.T, name string, budget int, fault func(*ordeal)) {
	t.Run(name, func(t *testing.T) {
		before := s.atRest(t)
		s.forgetPeak(t)
		load := s.visit(t)
		o := &ordeal{T: t, stage: s, load: load, seen: map[string]bool{}}
		fault(o)
		good := load.leave(t)
		s.settle(t, before)
		peak := (s.memory(t).peak - s.idle) >> 10
		if peak > budget && !racing {
			t.Errorf("memory has grown by %d MiB, which should be %d at most", peak, budget)
		}
		printed.add(t, row{name: name, answers: o.summary(), took: o.took, calls: o.calls, peak: peak, good: good})
	})
}

// summary says how calls have ended, in the order of the ways in.
func (o *ordeal) summary() string {
	byClass := map[string][]string{}
	var classes []string
	for _, w := range append(slices.Clone(everyWay), model) {
		for _, answer := range o.answers {
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

// A fault is one that calls of a tool meet.
type fault struct {
	name         string
	begin        func(*ordeal) (end func()) // what has to be done for it, if anything
	gateway      string                     // below which path the gateway is, if it is another one
	server, tool string
	arguments    string
	ends         map[way]string // how, by way in
	calls        int            // at the same time, by each way in; 0 for 4
	counts       *server        // how often it has run the tool
	budget       int            // MiB of memory; 0 for 64
}

// racing says that the binary is one of the race detector, which takes many times the
// memory.
var racing = os.Getenv("CHAOS_RACE") != ""

// endures has calls meet a fault.
func (s *stage) endures(t *testing.T, f fault) {
	calls := f.calls
	if calls == 0 {
		calls = more(4, 16)
	}
	budget := f.budget
	if budget == 0 {
		budget = 64
	}
	hopeless := slices.Contains(s.hopeless, f.server)
	// A client that is new, with its sessions, is nothing that was there before.
	callers := map[way]*caller{}
	for w := range f.ends {
		callers[w] = s.callerAt(t, f.gateway, w)
		if !hopeless {
			callers[w].meet(t, f.server)
			callers[w].recovers(t, f.server)
		}
	}
	s.endure(t, f.name, budget, func(o *ordeal) {
		end := func() {}
		if f.begin != nil {
			end = f.begin(o)
		}
		before := 0
		if f.counts != nil {
			before = f.counts.times(f.tool)
		}
		var running sync.WaitGroup
		for w, class := range f.ends {
			for range calls {
				running.Go(func() {
					got := callers[w].call(o, f.server, f.tool, f.arguments)
					o.ended(w, got)
					if !slices.Contains(strings.Split(class, " or "), got.class) {
						o.wrong(w, "ended with %s, want %s: %.300q", got.class, class, got.body)
					}
				})
			}
		}
		running.Wait()
		if f.counts != nil && f.counts.times(f.tool)-before > o.calls {
			o.Errorf("%d calls were run %d times", o.calls, f.counts.times(f.tool)-before)
		}
		end()
		for _, c := range callers {
			if !hopeless {
				c.recovers(t, f.server)
			}
			c.http.CloseIdleConnections()
		}
	})
}

// recovers waits until the server serves the client.
func (c *caller) recovers(t *testing.T, server string) {
	t.Helper()
	var got outcome
	recovered := await.Within(guard, func() bool {
		got = c.call(t, server, "echo", `{"text":"again"}`)
		return got.class == "200 result" && echoed(got.text) == "again"
	})
	if !recovered {
		t.Errorf("%s of %s still answers with %s %.300q", c.way, server, got.class, got.body)
	}
}
