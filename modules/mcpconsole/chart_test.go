package mcpconsole

import (
	"math"
	"testing"
)

func TestSteps(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		top    float64
		want   string
	}{
		{"no values", nil, 1, "M0 100V100Z"},
		{"values", []float64{0, 5, 10}, 10, "M0 100V100H200V50H400V0H600V100Z"},
		{"a value above the top", []float64{20}, 10, "M0 100V0H600V100Z"},
		{"no top", []float64{1}, 0, "M0 100V100H600V100Z"},
	} {
		if got := steps(test.values, test.top); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

func TestShare(t *testing.T) {
	for _, test := range []struct {
		part, whole float64
		want        string
	}{
		{0, 0, "0%"}, {1, 0, "0%"}, {0, 5, "0%"}, {1, 1e9, "0.5%"}, {1, 3, "33.3%"}, {5, 5, "100%"}, {9, 5, "100%"},
	} {
		if got := share(test.part, test.whole); got != test.want {
			t.Errorf("share(%v, %v) = %s, want %s", test.part, test.whole, got, test.want)
		}
	}
}

func TestCeiling(t *testing.T) {
	for value, want := range map[float64]float64{
		0: 1, math.NaN(): 1, 0.1: 0.1, 0.3: 0.5, 1: 1, 1.1: 2, 3: 5, 7: 10, 10: 10, 34: 50, 999: 1000, 1000: 1000,
	} {
		if got := ceiling(value); math.Abs(got-want) > 1e-9*want {
			t.Errorf("ceiling(%v) = %v, want %v", value, got, want)
		}
	}
}
