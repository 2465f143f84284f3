package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestGoals(t *testing.T) {
	for subject, want := range map[string]bool{
		"Close idle connections on reload": true,
		"fix: race in the pool (#12)":      true,
		"Fix it in db":                     false,
		"Bump the parser to version 3":     false,
		"v1.2 with new parser release":     false,
		"chore(deps): update the parser":   false,
		"Fix a typo in the guide":          false,
		"ci: run the tests twice":          false,
		"circuit breaker for upstreams":    true,
		"broken \xff encoding of the text": false,
	} {
		if got := isGoal(subject); got != want {
			t.Errorf("%q: got %t", subject, got)
		}
	}
}

func TestNamesOfRepositories(t *testing.T) {
	for location, want := range map[string]string{
		"/src/parser":          "parser",
		"/src/parser/.git":     "parser",
		"/src/parser.git":      "parser",
		"/mirror/parser/repo":  "parser",
		"/mirror/a+parser.git": "a+parser",
	} {
		if got := nameOf(filepath.FromSlash(location)); got != want {
			t.Errorf("%s: got %q, want %q", location, got, want)
		}
	}
}

// A history is a repository that a test makes.
type history struct {
	t         *testing.T
	directory string
}

func newHistory(t *testing.T, name string) *history {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	h := &history{t, filepath.Join(t.TempDir(), name)}
	if err := os.Mkdir(h.directory, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+who+"_NAME", "Test")
		t.Setenv("GIT_"+who+"_EMAIL", "test@example.com")
		t.Setenv("GIT_"+who+"_DATE", "2026-01-01T00:00:00Z")
	}
	h.git("init", "-q")
	return h
}

func (h *history) git(arguments ...string) {
	h.t.Helper()
	command := exec.Command("git", append([]string{"-C", h.directory}, arguments...)...)
	if out, err := command.CombinedOutput(); err != nil {
		h.t.Fatalf("git %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
}

// commit writes files and commits them.
func (h *history) commit(subject string, files map[string]string) {
	h.t.Helper()
	for name, text := range files {
		path := filepath.Join(h.directory, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			h.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	h.git("add", "-A")
	h.git("commit", "-q", "-m", subject)
}

func (h *history) mine(limit int) []task {
	h.t.Helper()
	tasks, err := mineAll([]string{h.directory}, limit)
	if err != nil {
		h.t.Fatal(err)
	}
	return tasks
}

// numbered returns a text of n lines, of which those given say something else.
func numbered(n int, other ...int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if slices.Contains(other, i) {
			b.WriteString("other ")
		}
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func through(first, last int) (all []int) {
	for i := first; i <= last; i++ {
		all = append(all, i)
	}
	return all
}

func TestTaskOfCommit(t *testing.T) {
	inserted := strings.Replace(numbered(100), "line 41\n", "line 41\nnew\n", 1)
	for _, test := range []struct {
		name, file    string
		before, after string
		subject       string
		source        prune.Source // or there is no task
		relevant      []int
	}{
		{name: "lines that change are relevant", file: "a.go", before: numbered(100), after: numbered(100, 7, 8, 40), source: prune.Code, relevant: []int{7, 8, 40}},
		{name: "the line is relevant after which others go in", file: "a.go", before: numbered(100), after: inserted, source: prune.Code, relevant: []int{41}},
		{name: "a guide is documentation", file: "guide/A.MD", before: numbered(100), after: numbered(100, 7), source: prune.Docs, relevant: []int{7}},
		{name: "names may have spaces and accents", file: "my gü.rs", before: numbered(100), after: numbered(100, 7), source: prune.Code, relevant: []int{7}},
		{name: "lines that end with CRLF are lines", file: "a.cs", before: strings.ReplaceAll(numbered(100), "\n", "\r\n"),
			after: strings.ReplaceAll(numbered(100, 7), "\n", "\r\n"), source: prune.Code, relevant: []int{7}},
		{name: "30 of 100 lines may change", file: "a.go", before: numbered(100), after: numbered(100, through(1, 30)...), source: prune.Code, relevant: through(1, 30)},
		{name: "31 of 100 are too many", file: "a.go", before: numbered(100), after: numbered(100, through(1, 31)...)},
		{name: "121 lines are too many", file: "a.go", before: numbered(1000), after: numbered(1000, through(1, 121)...)},
		{name: "59 lines are too short", file: "a.go", before: numbered(59), after: numbered(59, 7)},
		{name: "3001 lines are too long", file: "a.go", before: numbered(3001), after: numbered(3001, 7)},
		{name: "a change of blanks alone is none", file: "a.go", before: numbered(100), after: strings.Replace(numbered(100), "line 7\n", "  line  7\n", 1)},
		{name: "other files are nothing we know", file: "a.svg", before: numbered(100), after: numbered(100, 7)},
		{name: "a list of changes is changed with everything", file: "CHANGES.md", before: numbered(100), after: numbered(100, 7)},
		{name: "what is not UTF-8 is no text", file: "a.go", before: "\xff" + numbered(100), after: "\xff" + numbered(100, 7)},
		{name: "lines that git counts otherwise have other numbers", file: "a.go", before: "a\rb\n" + numbered(100), after: "a\rb\n" + numbered(100, 7)},
		{name: "a routine subject is no goal", file: "a.go", before: numbered(100), after: numbered(100, 7), subject: "Release of the next version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHistory(t, "sample")
			h.commit("Begin with all of it", map[string]string{test.file: test.before})
			subject := "Say something else there"
			if test.subject != "" {
				subject = test.subject
			}
			h.commit(subject, map[string]string{test.file: test.after, "created.go": numbered(100)})
			var want []task
			if test.source != "" {
				want = []task{{Repository: "sample", Goal: subject, Source: test.source, Text: test.before, Relevant: test.relevant}}
			}
			if got := h.mine(10); !reflect.DeepEqual(got, want) {
				t.Errorf("got %d tasks, want %d: %.300q", len(got), len(want), fmt.Sprint(got))
			}
		})
	}
}

func TestTasksOfHistory(t *testing.T) {
	h := newHistory(t, "sample")
	// All modifies n files at once.
	all := func(n, line int) map[string]string {
		files := map[string]string{}
		for i := range n {
			files[fmt.Sprintf("%d.go", i)] = numbered(100, line)
		}
		return files
	}
	h.commit("Begin with all of it", all(7, 0))
	h.commit("Change seven files at once", all(7, 1))
	if got := h.mine(10); len(got) != 0 {
		t.Errorf("a commit that changes seven files makes %d tasks", len(got))
	}
	h.commit("Change six files at once", all(6, 2))
	if got := h.mine(10); len(got) != maxOfCommit {
		t.Errorf("a commit that changes six files makes %d tasks", len(got))
	}
	for i := range 9 {
		h.commit(fmt.Sprintf("Change the lines numbered %d", i), all(2, 10+i))
	}
	got := h.mine(7)
	if len(got) != 7 {
		t.Errorf("%d tasks, want no more than 7", len(got))
	}
	if again := h.mine(7); !reflect.DeepEqual(got, again) {
		t.Error("the second time there are other tasks")
	}

	bare := filepath.Join(t.TempDir(), "sample.git")
	h.git("clone", "-q", "--bare", h.directory, bare)
	ofBare, err := mineAll([]string{bare}, 7)
	if err != nil || !reflect.DeepEqual(got, ofBare) {
		t.Errorf("a bare repository of that name has other tasks: %v", err)
	}
}

func TestRepositoryThatIsNone(t *testing.T) {
	newHistory(t, "sample")
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := mineAll([]string{missing}, 10); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("got error %v, want one that names the repository", err)
	}
}
