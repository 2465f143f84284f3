package prune

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNearLines(t *testing.T) { // P77
	half := 1 / math.Ln2 // the distance at which a value halves with each line
	values := []float64{0, 0, 8, 0, 0, 6}
	for _, test := range []struct {
		name string
		got  []float64
		want []float64
	}{
		{"before and after", near(values, half), []float64{2, 4, 8, 4, 3, 6}},
		{"after", after(values, half), []float64{0, 0, 8, 4, 2, 6}},
		{"before", before(values, half), []float64{2, 4, 8, 1.5, 3, 6}},
	} {
		if !slices.EqualFunc(test.got, test.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("%s: got %v, want %v", test.name, test.got, test.want)
		}
	}
	if values[1] != 0 {
		t.Error("the values are changed")
	}
}

func TestRelativeValues(t *testing.T) {
	if got := relative([]float64{1, 4, 2}); !slices.Equal(got, []float64{0.25, 1, 0.5}) {
		t.Errorf("got %v", got)
	}
	if got := relative([]float64{0, 0}); !slices.Equal(got, []float64{0, 0}) {
		t.Errorf("zeros: got %v", got)
	}
	if got := ranks([]float64{3, 1, 3, 2}); !slices.Equal(got, []float64{0.5, 0, 0.5, 0.25}) {
		t.Errorf("ranks: got %v", got)
	}
}

func TestFeaturesAreNumbers(t *testing.T) {
	random := rand.New(rand.NewPCG(77, 0))
	for range 200 {
		r := randomRequest(random)
		rows := Features(r)
		if len(rows) != len(wholeLines(r.Text)) {
			t.Fatalf("%d rows of %d lines", len(rows), len(wholeLines(r.Text)))
		}
		for i, row := range rows {
			for f, x := range row {
				if len(row) != int(features) || math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
					t.Fatalf("feature %d of line %d is %v: %s", f, i+1, x, excerpt(r.Text))
				}
			}
		}
	}
}

func TestLinesOfAGoalAreWorthMoreThanOthers(t *testing.T) { // P32, P77
	for source, format := range map[Source]string{Code: "    value_%d = compute(value)",
		Logs: "2026-02-26 13:00:00 INFO request %d served", Docs: "Some prose that says nothing, %d."} {
		text := with(300, format, map[int]string{150: "the connection pool is exhausted"})
		l := split(text)
		o := outlineOf(l, source, never)
		goal := "exhausted connection pool"
		sheet, err := readFeatures(t.Context(), l, o, source, goal, readWording(l, goal, never))
		if err != nil {
			t.Fatal(err)
		}
		values := sheet.values()
		if best := slices.Index(values, slices.Max(values)); best != 149 {
			t.Errorf("%s: line %d is worth most", source, best+1)
		}
		if values[151] <= values[20] {
			t.Errorf("%s: a nearby line is worth %v, a distant one %v", source, values[151], values[20])
		}
	}
}
