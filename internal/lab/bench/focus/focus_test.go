package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history/historytest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// sample returns a task with n lines that needs one of them. Only that line mentions the goal.
func sample(n, needed int) *task.Task {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if i == needed {
			b.WriteString("retry the upload with a longer timeout\n")
		} else {
			fmt.Fprintf(&b, "some words of line %d\n", i)
		}
		if i%9 == 0 {
			b.WriteString("\n")
		}
	}
	text := b.String()
	at := slices.IndexFunc(prune.Lines(text), func(line string) bool { return strings.HasPrefix(line, "retry") })
	return &task.Task{Goal: "uploads need a longer timeout", Source: prune.Docs, Text: text, Relevant: []int{at + 1}}
}

func TestContestants(t *testing.T) {
	for _, c := range contestants {
		t.Run(c.name, func(t *testing.T) {
			for _, budget := range []int{minBudget, 1000, 3000} {
				s := sample(400, 200)
				lines := prune.Lines(s.Text)
				answer := c.answer(s, lines, budget)
				if chars := utf8.RuneCountInString(answer); chars > budget || chars < budget*3/4 {
					t.Errorf("%d characters, want %d at most and nearly as many", chars, budget)
				}
				kept, err := parseAnswer(withoutHead(answer), lines)
				if err != nil {
					t.Fatal(err)
				}
				if found, want := share(kept, s.Relevant) == 1, c.name != "head + tail"; found != want {
					t.Errorf("in %d characters: found %t, want %t\n%s", budget, found, want, answer)
				}
				if c.answer(s, lines, budget) != answer {
					t.Error("the second answer differs")
				}
			}
		})
	}
}

func TestParseAnswer(t *testing.T) {
	lines := []string{"one", "two", "three", strings.Repeat("long ", 100)}
	for _, test := range []struct {
		name, answer, err string
		kept              []bool
	}{
		{"lines and markers", "[line 1 left out]\n2│ two\n[lines 3-4 left out]", "", []bool{false, true, false, false}},
		{"a shortened line does not count", "[lines 1-3 left out]\n4│ …long long…", "", make([]bool, 4)},
		{"a refusal", "", "", make([]bool, 4)},
		{"another line", "1│ two\n[lines 2-4 left out]", `line 1 is "two", want "one"`, nil},
		{"a line twice", "1│ one\n1│ one\n[lines 2-4 left out]", "line 1 after line 1", nil},
		{"a line too many", "[lines 1-4 left out]\n5│ five", "line 5 after line 4 of 4", nil},
		{"no marker", "1│ one\n4│ " + lines[3], "line 4 after line 1", nil},
		{"a marker of other lines", "1│ one\n[lines 3-4 left out]", `"[lines 3-4 left out]" after line 1`, nil},
		{"lines missing at the end", "1│ one\n2│ two", "2 lines are covered, not 4", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			kept, err := parseAnswer(test.answer, lines)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || !slices.Equal(kept, test.kept) {
				t.Errorf("got %v, %v, want %v", kept, err, test.kept)
			}
		})
	}
}

func TestAnswersOverBudgetFail(t *testing.T) {
	r := newResults(settings{})
	r.add(prune.Code, outcome{contestant: "focus", budget: 10, err: overBudget("twelve chars", 10)})
	if err := r.err(); err == nil || !strings.Contains(err.Error(), "12 characters") {
		t.Errorf("got %v", err)
	}
	if err := overBudget("äöü", 3); err != nil {
		t.Errorf("counted bytes instead of characters: %v", err)
	}
}

func TestInterval(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(i % 2)
	}
	low, high := interval(values, rand.New(rand.NewPCG(1, 1)))
	// The standard deviation of the mean of 100 coin tosses is 0.05.
	if low < 0.36 || low > 0.44 || high < 0.56 || high > 0.64 {
		t.Errorf("got %g to %g, want about 0.4 to 0.6", low, high)
	}
	if low, high := interval([]float64{0.3, 0.3}, rand.New(rand.NewPCG(1, 1))); low != 0.3 || high != 0.3 {
		t.Errorf("got %g to %g, want 0.3", low, high)
	}
}

func TestTableOfResults(t *testing.T) {
	h := historytest.New(t, "sample")
	const lines = 300
	h.Commit("Begin with all of it", map[string]string{"a.md": historytest.Numbered(lines)})
	h.Commit("Say something else there", map[string]string{"a.md": historytest.Numbered(lines, 150)})
	var out bytes.Buffer
	s := settings{repositories: []string{h.Directory}, per: 5, budgets: []int{1000, 100_000},
		Sample: local.Sample{Seed: 1}}
	if err := run(&out, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| source | contestant | 1000 characters | 100000 characters |",
		"| docs | head + tail | 0.0 (0.0–0.0) | – |",
		"| all | tasks | 1 | 0 |",
		"Invalid answers: 0.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not contain %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "| logs |") {
		t.Errorf("logs have a row without a task:\n%s", &out)
	}
}

func TestInvalidSettings(t *testing.T) {
	for _, test := range []struct {
		name string
		s    settings
		err  string
	}{
		{"no task", settings{per: 1}, "no tasks"},
		{"a negative number", settings{Sample: local.Sample{Code: -1}, per: 1}, "must not be negative"},
		{"no tasks per repository", settings{repositories: []string{"."}}, "-per"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := run(new(bytes.Buffer), test.s); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
	for _, list := range []string{"", "2000,x", "499"} {
		if err := new(settings).parseBudgets(list); err == nil {
			t.Errorf("-budgets %q is accepted", list)
		}
	}
}
