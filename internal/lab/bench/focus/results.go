package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// results are what all contestants have come to.
type results struct {
	settings
	shares     map[key][]float64 // of the needed lines that answers have, by task
	refused    int
	violations []error
}

type key struct {
	source     prune.Source // or everything
	contestant string
	budget     int
}

const everything prune.Source = "all"

func newResults(s settings) *results { return &results{settings: s, shares: map[key][]float64{}} }

// addAll has every contestant do all tasks.
func (r *results) addAll(tasks []task.Task) {
	done := make([][]outcome, len(tasks))
	task.Each(len(tasks), func(i int) { done[i] = r.do(&tasks[i]) })
	for i, outcomes := range done {
		for _, o := range outcomes {
			r.add(tasks[i].Source, o)
		}
	}
}

// An outcome is what a contestant came to in one task at one budget.
type outcome struct {
	contestant string
	budget     int
	share      float64
	refused    bool
	err        error
}

// do has every contestant do a task, at the budgets that its text is over.
func (r *results) do(t *task.Task) []outcome {
	lines := prune.Lines(t.Text)
	var all []outcome
	for _, budget := range r.budgets {
		if utf8.RuneCountInString(t.Text) <= budget {
			continue
		}
		for _, c := range contestants {
			o := outcome{contestant: c.name, budget: budget}
			answer := c.answer(t, lines, budget)
			answer, o.err = withoutHead(answer), overBudget(answer, budget)
			kept, err := judge(answer, lines)
			if o.err = errors.Join(o.err, err); o.err != nil {
				o.err = fmt.Errorf("%s at %d, %q: %w", c.name, budget, t.Goal, o.err)
			}
			o.share, o.refused = share(kept, t.Relevant), answer == ""
			all = append(all, o)
		}
	}
	return all
}

func (r *results) add(source prune.Source, o outcome) {
	for _, s := range [...]prune.Source{source, everything} {
		k := key{s, o.contestant, o.budget}
		r.shares[k] = append(r.shares[k], o.share)
	}
	if o.refused {
		r.refused++
	}
	if o.err != nil {
		r.violations = append(r.violations, o.err)
	}
}

func overBudget(answer string, budget int) error {
	if chars := utf8.RuneCountInString(answer); chars > budget {
		return fmt.Errorf("%d characters", chars)
	}
	return nil
}

// share returns which share of the lines, counted from 1, is kept.
func share(kept []bool, lines []int) float64 {
	found := 0
	for _, line := range lines {
		if kept[line-1] {
			found++
		}
	}
	return float64(found) / float64(len(lines))
}

var (
	numbered = regexp.MustCompile(`(?s)^(\d+)│ (.*)$`)
	marked   = regexp.MustCompile(`^\[lines? (\d+)(?:-(\d+))? left out\]$`)
)

// judge returns which lines an answer has as they are. The error says why it is not an
// answer. Nothing is one that has no lines.
func judge(answer string, lines []string) (kept []bool, err error) {
	kept = make([]bool, len(lines))
	if answer == "" {
		return kept, nil
	}
	at := 0 // how many lines are accounted for
	for line := range strings.SplitSeq(answer, "\n") {
		if m := numbered.FindStringSubmatch(line); m != nil {
			if m[1] != strconv.Itoa(at+1) || at == len(lines) {
				return kept, fmt.Errorf("line %s after line %d of %d", m[1], at, len(lines))
			}
			if kept[at] = m[2] == lines[at]; !kept[at] && !isShortened(m[2], lines[at]) {
				return kept, fmt.Errorf("line %d is %q, want %q", at+1, m[2], lines[at])
			}
			at++
			continue
		}
		m := marked.FindStringSubmatch(line)
		if m == nil || m[1] != strconv.Itoa(at+1) {
			return kept, fmt.Errorf("%q after line %d", line, at)
		}
		at++
		if m[2] != "" {
			at, _ = strconv.Atoi(m[2])
		}
	}
	if at != len(lines) {
		return kept, fmt.Errorf("%d lines are accounted for, not %d", at, len(lines))
	}
	return kept, nil
}

// isShortened reports whether short is a part of a line, with an ellipsis where something
// is missing.
func isShortened(short, line string) bool {
	part := strings.TrimSuffix(strings.TrimPrefix(short, "…"), "…")
	return part != short && len(part) < len(line) && strings.Contains(line, part)
}

// err returns what is wrong with the answers, if anything is.
func (r *results) err() error {
	if len(r.violations) == 0 {
		return nil
	}
	const shown = 10
	return fmt.Errorf("%d answers must not be:\n%w", len(r.violations),
		errors.Join(r.violations[:min(len(r.violations), shown)]...))
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "Percent of the needed lines that are kept, numbers and markers counted; %s, seed %d.\n",
		runtime.Version(), r.Seed)
	fmt.Fprint(w, "Texts that are within a budget are left out there.\n\n| source | contestant |")
	for _, budget := range r.budgets {
		fmt.Fprintf(w, " %d characters |", budget)
	}
	fmt.Fprint(w, "\n|---|---|"+strings.Repeat("--:|", len(r.budgets))+"\n")
	for _, source := range [...]prune.Source{prune.Code, prune.Docs, prune.Logs, everything} {
		if !r.has(source) {
			continue
		}
		for _, c := range contestants {
			fmt.Fprintf(w, "| %s | %s |", source, c.name)
			for _, budget := range r.budgets {
				fmt.Fprintf(w, " %s |", r.cell(key{source, c.name, budget}))
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "| %s | tasks |", source)
		for _, budget := range r.budgets {
			fmt.Fprintf(w, " %d |", len(r.shares[key{source, contestants[0].name, budget}]))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nTexts refused: %d. Answers that break a promise: %d.\n", r.refused, len(r.violations))
}

// has reports whether there are tasks of a source.
func (r *results) has(source prune.Source) bool {
	return slices.ContainsFunc(r.budgets, func(budget int) bool {
		return len(r.shares[key{source, contestants[0].name, budget}]) > 0
	})
}

func (r *results) cell(k key) string {
	shares := r.shares[k]
	if len(shares) == 0 {
		return "–"
	}
	low, high := interval(shares, rand.New(rand.NewPCG(r.Seed, 4)))
	return fmt.Sprintf("%.1f (%.1f–%.1f)", 100*mean(shares), 100*low, 100*high)
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// interval returns between which numbers the middle 95 % of the means of samples are.
func interval(values []float64, random *rand.Rand) (low, high float64) {
	const samples = 2000
	means := make([]float64, samples)
	for i := range means {
		sum := 0.0
		for range values {
			sum += values[random.IntN(len(values))]
		}
		means[i] = sum / float64(len(values))
	}
	slices.Sort(means)
	return means[samples/40], means[samples-1-samples/40]
}
