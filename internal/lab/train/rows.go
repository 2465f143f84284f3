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
const others = 80

// rows are lines to learn from.
type rows struct {
	width    int // features of a line
	values   []float32
	task     []int // of each line, which
	relevant []bool
	weight   []float64
}

func (r *rows) len() int            { return len(r.task) }
func (r *rows) row(i int) []float32 { return r.values[i*r.width : (i+1)*r.width] }

// all returns the numbers of all rows.
func (r *rows) all() []int {
	all := make([]int, r.len())
	for i := range all {
		all[i] = i
	}
	return all
}

// readRows reads the features of all lines that matter and of some that do not. Every
// task weighs the same, and one half of it are the lines that matter.
func readRows(tasks []task.Task, width int) (*rows, error) {
	r := &rows{width: width}
	picked := make([][]int, len(tasks)) // lines, those that matter first
	starts := make([]int, len(tasks))
	for i := range tasks {
		starts[i] = r.len()
		picked[i] = pick(&tasks[i], rand.New(rand.NewPCG(seed, uint64(i))))
		for range picked[i] {
			r.task = append(r.task, i)
		}
	}
	if r.len() == 0 {
		return nil, errors.New("there is no task in which some lines are relevant and others are not")
	}
	r.values = make([]float32, r.len()*width)
	r.relevant = make([]bool, r.len())
	r.weight = make([]float64, r.len())
	errs := make([]error, len(tasks))
	task.Each(len(tasks), func(i int) { errs[i] = r.read(&tasks[i], picked[i], starts[i]) })
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("task %q: %w", tasks[i].Goal, err)
		}
	}
	return r, nil
}

// pick returns the lines of a task to learn from, counted from 0, or none if they are
// all relevant and there is nothing to tell apart.
func pick(t *task.Task, random *rand.Rand) []int {
	n := len(prune.Lines(t.Text))
	var lines, rest []int
	for i := range n {
		if _, ok := slices.BinarySearch(t.Relevant, i+1); ok {
			lines = append(lines, i)
		} else {
			rest = append(rest, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return append(lines, rest[:min(len(rest), others)]...)
}

// read fills in the rows of a task, from start on.
func (r *rows) read(t *task.Task, lines []int, start int) error {
	if len(lines) == 0 {
		return nil
	}
	features := prune.Features(&prune.Request{Text: t.Text, Goal: t.Goal, Source: t.Source})
	if len(features) == 0 || len(features[0]) != r.width {
		return fmt.Errorf("package prune does not tell %d features of its lines: was it built from other files?", r.width)
	}
	matter := len(t.Relevant)
	for k, line := range lines {
		i := start + k
		copy(r.row(i), features[line])
		r.relevant[i] = k < matter
		r.weight[i] = 1 / float64(len(lines)-matter)
		if r.relevant[i] {
			r.weight[i] = 1 / float64(matter)
		}
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

// area returns, by weight, which share of the pairs of a relevant row and another has
// the higher sum for the relevant one; a dash if there are no pairs.
func (r *rows) area(sums []float64, which func(row int) bool) string {
	order := slices.DeleteFunc(r.all(), func(i int) bool { return !which(i) })
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case sums[a] < sums[b]:
			return -1
		case sums[a] > sums[b]:
			return 1
		}
		return a - b
	})
	var below, relevant, pairs float64
	for i := 0; i < len(order); {
		// Rows that are equal count half.
		equal, equalRelevant := 0.0, 0.0
		for sum := sums[order[i]]; i < len(order) && sums[order[i]] == sum; i++ {
			if w := r.weight[order[i]]; r.relevant[order[i]] {
				equalRelevant += w
			} else {
				equal += w
			}
		}
		pairs += equalRelevant * (below + equal/2)
		below += equal
		relevant += equalRelevant
	}
	if below == 0 || relevant == 0 {
		return "–"
	}
	return fmt.Sprintf("%.4f", pairs/below/relevant)
}
