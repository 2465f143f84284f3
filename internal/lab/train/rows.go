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

// others is how many lines of a task are learned from beside the relevant ones.
const others = 100

// rows are lines to learn from.
type rows struct {
	width   int // features of a line
	values  []float32
	samples []sample
}

// A sample is the rows of a task, [start, end), of which the first are the relevant ones.
type sample struct {
	task, start, relevant, end int
	standsFor                  float64 // how many of the other lines one of them stands for
}

func (r *rows) len() int            { return len(r.values) / r.width }
func (r *rows) row(i int) []float32 { return r.values[i*r.width : (i+1)*r.width] }

// readRows reads the features of all lines that matter and of some that do not.
func readRows(tasks []task.Task, width int) (*rows, error) {
	r := &rows{width: width}
	var picked [][]int // lines of each sample, those that matter first
	at := 0
	for i := range tasks {
		lines, standsFor := pick(&tasks[i], rand.New(rand.NewPCG(seed, uint64(i))))
		if len(lines) == 0 {
			continue
		}
		picked = append(picked, lines)
		r.samples = append(r.samples, sample{i, at, len(tasks[i].Relevant), at + len(lines), standsFor})
		at += len(lines)
	}
	if at == 0 {
		return nil, errors.New("there is no task in which some lines are relevant and others are not")
	}
	r.values = make([]float32, at*width)
	errs := make([]error, len(r.samples))
	task.Each(len(r.samples), func(i int) {
		s := &r.samples[i]
		if err := r.read(&tasks[s.task], picked[i], s.start); err != nil {
			errs[i] = fmt.Errorf("task %q: %w", tasks[s.task].Goal, err)
		}
	})
	return r, errors.Join(errs...)
}

// pick returns the lines of a task to learn from, counted from 0, and how many lines each
// that is not relevant stands for. There are none if all are relevant and there is nothing
// to tell apart.
func pick(t *task.Task, random *rand.Rand) (lines []int, standsFor float64) {
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
	some := rest[:min(len(rest), others)]
	return append(lines, some...), float64(len(rest)) / float64(len(some))
}

// read fills in the rows of a task, from start on.
func (r *rows) read(t *task.Task, lines []int, start int) error {
	features := prune.Features(&prune.Request{Text: t.Text, Goal: t.Goal, Source: t.Source})
	if len(features) == 0 || len(features[0]) != r.width {
		return fmt.Errorf("package prune does not tell %d features of its lines: was it built from other files?", r.width)
	}
	for k, line := range lines {
		copy(r.row(start+k), features[line])
	}
	return nil
}

// A scale says how features were standardised: less their mean, by their deviation.
// A feature that is always the same has no deviation.
type scale struct{ mean, deviation []float64 }

// standardise makes every feature have a mean of 0 and a deviation of 1, or be 0.
func (r *rows) standardise() scale {
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
	const leastDeviation = 1e-4 // less is an accident
	for f, variance := range s.deviation {
		if s.deviation[f] = math.Sqrt(variance); s.deviation[f] < leastDeviation {
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

// area returns, on average over the samples of some tasks, which share of the pairs of a
// relevant row and another has the higher sum for the relevant one; a dash if there are
// none. Those that are equal count half.
func (r *rows) area(sums []float64, which func(task int) bool) string {
	total, n := 0.0, 0
	for i := range r.samples {
		s := &r.samples[i]
		if !which(s.task) {
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
