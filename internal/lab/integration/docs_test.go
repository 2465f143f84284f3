package integration

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	caddycore "github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore/redis"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/toolresultmask"
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

// documents are the pages that name tests as evidence.
var documents = []string{"SECURITY.md", "docs/reliability.md"}

// Every test that a page names exists.
func TestDocumentsNameTests(t *testing.T) {
	isolate(t)
	const root = "../../.."
	declared := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if name := entry.Name(); err == nil && entry.IsDir() && (name == "node_modules" || name == ".git") {
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range function.FindAllSubmatch(source, -1) {
			declared[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	for _, document := range documents {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		all := named.FindAllSubmatch(text, -1)
		if len(all) == 0 {
			t.Errorf("%s names no test", document)
		}
		for _, found := range all {
			if name := string(found[1]); !declared[name] {
				t.Errorf("%s names the unknown test %s", document, name)
			}
		}
	}
}

const requirementsPage = "docs/requirements.md"

// Ids of requirements. The letters are those of the groups in docs/requirements.md.
// An id stands alone, so neither %A9 nor P256 nor U+00C9 contains one.
var (
	requirementID = `[AGOPRTW][1-9][0-9]?`
	requirement   = regexp.MustCompile(`^` + requirementID + `$`)
	// citedInText matches an id anywhere in a comment.
	citedInText = regexp.MustCompile(`(?:^|[\s(,;/–])(` + requirementID + `)(?:[\s),;:.'’/–]|$)`)
	// citedInString matches the ids that begin the name of a subtest or the message of
	// a failure, such as "P11, R18 an unknown tool", and ids in parentheses.
	requirementIDs = requirementID + `(?:(?:,? |–| to )` + requirementID + `)*`
	citedInString  = regexp.MustCompile(`^` + requirementIDs + `[ :]|\(` + requirementIDs + `\)`)
	citedInName    = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)(` + requirementID + `)(?:[A-Z_]|$)`)
	anyID          = regexp.MustCompile(requirementID)
)

// requirements returns the rows of docs/requirements.md by id.
func requirements(t *testing.T) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for n, line := range strings.Split(pages(t)[requirementsPage], "\n") {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "¦"), "|")
		if len(cells) < 3 {
			continue
		}
		if id := strings.TrimSpace(cells[1]); requirement.MatchString(id) {
			if rows[id] != "" {
				t.Errorf("%s:%d: %s has two rows", requirementsPage, n+1, id)
			}
			rows[id] = strings.TrimSpace(cells[2])
		}
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no requirements", requirementsPage)
	}
	return rows
}

// Each row has an id and full sentences, rows of a table are in order, and a row refers
// to rows that exist.
func TestRequirementsTable(t *testing.T) {
	isolate(t)
	all := requirements(t)
	row := regexp.MustCompile(`^\| (` + requirementID + `) \| (?:Planned: |[A-Z0-9⌊` + "`" + `]).*[.] \|$`)
	reference := regexp.MustCompile(`(?:[(]| and | to |, |[fF]ollow[s]? |[iI]n |of )(` + requirementID + `)\b`)
	inTable, last, lastLetter := false, 0, ""
	for n, line := range strings.Split(pages(t)[requirementsPage], "\n") {
		position := fmt.Sprintf("%s:%d", requirementsPage, n+1)
		switch {
		case line == "| id | requirement |":
			inTable, last, lastLetter = true, 0, ""
			continue
		case !strings.HasPrefix(line, "|"):
			inTable = false
			continue
		case !inTable || line == "|---|---|":
			continue
		}
		found := row.FindStringSubmatch(line)
		if found == nil || strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 3 {
			t.Errorf("%s: want a row \"| A1 | Sentence. |\", got %.60s", position, line)
			continue
		}
		id := found[1]
		number, _ := strconv.Atoi(id[1:])
		if letter := id[:1]; letter == lastLetter && number <= last {
			t.Errorf("%s: %s is not in order", position, id)
		} else {
			last, lastLetter = number, letter
		}
		for _, other := range reference.FindAllStringSubmatch(line, -1) {
			if all[other[1]] == "" {
				t.Errorf("%s: %s refers to %s, which has no row", position, id, other[1])
			}
		}
	}
}

// Every id that a comment, the name of a test or a message of a test cites has a row in
// docs/requirements.md.
func TestRequirementsCited(t *testing.T) {
	isolate(t)
	const root = "../../.."
	all := requirements(t)
	cited := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{"node_modules", "testdata", ".git", "bin", "dist"}, entry.Name()) {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		for _, c := range citations(t, filepath.ToSlash(name), source) {
			cited[c.id] = true
			if all[c.id] == "" {
				t.Errorf("%s:%d: %s has no row in %s", c.file, c.line, c.id, requirementsPage)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(cited) < len(all)/2 {
		t.Errorf("only %d of %d requirements are cited: citations are not recognized", len(cited), len(all))
	}
}

// A citation is an id of a requirement in a Go file.
type citation struct {
	file string
	line int
	id   string
}

// citations returns the ids that comments of a Go file cite and, in a test, the names of
// functions and the strings that name subtests and failures.
func citations(t *testing.T, name string, source []byte) (found []citation) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	add := func(pos token.Pos, id string) {
		found = append(found, citation{name, files.Position(pos).Line, id})
	}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			for i, line := range strings.Split(comment.Text, "\n") {
				// Two ids can share the separator between them, so search again after each.
				for rest := strings.TrimLeft(line, "/* \t"); ; {
					match := citedInText.FindStringSubmatchIndex(rest)
					if match == nil {
						break
					}
					found = append(found, citation{name, files.Position(comment.Pos()).Line + i, rest[match[2]:match[3]]})
					rest = rest[match[3]:]
				}
			}
		}
	}
	if !strings.HasSuffix(name, "_test.go") {
		return found
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.FuncDecl:
			if id := citedInName.FindStringSubmatch(n.Name.Name); id != nil {
				add(n.Pos(), id[1])
			}
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				break
			}
			text, err := strconv.Unquote(n.Value)
			if err != nil || strings.Contains(n.Value, "\n") { // a raw string over several lines is data
				break
			}
			for _, ids := range citedInString.FindAllString(text, -1) {
				for _, id := range anyID.FindAllString(ids, -1) {
					add(n.Pos(), id)
				}
			}
		}
		return true
	})
	return found
}

// Citations are found where people write them, with their lines, and nothing else is
// taken for one.
func TestCitations(t *testing.T) {
	isolate(t)
	const source = `package x // A91

// A92, T91/T92: one after the other (P91).
// It is O91's, and R91.
/*
 W91
*/
func TestA93Events(t *testing.T) { // G91
	t.Run("P92, R92 an unknown tool", nil)
	t.Errorf("got %d\nwant 1 (A94)", 1)
	t.Run("P93–P94 a range", nil)
	t.Run("T93 T94 T95 to T96 a list", nil)
}

// U+00C9, %C3%A9, P256, X25519, HTTP/2, RFC 9110, SHA256, A100, xA1, A1x, A01, -A1-
func TestHTTP2(t *testing.T) {
	_ = []string{"A1", "/%A9/x", "a P1 in a text", "A1,A2"}
}
`
	var got []string
	for _, c := range citations(t, "x_test.go", []byte(source)) {
		got = append(got, fmt.Sprintf("%d:%s", c.line, c.id))
	}
	slices.Sort(got)
	want := []string{"10:A94", "11:P93", "11:P94", "12:T93", "12:T94", "12:T95", "12:T96", "1:A91", "3:A92", "3:P91",
		"3:T91", "3:T92", "4:O91", "4:R91", "6:W91", "8:A93", "8:G91", "9:P92", "9:R92"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// A directive is a Caddyfile directive with its page, and the file in which its block is adapted.
type directive struct {
	name   string
	page   string
	module caddycore.Module
	guest  caddycore.Module  // its subdirectives are in the block, too; nil if none
	file   string            // a Caddyfile with "…" where the block's content goes
	fields map[string]string // subdirective names by JSON field, where they differ
}

var directives = []directive{
	{"mcp_gateway", "docs/mcp_gateway.md", new(mcpgateway.Handler), nil,
		siteWith("mcp_gateway {\n…\nserver sample {\nmcp_sample\n}\n}"),
		map[string]string{"servers": "server answer", "clients": "client", "rates": "rate",
			"notification_routes":   "route_notifications",
			"allow_unauthenticated": "" /* auth none */}},
	{"transport mcp_stdio", "docs/mcp_stdio.md", new(mcpstdio.Transport), nil,
		siteWith("reverse_proxy tools:1 {\ntransport mcp_stdio true {\n…\n}\n}"),
		map[string]string{"command": "", "inherit_env": ""}},
	{"observation_mask", "docs/observation_mask.md", new(observationmask.Handler), nil,
		siteWith("observation_mask {\n…\n}"), nil},
	{"tool_result_mask", "docs/tool_result_mask.md", new(toolresultmask.Handler), nil,
		siteWith("tool_result_mask {\n…\n}"), nil},
	{"mcp_pruner", "docs/mcp_pruner.md", new(mcppruner.Handler), nil, siteWith("mcp_pruner {\n…\n}"), nil},
	{"mcp_store", "docs/scale.md", new(mcpstore.App), new(redis.Redis),
		"{\nmcp_store redis redis://127.0.0.1:1 {\nsession_key 0123456789abcdef0123456789abcdef\n…\n}\n}\n",
		map[string]string{"engine": "", "url": "", "addresses": ""}},
}

// siteWith returns a Caddyfile with a directive.
func siteWith(directive string) string { return ":0 {\n" + directive + "\n}\n" }

// provisioned returns the module of a block as Caddy runs it, with all defaults filled in.
func (d directive) provisioned(t *testing.T, block string) string {
	t.Helper()
	file := strings.Replace(d.file, "…", block, 1)
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(file), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	ctx, err := caddycore.ProvisionContext(new(caddycore.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddycore.NewContext(ctx)
	defer cancel()
	var raw json.RawMessage
	id := d.module.CaddyModule().ID
	key := id.Name()
	walk(t, config, func(object map[string]json.RawMessage) {
		if app, is := object[key]; is && id.Namespace() == "" {
			raw = app
		}
		for _, kind := range []string{"handler", "protocol"} {
			if string(object[kind]) == `"`+key+`"` {
				delete(object, kind)
				raw = caddyconfig.JSON(object, nil)
			}
		}
	})
	module, err := ctx.LoadModuleByID(string(id), raw)
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	return string(caddyconfig.JSON(module, nil))
}

// walk visits every object of a configuration.
func walk(t *testing.T, config json.RawMessage, visit func(map[string]json.RawMessage)) {
	t.Helper()
	var object map[string]json.RawMessage
	var array []json.RawMessage
	switch {
	case json.Unmarshal(config, &object) == nil:
		for _, value := range object {
			walk(t, value, visit)
		}
		visit(object)
	case json.Unmarshal(config, &array) == nil:
		for _, value := range array {
			walk(t, value, visit)
		}
	}
}

// subdirectives returns the subdirectives for the JSON fields of the module.
func (d directive) subdirectives() (names []string) {
	for _, module := range []caddycore.Module{d.module, d.guest} {
		if module == nil {
			continue
		}
		for field := range reflect.TypeOf(module).Elem().Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if others, is := d.fields[name]; is {
				name = others
			}
			names = append(names, strings.Fields(name)...)
		}
	}
	return names
}

// directivesPage shows every directive with its defaults.
const directivesPage = "docs/directives.md"

// An option is a subdirective on that page.
type option struct {
	name      string
	value     string // its default
	commented bool   // it has no default
}

var optionLine = regexp.MustCompile(`^\t(# )?([a-z_]+)(?:, ([a-z_]+))?\s*([^#]*?)\s*(?:#.*)?\n$`)

// optionsOf returns the block of a directive on directivesPage, and its options.
func optionsOf(t *testing.T, d directive) (block string, options []option) {
	t.Helper()
	_, section, _ := strings.Cut(pages(t)[directivesPage], "\n## `"+d.name+"`\n")
	_, block, _ = strings.Cut(section, "\n```caddyfile\n"+d.name)
	_, block, _ = strings.Cut(block, "\n")
	block, _, found := strings.Cut(block, "}\n```\n")
	if !found {
		t.Fatalf("%s does not show the directive", directivesPage)
	}
	for line := range strings.Lines(block) {
		parts := optionLine.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("unexpected line %q", line)
		}
		for _, name := range parts[2:4] {
			if name != "" {
				options = append(options, option{name, parts[4], parts[1] != ""})
			}
		}
	}
	return block, options
}

// The page shows every directive with its defaults. Writing a default changes nothing, and no
// subdirective is missing.
func TestEveryDirective(t *testing.T) {
	isolate(t)
	for _, d := range directives {
		t.Run(d.name, func(t *testing.T) {
			block, options := optionsOf(t, d)
			same(t, d.provisioned(t, block), d.provisioned(t, ""))
			var shown []string
			for _, o := range options {
				shown = append(shown, o.name)
			}
			slices.Sort(shown)
			want := d.subdirectives()
			slices.Sort(want)
			if got := slices.Compact(shown); !slices.Equal(got, want) {
				t.Errorf("want\n%s\ngot\n%s", want, got)
			}
		})
	}
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// The page of a directive has a row for each subdirective, with the same default as directivesPage.
func TestDirectivePages(t *testing.T) {
	isolate(t)
	for _, d := range directives {
		t.Run(d.name, func(t *testing.T) {
			page, err := os.ReadFile("../../../" + d.page)
			if err != nil {
				t.Fatal(err)
			}
			defaults := map[string]string{}
			column := 0
			for line := range strings.Lines(string(page)) {
				cells := strings.Split(strings.Trim(line, "|\n"), "|")
				if strings.HasPrefix(line, "| subdirective |") {
					column = slices.IndexFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "default" })
				}
				names := codeSpan.FindAllStringSubmatch(cells[0], -1)
				if !strings.HasPrefix(line, "| `") || len(cells) <= column {
					continue
				}
				values := strings.Split(strings.ReplaceAll(cells[column], "`", ""), ", ")
				for i, name := range names {
					defaults[name[1]] = strings.TrimSpace(values[min(i, len(values)-1)])
				}
			}
			_, options := optionsOf(t, d)
			for _, o := range options {
				got, found := defaults[o.name]
				switch {
				case !found:
					t.Errorf("%s: no row", o.name)
				case !o.commented && got != strings.Trim(o.value, `"`) && got != "as above":
					t.Errorf("%s: %s has %q, its page %q", o.name, directivesPage, o.value, got)
				}
			}
		})
	}
}
