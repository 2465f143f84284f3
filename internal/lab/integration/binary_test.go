package integration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
)

// binary returns the path of the Caddy that xcaddy built.
func binary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/caddy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("there is no built binary (%v); run: make -f xcaddy.mk build", err)
	}
	return path
}

// caddy prepares the built binary to run at the root of the project, with a home
// of its own.
func caddy(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := caddyrun.Command(t.Context(), binary(t), t.TempDir(), args...)
	cmd.Dir = "../../.."
	return cmd
}

func TestBinaryHasTheModules(t *testing.T) {
	out, err := caddy(t, "list-modules").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	for _, module := range []string{
		"http.handlers.mcp_gateway", "http.handlers.mcp_gateway.auth.token", "http.handlers.mcp_gateway.auth.hmac", "http.handlers.mcp_gateway.auth.jwt", "http.handlers.mcp_gateway.auth.mtls",
		"admin.api.mcp_gateway", "http.reverse_proxy.transport.mcp_stdio", "http.handlers.observation_mask", "http.handlers.tool_result_mask", "http.handlers.mcp_sample",
		"http.handlers.mcp_pruner", "http.handlers.mcp_pruner.backends.heuristic", "http.handlers.mcp_pruner.backends.deepinfra", "http.handlers.mcp_pruner.backends.rerank",
	} {
		if !slices.Contains(modules, module) {
			t.Errorf("%s is missing", module)
		}
	}
}

func TestBinaryValidates(t *testing.T) {
	exampleSecrets(t)
	for _, file := range shipped(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			path, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			out, err := caddy(t, "validate", "--config", path, "--adapter", "caddyfile").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Valid configuration") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("O11 refuses head and tail that exceed max", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "Caddyfile")
		if err := os.WriteFile(file, []byte(site(freeAddress(t), "observation_mask 4000 3000 3000")), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := caddy(t, "validate", "--config", file).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "head_chars + tail_chars") {
			t.Errorf("%v\n%s", err, out)
		}
	})
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

	r := &running{Cmd: caddy(t, "run", "--config", config), address: cmp.Or(addresses[":8080"], addresses[":8006"]), moved: addresses}
	r.Env = append(r.Env, env...)
	r.Stderr = &r.output
	if r.process, err = caddyrun.Start(r.Cmd); err != nil {
		t.Fatalf("%v\n%s", err, &r.output)
	}
	r.exited = r.process.Exited
	t.Cleanup(r.process.Kill)
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

func TestBinaryServes(t *testing.T) {
	caddy := run(t, "../../../Caddyfile")
	callReadLog(t, "http://"+caddy.address+"/mcp/sample")
	logged := caddy.stop(t)
	if !strings.Contains(logged, `"mcp_masked_chars":`) {
		t.Errorf("no mcp_masked_chars in the log:\n%s", logged)
	}
}

// TestBinaryLogs runs the example of A34 with each of its settings.
func TestBinaryLogs(t *testing.T) {
	const access = "handled request"
	tests := []struct {
		name string
		env  []string
		json bool // every line
		logs bool // access
	}{
		{"A34 json", nil, true, true},
		{"A34 console", []string{"LOG_FORMAT=console"}, false, true},
		{"A34 level ERROR", []string{"LOG_LEVEL=ERROR"}, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			caddy := run(t, "../../../caddyfile_examples/logging.Caddyfile", tt.env...)
			callReadLog(t, "http://"+caddy.address+"/mcp")
			logged := caddy.stop(t)
			if got := strings.Contains(logged, access); got != tt.logs {
				t.Errorf("access logged: %t\n%s", got, logged)
			}
			for line := range strings.Lines(logged) {
				if !strings.Contains(line, access) && !tt.json {
					continue // what is logged before the configuration is read has its own format
				}
				var entry struct {
					Time    float64 `json:"ts"`
					Level   string  `json:"level"`
					Logger  string  `json:"logger"` // lines of the process itself have none
					Message string  `json:"msg"`
				}
				err := json.Unmarshal([]byte(line), &entry)
				isJSON := err == nil && entry.Time > 0 && entry.Level != "" && entry.Message != ""
				if isJSON != tt.json {
					t.Errorf("JSON: %t: %s", isJSON, line)
				}
				if !strings.Contains(line, access) {
					continue
				}
				if !strings.Contains(line, "http.log.access") || isJSON && entry.Logger == "" || !strings.Contains(line, `"mcp_masked_chars"`) {
					t.Errorf("no logger or no mcp_masked_chars: %s", line)
				}
			}
		})
	}
}
