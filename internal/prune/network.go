package prune

import "math"

// hidden is the number of hidden units.
const hidden = 24

// A perceptron computes one number from the features of a line: the logarithm of the value of
// keeping it. It is a linear regression plus one hidden layer, small enough to take a microsecond
// per line. Its weights are learned from changes that people made for a stated reason: see the
// command train.
type perceptron struct {
	in     [features][hidden]float32
	bias   [hidden]float32
	out    [hidden]float32
	linear [features]float32
}

func (p *perceptron) sum(row []float32) float64 {
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
	return float64(sum)
}

// values returns how much relevant content to expect in each line, relative to the best line.
func (s *sheet) values() []float64 {
	values := make([]float64, len(s.rows)/int(features))
	most := math.Inf(-1)
	for i := range values {
		values[i] = network.sum(s.row(i))
		most = max(most, values[i])
	}
	const least = 1e-12 // values must be positive
	for i, sum := range values {
		values[i] = max(least, math.Exp(sum-most))
	}
	return values
}
