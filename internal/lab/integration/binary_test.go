package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestBinaryHasTheModules(t *testing.T) {
	isolate(t)
	out, err := caddy(t, "list-modules").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	for _, module := range []string{
		"http.handlers.mcp_gateway", "http.handlers.mcp_gateway.auth.token", "http.handlers.mcp_gateway.auth.hmac",
		"http.handlers.mcp_gateway.auth.jwt", "http.handlers.mcp_gateway.auth.mtls",
		"admin.api.mcp_gateway", "http.reverse_proxy.transport.mcp_stdio", "http.reverse_proxy.transport.mcp_http",
		"http.handlers.observation_mask", "http.handlers.tool_result_mask", "http.handlers.mcp_sample",
		"http.handlers.mcp_pruner", "http.handlers.mcp_pruner.backends.heuristic",
		"http.handlers.mcp_pruner.backends.deepinfra", "http.handlers.mcp_pruner.backends.rerank",
	} {
		if !slices.Contains(modules, module) {
			t.Errorf("%s is missing", module)
		}
	}
}

func TestBinaryValidates(t *testing.T) {
	isolate(t)
	exampleSecrets(t)
	for _, file := range shippedFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			path, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			out, err := caddy(t, "validate", "--config", path, "--adapter", "caddyfile").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Valid configuration") || strings.Contains(string(out),
				openWarning) {
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

func TestBinaryServes(t *testing.T) {
	isolate(t)
	caddy := run(t, "../../../Caddyfile")
	callReadLog(t, "http://"+caddy.address+"/mcp/sample")
	logged := caddy.stop(t)
	if !strings.Contains(logged, `"mcp_masked_chars":`) {
		t.Errorf("no mcp_masked_chars in the log:\n%s", logged)
	}
}

// The example of A34 logs as each of its settings says.
func TestBinaryLogs(t *testing.T) {
	isolate(t)
	const access = "handled request"
	tests := []struct {
		name string
		env  []string
		json bool // every line is JSON
		logs bool // has access logs
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
					continue // lines logged before the configuration is read have their own format
				}
				var entry struct {
					Time    float64 `json:"ts"`
					Level   string  `json:"level"`
					Logger  string  `json:"logger"` // lines of the process itself have no logger
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
				if !strings.Contains(line, "http.log.access") || isJSON && entry.Logger == "" || !strings.Contains(line,
					`"mcp_masked_chars"`) {
					t.Errorf("no logger or no mcp_masked_chars: %s", line)
				}
			}
		})
	}
}
