package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// maxIrrelevant is the maximum number of irrelevant lines of a task to train on.
const maxIrrelevant = 100

// rows are the lines to train on.
type rows struct {
	width   int // number of features
	values  []float32
	samples []sample
}

// A sample has the rows of a task, [start, end), the relevant ones first.
type sample struct {
	task, start, relevant, end int
	represents                 float64 // number of irrelevant lines that each irrelevant row represents
}

func (r *rows) len() int            { return len(r.values) / r.width }
func (r *rows) row(i int) []float32 { return r.values[i*r.width : (i+1)*r.width] }

// readRows reads the features of all relevant lines and of some others.
func readRows(tasks []task.Task, width int) (*rows, error) {
	r := &rows{width: width}
	var picked [][]int // lines of each sample, the relevant ones first
	n := 0
	for i := range tasks {
		lines, standsFor := pickLines(&tasks[i], rand.New(rand.NewPCG(seed, uint64(i))))
		if len(lines) == 0 {
			continue
		}
		picked = append(picked, lines)
		r.samples = append(r.samples, sample{i, n, len(tasks[i].Relevant), n + len(lines), standsFor})
		n += len(lines)
	}
	if n == 0 {
		return nil, errors.New("no task has both relevant and irrelevant lines")
	}
	r.values = make([]float32, n*width)
	errs := make([]error, len(r.samples))
	task.Each(len(r.samples), func(i int) {
		s := &r.samples[i]
		if err := r.read(&tasks[s.task], picked[i], s.start); err != nil {
			errs[i] = fmt.Errorf("task %q: %w", tasks[s.task].Goal, err)
		}
	})
	return r, errors.Join(errs...)
}

// pickLines returns the lines of a task to train on, numbered from 0, and how many lines each
// irrelevant one represents. It returns none if all lines are relevant.
func pickLines(t *task.Task, random *rand.Rand) (lines []int, standsFor float64) {
	n := len(prune.Lines(t.Text))
	var rest []int
	for i := range n {
		if _, ok := slices.BinarySearch(t.Relevant, i+1); ok {
			lines = append(lines, i)
		} else {
			rest = append(rest, i)
		}
	}
	if len(rest) == 0 {
		return nil, 0
	}
	random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	some := rest[:min(len(rest), maxIrrelevant)]
	return append(lines, some...), float64(len(rest)) / float64(len(some))
}

// read sets the rows of a task, starting at start.
func (r *rows) read(t *task.Task, lines []int, start int) error {
	features := prune.Features(&prune.Request{Text: t.Text, Goal: t.Goal, Source: t.Source})
	if len(features) == 0 || len(features[0]) != r.width {
		return fmt.Errorf("package prune does not return %d features per line: it was built from other files", r.width)
	}
	for k, line := range lines {
		copy(r.row(start+k), features[line])
	}
	return nil
}

// A scale has the mean and the deviation by which features are standardized. The deviation of
// a constant feature is 0.
type scale struct{ mean, deviation []float64 }

// standardize scales every feature to a mean of 0 and a deviation of 1. Constant features become 0.
func (r *rows) standardize() scale {
	s := scale{make([]float64, r.width), make([]float64, r.width)}
	n := float64(r.len())
	for i := range r.len() {
		for f, x := range r.row(i) {
			s.mean[f] += float64(x) / n
		}
	}
	for i := range r.len() {
		for f, x := range r.row(i) {
			d := float64(x) - s.mean[f]
			s.deviation[f] += d * d / n
		}
	}
	const leastDeviation = 1e-4 // less counts as constant
	for f, variance := range s.deviation {
		s.deviation[f] = math.Sqrt(variance)
		if s.deviation[f] < leastDeviation {
			s.deviation[f] = 0
		}
	}
	for i := range r.len() {
		row := r.row(i)
		for f, x := range row {
			row[f] = 0
			if s.deviation[f] > 0 {
				row[f] = float32((float64(x) - s.mean[f]) / s.deviation[f])
			}
		}
	}
	return s
}

// auc returns the mean AUC of the selected tasks' samples: the share of pairs of a relevant and
// another row in which the relevant one has the higher sum. Equal sums count half. It returns
// a dash if there are no samples.
func (r *rows) auc(sums []float64, selected func(task int) bool) string {
	total, n := 0.0, 0
	for i := range r.samples {
		s := &r.samples[i]
		if !selected(s.task) {
			continue
		}
		relevant, rest := sums[s.start:s.start+s.relevant], slices.Sorted(slices.Values(sums[s.start+s.relevant:s.end]))
		below := 0.0
		for _, sum := range relevant {
			first, _ := slices.BinarySearch(rest, sum)
			last, _ := slices.BinarySearch(rest, math.Nextafter(sum, math.Inf(1)))
			below += float64(first+last) / 2
		}
		total += below / float64(len(relevant)*len(rest))
		n++
	}
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.4f", total/float64(n))
}
