package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// pauseProcess suspends a process until the end of the test, so that it hangs.
func pauseProcess(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// healthy returns the health gauge of a server.
func healthy(t *testing.T, server string) float64 {
	t.Helper()
	return metrics(t)[serverMetric("upstream_healthy", server)]
}

func TestOperateHealthOfChildren(t *testing.T) {
	isolate(t)
	deaf, modern, idle := newJournal(t), newJournal(t), newJournal(t)
	url := serve(t, gateway("name patient", "health_interval 100ms", "health_timeout 30s", "separator __",
		block(child("deaf", "--no-ping"), deaf.env()), block(child("modern", "--modern-only"), modern.env()),
		block(child("idle"), idle.env())))
	c := newTestClient(t, joinedAt(url), true, `{}`)
	for name, journal := range map[string]journal{"deaf": deaf, "modern": modern} {
		t.Run("A36 any response counts as healthy: "+name, func(t *testing.T) {
			pid := c.use(t, name, "pid", `{}`)
			received := func() int { // requests of all kinds of checks
				n := 0
				for _, method := range []string{"ping", "server/discover", "initialize"} {
					n += len(journal.entries(t, method))
				}
				return n
			}
			before, starts := received(), len(journal.entries(t, "start"))
			await.Until(t, "some checks", func() bool { return received() >= before+5 })
			if again := c.use(t, name, "pid", `{}`); again != pid || len(journal.entries(t, "start")) != starts {
				t.Errorf("pid was %s, is %s: %v", pid, again, journal.entries(t, "start"))
			}
			if got := stateOf(t, name); got.State != "healthy" || got.Restarts != 0 {
				t.Errorf("%+v", got)
			}
			if got := healthy(t, name); got != 1 {
				t.Errorf("the gauge is %v", got)
			}
		})
	}
	t.Run("A36 an unused child is not started", func(t *testing.T) {
		if starts := idle.entries(t, "start"); len(starts) > 0 {
			t.Errorf("%v", starts)
		}
	})
}

// A child that hangs or dies is replaced before a call needs it.
func TestOperateHealthRestarts(t *testing.T) {
	isolate(t)
	for _, tt := range []struct {
		name   string
		lines  []string
		fall   func(t *testing.T, pid int)
		checks bool // only health checks detect it
	}{
		{"A36 A37 one that hangs", []string{"health_interval 200ms", "health_timeout 3s"}, pauseProcess, true},
		{"A37 one that is killed", nil, func(t *testing.T, pid int) {
			t.Helper()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			journal := newJournal(t)
			server := "fallen" + fmt.Sprint(tt.checks)
			// The long timeout makes a call that does not end with the child fail the test. The delay makes
			// the gauge observable.
			url := serve(t, gateway(append(tt.lines, "name falls", "separator __", block(child(server, "--init-delay", "0.5"),
				journal.env(), "timeout 10m"))...))
			legacy, modern := newTestClient(t, joinedAt(url), false, fullCapabilities), newTestClient(t, joinedAt(url), true,
				fullCapabilities)
			stream := legacy.listenForChanges(t)
			before := legacy.use(t, server, "pid", `{}`)
			pid := stateOf(t, server).pid(t)
			if fmt.Sprint(pid) != before || healthy(t, server) != 1 {
				t.Fatalf("pid %s, state %+v, gauge %v", before, stateOf(t, server), healthy(t, server))
			}
			grown := growth(t)
			calls := len(journal.entries(t, "tools/call"))
			pending := map[string]*exchange{}
			for name, c := range map[string]*testClient{"legacy": legacy, "modern": modern} {
				pending[name] = c.begin(t, "tools/call", callOf(server, "hang", `{}`))
			}
			alone := beginCall(t, mcpAt(url, server), "hang", `{}`)
			await.Until(t, "the calls", func() bool { return len(journal.entries(t, "tools/call")) == calls+3 })

			tt.fall(t, pid)
			await.Until(t, "A52 the gauge to be 0", func() bool { return healthy(t, server) == 0 })
			await.Until(t, "another process", func() bool { return len(journal.entries(t, "start")) == 2 })
			for name, d := range pending {
				if got := d.finish(t).answer; got.Error == nil || got.Error.Code != -32002 ||
					!strings.Contains(string(got.Error.Data), `"connect_error"`) {
					t.Errorf("A37 the pending call of the %s client: %s", name, got.Raw)
				}
			}
			if f := gatewayErrorOf(t, <-alone); f != (gatewayError{502, -32002, "connect_error", "1", server, 0}) {
				t.Errorf("A37 the pending call at its own endpoint: %+v", f)
			}
			await.Until(t, "A52 the gauge to be 1", func() bool { return healthy(t, server) == 1 })
			stream.awaitMessage(t, listChanged)

			after := legacy.use(t, server, "pid", `{}`)
			if after == before || modern.use(t, server, "pid", `{}`) != after {
				t.Errorf("pid was %s, is %s", before, after)
			}
			if got := toolNames(t, legacy); !slices.Contains(got, server+"__pid") {
				t.Errorf("listed %v", got)
			}
			if got := grown()[serverMetric("upstream_restarts_total", server)]; got != 1 {
				t.Errorf("A52 %v restarts are counted", got)
			}
			if got := stateOf(t, server); fmt.Sprint(got.pid(t)) != after || got.Restarts != 1 || got.LastError == "" {
				t.Errorf("A70 %+v", got)
			}
			await.Until(t, "A70 the server to be healthy", func() bool { return stateOf(t, server).State == "healthy" })
			if inits := journal.messages(t, "initialize"); len(inits) != 2 ||
				string(inits[0].Params) != string(inits[1].Params) {
				t.Errorf("A37 initialized %v", inits)
			}
			if n := len(journal.entries(t, "notifications/initialized")); n != 2 {
				t.Errorf("A37 got %d notifications/initialized", n)
			}
			await.Until(t, "the end of the old process", func() bool { return !processRuns(pid) })
		})
	}
}

// Health checks also cover a child that serves one session.
func TestOperateHealthOfChildrenOfSessions(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway("name sessions", "separator __", "health_interval 200ms", "health_timeout 3s",
		block(child("own"), journal.env(), "isolation session", "timeout 10m")))
	one, two := newTestClient(t, joinedAt(url), false, fullCapabilities), newTestClient(t, joinedAt(url), false,
		`{"sampling":{}}`)
	before, other := one.use(t, "own", "pid", `{}`), two.use(t, "own", "pid", `{}`)
	pid, err := strconv.Atoi(before)
	if err != nil || before == other {
		t.Fatalf("%v: %s and %s", err, before, other)
	}
	calls := len(journal.entries(t, "tools/call"))
	pending := one.begin(t, "tools/call", callOf("own", "hang", `{}`))
	await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > calls })
	pauseProcess(t, pid)
	if got := pending.finish(t).answer; got.Error == nil || got.Error.Code != -32002 {
		t.Errorf("A37 the pending call: %s", got.Raw)
	}
	if after := one.use(t, "own", "pid", `{}`); after == before || after == other || after == "" {
		t.Errorf("A36 pid was %s, is %q", before, after)
	}
	if got := two.use(t, "own", "pid", `{}`); got != other {
		t.Errorf("A36 pid of the other was %s, is %s", other, got)
	}
	await.Until(t, "A37 each child to get its client's capabilities", func() bool {
		capabilities := map[string]int{}
		for _, m := range journal.messages(t, "initialize") {
			capabilities[m.Param("capabilities")]++
		}
		return capabilities[fullCapabilities] == 2 && capabilities[`{"sampling":{}}`] == 1
	})
	await.Until(t, "the end of the old process", func() bool { return !processRuns(pid) })
}

// If one of several children of a server hangs, it is replaced, and the others keep serving.
func TestOperateHealthOfAPool(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway("name pool", "health_interval 200ms", "health_timeout 3s", "response_timeout 20s",
		stdioProxy("pool", "pool:1-3", nil, []string{journal.env()}, "lb_policy round_robin")))
	pids := func() map[int]int {
		pids := map[int]int{}
		for range 6 {
			pids[pidAt(t, mcpAt(url, "pool"))]++
		}
		return pids
	}
	before := pids()
	if len(before) != 3 || len(stateOf(t, "pool").Children) != 3 {
		t.Fatalf("A70 %v, %+v", before, stateOf(t, "pool"))
	}
	hung := journal.entries(t, "start")[0].PID
	pauseProcess(t, hung)
	await.Until(t, "A36 its end", func() bool { return !processRuns(hung) && len(journal.entries(t, "start")) == 4 })
	await.Until(t, "A70 three children", func() bool {
		running := 0
		for _, c := range stateOf(t, "pool").Children {
			if c.State == "running" && c.PID != hung {
				running++
			}
		}
		return running == 3 && stateOf(t, "pool").State == "healthy"
	})
	kept := 0
	for pid := range pids() {
		kept += min(before[pid], 1)
	}
	if kept != 2 {
		t.Errorf("A36 %d of the children %v are left, want 2", kept, before)
	}
}

// A server that exits right after its start is restarted with growing delays.
func TestOperateHealthKnowsPauses(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway("name hopeless", "health_interval 100ms", "health_timeout 2s",
		block(child("hopeless", "--exit-at-start", "1"), journal.env())))
	if f := gatewayErrorOf(t, post(t, rpcAt(url, "hopeless"), rpc("tools/list", `{}`))); f.Symbol != "connect_error" {
		t.Errorf("%+v", f)
	}
	await.Until(t, "a second attempt", func() bool { return len(journal.entries(t, "start")) >= 2 })
	// The delays between attempts are about 1 s, 2 s, 4 s and so on; the checks run every 100 ms.
	await.Until(t, "a third attempt", func() bool { return len(journal.entries(t, "start")) >= 3 })
	if got := stateOf(t, "hopeless"); got.State == "healthy" || got.LastError == "" {
		t.Errorf("A70 %+v", got)
	}
	if n := len(journal.entries(t, "start")); n > 6 {
		t.Errorf("A37 started %d times", n)
	}
}

// A restartableUpstream is an upstream that can stop and resume listening on its address.
type restartableUpstream struct {
	address string
	handler http.Handler
	server  *http.Server
}

func (u *restartableUpstream) start(t *testing.T) {
	t.Helper()
	var l net.Listener
	await.Until(t, "the address", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", u.address)
		return err == nil
	})
	u.server = &http.Server{Handler: u.handler}
	go func(s *http.Server) { _ = s.Serve(l) }(u.server)
}

func (u *restartableUpstream) stop() { _ = u.server.Close() }

func TestOperateHealthOverHTTP(t *testing.T) {
	isolate(t)
	// answers a ping without a session with 400 and a JSON-RPC error
	remote := &mcptest.Remote{Name: "strict", Legacy: true}
	up := &restartableUpstream{address: freeAddress(t), handler: remote}
	sick := newRemoteServer(t, "tool")
	var well atomic.Bool
	sick.Handle = func(w http.ResponseWriter, m *mcptest.Received) bool {
		if !well.Load() {
			http.Error(w, "<html>not today</html>", http.StatusServiceUnavailable)
		}
		return !well.Load()
	}
	mute, ended := newRemoteServer(t, "tool"), make(chan struct{})
	mute.Handle = func(http.ResponseWriter, *mcptest.Received) bool {
		<-ended
		return false
	}
	modern := &mcptest.Remote{Name: "modern", Modern: true}
	up.start(t)
	serve(t, gateway("name http", "health_interval 100ms", "health_timeout 3s", "server strict http://"+up.address+"/mcp",
		sick.line("sick"),
		"server modern http://"+upstream(t, modern)+"/mcp", mute.line("mute")))
	t.Cleanup(func() { close(ended); up.stop(); remote.Close(); modern.Close() })

	awaits := func(t *testing.T, server, state string, gauge float64) {
		t.Helper()
		await.Until(t, server+" to be "+state, func() bool {
			return stateOf(t, server).State == state && healthy(t, server) == gauge
		})
	}
	t.Run("A36 an error counts as healthy, even with status 400", func(t *testing.T) {
		for _, server := range []string{"strict", "modern"} {
			awaits(t, server, "healthy", 1)
		}
		if got := remote.Seen("ping"); len(got) == 0 || got[0].Session != "" {
			t.Errorf("the server received %v", got)
		}
		if got := stateOf(t, "strict"); got.LastError != "" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("A36 an HTML page counts as unhealthy", func(t *testing.T) {
		awaits(t, "sick", "unhealthy", 0)
		if got := stateOf(t, "sick"); got.LastError == "" {
			t.Errorf("A70 %+v", got)
		}
	})
	t.Run("A36 no response counts as unhealthy", func(t *testing.T) {
		awaits(t, "mute", "unhealthy", 0)
		if got := stateOf(t, "mute"); got.LastError == "" {
			t.Errorf("A70 %+v", got)
		}
	})
	t.Run("A36 A52 A70 gone and back", func(t *testing.T) {
		for range 2 {
			up.stop()
			awaits(t, "strict", "unhealthy", 0)
			if got := stateOf(t, "strict"); got.LastError == "" {
				t.Errorf("A70 %+v", got)
			}
			awaits(t, "modern", "healthy", 1)
			up.start(t)
			awaits(t, "strict", "healthy", 1)
		}
	})
	t.Run("A52 the gauge is removed with the server", func(t *testing.T) {
		load(t, "")
		await.Until(t, "no gauge", func() bool {
			_, strict := metrics(t)[serverMetric("upstream_healthy", "strict")]
			return !strict
		})
	})
}

// Commands that only read a configuration neither connect to servers nor start children.
func TestOperateHealthDialsNothingTooEarly(t *testing.T) {
	isolate(t)
	journal, l := newJournal(t), listen(t)
	var dialed atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			dialed.Add(1)
			conn.Close()
		}
	}()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	config := withAdmin(site(freeAddress(t), gateway("health_interval 100ms", "pin_tools on", "server far http://"+
		l.Addr().String()+"/mcp",
		block(child("alpha"), journal.env()),
		block("auth jwt", "issuer http://"+l.Addr().String(), "audience x", "jwks http://"+l.Addr().String()+"/jwks"))),
		freeAddress(t))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"adapt", "validate"} {
		t.Run("A36 caddy "+command, func(t *testing.T) {
			if out, err := caddy(t, command, "--config", file, "--adapter", "caddyfile").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if n := dialed.Load(); n > 0 {
				t.Errorf("dialed %d times", n)
			}
			if starts := journal.entries(t, "start"); len(starts) > 0 {
				t.Errorf("started %v", starts)
			}
		})
	}
}

// A server's failure is reported to operators in detail, logged once, and reported to clients only
// by its class.
func TestOperateFailures(t *testing.T) {
	isolate(t)
	wrong := "http://" + upstream(t, http.HandlerFunc(wrongServer))
	unused := freeAddress(t)
	served := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1", gateway("separator __", "join_timeout 5s",
		sampleServer,
		"server refused http://"+unused+"/mcp?key=sk-query",
		"server locked "+wrong+"/locked",
		"server page "+wrong+"/page",
		"server pathless "+wrong,
		"server missing stdio no-such-command",
		`server quits stdio sh -c "echo Error: no sk-stderr >&2; exit 3"`,
	))))
	url := "http://" + served.address
	servers := map[string]struct{ reason, cause string }{
		"refused": {"connect: connection refused", "refused (connection refused)"},
		"locked":  {"HTTP 401 from " + wrong + "/locked", "locked (HTTP status 401)"},
		"page":    {"not an MCP server: HTTP 200 text/html from " + wrong + "/page", "page (not an MCP server)"},
		"pathless": {"not an MCP server: HTTP 404 text/plain from " + wrong + "/rpc; set the path in the URL, usually /mcp",
			"pathless (HTTP status 404)"},
		"missing": {`exec: "no-such-command": executable file not found in $PATH`, "missing (not started)"},
		"quits":   {"exited with status 3 during initialize: Error: no sk-stderr", "quits (exited during the handshake)"},
	}

	c := newTestClient(t, joinedAt(url), false, `{}`)
	if tools := toolNames(t, c); !slices.Contains(tools, "sample__echo") {
		t.Errorf("tools: %q", tools)
	}
	initialized := post(t, joinedAt(url), rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
		`"clientInfo":{"name":"a","version":"1"}}`), acceptBoth).body
	for name, want := range servers {
		if !strings.Contains(initialized, want.cause) {
			t.Errorf("%s: instructions are in %s", name, initialized)
		}
		answer := c.ask(t, "tools/call", `{"name":"`+name+`__any","arguments":{}}`).answer.Raw
		if !strings.Contains(answer, `"server_name":"`+name+`"`) || strings.Contains(answer, "sk-") {
			t.Errorf("%s: a call got %s", name, answer)
		}
	}
	if strings.Contains(initialized, "sk-") {
		t.Errorf("a secret is in %s", initialized)
	}

	admin := served.addresses[":2019"]
	printed, err := caddy(t, "mcp-health", "--address", admin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	all, err := exec.CommandContext(t.Context(), "curl", "-s", admin+"/mcp_gateway/servers").Output()
	if err != nil {
		t.Fatal(err)
	}
	restarted, err := exec.CommandContext(t.Context(), "curl", "-s", "-X", "POST",
		admin+"/mcp_gateway/servers/quits/restart").Output()
	if err != nil || !strings.Contains(string(restarted), servers["quits"].reason) {
		t.Errorf("a restart got %s (%v)", restarted, err)
	}
	for name, want := range servers {
		if !strings.Contains(string(printed), name+" unhealthy: ") || !strings.Contains(string(printed), want.reason) {
			t.Errorf("mcp-health prints %s", printed)
		}
	}
	if !strings.Contains(string(all), `"stderr":["Error: no sk-stderr"]`) || strings.Contains(string(all), "sk-query") {
		t.Errorf("the admin API returned %s", all)
	}

	log := served.stop(t)
	for name := range servers {
		lines := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"mcp_server":"`+name+`"`) && strings.Contains(line,
				`"logger":"http.handlers.mcp_gateway"`) {
				lines++
			}
		}
		if lines != 1 {
			t.Errorf("%s: %d lines in the log:\n%s", name, lines, log)
		}
	}
	for _, message := range []string{"MCP server joined", `"tools":4`} {
		if !strings.Contains(log, message) {
			t.Errorf("the log lacks %s", message)
		}
	}
	if strings.Contains(log, "aborting with incomplete response") {
		t.Error("the log has warnings of reverse_proxy")
	}
	if strings.Contains(log, "sk-query") {
		t.Error("the log contains the query of a server's URL")
	}
}
