package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"math/rand/v2"
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

func TestShapeOfPackagePrune(t *testing.T) {
	s, err := readShape("../../prune")
	if err != nil {
		t.Fatal(err)
	}
	rows := sampleRows(t, 1) // fails if the number of features differs
	if s.names[0] != "always" || len(s.names) != rows.width || s.hidden < 1 {
		t.Errorf("got %v, %d", s.names, s.hidden)
	}
}

func TestMissingShape(t *testing.T) {
	for _, test := range []struct{ name, features, network, err string }{
		{"no features", "const x = 1", "const hidden = 2", "features.go"},
		{"no hidden units", "const (\nalways = iota\nfeatures\n)", "const seen = 2", "network.go"},
	} {
		t.Run(test.name, func(t *testing.T) {
			directory := t.TempDir()
			for name, text := range map[string]string{"features.go": test.features, "network.go": test.network} {
				if err := os.WriteFile(filepath.Join(directory, name), []byte("package prune\n"+text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := readShape(directory); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("got error %v, want %q", err, test.err)
			}
		})
	}
}

func TestWeightsFileCompiles(t *testing.T) {
	s := shape{names: []string{"always", "inDocs", "isBlank"}, hidden: 2}
	n := newNetwork(len(s.names), s.hidden)
	n.randomize(rand.New(rand.NewPCG(1, 1)))
	n.linear[1], n.linear[2] = 1e9, -1e-9
	source, err := weightsFile(s, n, scale{[]float64{1, 0.5, 0.1}, []float64{0, 0.5, 0.3}})
	if err != nil {
		t.Fatal(err)
	}
	if formatted, err := format.Source(source); err != nil || !bytes.Equal(formatted, source) {
		t.Errorf("the file is not formatted: %v", err)
	}
	const rest = `package prune
const hidden = 2
const (always = iota; inDocs; isBlank; features)
type perceptron struct {
	in [features][hidden]float32
	bias, out [hidden]float32
	linear [features]float32
}`
	set := token.NewFileSet()
	var files []*ast.File
	for _, text := range []string{string(source), rest} {
		file, err := parser.ParseFile(set, "", text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if !ast.IsGenerated(files[0]) {
		t.Error("the file is not marked as generated")
	}
	checker := types.Config{Importer: importer.Default()}
	if _, err := checker.Check("prune", set, files, nil); err != nil {
		t.Errorf("%v\n%s", err, source)
	}
}

func TestInvalidWeightsAreRefused(t *testing.T) {
	n := newNetwork(1, 1)
	n.all[0] = math.NaN()
	if _, err := weightsFile(shape{[]string{"always"}, 1}, n, scale{[]float64{1}, []float64{0}}); err == nil {
		t.Error("no error for a weight that is NaN")
	}
}
