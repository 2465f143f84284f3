package rerank

import (
	"reflect"
	"slices"
	"testing"
)

func TestSample(t *testing.T) { // P67
	tests := []struct {
		name     string
		n, limit int
		want     []int
	}{
		{"no lines", 0, 64, []int{}},
		{"a limit of 0", 5, 0, []int{}},
		{"fewer lines than the limit", 3, 64, []int{0, 1, 2}},
		{"as many lines as the limit", 4, 4, []int{0, 1, 2, 3}},
		{"one line more than the limit", 5, 4, []int{0, 1, 2, 4}},
		{"the first and the last", 1000, 2, []int{0, 999}},
		{"only the first", 1000, 1, []int{0}},
		{"evenly in between", 101, 5, []int{0, 25, 50, 75, 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Sample(tt.n, tt.limit); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSampleIsEven(t *testing.T) { // P67
	for _, n := range []int{2, 3, 63, 64, 65, 127, 1000, 1999, 2_000_000} {
		for limit := 2; limit <= 512; limit++ {
			chosen := Sample(n, limit)
			if len(chosen) != min(n, limit) || chosen[0] != 0 || chosen[len(chosen)-1] != n-1 {
				t.Fatalf("%d of %d: %d lines from %d to %d", limit, n, len(chosen), chosen[0], chosen[len(chosen)-1])
			}
			if !slices.IsSorted(chosen) {
				t.Fatalf("%d of %d: not ascending", limit, n)
			}
			step := (n - 1) / (len(chosen) - 1)
			for i := 1; i < len(chosen); i++ {
				if gap := chosen[i] - chosen[i-1]; gap < step || gap > step+1 || gap == 0 {
					t.Fatalf("%d of %d: a step of %d lines, want %d or one more", limit, n, gap, step)
				}
			}
		}
	}
}
