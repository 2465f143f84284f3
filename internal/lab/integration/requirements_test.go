package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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
