package prune

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomUnits returns n random units. If fences is set, some have several lines.
func randomUnits(random *rand.Rand, n int, fences bool) []unit {
	units := make([]unit, n)
	at := 0
	for i := range units {
		lines := 1
		if fences && random.IntN(4) == 0 {
			lines += random.IntN(6)
		}
		units[i] = unit{start: at, end: at + lines, value: math.Round(100*random.Float64()+1) / 100,
			tokens: float64(random.IntN(40)), must: random.IntN(6) == 0}
		at += lines
	}
	return units
}

// worth returns the value of a choice at the given prices, computed by its definition.
func worth(units []unit, kept []bool, marker, price, premium float64) (sum float64, t total) {
	for i := range units {
		u := &units[i]
		switch {
		case kept[i]:
			sum += u.value - price*u.tokens + premium*float64(u.lines())
			t.tokens += u.tokens
			continue
		case u.must:
			return math.Inf(-1), t
		case i == 0 || kept[i-1]:
			sum -= price * marker
			t.tokens += marker
		}
		t.removed += u.lines()
	}
	return sum, t
}

// bestOfAll returns the value of the best choice, found by trying all of them.
func bestOfAll(units []unit, marker, price, premium float64) float64 {
	best := math.Inf(-1)
	kept := make([]bool, len(units))
	for choice := range 1 << len(units) {
		for i := range kept {
			kept[i] = choice>>i&1 != 0
		}
		sum, _ := worth(units, kept, marker, price, premium)
		best = max(best, sum)
	}
	return best
}

func TestNoChoiceIsBetterAtItsPrice(t *testing.T) { // P76
	random := rand.New(rand.NewPCG(76, 0))
	for range 400 {
		units := randomUnits(random, random.IntN(11), true)
		marker := pick(random, []float64{0, 5, 35})
		price, premium := pick(random, []float64{0, 1e-4, 0.01, 0.05, 0.3, 10}), pick(random, []float64{0, 0, 0.1, 2})
		p := program{units: units, marker: marker, kept: make([]bool, len(units)), fromKept: make([]uint8, len(units))}
		sum := p.run(price, premium)
		got, want := 0.0, bestOfAll(units, marker, price, premium)
		var is total
		got, is = worth(units, p.kept, marker, price, premium)
		if math.Abs(got-want) > 1e-9 {
			t.Fatalf("%v, price %v, premium %v: keeping %v is worth %v, the best choice %v",
				units, price, premium, p.kept, got, want)
		}
		if sum.removed != is.removed || math.Abs(sum.tokens-is.tokens) > 1e-9 {
			t.Fatalf("%v: keeping %v removes %+v, but run returned %+v", units, p.kept, is, sum)
		}
	}
}

func TestChoicesKeepTheirBudget(t *testing.T) { // P29, P76
	random := rand.New(rand.NewPCG(29, 0))
	for range 2000 {
		units := randomUnits(random, 1+random.IntN(120), random.IntN(2) == 0)
		if random.IntN(3) == 0 { // equal units
			for i := range units {
				units[i].value, units[i].tokens = 0.5, 3
			}
		}
		n, all := units[len(units)-1].end, 0.0
		for i := range units {
			all += units[i].tokens
		}
		b := budget{removable: 1 + random.IntN(n), marker: pick(random, []float64{0, 5, 35}),
			tokens: pick(random, []float64{0, all / 2, all, 2 * all})}
		b.enough = pick(random, []int{0, b.removable / 2, b.removable})
		kept, err := choose(t.Context(), units, b)
		if err != nil {
			t.Fatal(err)
		}
		if _, is := worth(units, kept, 0, 0, 0); is.removed > b.removable {
			t.Fatalf("%v, %+v: %d lines removed", units, b, is.removed)
		}
		for i := range units {
			if units[i].must && !kept[i] {
				t.Fatalf("%v, %+v: unit %d is removed", units, b, i)
			}
		}
		for _, block := range removedBlocks(units, kept) {
			tokens := 0.0
			for i := range units {
				if block.start <= units[i].start && units[i].end <= block.end {
					tokens += units[i].tokens
				}
			}
			if tokens <= b.marker && b.marker > 0 {
				t.Fatalf("%v, %+v: block %v of %v tokens is removed", units, b, block, tokens)
			}
		}
	}
}

func TestWithoutMarkersExactlyEnoughIsRemoved(t *testing.T) { // P29, P33
	random := rand.New(rand.NewPCG(33, 0))
	for range 1000 {
		units := randomUnits(random, 1+random.IntN(100), false)
		free := 0
		for i := range units {
			units[i].tokens++ // no unit is free
			if !units[i].must {
				free++
			}
		}
		limit := 1 + random.IntN(len(units))
		kept, err := choose(t.Context(), units, budget{removable: limit, enough: limit, tokens: math.Inf(1)})
		if err != nil {
			t.Fatal(err)
		}
		if _, is := worth(units, kept, 0, 0, 0); is.removed != min(free, limit) {
			t.Fatalf("%v: %d of %d lines removed, want %d", units, is.removed, len(units), min(free, limit))
		}
	}
}

func TestMarkersCountAgainstTheBudget(t *testing.T) { // P76
	units := make([]unit, 100)
	for i := range units {
		units[i] = unit{start: i, end: i + 1, value: 0.01, tokens: 10}
		if i%10 == 0 { // good lines far apart
			units[i].value = 1
		}
	}
	kept, err := choose(t.Context(), units, budget{removable: 100, enough: 50, tokens: 700, marker: 35})
	if err != nil {
		t.Fatal(err)
	}
	_, is := worth(units, kept, 35, 0, 0)
	if is.tokens > 700 || is.removed < 50 {
		t.Errorf("keeping %v gives %+v", kept, is)
	}
}

func TestBestEdgesAreRestored(t *testing.T) { // P29, P76
	for _, test := range []struct {
		name   string
		kept   string    // before, + for kept units
		values []float64 // of all units
		budget budget
		want   string
	}{
		{"inwards from the first line", "+-----+", []float64{1, .9, .8, .2, .05, .1, 1}, budget{removable: 2}, "++++--+"},
		{"inwards from the last line", "+-----+", []float64{1, .1, .05, .2, .8, .9, 1}, budget{removable: 2}, "+--++++"},
		{"of the run with the best edge", "+--+--+--+", []float64{1, .1, .2, 1, .3, .1, 1, .5, .9, 1}, budget{removable: 5},
			"+--+--+-++"},
		{"from the ends of the text", "-----", []float64{.2, .1, .1, .1, .3}, budget{removable: 3}, "+---+"},
		{"the first of equal ones", "-----", []float64{.2, .2, .2, .2, .2}, budget{removable: 3}, "++---"},
		{"while tokens are left", "+-----+", []float64{1, .9, .8, .2, .05, .1, 1}, budget{removable: 5, tokens: 40},
			"+++---+"},
		{"while enough lines stay removed", "+-----+", []float64{1, .9, .8, .2, .05, .1, 1}, budget{removable: 5, enough: 4,
			tokens: 1000}, "++----+"},
		{"and a remaining run with fewer tokens than a marker", "+-----+", []float64{1, .9, .8, .2, .05, .1, 1},
			budget{removable: 2, marker: 25}, "+++++++"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := program{marker: test.budget.marker}
			for i, value := range test.values {
				p.units = append(p.units, unit{start: i, end: i + 1, value: value, tokens: 10})
				p.kept = append(p.kept, test.kept[i] == '+')
			}
			p.restore(test.budget)
			got := ""
			for _, kept := range p.kept {
				got += map[bool]string{true: "+", false: "-"}[kept]
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestLeastPrice(t *testing.T) {
	for _, want := range []float64{1e-6, 1e-4, 0.5, 3, 12345} {
		if got := smallest(t.Context(), func(x float64) bool { return x >= want }); got < want ||
			got > want*(1+3*tolerance)+1e-6 {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := smallest(t.Context(), func(float64) bool { return false }); got < 1e6 {
		t.Errorf("got %v, but no number satisfies the condition", got)
	}
}

func TestTheBestUnitsAreKept(t *testing.T) { // P64
	random := rand.New(rand.NewPCG(64, 0))
	for range 500 {
		units := randomUnits(random, 1+random.IntN(59), false)
		for i := range units {
			units[i].value = float64(random.IntN(5)) // ties
		}
		removable := 1 + random.IntN(len(units))
		kept := keepBest(units, removable)
		order := make([]int, 0, len(units)) // units that may be removed, the best first
		musts := 0
		for i := range units {
			if units[i].must {
				musts++
			} else {
				order = append(order, i)
			}
		}
		slices.SortFunc(order, func(a, b int) int {
			if units[a].value != units[b].value {
				return int(units[b].value - units[a].value)
			}
			return a - b
		})
		stay := max(0, len(units)-removable-musts)
		for rank, i := range order {
			if kept[i] != (rank < stay) {
				t.Fatalf("%v, %d removable: unit %d is kept: %v", units, removable, i, kept[i])
			}
		}
	}
}

func TestNormalizeScores(t *testing.T) { // P64, P67
	nan := math.NaN()
	for _, test := range []struct {
		name   string
		scores []float64
		order  []int // from the best to the worst
	}{
		{"on any scale", []float64{-7, 12, 3}, []int{1, 2, 0}},
		{"equal scores", []float64{2, 2, 2}, []int{0, 1, 2}},
		{"no scores", []float64{nan, nan}, []int{0, 1}},
		{"a line without a score is a little worse than the nearest scored line", []float64{0.1, nan, nan, 0.9, 0.5},
			[]int{3, 2, 4, 0, 1}},
		{"first and last lines without scores", []float64{nan, 0.9, 0.1, nan}, []int{1, 0, 2, 3}},
		{"between two equally near lines, the first counts", []float64{0.2, nan, 0.8, 0.5}, []int{2, 3, 0, 1}},
		{"the largest and smallest numbers", []float64{math.MaxFloat64, -math.MaxFloat64, 0}, []int{0, 2, 1}},
		{"numbers whose halves are equal", []float64{0, 5e-324, 0}, []int{1, 0, 2}},
		{"no finite numbers", []float64{math.Inf(-1), math.Inf(1), 0}, []int{1, 2, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := normalizeScores(test.scores)
			for _, v := range values {
				if !(0 < v && v <= 1) {
					t.Fatalf("got %v", values)
				}
			}
			order := make([]int, len(values))
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int {
				switch {
				case values[a] > values[b]:
					return -1
				case values[a] < values[b]:
					return 1
				}
				return 0
			})
			if !slices.Equal(order, test.order) {
				t.Errorf("got %v of %v, want %v", order, values, test.order)
			}
		})
	}
}
