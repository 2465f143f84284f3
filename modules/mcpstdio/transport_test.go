package mcpstdio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// TestMain runs the test binary as a child process when it is called as `<binary> ds …`.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" {
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	code := m.Run()
	exit() // as when Caddy exits
	draining.Wait()
	if err := goleak.Find(
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestCaddyfile(t *testing.T) { // A1
	tests := []struct {
		name  string
		input string
		want  Transport
	}{
		{"a command", `mcp_stdio npx -y server`, Transport{Command: []string{"npx", "-y", "server"}}},
		{"an argument with spaces", `mcp_stdio sh -c "echo; $(x)"`, Transport{Command: []string{"sh", "-c", "echo; $(x)"}}},
		{"an empty block", "mcp_stdio node {\n}", Transport{Command: []string{"node"}}},
		{"everything", `mcp_stdio node server.js {
			env A b
			env C "d e"
			env inherit HTTPS_PROXY LC_*
			env inherit NO_PROXY
			dir /srv
			framing content-length
			isolation session
			roots file:///a file:///b
			start_timeout 20s
			stop_grace 3s
			max_line 8MiB
			max_sessions 7
			session_ttl 2h
		}`, Transport{
			Command: []string{"node", "server.js"}, Env: map[string]string{"A": "b", "C": "d e"}, Dir: "/srv",
			InheritEnv: []string{"HTTPS_PROXY", "LC_*", "NO_PROXY"},
			Framing:    stdio.ContentLength, Isolation: stdio.PerSession, Roots: []string{"file:///a", "file:///b"},
			StartTimeout: caddy.Duration(20 * time.Second), StopGrace: caddy.Duration(3 * time.Second),
			MaxLine: 8 << 20, MaxSessions: 7, SessionTTL: caddy.Duration(2 * time.Hour),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got Transport
			if err := got.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestCaddyfileErrors checks that each error names the subdirective or, if Caddy writes the error,
// the line.
func TestCaddyfileErrors(t *testing.T) { // A2
	tests := []struct{ name, input, want string }{
		{"no command", `mcp_stdio`, "command"},
		{"an unknown subdirective", "mcp_stdio x {\n foo 1\n}", "foo"},
		{"a duplicate subdirective", "mcp_stdio x {\n dir /a\n dir /b\n}", "dir"},
		{"a duplicate variable", "mcp_stdio x {\n env A b\n env A c\n}", "env A"},
		{"a variable without a value", "mcp_stdio x {\n env A\n}", "Testfile:2"},
		{"an invalid variable name", "mcp_stdio x {\n env A=B c\n}", "env"},
		{"three arguments of env", "mcp_stdio x {\n env A b c\n}", "env inherit <names...>"},
		{"nothing to inherit", "mcp_stdio x {\n env inherit\n}", "env inherit <names...>"},
		{"a variable without a name", "mcp_stdio x {\n env \"\" c\n}", "env"},
		{"no directory", "mcp_stdio x {\n dir\n}", "dir"},
		{"two directories", "mcp_stdio x {\n dir /a /b\n}", "Testfile:2"},
		{"no framing", "mcp_stdio x {\n framing\n}", "framing"},
		{"no isolation", "mcp_stdio x {\n isolation\n}", "isolation"},
		{"no roots", "mcp_stdio x {\n roots\n}", "roots"},
		{"an invalid duration", "mcp_stdio x {\n start_timeout soon\n}", "start_timeout"},
		{"a negative duration", "mcp_stdio x {\n stop_grace -1s\n}", "stop_grace"},
		{"a duration of zero", "mcp_stdio x {\n session_ttl 0\n}", "session_ttl"},
		{"an invalid size", "mcp_stdio x {\n max_line long\n}", "max_line"},
		{"a size that is too large", "mcp_stdio x {\n max_line 9EiB\n}", "max_line"},
		{"an invalid number", "mcp_stdio x {\n max_sessions 1.5\n}", "max_sessions"},
		{"two numbers", "mcp_stdio x {\n max_sessions 1 2\n}", "Testfile:2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := new(Transport).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
}

func newContext(t *testing.T) caddy.Context {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}

func TestInvalidConfigurations(t *testing.T) { // A2
	tests := []struct{ name, config, want string }{
		{"no command", `{}`, "command"},
		{"an empty command", `{"command":[""]}`, "command"},
		{"an unknown framing", `{"command":["x"],"framing":"lines"}`, "framing"},
		{"an unknown isolation", `{"command":["x"],"isolation":"client"}`, "isolation"},
		{"a negative start_timeout", `{"command":["x"],"start_timeout":-1}`, "start_timeout"},
		{"a negative stop_grace", `{"command":["x"],"stop_grace":-1}`, "stop_grace"},
		{"a negative max_line", `{"command":["x"],"max_line":-1}`, "max_line"},
		{"a max_line that is too short", `{"command":["x"],"max_line":5}`, "max_line: 5 is too short for initialize"},
		{"a root that is not a URI", `{"command":["x"],"roots":["file:///srv","srv"]}`, `roots: "srv" is not a URI`},
		{"a negative max_sessions", `{"command":["x"],"max_sessions":-1}`, "max_sessions"},
		{"a negative session_ttl", `{"command":["x"],"session_ttl":-1}`, "session_ttl"},
		{"an invalid variable name", `{"command":["x"],"env":{"A=B":"c"}}`, "env"},
		{"an invalid name of a variable to inherit", `{"command":["x"],"inherit_env":["A=B"]}`, "env"},
		{"a variable that has two values", `{"command":["x"],"env":{"A":"b"},"inherit_env":["A"]}`,
			"env: A is both set and inherited"},
		{"all variables", `{"command":["x"],"inherit_env":["*"]}`, "env: inherit *"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var transport Transport
			if err := json.Unmarshal([]byte(tt.config), &transport); err != nil {
				t.Fatal(err)
			}
			err := transport.Provision(newContext(t))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
			if transport.pool != nil {
				t.Error("the transport has a pool")
			}
			if err := transport.Cleanup(); err != nil {
				t.Error(err)
			}
		})
	}
}

// provision provisions a transport to a child of mcptest. more is appended to its configuration.
func provision(t *testing.T, more string) *Transport {
	t.Helper()
	config := fmt.Sprintf(`{"command":[%q,"ds","alpha"]%s}`, os.Args[0], more)
	transport := new(Transport)
	if err := json.Unmarshal([]byte(config), transport); err != nil {
		t.Fatal(err)
	}
	if err := transport.Provision(newContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := transport.Validate(); err != nil {
		t.Fatal(err)
	}
	return transport
}

func TestDefaults(t *testing.T) { // A1
	shared, own := provision(t, ""), provision(t, `,"isolation":"session"`)
	defer func() { _, _ = shared.Cleanup(), own.Cleanup() }()
	got, err := json.Marshal(shared)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(Transport{
		Command: shared.Command, Framing: stdio.Newline, Isolation: stdio.Shared,
		StartTimeout: caddy.Duration(2 * time.Minute),
		StopGrace:    caddy.Duration(2 * time.Second), MaxLine: 64 << 20, MaxSessions: 10_000,
		SessionTTL: caddy.Duration(time.Hour),
	})
	if string(got) != string(want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if own.MaxSessions != 100 {
		t.Errorf("max_sessions %d, want 100", own.MaxSessions)
	}
}

func TestPlaceholders(t *testing.T) {
	t.Setenv("A_SECRET", "hunter2")
	transport := &Transport{
		Command: []string{"run", "--key={env.A_SECRET}", `{"json":{"x":1}}`}, Dir: "/srv/{env.A_SECRET}",
		Env: map[string]string{"KEY": "{env.A_SECRET}", "HOME": "/here"},
	}
	transport.setDefaults()
	config := transport.config()
	want := []string{"run", "--key=hunter2", `{"json":{"x":1}}`}
	if !reflect.DeepEqual(config.Command, want) || config.Dir != "/srv/hunter2" {
		t.Errorf("got %q in %s", config.Command, config.Dir)
	}
	if want := []string{"HOME=/here", "KEY=hunter2", "PATH=" + os.Getenv("PATH")}; !reflect.DeepEqual(config.Env, want) {
		t.Errorf("got %q, want %q", config.Env, want)
	}
	if text, _ := json.Marshal(transport); strings.Contains(string(text), "hunter2") {
		t.Errorf("a secret in the configuration: %s", text)
	}
}

// A child inherits only the listed variables (A40). Withheld lists variables that it may need.
func TestInheritedEnvironment(t *testing.T) {
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value) // restores it after the test
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "LC_TIME": "de", "HTTPS_PROXY": "http://user:secret@proxy",
		"SSL_CERT_FILE": "/ca.pem",
		"API_KEY":       "secret", "inherit": "x",
	} {
		t.Setenv(name, value)
	}
	transport := &Transport{Command: []string{"x"}, Env: map[string]string{"LC_TIME": "fr"}, InheritEnv: []string{"LC_*",
		"SSL_CERT_FILE", "NOT_SET"}}
	config := transport.config()
	if want := []string{"HOME=/root", "LC_ALL=C", "LC_TIME=fr", "PATH=/bin",
		"SSL_CERT_FILE=/ca.pem"}; !reflect.DeepEqual(config.Env, want) {
		t.Errorf("got %q, want %q", config.Env, want)
	}
	if want := []string{"HTTPS_PROXY"}; !reflect.DeepEqual(config.Withheld, want) {
		t.Errorf("withheld %q, want %q", config.Withheld, want)
	}
}

func TestSharedPools(t *testing.T) { // A60
	first := provision(t, `,"env":{"A":"1","B":"2"}`)
	defer first.Cleanup()
	tests := []struct {
		name, more string
		same       bool
	}{
		{"the same configuration", `,"env":{"B":"2","A":"1"}`, true},
		{"written defaults", `,"env":{"A":"1","B":"2"},"framing":"newline","stop_grace":2000000000`, true},
		{"another value of a variable", `,"env":{"A":"1","B":"3"}`, false},
		{"another variable", `,"env":{"A":"1"}`, false},
		{"another directory", `,"env":{"A":"1","B":"2"},"dir":"/"`, false},
		{"another isolation", `,"env":{"A":"1","B":"2"},"isolation":"session"`, false},
		{"other roots", `,"env":{"A":"1","B":"2"},"roots":["file:///"]`, false},
		{"another limit", `,"env":{"A":"1","B":"2"},"max_line":5000`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			other := provision(t, tt.more)
			defer other.Cleanup()
			if (other.pool == first.pool) != tt.same {
				t.Errorf("same pool: %t, want %t", !tt.same, tt.same)
			}
		})
	}
}

// call calls a tool as a client does, and returns the text of its result.
func call(t *testing.T, transport *Transport, tool string) string {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q}}`, tool)
	r := httptest.NewRequest(http.MethodPost, "http://alpha:1/", strings.NewReader(body))
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal(answer, &m); err != nil || len(m.Result.Content) == 0 {
		t.Fatalf("got %s, %v", answer, err)
	}
	return m.Result.Content[0].Text
}

func TestChildrenOutliveReloads(t *testing.T) { // A60, G27
	journal := t.TempDir() + "/journal"
	more := fmt.Sprintf(`,"env":{"DS_LOG":%q}`, journal)
	before := provision(t, more)
	if _, err := os.Stat(journal); err == nil {
		t.Error("Provision started a child")
	}
	pid := call(t, before, "pid")
	after := provision(t, more) // a reload provisions the new one first
	if err := before.Cleanup(); err != nil {
		t.Error(err)
	}
	if got := call(t, after, "pid"); got != pid {
		t.Errorf("process %s, want %s", got, pid)
	}
	if got := call(t, before, "pid"); got != pid { // a request that began before the reload
		t.Errorf("process %s, want %s", got, pid)
	}
	if err := after.Cleanup(); err != nil {
		t.Error(err)
	}
	if got := call(t, after, "pid"); got != pid { // children outlive Cleanup for a moment
		t.Errorf("process %s, want %s", got, pid)
	}
}

func TestHealthChecks(t *testing.T) { // A36
	transport := provision(t, `,"stop_grace":1000000000`)
	defer transport.Cleanup()
	check := func(ctx context.Context) error {
		r := httptest.NewRequest(http.MethodGet, "http://alpha:1/health", nil).WithContext(ctx)
		res, err := transport.RoundTrip(r)
		if err == nil && res.StatusCode != http.StatusOK {
			t.Errorf("status %d", res.StatusCode)
		}
		return err
	}
	for range 2 {
		if err := check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if check(ctx) == nil {
		t.Error("a canceled check succeeds")
	}
	call(t, transport, "pid")
}

func TestStatusAndRestart(t *testing.T) { // A62, A70, A72
	transport, other := provision(t, `,"stop_grace":1000000000`), provision(t, `,"stop_grace":1000000000`)
	defer func() { _, _ = transport.Cleanup(), other.Cleanup() }()
	if asked, err := transport.Pool().CheckStarted(t.Context(), "alpha:1"); asked || err != nil {
		t.Errorf("before the first request: %t, %v", asked, err)
	}
	if got := transport.Pool().Status("alpha:1")[0].State; got != stdio.Idle {
		t.Errorf("state %s, want %s", got, stdio.Idle)
	}
	before, err := strconv.Atoi(call(t, transport, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := transport.Pool().Restart(t.Context(), "alpha:1"); err != nil {
		t.Error(err)
	}
	if transport.Pool() != other.Pool() {
		t.Error("equal configurations do not share children")
	}
	got := other.Pool().Status("alpha:1")[0]
	if got.PID == before || got.State != stdio.Running || got.Restarts != 1 {
		t.Errorf("after the restart of process %d: %+v", before, got)
	}
	if asked, err := other.Pool().CheckStarted(t.Context(), "alpha:1"); !asked || err != nil {
		t.Errorf("a running child: %t, %v", asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := other.Pool().CheckStarted(ctx, "alpha:1"); err == nil {
		t.Error("a canceled check succeeds")
	}
}

// A server that cannot be started is in the metrics: as down, and with its failed restarts.
func TestMetricsOfAServerThatNeverStarts(t *testing.T) { // A52
	transport := provision(t, `,"command":["/no/such/command"]`)
	defer transport.Cleanup()
	if err := transport.Pool().Start(t.Context(), "never:1"); err == nil {
		t.Fatal("the server starts")
	}
	if got, known := values(t, healthy)["never"]; !known || got != 0 {
		t.Errorf("got %v, known: %t", got, known)
	}
	transport.Pool().SkipBackoff("never:1")
	if err := transport.Pool().Start(t.Context(), "never:1"); err == nil {
		t.Fatal("the server starts")
	}
	if got := values(t, restarts)["never"]; got != 1 {
		t.Errorf("%v restarts", got)
	}
}

// values returns the values of a metric by server.
func values(t *testing.T, metric prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metric)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func TestStart(t *testing.T) {
	transport := provision(t, `,"stop_grace":1000000000`)
	defer transport.Cleanup()
	for range 2 {
		if err := transport.Pool().Start(t.Context(), "alpha:1"); err != nil {
			t.Fatal(err)
		}
	}
	got := transport.Pool().Status("alpha:1")
	if len(got) != 1 || got[0].State != stdio.Running || strconv.Itoa(got[0].PID) != call(t, transport, "pid") {
		t.Errorf("got %+v", got)
	}
}
