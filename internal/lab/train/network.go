package main

import (
	"math"
	"math/rand/v2"
	"sync"
)

// A network is that of package prune as it is learned: of features that have been
// standardised, and in double precision.
type network struct {
	in     []float64 // by feature, then by hidden unit
	linear []float64 // by feature
	out    []float64 // by hidden unit
	bias   []float64 // by hidden unit
	offset []float64 // one, of the sum

	all     []float64 // what the above are parts of
	decayed int       // how many of all, from the first on, are kept small
}

// newNetwork returns a network of zeros.
func newNetwork(width, hidden int) *network {
	n := &network{all: make([]float64, width*hidden+width+hidden+hidden+1)}
	at := 0
	part := func(size int) []float64 {
		at += size
		return n.all[at-size : at : at]
	}
	n.in, n.linear, n.out = part(width*hidden), part(width), part(hidden)
	n.decayed = at
	n.bias, n.offset = part(hidden), part(1)
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

// sum returns the log-odds that a line is relevant. It leaves in units what the hidden
// units say.
func (n *network) sum(row []float32, units []float64) float64 {
	copy(units, n.bias)
	sum := n.offset[0]
	for f, value := range row {
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

// sums returns the log-odds of all rows.
func (n *network) sums(r *rows) []float64 {
	sums := make([]float64, r.len())
	units := make([]float64, len(n.out))
	for i := range sums {
		sums[i] = n.sum(r.row(i), units)
	}
	return sums
}

// addGradient adds to g how the loss of a row changes with each weight. The loss is the
// negative logarithm of how likely the network finds what is so.
func (n *network) addGradient(g *network, row []float32, relevant bool, weight float64, units []float64) {
	slope := 1 / (1 + math.Exp(-n.sum(row, units)))
	if relevant {
		slope--
	}
	slope *= weight
	g.offset[0] += slope
	for j, x := range units {
		g.out[j] += slope * x
		units[j] = 0
		if x > 0 {
			units[j] = slope * n.out[j]
		}
		g.bias[j] += units[j]
	}
	for f, value := range row {
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
	batch     = 1024 // rows
	parts     = 4    // of a batch, taken at the same time
	fastest   = 2e-3 // about the rate of the first epoch; then it falls
	slowest   = 1e-5 // below that of the last
	decay     = 3e-2 // of weights, by the rate
	momentum  = 0.9
	steadying = 0.999 // momentum of the squares
)

// train returns a network that has learned from those rows. Whatever the number of
// processors, it computes the same numbers in the same order.
func train(r *rows, from []int, hidden int, seed uint64) *network {
	random := rand.New(rand.NewPCG(seed, 0))
	n := newNetwork(r.width, hidden)
	n.scatter(random)
	total := 0.0
	for _, i := range from {
		total += r.weight[i]
	}
	l := newLearner(n, r, float64(len(from))/total)
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
	weight        float64 // makes the mean weight of a row 1
	gradients     [parts]*network
	mean, squares []float64 // of the gradient, by weight
	steps         float64
}

func newLearner(n *network, r *rows, weight float64) *learner {
	l := &learner{network: n, rows: r, weight: weight, mean: make([]float64, len(n.all)), squares: make([]float64, len(n.all))}
	for p := range l.gradients {
		l.gradients[p] = newNetwork(len(n.linear), len(n.out))
	}
	return l
}

// learn takes one step.
func (l *learner) learn(from []int, rate float64) {
	var done sync.WaitGroup
	for p, g := range l.gradients {
		part := from[len(from)*p/parts : len(from)*(p+1)/parts]
		done.Go(func() {
			clear(g.all)
			units := make([]float64, len(l.out))
			for _, i := range part {
				l.addGradient(g, l.rows.row(i), l.rows.relevant[i], l.rows.weight[i]*l.weight/float64(len(from)), units)
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
