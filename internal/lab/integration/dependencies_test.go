package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

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
		for _, part := range []string{"/internal/lab", "/internal/mcptest", "/internal/jsontest", "/internal/await"} {
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
