package integration

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
)

// binary returns the path of the built Caddy.
func binary(t *testing.T) string {
	t.Helper()
	path, err := caddyrun.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// hasRaceDetector reports whether the binary was built with the race detector, which uses several
// times the memory.
func hasRaceDetector(t *testing.T) bool {
	t.Helper()
	info, err := buildinfo.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// caddy returns a command of the built binary. It runs at the root of the project, with its own
// home and the environment set by setenv.
func caddy(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := caddyrun.Command(t.Context(), binary(t), t.TempDir(), args...)
	cmd.Dir = "../../.."
	cmd.Env = append(cmd.Env, caddyOf(t).env...)
	return cmd
}

// A caddyProcess is a Caddy process that serves.
type caddyProcess struct {
	*exec.Cmd
	process   *caddyrun.Process
	exited    chan struct{}
	address   string            // replaces port 8080, or 8006
	addresses map[string]string // address for each port of the file, and for the admin API
	output    bytes.Buffer
}

// startCaddy starts a `caddy run …` command and returns once it serves.
func startCaddy(t *testing.T, cmd *exec.Cmd) *caddyProcess {
	t.Helper()
	r := &caddyProcess{Cmd: cmd}
	if cmd.Stderr == nil {
		cmd.Stderr = &r.output
	}
	process, err := caddyrun.Start(cmd)
	if err != nil {
		t.Fatalf("%v\n%s", err, &r.output)
	}
	r.process, r.exited = process, process.Exited
	t.Cleanup(process.Kill)
	return r
}

// run serves a shipped Caddyfile on free ports and returns once it serves.
func run(t *testing.T, file string, env ...string) *caddyProcess {
	t.Helper()
	caddyfile, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	moved, addresses := withFreePorts(t, string(caddyfile))
	addresses[":2019"] = freeAddress(t)
	config := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(config, []byte(withAdmin(moved, addresses[":2019"])), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := caddy(t, "run", "--config", config)
	cmd.Env = append(cmd.Env, env...)
	r := startCaddy(t, cmd)
	r.address, r.addresses = cmp.Or(addresses[":8080"], addresses[":8006"]), addresses
	return r
}

// stop stops the process like an operator and returns its log.
func (r *caddyProcess) stop(t *testing.T) string {
	t.Helper()
	if err := r.process.Stop(patience); err != nil {
		t.Errorf("exited: %v\n%s", err, &r.output)
	}
	return r.output.String()
}

// awaitReload waits for the end of a reload, so that no new connection goes to listeners of the old
// configuration.
func (r *caddyProcess) awaitReload(t *testing.T) {
	t.Helper()
	await.Until(t, "the listeners of the old configuration to close", r.process.Settled)
	client.CloseIdleConnections() // Caddy closes them, maybe just when a request uses one again
	streamClient.CloseIdleConnections()
}

// A testCaddy is the Caddy that a test and its subtests load configurations into, with its
// environment.
type testCaddy struct {
	t     *testing.T // Caddy stops when it ends
	env   []string
	home  string
	admin string        // address of the admin API
	caddy *caddyProcess // nil before the first load
}

// testCaddies has the testCaddy of each running test, by name.
var testCaddies = struct {
	sync.Mutex
	of map[string]*testCaddy
}{of: map[string]*testCaddy{}}

// isolate lets a test run in parallel with others, with its own Caddy if it needs one.
func isolate(t *testing.T) {
	t.Helper()
	t.Parallel()
	newTestCaddy(t, nil)
}

// caddyOf returns the testCaddy of a test or its parent.
func caddyOf(t *testing.T) *testCaddy {
	t.Helper()
	testCaddies.Lock()
	defer testCaddies.Unlock()
	for name := t.Name(); ; {
		if l := testCaddies.of[name]; l != nil {
			return l
		}
		end := strings.LastIndexByte(name, '/')
		if end < 0 {
			t.Fatal("the test is not isolated")
		}
		name = name[:end]
	}
}

func newTestCaddy(t *testing.T, env []string) *testCaddy {
	t.Helper()
	l := &testCaddy{t: t, env: slices.Clone(env), admin: freeAddress(t)}
	testCaddies.Lock()
	defer testCaddies.Unlock()
	testCaddies.of[t.Name()] = l
	t.Cleanup(func() {
		testCaddies.Lock()
		defer testCaddies.Unlock()
		delete(testCaddies.of, t.Name())
	})
	return l
}

// setenv sets an environment variable for the Caddy of the test. If the Caddy of the parent test
// already runs, a subtest gets a new one.
func setenv(t *testing.T, name, value string) {
	t.Helper()
	l := caddyOf(t)
	if l.caddy != nil {
		l = newTestCaddy(t, l.env)
	}
	l.env = append(l.env, name+"="+value)
}

// adminAddress returns the address of the admin API of the Caddy that load starts.
func adminAddress(t *testing.T) string {
	t.Helper()
	return caddyOf(t).admin
}

// load loads a Caddyfile into the Caddy of the test, and starts it if necessary. It moves the admin
// API to the address that the test expects.
func load(t *testing.T, caddyfile string) {
	t.Helper()
	l := caddyOf(t)
	if l.caddy == nil {
		l.start()
	}
	caddyfile = withAdmin(caddyfile, l.admin)
	if got := admin(t, "POST", "/load", caddyfile, "Content-Type: text/caddyfile"); got.StatusCode != http.StatusOK {
		t.Fatalf("not loaded: %s\n%s", got.body, caddyfile)
	}
	// The old configuration closes its idle connections about now, and a request on one would be lost.
	for _, c := range []*http.Client{client, streamClient} {
		c.CloseIdleConnections()
	}
}

// start starts Caddy with only the admin API.
func (l *testCaddy) start() {
	t := l.t
	t.Helper()
	l.home = t.TempDir()
	config := filepath.Join(l.home, "Caddyfile")
	if err := os.WriteFile(config, []byte(withAdmin("", l.admin)), 0o600); err != nil {
		t.Fatal(err)
	}
	// The cleanup stops it, so the end of the context must not kill it before.
	cmd := caddyrun.Command(context.WithoutCancel(t.Context()), binary(t), l.home, "run", "--config", config)
	cmd.Env = append(cmd.Env, l.env...)
	l.caddy = startCaddy(t, cmd)
	t.Cleanup(func() {
		logged := l.caddy.stop(t)
		if t.Failed() {
			t.Logf("Caddy has logged:\n%s", logged[max(0, len(logged)-20_000):])
		}
	})
}

// admin calls Caddy's admin API. Each configuration has its own admin server, so a request during a
// reload may be lost and is retried. A request that may change the configuration returns when the
// reload is over, even if it failed.
func admin(t *testing.T, method, path, body string, headers ...string) (got httpResponse) {
	t.Helper()
	got = askAdmin(t, adminAddress(t), method, path, body, headers...)
	if method != http.MethodGet {
		caddyOf(t).caddy.awaitReload(t)
	}
	return got
}

// askAdmin calls the admin API at an address, and retries if the request is lost.
func askAdmin(t *testing.T, address, method, path, body string, headers ...string) (got httpResponse) {
	t.Helper()
	var lost error
	answered := await.Within(patience, func() bool {
		req := request(t, t.Context(), method, "http://"+address+path, body, headers...)
		req.Close = true // a reload closes idle connections
		res, err := client.Do(req)
		if err != nil {
			lost = err
			return false
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		got = httpResponse{res, string(text)}
		return true
	})
	if !answered {
		t.Fatal(lost)
	}
	return got
}
