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

// hasRaceDetector reports whether the binary has the race detector in it, which takes
// several times the memory.
func hasRaceDetector(t *testing.T) bool {
	t.Helper()
	info, err := buildinfo.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// caddy prepares the built binary to run at the root of the project, with a home
// of its own and the environment that setenv has given to the test.
func caddy(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := caddyrun.Command(t.Context(), binary(t), t.TempDir(), args...)
	cmd.Dir = "../../.."
	cmd.Env = append(cmd.Env, loaderOf(t).env...)
	return cmd
}

// running is a Caddy process that serves.
type running struct {
	*exec.Cmd
	process *caddyrun.Process
	exited  chan struct{}
	address string            // in place of 8080, or of 8006
	moved   map[string]string // where each port of the file went, and the admin API
	output  bytes.Buffer
}

// startCaddy starts a command `caddy run …` and returns once it serves.
func startCaddy(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{Cmd: cmd}
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

// run serves a shipped Caddyfile at other ports and returns once it does.
func run(t *testing.T, file string, env ...string) *running {
	t.Helper()
	caddyfile, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	moved, addresses := elsewhere(t, string(caddyfile))
	addresses[":2019"] = freeAddress(t)
	config := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(config, []byte(withAdmin(moved, addresses[":2019"])), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := caddy(t, "run", "--config", config)
	cmd.Env = append(cmd.Env, env...)
	r := startCaddy(t, cmd)
	r.address, r.moved = cmp.Or(addresses[":8080"], addresses[":8006"]), addresses
	return r
}

// stop ends the process as an operator would and returns what it has logged.
func (r *running) stop(t *testing.T) string {
	t.Helper()
	if err := r.process.Stop(patience); err != nil {
		t.Errorf("exited: %v\n%s", err, &r.output)
	}
	return r.output.String()
}

// settle waits until a reload is over, for clients that must not be lost with the
// listeners of the old configuration.
func (r *running) settle(t *testing.T) {
	t.Helper()
	await.Until(t, "the listeners of the old configuration to close", r.process.Settled)
	client.CloseIdleConnections() // Caddy closes them, maybe just when they are used again
	lasting.CloseIdleConnections()
}

// A loader is the Caddy of a test and its subtests that loads configurations, and the
// environment it starts with.
type loader struct {
	t     *testing.T // whose end is the end of Caddy
	env   []string
	home  string
	admin string   // address of the admin API
	caddy *running // nil before the first load
}

// loaders are those of all tests that run, by the names of the tests.
var loaders = struct {
	sync.Mutex
	of map[string]*loader
}{of: map[string]*loader{}}

// isolate lets a test run in parallel to others, with a Caddy of its own if it needs one.
func isolate(t *testing.T) {
	t.Helper()
	t.Parallel()
	newLoader(t, nil)
}

// loaderOf returns the loader of a test, or of the test that it is a part of.
func loaderOf(t *testing.T) *loader {
	t.Helper()
	loaders.Lock()
	defer loaders.Unlock()
	for name := t.Name(); ; {
		if l := loaders.of[name]; l != nil {
			return l
		}
		end := strings.LastIndexByte(name, '/')
		if end < 0 {
			t.Fatal("the test is not isolated")
		}
		name = name[:end]
	}
}

func newLoader(t *testing.T, env []string) *loader {
	t.Helper()
	l := &loader{t: t, env: slices.Clone(env), admin: freeAddress(t)}
	loaders.Lock()
	defer loaders.Unlock()
	loaders.of[t.Name()] = l
	t.Cleanup(func() {
		loaders.Lock()
		defer loaders.Unlock()
		delete(loaders.of, t.Name())
	})
	return l
}

// setenv sets an environment variable of the Caddy that the test will start. A subtest
// gets another Caddy if that of the test runs already.
func setenv(t *testing.T, name, value string) {
	t.Helper()
	l := loaderOf(t)
	if l.caddy != nil {
		l = newLoader(t, l.env)
	}
	l.env = append(l.env, name+"="+value)
}

// adminAddress returns the address of the admin API of the Caddy that load starts.
func adminAddress(t *testing.T) string {
	t.Helper()
	return loaderOf(t).admin
}

// load makes the Caddy of a test, which it starts if need be, run a Caddyfile. The admin
// API is put where the tests expect it.
func load(t *testing.T, caddyfile string) {
	t.Helper()
	l := loaderOf(t)
	if l.caddy == nil {
		l.start()
	}
	caddyfile = withAdmin(caddyfile, l.admin)
	if got := admin(t, "POST", "/load", caddyfile, "Content-Type: text/caddyfile"); got.StatusCode != http.StatusOK {
		t.Fatalf("not loaded: %s\n%s", got.body, caddyfile)
	}
	// The servers of the configuration before close their idle connections about now, and a request on such a
	// one would be lost.
	for _, c := range []*http.Client{client, lasting} {
		c.CloseIdleConnections()
	}
}

// start starts Caddy with nothing to serve but the admin API.
func (l *loader) start() {
	t := l.t
	t.Helper()
	l.home = t.TempDir()
	config := filepath.Join(l.home, "Caddyfile")
	if err := os.WriteFile(config, []byte(withAdmin("", l.admin)), 0o600); err != nil {
		t.Fatal(err)
	}
	// It is stopped below, and must not be killed before that by the end of the context.
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

// admin asks Caddy's admin API. Each configuration has a server of its own for it,
// and while one takes the place of the other, a request may be lost. A request that may
// change the configuration, even one that fails, returns when Caddy has settled.
func admin(t *testing.T, method, path, body string, headers ...string) (got answer) {
	t.Helper()
	got = askAdmin(t, adminAddress(t), method, path, body, headers...)
	if method != http.MethodGet {
		loaderOf(t).caddy.settle(t)
	}
	return got
}

// askAdmin asks the admin API at an address, again if the request is lost.
func askAdmin(t *testing.T, address, method, path, body string, headers ...string) (got answer) {
	t.Helper()
	var lost error
	answered := await.Within(patience, func() bool {
		req := request(t, t.Context(), method, "http://"+address+path, body, headers...)
		req.Close = true // a reload closes kept connections
		res, err := client.Do(req)
		if lost = err; err != nil {
			return false
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		got = answer{res, string(text)}
		return true
	})
	if !answered {
		t.Fatal(lost)
	}
	return got
}
