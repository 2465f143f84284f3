package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A network is that of package prune during training: in double precision, for standardized
// features.
type network struct {
	in     []float64 // weights by feature, then by hidden unit
	linear []float64 // weights by feature
	out    []float64 // weights by hidden unit
	bias   []float64 // biases by hidden unit

	all     []float64 // backing array of the above
	decayed int       // number of leading elements of all with weight decay
}

// newNetwork returns a network of zeros.
func newNetwork(width, hidden int) *network {
	n := &network{all: make([]float64, width*hidden+width+hidden+hidden)}
	end := 0
	part := func(size int) []float64 {
		end += size
		return n.all[end-size : end : end]
	}
	n.in, n.linear, n.out = part(width*hidden), part(width), part(hidden)
	n.decayed = end
	n.bias = part(hidden)
	return n
}

// randomize sets random initial weights. With zeros, all hidden units would learn the same.
func (n *network) randomize(random *rand.Rand) {
	width, hidden := float64(len(n.linear)), float64(len(n.out))
	for i := range n.in {
		n.in[i] = random.NormFloat64() / math.Sqrt(width)
	}
	for j := range n.out {
		n.out[j] = random.NormFloat64() / math.Sqrt(hidden)
	}
}

// sum returns the logarithm of a line's value. It writes the outputs of the hidden units to units.
func (n *network) sum(row []float32, units []float64) float64 {
	copy(units, n.bias)
	sum := 0.0
	for f, value := range row {
		if value == 0 {
			continue
		}
		x := float64(value)
		sum += n.linear[f] * x
		weights := n.in[f*len(units):][:len(units)]
		for j, w := range weights {
			units[j] += w * x
		}
	}
	for j, x := range units {
		units[j] = max(x, 0)
		sum += n.out[j] * units[j]
	}
	return sum
}

// sums returns the sums of all rows.
func (n *network) sums(r *rows) []float64 {
	sums := make([]float64, r.len())
	units := make([]float64, len(n.out))
	for i := range sums {
		sums[i] = n.sum(r.row(i), units)
	}
	return sums
}

// addGradient adds the gradient of a sample's loss to g. The value of a line, divided by that of
// all lines of its text, is the predicted share of the line in what is relevant. The loss is
// the cross entropy of predicted and actual shares.
func (n *network) addGradient(g *network, r *rows, s *sample, weight float64, w *buffers) {
	w.sums = w.sums[:0]
	for i := s.start; i < s.end; i++ {
		w.sums = append(w.sums, n.sum(r.row(i), w.units))
	}
	most := slices.Max(w.sums)
	total := 0.0
	for k, sum := range w.sums {
		w.sums[k] = math.Exp(sum - most)
		if k >= s.relevant {
			w.sums[k] *= s.represents
		}
		total += w.sums[k]
	}
	for k, worth := range w.sums {
		slope := worth / total
		if k < s.relevant {
			slope -= 1 / float64(s.relevant)
		}
		n.addSlope(g, r.row(s.start+k), slope*weight, w.units)
	}
}

// buffers are reused for computing gradients.
type buffers struct {
	sums  []float64 // sums of a sample's rows
	units []float64
}

// addSlope adds to g the gradient for one row. slope is the derivative of the loss by the row's
// sum.
func (n *network) addSlope(g *network, row []float32, slope float64, units []float64) {
	if math.Abs(slope) < 1e-9 {
		return
	}
	n.sum(row, units)
	for j, x := range units {
		g.out[j] += slope * x
		units[j] = 0
		if x > 0 {
			units[j] = slope * n.out[j]
		}
		g.bias[j] += units[j]
	}
	for f, value := range row {
		if value == 0 {
			continue
		}
		x := float64(value)
		g.linear[f] += slope * x
		weights := g.in[f*len(units):][:len(units)]
		for j, u := range units {
			weights[j] += u * x
		}
	}
}

// Hyperparameters of the training.
const (
	epochs         = 14
	batch          = 12   // samples
	parts          = 4    // parts of a batch, computed concurrently
	initialRate    = 2e-3 // learning rate of the first epoch, about; it decreases
	minRate        = 1e-5 // lower bound of the learning rate
	decay          = 3e-2 // weight decay, relative to the learning rate
	momentum       = 0.9
	squareMomentum = 0.999 // momentum of the squares
)

// train returns a network trained on these rows. It computes the same numbers in the same order
// with any number of processors.
func train(r *rows, hidden int, seed uint64) *network {
	random := rand.New(rand.NewPCG(seed, 0))
	n := newNetwork(r.width, hidden)
	n.randomize(random)
	l := newLearner(n, r)
	samples := slices.Clone(r.samples)
	for epoch := range epochs {
		random.Shuffle(len(samples), func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
		rate := minRate + initialRate*(1+math.Cos(math.Pi*float64(epoch)/epochs))/2
		for start := 0; start < len(samples); start += batch {
			l.learn(samples[start:min(start+batch, len(samples))], rate)
		}
	}
	return n
}

// A learner trains a network with AdamW: Adam with decoupled weight decay.
type learner struct {
	*network
	rows          *rows
	gradients     [parts]*network
	buffers       [parts]buffers
	mean, squares []float64 // moving averages of the gradient, by weight
	steps         float64
}

func newLearner(n *network, r *rows) *learner {
	l := &learner{network: n, rows: r, mean: make([]float64, len(n.all)), squares: make([]float64, len(n.all))}
	for p := range l.gradients {
		l.gradients[p] = newNetwork(len(n.linear), len(n.out))
		l.buffers[p].units = make([]float64, len(n.out))
	}
	return l
}

// learn makes one step with a batch of samples.
func (l *learner) learn(samples []sample, rate float64) {
	var done sync.WaitGroup
	for p, g := range l.gradients {
		part := samples[len(samples)*p/parts : len(samples)*(p+1)/parts]
		done.Go(func() {
			clear(g.all)
			for i := range part {
				l.addGradient(g, l.rows, &part[i], 1/float64(len(samples)), &l.buffers[p])
			}
		})
	}
	done.Wait()
	l.steps++
	unbiased, unbiasedSquares := 1-math.Pow(momentum, l.steps), 1-math.Pow(squareMomentum, l.steps)
	for i := range l.all {
		slope := 0.0
		for _, g := range l.gradients {
			slope += g.all[i]
		}
		l.mean[i] += (1 - momentum) * (slope - l.mean[i])
		l.squares[i] += (1 - squareMomentum) * (slope*slope - l.squares[i])
		step := l.mean[i] / unbiased / (math.Sqrt(l.squares[i]/unbiasedSquares) + 1e-8)
		if i < l.decayed {
			step += decay * l.all[i]
		}
		l.all[i] -= rate * step
	}
}

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
