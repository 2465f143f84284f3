package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history/historytest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestPickTakesRelevantLinesAndSomeOthers(t *testing.T) {
	for _, test := range []struct {
		name            string
		lines           int
		relevant        []int
		want, wantOther int
	}{
		{"a long text", 1000, []int{1, 500, 1000}, 3, others},
		{"a short text", 10, []int{2, 3}, 2, 8},
		{"a text that is all relevant", 2, []int{1, 2}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := pick(&task.Task{Text: historytest.Numbered(test.lines), Relevant: test.relevant}, rand.New(rand.NewPCG(1, 1)))
			if len(got) != test.want+test.wantOther {
				t.Fatalf("%d lines, want %d and %d", len(got), test.want, test.wantOther)
			}
			for i, line := range got {
				if slices.Contains(test.relevant, line+1) != (i < test.want) {
					t.Errorf("line %d is number %d", line+1, i)
				}
			}
			slices.Sort(got)
			if len(slices.Compact(got)) != test.want+test.wantOther {
				t.Error("a line is picked twice")
			}
		})
	}
}

// sampleTasks are tasks in which the goal says what the relevant line does.
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
		tasks[i] = task.Task{Goal: "Reset the " + words[i%len(words)], Source: prune.Code, Text: b.String(), Relevant: []int{12 + i%80}}
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

func TestEveryTaskWeighsTheSame(t *testing.T) {
	r := sampleRows(t, 5)
	relevant, other := make([]float64, 5), make([]float64, 5)
	for i, task := range r.task {
		if r.relevant[i] {
			relevant[task] += r.weight[i]
		} else {
			other[task] += r.weight[i]
		}
	}
	for i := range relevant {
		if math.Abs(relevant[i]-1) > 1e-9 || math.Abs(other[i]-1) > 1e-9 {
			t.Errorf("task %d: relevant %g, others %g", i, relevant[i], other[i])
		}
	}
}

func TestRowsRefuseFeaturesOfAnotherNumber(t *testing.T) {
	if _, err := readRows(sampleTasks(1), 3); err == nil || !strings.Contains(err.Error(), "3 features") {
		t.Errorf("got error %v", err)
	}
}

func TestRowsRefuseTasksWithNothingToTellApart(t *testing.T) {
	if _, err := readRows([]task.Task{{Source: prune.Code, Text: "a\n", Relevant: []int{1}}}, 3); err == nil {
		t.Error("there are rows")
	}
}

func TestStandardise(t *testing.T) {
	r := &rows{width: 3, task: []int{0, 0, 0, 0}, values: []float32{1, 2, 0, 1, 4, 0, 1, 2, 0, 1, 4, 1}}
	s := r.standardise()
	for f, want := range []struct{ mean, deviation float64 }{{1, 0}, {3, 1}, {0.25, math.Sqrt(3) / 4}} {
		if math.Abs(s.mean[f]-want.mean) > 1e-9 || math.Abs(s.deviation[f]-want.deviation) > 1e-9 {
			t.Errorf("feature %d: %g, %g", f, s.mean[f], s.deviation[f])
		}
	}
	if got := r.row(0); got[0] != 0 || got[1] != -1 || math.Abs(float64(got[2])+1/math.Sqrt(3)) > 1e-6 {
		t.Errorf("the first row is %v", got)
	}
}

func TestArea(t *testing.T) {
	all := func(int) bool { return true }
	for _, test := range []struct {
		name     string
		sums     []float64
		relevant []bool
		weight   []float64
		want     string
	}{
		{"all in order", []float64{3, 1, 2}, []bool{true, false, true}, []float64{1, 1, 1}, "1.0000"},
		{"all the other way", []float64{1, 3}, []bool{true, false}, []float64{1, 1}, "0.0000"},
		{"all equal", []float64{1, 1, 1}, []bool{true, false, true}, []float64{1, 1, 1}, "0.5000"},
		{"one pair of two, which weighs thrice", []float64{2, 1, 3}, []bool{true, false, false}, []float64{1, 3, 1}, "0.7500"},
		{"nothing to compare with", []float64{1, 2}, []bool{true, true}, []float64{1, 1}, "–"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &rows{task: make([]int, len(test.sums)), relevant: test.relevant, weight: test.weight}
			if got := r.area(test.sums, all); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
