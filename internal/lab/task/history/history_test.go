package history

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history/historytest"
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

func mined(t *testing.T, h *historytest.Repository, limit int) []task.Task {
	t.Helper()
	tasks, err := Mine([]string{h.Directory}, limit)
	if err != nil {
		t.Fatal(err)
	}
	return tasks
}

func through(first, last int) (all []int) {
	for i := first; i <= last; i++ {
		all = append(all, i)
	}
	return all
}

func TestTaskOfCommit(t *testing.T) {
	inserted := strings.Replace(historytest.Numbered(100), "line 41\n", "line 41\nnew\n", 1)
	for _, test := range []struct {
		name, file    string
		before, after string
		subject       string
		source        prune.Source // or there is no task
		relevant      []int
	}{
		{name: "lines that change are relevant", file: "a.go", before: historytest.Numbered(100), after: historytest.Numbered(100, 7, 8, 40), source: prune.Code, relevant: []int{7, 8, 40}},
		{name: "the line is relevant after which others go in", file: "a.go", before: historytest.Numbered(100), after: inserted, source: prune.Code, relevant: []int{41}},
		{name: "a guide is documentation", file: "guide/A.MD", before: historytest.Numbered(100), after: historytest.Numbered(100, 7), source: prune.Docs, relevant: []int{7}},
		{name: "names may have spaces and accents", file: "my gü.rs", before: historytest.Numbered(100), after: historytest.Numbered(100, 7), source: prune.Code, relevant: []int{7}},
		{name: "lines that end with CRLF are lines", file: "a.cs", before: strings.ReplaceAll(historytest.Numbered(100), "\n", "\r\n"),
			after: strings.ReplaceAll(historytest.Numbered(100, 7), "\n", "\r\n"), source: prune.Code, relevant: []int{7}},
		{name: "30 of 100 lines may change", file: "a.go", before: historytest.Numbered(100), after: historytest.Numbered(100, through(1, 30)...), source: prune.Code, relevant: through(1, 30)},
		{name: "31 of 100 are too many", file: "a.go", before: historytest.Numbered(100), after: historytest.Numbered(100, through(1, 31)...)},
		{name: "121 lines are too many", file: "a.go", before: historytest.Numbered(1000), after: historytest.Numbered(1000, through(1, 121)...)},
		{name: "59 lines are too short", file: "a.go", before: historytest.Numbered(59), after: historytest.Numbered(59, 7)},
		{name: "3001 lines are too long", file: "a.go", before: historytest.Numbered(3001), after: historytest.Numbered(3001, 7)},
		{name: "a change of blanks alone is none", file: "a.go", before: historytest.Numbered(100), after: strings.Replace(historytest.Numbered(100), "line 7\n", "  line  7\n", 1)},
		{name: "other files are nothing we know", file: "a.svg", before: historytest.Numbered(100), after: historytest.Numbered(100, 7)},
		{name: "a list of changes is changed with everything", file: "CHANGES.md", before: historytest.Numbered(100), after: historytest.Numbered(100, 7)},
		{name: "what is not UTF-8 is no text", file: "a.go", before: "\xff" + historytest.Numbered(100), after: "\xff" + historytest.Numbered(100, 7)},
		{name: "lines that git counts otherwise have other numbers", file: "a.go", before: "a\rb\n" + historytest.Numbered(100), after: "a\rb\n" + historytest.Numbered(100, 7)},
		{name: "a routine subject is no goal", file: "a.go", before: historytest.Numbered(100), after: historytest.Numbered(100, 7), subject: "Release of the next version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := historytest.New(t, "sample")
			h.Commit("Begin with all of it", map[string]string{test.file: test.before})
			subject := "Say something else there"
			if test.subject != "" {
				subject = test.subject
			}
			h.Commit(subject, map[string]string{test.file: test.after, "created.go": historytest.Numbered(100)})
			var want []task.Task
			if test.source != "" {
				want = []task.Task{{Repository: "sample", Goal: subject, Source: test.source, Text: test.before, Relevant: test.relevant}}
			}
			if got := mined(t, h, 10); !reflect.DeepEqual(got, want) {
				t.Errorf("got %d tasks, want %d: %.300q", len(got), len(want), fmt.Sprint(got))
			}
		})
	}
}

func TestTasksOfHistory(t *testing.T) {
	h := historytest.New(t, "sample")
	// All modifies n files at once.
	all := func(n, line int) map[string]string {
		files := map[string]string{}
		for i := range n {
			files[fmt.Sprintf("%d.go", i)] = historytest.Numbered(100, line)
		}
		return files
	}
	h.Commit("Begin with all of it", all(7, 0))
	h.Commit("Change seven files at once", all(7, 1))
	if got := mined(t, h, 10); len(got) != 0 {
		t.Errorf("a commit that changes seven files makes %d tasks", len(got))
	}
	h.Commit("Change six files at once", all(6, 2))
	if got := mined(t, h, 10); len(got) != maxOfCommit {
		t.Errorf("a commit that changes six files makes %d tasks", len(got))
	}
	for i := range 9 {
		h.Commit(fmt.Sprintf("Change the lines numbered %d", i), all(2, 10+i))
	}
	got := mined(t, h, 7)
	if len(got) != 7 {
		t.Errorf("%d tasks, want no more than 7", len(got))
	}
	if again := mined(t, h, 7); !reflect.DeepEqual(got, again) {
		t.Error("the second time there are other tasks")
	}

	bare := filepath.Join(t.TempDir(), "sample.git")
	h.Git("clone", "-q", "--bare", h.Directory, bare)
	ofBare, err := Mine([]string{bare}, 7)
	if err != nil || !reflect.DeepEqual(got, ofBare) {
		t.Errorf("a bare repository of that name has other tasks: %v", err)
	}
}

func TestRepositoryThatIsNone(t *testing.T) {
	historytest.New(t, "sample")
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := Mine([]string{missing}, 10); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("got error %v, want one that names the repository", err)
	}
}
