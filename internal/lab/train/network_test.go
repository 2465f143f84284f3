package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"go.uber.org/goleak"
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
