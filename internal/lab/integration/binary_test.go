package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
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

// TestBinaryVersion checks the version of the built binary everywhere it is reported.
func TestBinaryVersion(t *testing.T) {
	isolate(t)
	out, err := caddy(t, "list-modules", "--versions", "--packages", "--skip-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // module, version, package, and maybe its replacement
		if len(fields) < 3 || fields[2] != "github.com/caddy-mcp-gateway/caddy-mcp-gateway" {
			continue
		}
		want = fields[1]
		if !strings.HasPrefix(want, "v") || strings.HasPrefix(want, "v0.0.0-0001") {
			t.Fatalf("not a useful version: %s", line)
		}
	}
	if want == "" {
		t.Fatalf("no module of this project is listed:\n%s", out)
	}

	legacy, modern := newJournal(t), newJournal(t)
	caddy := run(t, writeCaddyfile(t, site("127.0.0.1:8080", gateway("name all",
		block("server sample", "mcp_sample"),
		block(child("legacy"), legacy.env()),
		block(child("modern", "--modern-only"), modern.env())))))
	for _, path := range []string{"/mcp", "/mcp/sample"} {
		t.Run("serverInfo at "+path, func(t *testing.T) {
			got := post(t, "http://"+caddy.address+path, rpc("initialize", `{`+initParams+`}`))
			var hello struct {
				Result struct{ ServerInfo struct{ Version string } }
			}
			if err := json.Unmarshal([]byte(got.body), &hello); err != nil {
				t.Fatalf("%v: %s", err, got.body)
			}
			if hello.Result.ServerInfo.Version != want {
				t.Errorf("got %s, want %s", got.body, want)
			}
		})
	}
	for _, tt := range []struct {
		server string
		journal
		key string
	}{
		{"legacy", legacy, `"clientInfo"`},
		{"modern", modern, `"io.modelcontextprotocol/clientInfo"`},
	} {
		t.Run("clientInfo for a "+tt.server+" child", func(t *testing.T) {
			got := post(t, rpcAt("http://"+caddy.address, tt.server), rpc("tools/list", `{}`))
			text, err := os.ReadFile(string(tt.journal))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), tt.key+`:{"name":"caddy-mcp-gateway","version":"`+want+`"}`) {
				t.Errorf("clientInfo lacks version %s:\n%s%s", want, text, got.body)
			}
		})
	}
}

const (
	project     = "../../.."
	caddyModule = "github.com/caddyserver/caddy/v2"
)

// goList returns the output of `go list` for the plugin.
func goList(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = project
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return strings.TrimSpace(string(out))
}

// requiredVersions returns the versions that a go.mod requires.
func requiredVersions(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(file, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	return versions
}

// summedVersions returns the highest version of each module with a content hash in a go.sum.
func summedVersions(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && semver.Compare(fields[1], versions[fields[0]]) > 0 && semver.IsValid(fields[1]) &&
			!strings.HasSuffix(fields[1], "/go.mod") {
			versions[fields[0]] = fields[1]
		}
	}
	return versions
}

// A Caddy release is built with the versions in its go.sum. The plugin must not be tested with
// older ones.
func TestDependenciesAreAsNewAsCaddys(t *testing.T) {
	isolate(t)
	caddys := summedVersions(t, filepath.Join(goList(t, "-m", "-f", "{{.Dir}}", caddyModule), "go.sum"))
	compared := 0
	for module, version := range requiredVersions(t, filepath.Join(project, "go.mod")) {
		if caddys[module] == "" {
			continue
		}
		compared++
		if semver.Compare(version, caddys[module]) < 0 {
			t.Errorf("go.mod has %s %s, Caddy is built with %s", module, version, caddys[module])
		}
	}
	if compared < 50 {
		t.Errorf("only %d modules compared: go.sum was not read", compared)
	}
}

// The binary contains no test code, and building it needs no modules of tests.
func TestPluginHasNoTestCode(t *testing.T) {
	isolate(t)
	for dep := range strings.FieldsSeq(goList(t, "-deps", "./modules")) {
		for _, part := range []string{"/internal/lab", "/internal/mcptest", "/internal/jsontest", "/internal/loopback",
			"/internal/await"} {
			if strings.Contains(dep, part) {
				t.Errorf("the plugin imports %s", dep)
			}
		}
	}
	plugin := requiredVersions(t, filepath.Join(project, "go.mod"))
	for _, module := range []string{
		"github.com/Shopify/toxiproxy/v2", "github.com/bytedance/sonic", "github.com/chromedp/chromedp",
		"github.com/modelcontextprotocol/go-sdk",
		"github.com/caddyserver/xcaddy", "honnef.co/go/tools",
	} {
		if plugin[module] != "" {
			t.Errorf("go.mod of the plugin requires %s", module)
		}
	}
}
