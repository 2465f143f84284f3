package prune

import (
	"strings"
	"testing"
)

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
