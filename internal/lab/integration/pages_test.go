package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// pages returns the text of all Markdown pages by path, relative to the project.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		files, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no pages: %v", err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name, _ := filepath.Rel("../../..", file)
			all[filepath.ToSlash(name)] = string(text)
		}
	}
	return all
}

var (
	pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	codeText = regexp.MustCompile("(?ms)^```.*?^```$")
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns GitHub's anchors of a page's headings.
func anchors(page string) (names []string) {
	for _, h := range heading.FindAllStringSubmatch(codeText.ReplaceAllString(page, ""), -1) {
		text := noAnchor.ReplaceAllString(strings.ToLower(h[1]), "")
		names = append(names, strings.ReplaceAll(text, " ", "-"))
	}
	return names
}

// Each relative link leads to an existing file, and to a heading in it.
func TestLinksOfPages(t *testing.T) {
	isolate(t)
	all := pages(t)
	for page, text := range all {
		for _, link := range pageLink.FindAllStringSubmatch(codeText.ReplaceAllString(text, ""), -1) {
			if strings.Contains(link[1], "://") || strings.HasPrefix(link[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(link[1], "#")
			target := page
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(page), file))
			}
			if _, err := os.Stat(filepath.Join("../../..", target)); err != nil {
				t.Errorf("%s: the target of %s does not exist", page, link[1])
			}
			if anchor != "" && !slices.Contains(anchors(all[target]), anchor) {
				t.Errorf("%s: %s has no heading %s", page, target, anchor)
			}
		}
	}
}

// A test runs the commands of each page, except make targets and the commands listed below.
func TestCommandsOfPagesAreTyped(t *testing.T) {
	isolate(t)
	testOf := map[string]string{ // test that runs the commands, by page
		"README.md":                "TestDocumentedCalls",
		"docs/mcp_gateway.md":      "TestGatewayCommands",
		"docs/mcp_pruner.md":       "TestDocumentedCalls",
		"docs/tool_result_mask.md": "TestDocumentedCalls",
		"docs/clients.md":          "TestClients",
		"docs/operate.md":          "TestOperateCommands",
		"docs/access.md":           "TestAccessCommands",
		"docs/mcp_json.md":         "TestImportCommand",
		recipesPage:                "TestRecipes",
	}
	untyped := []string{
		"git clone https://github.com/caddy-mcp-gateway/caddy-mcp-gateway && cd caddy-mcp-gateway\n", // CI does this
		// a release does this
		"xcaddy build --with github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules\n",
		// TestPruneCommand has a shorter input
		"go test -v ./... 2>&1 | bin/caddy prune --type logs --goal \"why does the upload time out\"\n",
		"go -C internal/lab test -count=1 -tags nobadger,nomysql,nopgx ./integration -run " +
			"'Page|Document|Directive|Recipe|Example'\n",
		"cat internal/lab/task/history/*.txt | while read -r name commit; do git clone -q --bare " +
			"https://github.com/$name ~/clones/$name; done\n",
		"go -C internal/lab run ./train -clones ~/clones\n",
		"go test ./modules/caddyhttp/reverseproxy -run '^$' -bench RoundTrip -cpu 1 -count 10\n", // in Caddy's repository
	}
	targets := targets(t)
	for page, text := range pages(t) {
		for _, c := range commandsIn(text) {
			for line := range strings.Lines(c.typed) {
				if rest, is := strings.CutPrefix(line, "make -f xcaddy.mk "); is {
					if name := strings.Fields(rest)[0]; !slices.Contains(targets, name) {
						t.Errorf("%s: unknown target %s", page, name)
					}
				} else if testOf[page] == "" && !slices.Contains(untyped, line) {
					t.Errorf("%s: no test runs %s", page, line)
				}
			}
		}
	}
}

var caddyfileBlocks = regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$")

// aServer matches a line that adds servers to a gateway.
var aServer = regexp.MustCompile(`(?m)^\s*servers?(_from)? `)

// wholeCaddyfile completes an excerpt from a page: it adds a server, the gateway and the site if
// they are missing.
func wholeCaddyfile(shown string) string {
	word := strings.Fields(shown)[0]
	if slices.Contains([]string{"server", "client", "auth", "answer"}, word) {
		word, shown = "mcp_gateway", gateway(shown)
	}
	if word == "mcp_gateway" && !aServer.MatchString(shown) {
		shown = strings.Replace(shown, "{\n", "{\n"+sampleServer+"\n", 1)
	}
	switch {
	case word[0] != ':' && word[0] != '{' && !strings.Contains(word, "."):
		return block(":8080", shown)
	}
	return shown
}

// Each directive's page ends with two to four examples, which are valid.
func TestExamplesOfDirectives(t *testing.T) {
	isolate(t)
	for _, name := range []string{"GITHUB_TOKEN", "LAPTOP_TOKEN", "CI_TOKEN", "SEARCH_TOKEN", "REDIS_PASSWORD",
		"MCP_SESSION_KEY"} {
		setenv(t, name, exampleToken+name)
	}
	all := pages(t)
	directivePages := []string{"docs/mcp_http.md"}
	for _, d := range directives {
		directivePages = append(directivePages, d.page)
	}
	for _, page := range directivePages {
		t.Run(page, func(t *testing.T) {
			_, examples, _ := strings.Cut(all[page], "\n## Examples\n")
			found := caddyfileBlocks.FindAllStringSubmatch(examples, -1)
			if strings.Contains(examples, "\n## ") || len(found) < 2 || len(found) > 4 {
				t.Errorf("the page has %d examples at its end, want 2 to 4", len(found))
			}
			for _, example := range found {
				file := writeCaddyfile(t, wholeCaddyfile(example[1]))
				if out, err := caddy(t, "validate", "--adapter", "caddyfile", "--config", file).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s\n%s", err, out, example[1])
				}
			}
		})
	}
}

// Each Caddyfile or excerpt on a page can be adapted, unless it describes a grammar.
func TestCaddyfilesOfPages(t *testing.T) {
	isolate(t)
	grammar := regexp.MustCompile(`(?m)^[^#\n]*(<[a-z]|\.\.\.|…)`)
	adapted := 0
	for page, text := range pages(t) {
		if page == recipesPage { // TestRecipes validates its files, which import each other
			continue
		}
		for _, found := range caddyfileBlocks.FindAllStringSubmatch(text, -1) {
			caddyfile := found[1]
			if grammar.MatchString(caddyfile) {
				continue
			}
			caddyfile = wholeCaddyfile(caddyfile)
			_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
			if err != nil || slices.ContainsFunc(warnings,
				func(w caddyconfig.Warning) bool { return !strings.Contains(w.Message, "formatted") }) {
				t.Errorf("%s: %v %v\n%s", page, err, warnings, caddyfile)
			}
			adapted++
		}
	}
	if adapted < 10 {
		t.Errorf("only %d Caddyfiles were found", adapted)
	}
}

// targets returns the documented targets of xcaddy.mk.
func targets(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../../../xcaddy.mk")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(string(text), -1) {
		names = append(names, target[1])
	}
	return names
}

// CONTRIBUTING.md lists all targets, and pages name only existing targets.
func TestTargetsOfPages(t *testing.T) {
	isolate(t)
	all := pages(t)
	there := targets(t)
	for _, name := range there {
		if name != "help" && name != "clean" && !strings.Contains(all["CONTRIBUTING.md"], "`"+name+"`") {
			t.Errorf("CONTRIBUTING.md does not name %s", name)
		}
	}
	for page, text := range all {
		for _, named := range regexp.MustCompile(`make -f xcaddy\.mk ([a-z-]+)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(there, named[1]) {
				t.Errorf("%s: unknown target %s", page, named[1])
			}
		}
	}
}

// The table of stored data in docs/reliability.md has exactly the kinds in the code.
func TestKindsThatAreKept(t *testing.T) {
	isolate(t)
	var kinds []string
	_ = filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			t.Fatal(err)
		case entry.IsDir() && (entry.Name() == "lab" || entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			text, _ := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`quota\.NewKind\("([^"]*)"\)`).FindAllStringSubmatch(string(text), -1) {
				kinds = append(kinds, m[1])
			}
		}
		return nil
	})
	_, memory, _ := strings.Cut(pages(t)["docs/reliability.md"], "\n## Memory\n")
	memory, _, _ = strings.Cut(memory, "\n## ")
	var shown []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(memory, -1) {
		shown = append(shown, m[1])
	}
	slices.Sort(kinds)
	slices.Sort(shown)
	if len(kinds) == 0 || !slices.Equal(kinds, shown) {
		t.Errorf("the code has\n%s\nthe page has\n%s", strings.Join(kinds, "\n"), strings.Join(shown, "\n"))
	}
}

var declaredMetric = regexp.MustCompile(`(?:telemetry\.New(?:Counter|Gauge|Histogram)|newDesc)\(\s*"([a-z_]+)",\s+` +
	`(?:"[^"]*"(?:\s*\+\s*)?)+((?:,\s+"[a-z_]+")*)\)`)

// docs/telemetry.md lists exactly the metrics in the code, with their labels, and their log fields
// and events.
func TestTelemetryPage(t *testing.T) {
	isolate(t)
	page := pages(t)["docs/telemetry.md"]
	var source strings.Builder
	for _, pattern := range []string{"../../../modules/*/*.go", "../../../modules/internal/*/*.go",
		"../../../internal/inbound/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && !strings.HasSuffix(file, "_test.go") {
				source.Write(text)
			}
		}
	}
	code := source.String()

	var metrics []string
	for _, m := range declaredMetric.FindAllStringSubmatch(code, -1) {
		name := "caddy_mcp_" + m[1]
		if labels := strings.ReplaceAll(strings.TrimLeft(m[2], ", \n\t"), `"`, ""); labels != "" {
			name += "{" + regexp.MustCompile(`,\s+`).ReplaceAllString(labels, ",") + "}"
		}
		metrics = append(metrics, name)
	}
	documented := regexp.MustCompile("(?m)^\\| `(caddy_mcp_[^`]*)`")
	var shown []string
	for _, m := range documented.FindAllStringSubmatch(page, -1) {
		shown = append(shown, m[1])
	}
	slices.Sort(metrics)
	slices.Sort(shown)
	if len(metrics) == 0 || !slices.Equal(metrics, shown) {
		t.Errorf("the code has\n%s\nthe page has\n%s", strings.Join(metrics, "\n"), strings.Join(shown, "\n"))
	}

	// Names on the rest of the page are in the code, except names that the code composes.
	_, rest, _ := strings.Cut(page, "\n## Access log\n")
	for _, name := range regexp.MustCompile("`(mcp_[a-z_]+)`").FindAllStringSubmatch(rest, -1) {
		if field := name[1]; !strings.Contains(code, `"`+field+`"`) && !strings.HasPrefix(field, "mcp_usage_") {
			t.Errorf("the code has no %s", field)
		}
	}
	// Names in the code are on the page.
	for _, name := range regexp.MustCompile(`(?:AddString|AddInt|AddInt64|AddBool|AddUint64)\("(mcp_[a-z_]+)"|Emit\([^"]*"(mcp_[a-z_]+)"`).FindAllStringSubmatch(code, -1) {
		if field := name[1] + name[2]; !strings.Contains(rest, "`"+strings.TrimSuffix(field, "_")) {
			t.Errorf("%s is not on the page", field)
		}
	}
}

// Every file that docs/architecture.md names exists.
func TestArchitecturePage(t *testing.T) {
	isolate(t)
	page := pages(t)["docs/architecture.md"]
	files := regexp.MustCompile(`[a-z_/]*[a-z_]+\.go\b`).FindAllString(page, -1)
	if len(files) < 20 {
		t.Fatalf("the page names only %d files", len(files))
	}
	for _, name := range files {
		found := false
		for _, folder := range []string{"", "internal/gateway", "internal/inbound", "internal/upstream",
			"modules/mcpgateway"} {
			_, err := os.Stat(filepath.Join("../../..", folder, name))
			found = found || err == nil
		}
		if !found {
			t.Errorf("file %s does not exist", name)
		}
	}
}
