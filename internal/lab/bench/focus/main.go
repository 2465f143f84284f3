// Command focus reports how many of the lines that a task needs remain when package prune
// shortens a text to a number of characters, compared with simpler methods:
//
//	go -C internal/lab run ./bench/focus [-budgets 2000,4000,8000] [-per 60] [repository...]
//
// # The tasks
//
// Each argument is a git repository, bare or not. At most -per tasks are drawn from its
// history: see package history. A path that ends with the name of a repository used for
// training is refused.
// Without arguments, the tasks are those of package local: as many as -code, -docs and
// -logs, from files that every machine has that builds this project.
//
// A task whose text is within the budget is skipped at that budget, so the tasks differ
// between budgets.
//
// # The contestants
//
// All of them return whole lines, each with its number, and one marker for each run of
// removed lines. Numbers and markers count.
//
//   - head + tail: the first and the last lines.
//   - BM25 by blocks: the blocks that BM25 ranks first. Blocks end at blank lines and have
//     ten lines or more.
//   - plain reference: BM25 of blocks, windows and names, without a trained model: see
//     plainReference.
//   - focus: the result of a call with a focus, after a line with the id of the original.
//   - recovery: the result of recover_observation for the goal.
//
// # The figures
//
// The figure is the mean share of needed lines that an answer contains. In parentheses is
// the middle 95 % of the means of 2,000 samples of the tasks, drawn with replacement. A
// shortened line does not count. If Focus refuses a text, none of its lines count.
//
// The command fails if an answer exceeds its budget or has lines that the text does not have.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func main() {
	var s settings
	s.Flags()
	flag.IntVar(&s.per, "per", 60, "maximum `number` of tasks per repository")
	budgets := flag.String("budgets", "2000,4000,8000", "`list` of budgets, in characters")
	flag.Parse()
	s.repositories = flag.Args()
	s.Without = history.LearnedModules()

	err := s.parseBudgets(*budgets)
	if err == nil {
		err = run(os.Stdout, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "focus:", err)
		os.Exit(1)
	}
}

type settings struct {
	local.Sample
	repositories []string
	per          int // maximum number of tasks per repository
	budgets      []int
}

func (s *settings) parseBudgets(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		budget, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || budget < minBudget {
			return fmt.Errorf("-budgets: %q is not a number of at least %d characters", word, minBudget)
		}
		s.budgets = append(s.budgets, budget)
	}
	return nil
}

// minBudget is the smallest budget in which every contestant can keep a line.
const minBudget = 500

// run creates the tasks, gives them to every contestant and prints the results.
func run(w io.Writer, s settings) error {
	if s.per < 1 {
		return fmt.Errorf("-per: %d is not a number of tasks above 0", s.per)
	}
	tasks, err := s.draw()
	if err != nil {
		return err
	}
	results := newResults(s)
	results.addAll(tasks)
	results.print(w)
	return results.err()
}

func (s *settings) draw() ([]task.Task, error) {
	if len(s.repositories) > 0 {
		return history.MinePaths(s.repositories, s.per)
	}
	return s.Tasks()
}

// results are the figures of all contestants.
type results struct {
	settings
	shares     map[key][]float64 // share of needed lines in each answer
	refused    int
	violations []error
}

type key struct {
	source     prune.Source // a source, or allSources
	contestant string
	budget     int
}

const allSources prune.Source = "all"

func newResults(s settings) *results { return &results{settings: s, shares: map[key][]float64{}} }

// addAll gives all tasks to every contestant.
func (r *results) addAll(tasks []task.Task) {
	done := make([][]outcome, len(tasks))
	task.Each(len(tasks), func(i int) { done[i] = r.runTask(&tasks[i]) })
	for i, outcomes := range done {
		for _, o := range outcomes {
			r.add(tasks[i].Source, o)
		}
	}
}

// An outcome is the result of a contestant for one task at one budget.
type outcome struct {
	contestant string
	budget     int
	share      float64
	refused    bool
	err        error
}

// runTask gives a task to every contestant, at the budgets that its text exceeds.
func (r *results) runTask(t *task.Task) []outcome {
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
			kept, err := parseAnswer(answer, lines)
			o.err = errors.Join(o.err, err)
			if o.err != nil {
				o.err = fmt.Errorf("%s at %d, %q: %w", c.name, budget, t.Goal, o.err)
			}
			o.share, o.refused = share(kept, t.Relevant), answer == ""
			all = append(all, o)
		}
	}
	return all
}

func (r *results) add(source prune.Source, o outcome) {
	for _, s := range [...]prune.Source{source, allSources} {
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
		return fmt.Errorf("%d characters, over the budget", chars)
	}
	return nil
}

// share returns the share of lines, numbered from 1, that are kept.
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

// parseAnswer returns which lines an answer contains unchanged, or why the answer is invalid. An
// empty answer is valid.
func parseAnswer(answer string, lines []string) (kept []bool, err error) {
	kept = make([]bool, len(lines))
	if answer == "" {
		return kept, nil
	}
	at := 0 // lines covered so far
	for line := range strings.SplitSeq(answer, "\n") {
		if m := numbered.FindStringSubmatch(line); m != nil {
			if m[1] != strconv.Itoa(at+1) || at == len(lines) {
				return kept, fmt.Errorf("line %s after line %d of %d", m[1], at, len(lines))
			}
			kept[at] = m[2] == lines[at]
			if !kept[at] && !isShortened(m[2], lines[at]) {
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
		return kept, fmt.Errorf("%d lines are covered, not %d", at, len(lines))
	}
	return kept, nil
}

// isShortened reports whether short is part of a line, with an ellipsis for each removed end.
func isShortened(short, line string) bool {
	part := strings.TrimSuffix(strings.TrimPrefix(short, "…"), "…")
	return part != short && len(part) < len(line) && strings.Contains(line, part)
}

// err returns the first violations, or nil.
func (r *results) err() error {
	if len(r.violations) == 0 {
		return nil
	}
	const shown = 10
	return fmt.Errorf("%d invalid answers:\n%w", len(r.violations),
		errors.Join(r.violations[:min(len(r.violations), shown)]...))
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "Percent of the needed lines that are kept, numbers and markers counted; %s, seed %d.\n",
		runtime.Version(), r.Seed)
	fmt.Fprint(w, "Texts within a budget are skipped there.\n\n| source | contestant |")
	for _, budget := range r.budgets {
		fmt.Fprintf(w, " %d characters |", budget)
	}
	fmt.Fprint(w, "\n|---|---|"+strings.Repeat("--:|", len(r.budgets))+"\n")
	for _, source := range [...]prune.Source{prune.Code, prune.Docs, prune.Logs, allSources} {
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
	fmt.Fprintf(w, "\nTexts refused: %d. Invalid answers: %d.\n", r.refused, len(r.violations))
}

// has reports whether there are tasks of this source.
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

// interval returns the bounds of the middle 95 % of the means of samples.
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
