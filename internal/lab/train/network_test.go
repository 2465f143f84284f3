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

func lossOf(n *network, row []float32, relevant bool, weight float64) float64 {
	sum := n.sum(row, make([]float64, len(n.out)))
	if relevant {
		sum = -sum
	}
	return weight * math.Log1p(math.Exp(sum))
}

func TestGradientIsThatOfTheLoss(t *testing.T) {
	const width, hidden, step = 7, 5, 1e-6
	random := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		n, g := newNetwork(width, hidden), newNetwork(width, hidden)
		for i := range n.all {
			n.all[i] = random.NormFloat64()
		}
		row := make([]float32, width)
		for f := range row {
			row[f] = float32(random.NormFloat64())
		}
		relevant, weight := random.IntN(2) == 0, random.Float64()
		n.addGradient(g, row, relevant, weight, make([]float64, hidden))
		for i, at := range n.all {
			n.all[i] = at + step
			above := lossOf(n, row, relevant, weight)
			n.all[i] = at - step
			below := lossOf(n, row, relevant, weight)
			n.all[i] = at
			if want := (above - below) / (2 * step); math.Abs(g.all[i]-want) > 1e-6 {
				t.Fatalf("weight %d: gradient %g, difference %g", i, g.all[i], want)
			}
		}
	}
}

func TestTrainingIsRepeatable(t *testing.T) {
	r := sampleRows(t, 40)
	r.standardise()
	first := train(r, r.all(), 4, 1)
	if again := train(r, r.all(), 4, 1); !slices.Equal(first.all, again.all) {
		t.Error("the same seed gives other weights")
	}
	if other := train(r, r.all(), 4, 2); slices.Equal(first.all, other.all) {
		t.Error("another seed gives the same weights")
	}
}

func TestTrainingTellsLinesApart(t *testing.T) {
	r := sampleRows(t, 40)
	r.standardise()
	n := train(r, r.all(), 4, 1)
	area, err := strconv.ParseFloat(r.area(n.sums(r), func(int) bool { return true }), 64)
	if err != nil || area < 0.95 {
		t.Errorf("AUC %g, %v", area, err)
	}
}

func TestUnscaledNetworkSaysTheSame(t *testing.T) {
	const width, hidden = 4, 3
	random := rand.New(rand.NewPCG(1, 1))
	raw := &rows{width: width, task: make([]int, 50)}
	for range raw.task {
		// The first feature is always 1 and the last always 0.
		raw.values = append(raw.values, 1, float32(3+2*random.NormFloat64()), float32(random.IntN(2)), 0)
	}
	scaled := *raw
	scaled.values = slices.Clone(raw.values)
	by := scaled.standardise()
	n := newNetwork(width, hidden)
	for i := range n.all {
		n.all[i] = random.NormFloat64()
	}
	u := n.unscaled(by)
	want := n.sums(&scaled)
	for i, got := range u.sums(raw) {
		if math.Abs(got-want[i]) > 1e-5 {
			t.Fatalf("row %d: %g, want %g", i, got, want[i])
		}
	}
	if u.offset[0] != 0 || u.linear[width-1] != 0 || u.in[(width-1)*hidden] != 0 {
		t.Error("there is an offset, or a weight of a feature that was never seen")
	}
}
