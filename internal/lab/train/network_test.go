package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history/historytest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lossOf returns the cross entropy of a network's predicted shares and the actual ones.
func lossOf(n *network, r *rows, s *sample) float64 {
	sums := n.sums(r)
	total, loss := 0.0, 0.0
	for i, sum := range sums {
		if i < s.relevant {
			total += math.Exp(sum)
			loss -= sum / float64(s.relevant)
		} else {
			total += s.represents * math.Exp(sum)
		}
	}
	return loss + math.Log(total)
}

func TestGradientOfTheLoss(t *testing.T) {
	const width, hidden, step = 7, 5, 1e-6
	random := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		n, g := newNetwork(width, hidden), newNetwork(width, hidden)
		for i := range n.all {
			n.all[i] = random.NormFloat64()
		}
		s := sample{relevant: 1 + random.IntN(3), end: 6, represents: 1 + 3*random.Float64()}
		r := &rows{width: width, values: make([]float32, s.end*width)}
		for i := range r.values {
			r.values[i] = float32(random.NormFloat64())
		}
		n.addGradient(g, r, &s, 0.5, &buffers{units: make([]float64, hidden)})
		for i, weight := range n.all {
			n.all[i] = weight + step
			above := lossOf(n, r, &s)
			n.all[i] = weight - step
			below := lossOf(n, r, &s)
			n.all[i] = weight
			if want := 0.5 * (above - below) / (2 * step); math.Abs(g.all[i]-want) > 1e-6 {
				t.Fatalf("weight %d: gradient %g, want %g", i, g.all[i], want)
			}
		}
	}
}

func TestTrainingIsRepeatable(t *testing.T) {
	r := sampleRows(t, 40)
	r.standardize()
	first := train(r, 4, 1)
	if again := train(r, 4, 1); !slices.Equal(first.all, again.all) {
		t.Error("the same seed gives other weights")
	}
	if other := train(r, 4, 2); slices.Equal(first.all, other.all) {
		t.Error("another seed gives the same weights")
	}
}

func TestTrainingSeparatesLines(t *testing.T) {
	r := sampleRows(t, 40)
	r.standardize()
	n := train(r, 4, 1)
	area, err := strconv.ParseFloat(r.auc(n.sums(r), func(int) bool { return true }), 64)
	if err != nil || area < 0.95 {
		t.Errorf("AUC %g, want at least 0.95; error %v", area, err)
	}
}

func TestUnscaledNetworkIsEquivalent(t *testing.T) {
	const width, hidden = 4, 3
	random := rand.New(rand.NewPCG(1, 1))
	raw := &rows{width: width}
	for range 50 {
		// The first feature is always 1 and the last always 0.
		raw.values = append(raw.values, 1, float32(3+2*random.NormFloat64()), float32(random.IntN(2)), 0)
	}
	scaled := *raw
	scaled.values = slices.Clone(raw.values)
	scale := scaled.standardize()
	n := newNetwork(width, hidden)
	for i := range n.all {
		n.all[i] = random.NormFloat64()
	}
	u := n.unscaled(scale)
	want, got := n.sums(&scaled), u.sums(raw)
	for i := range got {
		if math.Abs((got[i]-got[0])-(want[i]-want[0])) > 1e-5 {
			t.Fatalf("row %d minus the first is %g, want %g", i, got[i]-got[0], want[i]-want[0])
		}
	}
	if u.linear[width-1] != 0 || u.in[(width-1)*hidden] != 0 {
		t.Error("a constant feature has a weight")
	}
}

func TestPickLines(t *testing.T) {
	for _, test := range []struct {
		name            string
		lines           int
		relevant        []int
		want, wantOther int
	}{
		{"a long text", 1000, []int{1, 500, 1000}, 3, maxIrrelevant},
		{"a short text", 10, []int{2, 3}, 2, 8},
		{"a text with relevant lines only", 2, []int{1, 2}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, standsFor := pickLines(&task.Task{Text: historytest.Numbered(test.lines), Relevant: test.relevant},
				rand.New(rand.NewPCG(1, 1)))
			if len(got) != test.want+test.wantOther {
				t.Fatalf("got %d lines, want %d and %d", len(got), test.want, test.wantOther)
			}
			if want := float64(test.lines-test.want) / float64(max(1, test.wantOther)); test.wantOther > 0 && standsFor != want {
				t.Errorf("a line represents %g lines, want %g", standsFor, want)
			}
			for i, line := range got {
				if slices.Contains(test.relevant, line+1) != (i < test.want) {
					t.Errorf("line %d is at index %d", line+1, i)
				}
			}
			slices.Sort(got)
			if len(slices.Compact(got)) != test.want+test.wantOther {
				t.Error("a line is picked twice")
			}
		})
	}
}

// sampleTasks returns tasks whose goals say what the relevant line does.
func sampleTasks(n int) []task.Task {
	words := strings.Fields("pool timeout parser header cache token stream retry")
	tasks := make([]task.Task, n)
	for i := range tasks {
		var b strings.Builder
		for line := range 100 {
			fmt.Fprintf(&b, "x%d := other(%d)\n", line, line*line)
			if line == 10+i%80 {
				fmt.Fprintf(&b, "%s.reset(%d)\n", words[i%len(words)], line)
			}
		}
		tasks[i] = task.Task{Goal: "Reset the " + words[i%len(words)], Source: prune.Code, Text: b.String(),
			Relevant: []int{12 + i%80}}
	}
	return tasks
}

func sampleRows(t *testing.T, n int) *rows {
	t.Helper()
	s, err := readShape("../../prune")
	if err != nil {
		t.Fatal(err)
	}
	r, err := readRows(sampleTasks(n), len(s.names))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRowsRefuseWrongNumberOfFeatures(t *testing.T) {
	if _, err := readRows(sampleTasks(1), 3); err == nil || !strings.Contains(err.Error(), "3 features") {
		t.Errorf("got error %v, want one about 3 features", err)
	}
}

func TestRowsRefuseTasksWithoutContrast(t *testing.T) {
	if _, err := readRows([]task.Task{{Source: prune.Code, Text: "a\n", Relevant: []int{1}}}, 3); err == nil {
		t.Error("no error for tasks with relevant lines only")
	}
}

func TestStandardize(t *testing.T) {
	r := &rows{width: 3, values: []float32{1, 2, 0, 1, 4, 0, 1, 2, 0, 1, 4, 1}}
	s := r.standardize()
	for f, want := range []struct{ mean, deviation float64 }{{1, 0}, {3, 1}, {0.25, math.Sqrt(3) / 4}} {
		if math.Abs(s.mean[f]-want.mean) > 1e-9 || math.Abs(s.deviation[f]-want.deviation) > 1e-9 {
			t.Errorf("feature %d: got mean %g, deviation %g, want %+v", f, s.mean[f], s.deviation[f], want)
		}
	}
	if got := r.row(0); got[0] != 0 || got[1] != -1 || math.Abs(float64(got[2])+1/math.Sqrt(3)) > 1e-6 {
		t.Errorf("got first row %v", got)
	}
}

func TestAUC(t *testing.T) {
	for _, test := range []struct {
		name    string
		sums    []float64 // relevant rows first in each sample
		samples []sample
		want    string
	}{
		{"all in order", []float64{3, 2, 1}, []sample{{0, 0, 2, 3, 1}}, "1.0000"},
		{"all in reverse order", []float64{1, 3}, []sample{{0, 0, 1, 2, 1}}, "0.0000"},
		{"all equal", []float64{1, 1, 1}, []sample{{0, 0, 1, 3, 1}}, "0.5000"},
		{"three pairs of four", []float64{2, 4, 1, 3}, []sample{{0, 0, 2, 4, 1}}, "0.7500"},
		{"pairs of two texts are not compared", []float64{2, 1, 9, 8}, []sample{{0, 0, 1, 2, 1}, {0, 2, 1, 4, 1}}, "1.0000"},
		{"a task that is not selected", []float64{1, 2}, []sample{{1, 0, 1, 2, 1}}, "–"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &rows{samples: test.samples}
			if got := r.auc(test.sums, func(task int) bool { return task == 0 }); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
