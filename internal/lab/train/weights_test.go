package main

import (
	"bytes"
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
)

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
