package main

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history/historytest"
)

// writeTasks writes tasks of eight repositories to a file and returns its path.
func writeTasks(t *testing.T) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "tasks.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	encoder := json.NewEncoder(file)
	for i, task := range sampleTasks(24) {
		task.Repository = fmt.Sprint("r", i%8)
		if err := encoder.Encode(task); err != nil {
			t.Fatal(err)
		}
	}
	return file.Name()
}

func TestRunReportsAndWritesWeights(t *testing.T) {
	h := historytest.New(t, "sample")
	h.Commit("Begin with all of it", map[string]string{"a.md": historytest.Numbered(100)})
	h.Commit("Say something else there", map[string]string{"a.md": historytest.Numbered(100, 7)})
	tasks := writeTasks(t)
	t.Chdir("..")

	clones, sample := filepath.Split(h.Directory)
	s := settings{files: []string{tasks}, clones: clones,
		repositories: []history.Repository{{Name: sample, Commit: h.Head()}}, per: 5}
	s.out = filepath.Join(t.TempDir(), "weights.go")
	var first, again strings.Builder
	if err := run(&first, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"25 tasks", "| code | 24 | ", "| docs | 1 | ", "| logs | 0 | – |"} {
		if !strings.Contains(first.String(), want) {
			t.Errorf("the report does not contain %q:\n%s", want, &first)
		}
	}
	weights, err := os.ReadFile(s.out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "", weights, 0); err != nil {
		t.Error(err)
	}
	if strings.Contains(string(weights), "sample") {
		t.Error("the weights name a repository")
	}
	if err := run(&again, s); err != nil || again.String() != first.String() {
		t.Errorf("the second run reports something else: %v\n%s", err, &again)
	}
	if second, err := os.ReadFile(s.out); err != nil || string(second) != string(weights) {
		t.Errorf("the second run writes other weights: %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	for _, test := range []struct {
		name string
		settings
		err string
	}{
		{"no tasks", settings{per: 1}, "nothing to train on"},
		{"no tasks per repository", settings{clones: "."}, "-per"},
		{"a missing clone", settings{clones: "missing", repositories: history.Learned()[:1], per: 1}, "-clones: missing"},
		{"a missing file", settings{files: []string{"missing.jsonl"}, per: 1}, "-tasks: open missing.jsonl"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir("..")
			if err := run(new(strings.Builder), test.settings); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("got error %v, want %q", err, test.err)
			}
		})
	}
}
