package prune

import "math"

// hidden is how many hidden units the network has.
const hidden = 16

// A perceptron makes one number of the features of a line: how likely it bears on the
// goal. It is a logistic regression with one hidden layer beside it, small enough to
// take a microsecond a line. Its weights are learned from what people have changed for
// a stated reason: see the command train.
type perceptron struct {
	in     [features][hidden]float32
	bias   [hidden]float32
	out    [hidden]float32
	linear [features]float32
}

// rareness is how many lines there are to one that bears on a goal. The network is
// trained on as many of the ones as of the others.
const rareness = 50

// likelihood returns how likely a line bears on the goal.
func (p *perceptron) likelihood(row []float32) float64 {
	units := p.bias
	sum := float32(0)
	for f, x := range row {
		if x == 0 {
			continue
		}
		sum += p.linear[f] * x
		weights := &p.in[f]
		for j := range units {
			units[j] += weights[j] * x
		}
	}
	for j, x := range units {
		sum += p.out[j] * max(x, 0)
	}
	return 1 / (1 + rareness*math.Exp(-float64(sum)))
}

// values returns what lines are worth.
func (s *sheet) values() []float64 {
	values := make([]float64, len(s.rows)/int(features))
	for i := range values {
		values[i] = network.likelihood(s.row(i))
	}
	return values
}
