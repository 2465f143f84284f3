package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
)

// A network is that of package prune as it is learned: of features that have been
// standardised, and in double precision.
type network struct {
	in     []float64 // by feature, then by hidden unit
	linear []float64 // by feature
	out    []float64 // by hidden unit
	bias   []float64 // by hidden unit

	all     []float64 // what the above are parts of
	decayed int       // how many of all, from the first on, are kept small
}

// newNetwork returns a network of zeros.
func newNetwork(width, hidden int) *network {
	n := &network{all: make([]float64, width*hidden+width+hidden+hidden)}
	at := 0
	part := func(size int) []float64 {
		at += size
		return n.all[at-size : at : at]
	}
	n.in, n.linear, n.out = part(width*hidden), part(width), part(hidden)
	n.decayed = at
	n.bias = part(hidden)
	return n
}

// scatter draws the weights that a network begins with. Were they zero, all hidden
// units would learn the same.
func (n *network) scatter(random *rand.Rand) {
	width, hidden := float64(len(n.linear)), float64(len(n.out))
	for i := range n.in {
		n.in[i] = random.NormFloat64() / math.Sqrt(width)
	}
	for j := range n.out {
		n.out[j] = random.NormFloat64() / math.Sqrt(hidden)
	}
}

// sum returns the logarithm of what a line is worth. It leaves in units what the hidden
// units say.
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

// sums returns those of all rows.
func (n *network) sums(r *rows) []float64 {
	sums := make([]float64, r.len())
	units := make([]float64, len(n.out))
	for i := range sums {
		sums[i] = n.sum(r.row(i), units)
	}
	return sums
}

// addGradient adds to g how the loss of a sample changes with each weight. What a line is
// worth, by what all lines of its text are, is the share that the network expects it to
// have of what is relevant. The loss is the cross entropy of that and of what is so.
func (n *network) addGradient(g *network, r *rows, s *sample, weight float64, w *work) {
	w.sums = w.sums[:0]
	for i := s.start; i < s.end; i++ {
		w.sums = append(w.sums, n.sum(r.row(i), w.units))
	}
	most := slices.Max(w.sums)
	total := 0.0
	for k, sum := range w.sums {
		w.sums[k] = math.Exp(sum - most)
		if k >= s.relevant {
			w.sums[k] *= s.standsFor
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

// A work is what a gradient is reckoned with.
type work struct {
	sums  []float64 // of the rows of a sample
	units []float64
}

// addSlope adds to g what each weight has to do with the sum of a row, of which the loss
// has this slope.
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

// How a network is trained.
const (
	epochs    = 14
	batch     = 12   // samples
	parts     = 4    // of a batch, taken at the same time
	fastest   = 2e-3 // about the rate of the first epoch; then it falls
	slowest   = 1e-5 // below that of the last
	decay     = 3e-2 // of weights, by the rate
	momentum  = 0.9
	steadying = 0.999 // momentum of the squares
)

// train returns a network that has learned from those rows. Whatever the number of
// processors, it computes the same numbers in the same order.
func train(r *rows, hidden int, seed uint64) *network {
	random := rand.New(rand.NewPCG(seed, 0))
	n := newNetwork(r.width, hidden)
	n.scatter(random)
	l := newLearner(n, r)
	from := slices.Clone(r.samples)
	for epoch := range epochs {
		random.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
		rate := slowest + fastest*(1+math.Cos(math.Pi*float64(epoch)/epochs))/2
		for at := 0; at < len(from); at += batch {
			l.learn(from[at:min(at+batch, len(from))], rate)
		}
	}
	return n
}

// A learner moves the weights of a network down the gradient, by the method of Adam
// with weights that decay apart from it.
type learner struct {
	*network
	rows          *rows
	gradients     [parts]*network
	works         [parts]work
	mean, squares []float64 // of the gradient, by weight
	steps         float64
}

func newLearner(n *network, r *rows) *learner {
	l := &learner{network: n, rows: r, mean: make([]float64, len(n.all)), squares: make([]float64, len(n.all))}
	for p := range l.gradients {
		l.gradients[p] = newNetwork(len(n.linear), len(n.out))
		l.works[p].units = make([]float64, len(n.out))
	}
	return l
}

// learn takes one step.
func (l *learner) learn(from []sample, rate float64) {
	var done sync.WaitGroup
	for p, g := range l.gradients {
		part := from[len(from)*p/parts : len(from)*(p+1)/parts]
		done.Go(func() {
			clear(g.all)
			for i := range part {
				l.addGradient(g, l.rows, &part[i], 1/float64(len(from)), &l.works[p])
			}
		})
	}
	done.Wait()
	l.steps++
	unbiased, unbiasedSquares := 1-math.Pow(momentum, l.steps), 1-math.Pow(steadying, l.steps)
	for i := range l.all {
		slope := 0.0
		for _, g := range l.gradients {
			slope += g.all[i]
		}
		l.mean[i] += (1 - momentum) * (slope - l.mean[i])
		l.squares[i] += (1 - steadying) * (slope*slope - l.squares[i])
		step := l.mean[i] / unbiased / (math.Sqrt(l.squares[i]/unbiasedSquares) + 1e-8)
		if i < l.decayed {
			step += decay * l.all[i]
		}
		l.all[i] -= rate * step
	}
}
