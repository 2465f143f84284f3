package prune

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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

func TestNamesOfDefinitions(t *testing.T) { // P77
	for _, test := range []struct{ line, want string }{
		{"func parse(text string) error {", "parse"},
		{"func (s *sheet) readNames(l lines) {", "readNames"},
		{"    async def fetch_all(self):", "fetch_all"},
		{"public static <T> List<T> listOf(T first) {", "listOf"},
		{"static int *read_header(struct file *f)", "read_header"},
		{"enum class Colour : int {", "Colour"},
		{"export default class Store extends Base {", "Store"},
		{"const add = (a, b) => a + b;", "add"},
		{"Parser::Parser(int depth) : depth_(depth) {", "Parser"},
		{"jobs:", "jobs"},
		{"#define LIMIT(x) \\", "LIMIT"},
		{"}", ""},
	} {
		if got := nameDefined(test.line); got != test.want {
			t.Errorf("%s: got %q, want %q", test.line, got, test.want)
		}
	}
}

// One function matches the goal, uses a second, and is used by a third.
func TestReferencesAreFollowedOneStep(t *testing.T) { // P77
	lines := strings.Split(`func chargeCard(amount int) error {
	return transmit(amount)
}

func transmit(n int) error {
	return send(n)
}

func send(n int) error {
	return dial(n)
}

func nightly() {
	a := 1
	b := 2
	c := 3
	d := 4
	chargeCard(a + b + c + d)
}`, "\n")
	r := request(Code, strings.Join(lines, "\n"), "charge the card twice")
	rows := Features(r)
	of := func(f feature, text string) float32 {
		for i, line := range lines {
			if strings.Contains(line, text) {
				return rows[i][f]
			}
		}
		t.Fatalf("no line contains %s", text)
		return 0
	}
	for _, test := range []struct {
		name string
		f    feature
		line string
		is   bool
	}{
		{"a function that the matching line uses", usedWhereFound, "return send(n)", true},
		{"a function used two steps away", usedWhereFound, "return dial(n)", false},
		{"a line that uses the matching function", usesFound, "chargeCard(a +", true},
		{"another line of the same function", usesFound, "b := 2", false},
		{"a name in its own definition", usesFound, "func chargeCard", false},
	} {
		if got := of(test.f, test.line); got > 0.5 != test.is {
			t.Errorf("%s, %s: %v", test.name, test.line, got)
		}
	}
}

func TestANameThatIsDefinedTwiceIsNotFollowed(t *testing.T) {
	text := "def run():\n    launch()\n\n\nclass A:\n    def run(self):\n        pass\n\n\ndef launch():\n    " +
		"pass\n\n\ndef other():\n    run()\n"
	for i, row := range Features(request(Code, text, "launch it all")) {
		if line := Lines(text)[i]; strings.Contains(line, "    run()") && row[usesFound] != 0 {
			t.Errorf("%s counts as a use of the match", line)
		}
	}
}
