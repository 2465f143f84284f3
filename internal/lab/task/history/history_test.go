package history

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
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
			t.Errorf("%q: got %t, want %t", subject, got, want)
		}
	}
}

func TestNamesOfRepositories(t *testing.T) {
	for location, want := range map[string]string{
		"/src/ann/parser":      "ann/parser",
		"/src/ann/parser/.git": "ann/parser",
		"/src/ann/parser.git":  "ann/parser",
	} {
		if got := nameOf(filepath.FromSlash(location)); got != want {
			t.Errorf("%s: got %q, want %q", location, got, want)
		}
	}
}

func mined(t *testing.T, h *historytest.Repository, limit int) []task.Task {
	t.Helper()
	tasks, err := MinePaths([]string{h.Directory}, limit)
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
		source        prune.Source // empty if no task is expected
		relevant      []int
	}{
		{name: "changed lines are relevant", file: "a.go", before: historytest.Numbered(100),
			after: historytest.Numbered(100, 7, 8, 40), source: prune.Code, relevant: []int{7, 8, 40}},
		{name: "the line before an insertion is relevant", file: "a.go", before: historytest.Numbered(100), after: inserted,
			source: prune.Code, relevant: []int{41}},
		{name: "a guide is documentation", file: "guide/A.MD", before: historytest.Numbered(100),
			after: historytest.Numbered(100, 7), source: prune.Docs, relevant: []int{7}},
		{name: "names may have spaces and accents", file: "my gü.rs", before: historytest.Numbered(100),
			after: historytest.Numbered(100, 7), source: prune.Code, relevant: []int{7}},
		{name: "lines may end with CRLF", file: "a.cs", before: strings.ReplaceAll(historytest.Numbered(100), "\n", "\r\n"),
			after: strings.ReplaceAll(historytest.Numbered(100, 7), "\n", "\r\n"), source: prune.Code, relevant: []int{7}},
		{name: "30 of 100 lines may change", file: "a.go", before: historytest.Numbered(100),
			after: historytest.Numbered(100, through(1, 30)...), source: prune.Code, relevant: through(1, 30)},
		{name: "31 of 100 changed lines are too many", file: "a.go", before: historytest.Numbered(100),
			after: historytest.Numbered(100, through(1, 31)...)},
		{name: "121 changed lines are too many", file: "a.go", before: historytest.Numbered(1000),
			after: historytest.Numbered(1000, through(1, 121)...)},
		{name: "a file of 59 lines is too short", file: "a.go", before: historytest.Numbered(59),
			after: historytest.Numbered(59, 7)},
		{name: "a file of 3001 lines is too long", file: "a.go", before: historytest.Numbered(3001),
			after: historytest.Numbered(3001, 7)},
		{name: "a change of blanks does not count", file: "a.go", before: historytest.Numbered(100),
			after: strings.Replace(historytest.Numbered(100), "line 7\n", "  line  7\n", 1)},
		{name: "files of unknown types are skipped", file: "a.svg", before: historytest.Numbered(100),
			after: historytest.Numbered(100, 7)},
		{name: "changelogs are skipped", file: "CHANGES.md", before: historytest.Numbered(100),
			after: historytest.Numbered(100, 7)},
		{name: "files that are not UTF-8 are skipped", file: "a.go", before: "\xff" + historytest.Numbered(100),
			after: "\xff" + historytest.Numbered(100, 7)},
		{name: "files whose lines git counts differently are skipped", file: "a.go", before: "a\rb\n" +
			historytest.Numbered(100), after: "a\rb\n" + historytest.Numbered(100, 7)},
		{name: "a routine subject is not a goal", file: "a.go", before: historytest.Numbered(100),
			after: historytest.Numbered(100, 7), subject: "Release of the next version"},
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
				want = []task.Task{{Repository: nameOf(h.Directory), Goal: subject, Source: test.source, Text: test.before,
					Relevant: test.relevant}}
			}
			if got := mined(t, h, 10); !reflect.DeepEqual(got, want) {
				t.Errorf("got %d tasks, want %d: %.300q", len(got), len(want), fmt.Sprint(got))
			}
		})
	}
}

func TestTasksOfHistory(t *testing.T) {
	h := historytest.New(t, "sample")
	// all returns n modified files.
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
		t.Errorf("a commit of seven files gives %d tasks, want 0", len(got))
	}
	h.Commit("Change six files at once", all(6, 2))
	if got := mined(t, h, 10); len(got) != maxTasksPerCommit {
		t.Errorf("a commit of six files gives %d tasks, want %d", len(got), maxTasksPerCommit)
	}
	for i := range 9 {
		h.Commit(fmt.Sprintf("Change the lines numbered %d", i), all(2, 10+i))
	}
	got := mined(t, h, 7)
	if len(got) != 7 {
		t.Errorf("got %d tasks, want 7", len(got))
	}
	if again := mined(t, h, 7); !reflect.DeepEqual(got, again) {
		t.Error("the second call returns other tasks")
	}

	bare := filepath.Join(filepath.Dir(h.Directory), "sample.git")
	h.Git("clone", "-q", "--bare", h.Directory, bare)
	ofBare, err := MinePaths([]string{bare}, 7)
	if err != nil || !reflect.DeepEqual(got, ofBare) {
		t.Errorf("a bare repository of the same name gives other tasks: %v", err)
	}
}

func TestTasksOfFiles(t *testing.T) {
	function := "// Fill copies bytes of the rest into p.\nfunc Fill(p []byte) int {\n\n\treturn copy(p, rest)\n}\n"
	source := "package sample\n\n" + strings.Repeat("var _ = 1\n\n", 40) + function
	document := "# Guide\n\nHow long a session may last is described in [Limits](#limits) below.\n\n" +
		strings.Repeat("Some prose.\n\n", 40) + "## Limits\n\nAn hour.\n\nNo more.\n\nNot a minute.\n"
	h := historytest.New(t, "sample")
	h.Commit("Begin with all of it", map[string]string{
		"fill.go": source, "fill_test.go": source, "vendor/x/fill.go": source, "docs/guide.md": document,
		"CHANGELOG.md": document, "other.py": source,
	})
	clones, name := filepath.Split(h.Directory)
	list := []Repository{{Name: name, Commit: h.Head()}}
	h.Commit("Take all of it away again", map[string]string{"fill.go": "package sample\n", "docs/guide.md": "Gone.\n"})
	got, err := Read(clones, list, 5)
	if err != nil || len(got) != 2 {
		t.Fatalf("got %d tasks, %v, want 2", len(got), err)
	}
	for i, want := range []task.Task{
		{Repository: name, Goal: "copies bytes of the rest into p.", Source: prune.Code},
		{Repository: name, Goal: "How long a session may last is described in Limits below.", Source: prune.Docs},
	} {
		if got[i].Repository != want.Repository || got[i].Goal != want.Goal || got[i].Source != want.Source ||
			got[i].Validate() != nil {
			t.Errorf("task %d is %.300q", i+1, fmt.Sprint(got[i]))
		}
	}
	if none, err := Read(clones, list, 0); err != nil || len(none) != 0 {
		t.Errorf("limit 0: got %d tasks, %v", len(none), err)
	}
}

func TestTasksUpToCommit(t *testing.T) {
	h := historytest.New(t, "sample")
	h.Commit("Begin with all of it", map[string]string{"a.go": historytest.Numbered(100)})
	h.Commit("Say something else there", map[string]string{"a.go": historytest.Numbered(100, 7)})
	pinned := []Repository{{"ann/parser", h.Head()}}
	h.Commit("Say something else again", map[string]string{"a.go": historytest.Numbered(100, 7, 8)})

	clones := t.TempDir()
	for _, directory := range []string{"bare", "no-bare"} {
		h.Git("clone", "-q", "--"+directory, h.Directory, filepath.Join(clones, directory, "ann", "parser"))
		got, err := Mine(filepath.Join(clones, directory), pinned, 10)
		want := []task.Task{{Repository: "ann/parser", Goal: "Say something else there", Source: prune.Code,
			Text: historytest.Numbered(100), Relevant: []int{7}}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %d tasks, error %v", directory, len(got), err)
		}
	}

	for _, list := range [][]Repository{
		{{"ann/parser", strings.Repeat("1", 40)}}, // a commit that the clone does not have
		{{"bob/parser", pinned[0].Commit}},        // a clone that is missing
	} {
		_, err := Mine(filepath.Join(clones, "bare"), list, 10)
		command := "git clone --bare https://github.com/" + list[0].Name + " " + filepath.Join(clones, "bare", list[0].Name)
		if err == nil || !strings.Contains(err.Error(), list[0].Commit) || !strings.Contains(err.Error(), command) {
			t.Errorf("got error %v, want one with %s", err, command)
		}
	}
}

func TestMissingRepository(t *testing.T) {
	historytest.New(t, "sample")
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := MinePaths([]string{missing}, 10); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("got error %v, want one that names the repository", err)
	}
}

func TestTrainingRepositoryIsRefused(t *testing.T) {
	for _, location := range []string{Learned()[0].Name, strings.ToUpper(Learned()[1].Name), Learned()[2].Name + "/.git"} {
		_, err := MinePaths([]string{filepath.Join(t.TempDir(), filepath.FromSlash(location))}, 10)
		if err == nil || !strings.Contains(err.Error(), "the weights are trained on") {
			t.Errorf("%s: got error %v", location, err)
		}
	}
}

func TestLists(t *testing.T) {
	form := regexp.MustCompile(`^[\w.-]+/[\w.-]+ [0-9a-f]{40}$`)
	seen := map[string]bool{}
	for _, r := range slices.Concat(Learned(), Measured()) {
		if !form.MatchString(r.Name + " " + r.Commit) {
			t.Errorf("%q does not have the form owner/name commit", r)
		}
		if name := strings.ToLower(r.Name); seen[name] {
			t.Errorf("%s is listed twice", name)
		} else {
			seen[name] = true
		}
	}
	if len(Measured()) < 10 {
		t.Errorf("%d measured repositories, want at least 10", len(Measured()))
	}
}

func TestParseDiff(t *testing.T) {
	for _, test := range []struct {
		name, diff string
		want       []modification
	}{
		{
			name: "changed lines are those of the file before",
			diff: "diff --git a/a.go b/a.go\nindex 1..2 100644\n--- a/a.go\n+++ b/a.go\n@@ -3,2 +3 @@ func f() " +
				"{\n-one\n-two\n+three\n@@ -9 +8 @@\n-x\n+y\n",
			want: []modification{{path: "a.go", changed: []int{3, 4, 9}}},
		},
		{
			name: "inserted lines count for the line before them",
			diff: "diff --git a/a.go b/a.go\n--- a/a.go\n+++ b/a.go\n@@ -0,0 +1 @@\n+first\n@@ -7,0 +9,2 @@\n+a\n+b\n",
			want: []modification{{path: "a.go", inserted: []int{1, 7}}},
		},
		{
			name: "lines may look like a header",
			diff: "diff --git a/a.md b/a.md\n--- a/a.md\n+++ b/a.md\n@@ -5,3 +5,2 @@\n--- a/b.go\n-@@ -1 +1 @@\n-diff " +
				"--git\n+++ b/b.go\n+x\n@@ -20 +19 @@\n-p\n+q\n",
			want: []modification{{path: "a.md", changed: []int{5, 6, 7, 20}}},
		},
		{
			name: "files may end without a line end",
			diff: "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -2 +2 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline " +
				"at end of file\ndiff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n+y\n",
			want: []modification{{path: "a", changed: []int{2}}, {path: "b", changed: []int{1}}},
		},
		{
			name: "a name with spaces ends with a tab",
			diff: "diff --git a/my file.go b/my file.go\n--- a/my file.go\t\n+++ b/my file.go\t\n@@ -1 +1 @@\n-x\n+y\n",
			want: []modification{{path: "my file.go", changed: []int{1}}},
		},
		{
			name: "quoted names and binary files are skipped",
			diff: "diff --git \"a/\\t.go\" \"b/\\t.go\"\n--- \"a/\\t.go\"\n+++ \"b/\\t.go\"\n@@ -1 +1 @@\n-x\n+y\ndiff " +
				"--git a/i.png b/i.png\nBinary files a/i.png and b/i.png differ\n",
		},
		{name: "an empty diff"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := parseDiff(test.diff); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestRelevantLinesOfInsertions(t *testing.T) {
	both := modification{changed: []int{4}, inserted: []int{9}}
	if got := both.relevant(); !slices.Equal(got, []int{4}) {
		t.Errorf("changed and inserted: got %v", got)
	}
	pure := modification{inserted: []int{9}}
	if got := pure.relevant(); !slices.Equal(got, []int{9}) {
		t.Errorf("inserted: got %v", got)
	}
}
