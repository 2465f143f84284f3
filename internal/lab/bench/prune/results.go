package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// Names of the contestants whose recalls are compared.
const (
	prunerName    = "mcp_pruner"
	referenceName = "reference"
)

// results are the figures of all contestants.
type results struct {
	settings
	outcomes []outcome // by task
	cpu      map[prune.Source]*cpu
}

// An outcome has the figures of a task, by ratio.
type outcome struct {
	*task.Task
	figures      []map[string]figures // figures by contestant
	savingErrors []float64            // difference between reported and exact saving
	errs         []error              // why answers of package prune are invalid
}

// figures rate the answer of a contestant for a task.
type figures struct{ recall, saved, runs, all, grew float64 }

func figuresOf(t *task.Task, a answer, before int) figures {
	found := 0
	for _, line := range t.Relevant {
		if a.kept[line-1] {
			found++
		}
	}
	f := figures{recall: float64(found) / float64(len(t.Relevant)), saved: saving(before, a.tokens), runs: float64(a.runs)}
	if found == len(t.Relevant) {
		f.all = 1
	}
	if a.tokens > before {
		f.grew = 1
	}
	return f
}

func saving(before, after int) float64 { return 1 - float64(after)/float64(before) }

// cpu is the work and processor time of package prune.
type cpu struct {
	tasks, lines int
	took         time.Duration
	pruned       int // lines, once per ratio
}

// measure gives the tasks to every contestant.
func measure(s settings, tasks []task.Task) *results {
	r := &results{settings: s, outcomes: make([]outcome, len(tasks)), cpu: map[prune.Source]*cpu{}}
	pruned := make([][]*prune.Result, len(tasks))
	for i := range tasks { // one after the other, because they are timed
		pruned[i] = r.prune(&tasks[i])
	}
	task.Each(len(tasks), func(i int) { r.outcomes[i] = r.compare(&tasks[i], pruned[i]) })
	return r
}

// prune runs package prune on a task at all ratios.
func (r *results) prune(t *task.Task) []*prune.Result {
	c := r.cpu[t.Source]
	if c == nil {
		c = new(cpu)
		r.cpu[t.Source] = c
	}
	c.tasks++
	lines := prune.CountLines(t.Text)
	c.lines += lines
	c.pruned += lines * len(r.ratios)
	all := make([]*prune.Result, len(r.ratios))
	start := processorTime()
	for i, ratio := range r.ratios {
		all[i] = pruneTask(t, ratio, r.minKeep)
	}
	c.took += processorTime() - start
	return all
}

// processorTime returns the processor time of this process so far, which does not depend on
// other processes.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// compare runs the baselines with as many tokens as package prune has left.
func (r *results) compare(t *task.Task, pruned []*prune.Result) outcome {
	o := outcome{Task: t}
	text, lines := newText(t.Text, t.Goal, t.Source), prune.Lines(t.Text)
	choose := make([]func(about int) []bool, len(baselines))
	for i, b := range baselines {
		choose[i] = b.read(text)
	}
	before, exactly := tokens.Count(t.Text), tiktokens(t.Text)
	for i, ratio := range r.ratios {
		stats := &pruned[i].Stats
		a, err := answerOf(pruned[i], lines, allowed(len(lines), ratio, r.minKeep))
		off := math.Abs(saving(stats.TokensBefore, stats.TokensAfter) - saving(exactly, tiktokens(pruned[i].PrunedText)))
		if off > 0.01 {
			err = errors.Join(err, fmt.Errorf("the reported saving is off by %.1f points", 100*off))
		}
		if err != nil {
			o.errs = append(o.errs, fmt.Errorf("%s at %g, %q: %w", t.Source, ratio, t.Goal, err))
		}
		byName := map[string]figures{prunerName: figuresOf(t, a, before)}
		for j, b := range baselines {
			byName[b.name] = figuresOf(t, text.fill(a.tokens, choose[j]), before)
		}
		o.figures, o.savingErrors = append(o.figures, byName), append(o.savingErrors, off)
	}
	return o
}

func (r *results) violations() (all []error) {
	for i := range r.outcomes {
		all = append(all, r.outcomes[i].errs...)
	}
	return all
}

// err returns the first invalid answers of package prune, or nil.
func (r *results) err() error {
	all := r.violations()
	if len(all) == 0 {
		return nil
	}
	const shown = 10
	return fmt.Errorf("%d invalid answers of %s:\n%w", len(all), prunerName, errors.Join(all[:min(len(all), shown)]...))
}

var sources = []prune.Source{prune.Code, prune.Docs, prune.Logs}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "Percent at `max_prune_ratio` %s, `min_keep_lines` %d, at equal tokens of o200k_base, markers "+
		"counted; %s, seed %d.\n",
		r.cells(func(i int) string { return fmt.Sprint(r.ratios[i]) }), r.minKeep, runtime.Version(), r.Seed)
	local := r.filter(func(o *outcome) bool { return o.Repository == "" })
	mined := r.filter(func(o *outcome) bool { return o.Repository != "" })
	r.printTables(w, "Local tasks", local)
	r.printTables(w, "Tasks of repositories", mined)
	r.printRepositories(w, mined)
	fmt.Fprintln(w)
	for _, source := range sources {
		if c := r.cpu[source]; c != nil {
			fmt.Fprintf(w, "%s: %d tasks of %d lines on average, %.2f ms of CPU per 1,000 lines.\n",
				source, c.tasks, c.lines/c.tasks, c.took.Seconds()*1e3/float64(c.pruned)*1e3)
		}
	}
	off := []float64{}
	for i := range r.outcomes {
		off = append(off, r.outcomes[i].savingErrors...)
	}
	fmt.Fprintf(w, "Reported savings are off by %.2f points on average and %.2f at most, over %d answers.\n",
		100*mean(off), 100*slices.Max(off), len(off))
	fmt.Fprintf(w, "Invalid answers: %d.\n", len(r.violations()))
}

func (r *results) filter(match func(*outcome) bool) []*outcome {
	var all []*outcome
	for i := range r.outcomes {
		if o := &r.outcomes[i]; match(o) {
			all = append(all, o)
		}
	}
	return all
}

// cells returns one cell with a value for each ratio.
func (r *results) cells(cell func(ratio int) string) string {
	all := make([]string, len(r.ratios))
	for i := range all {
		all[i] = cell(i)
	}
	return strings.Join(all, " / ")
}

// printTables prints the figures of all contestants for these tasks, by source, and the
// difference between mcp_pruner and the reference.
func (r *results) printTables(w io.Writer, title string, outcomes []*outcome) {
	if len(outcomes) == 0 {
		return
	}
	type part struct {
		name     string
		outcomes []*outcome
	}
	var parts []part
	for _, source := range sources {
		own := slices.DeleteFunc(slices.Clone(outcomes), func(o *outcome) bool { return o.Source != source })
		if len(own) > 0 {
			parts = append(parts, part{string(source), own})
		}
	}
	parts = append(parts, part{"all", outcomes})

	fmt.Fprintf(w, "\n%s:\n\n| source | contestant | recall | tokens saved | runs | all kept | grew "+
		"|\n|---|---|--:|--:|--:|--:|--:|\n", title)
	for _, p := range parts {
		for _, contestant := range contestants() {
			column := func(format string, figure func(figures) float64) string {
				return r.cells(func(ratio int) string {
					sum := 0.0
					for _, o := range p.outcomes {
						sum += figure(o.figures[ratio][contestant])
					}
					return fmt.Sprintf(format, sum/float64(len(p.outcomes)))
				})
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s |\n", p.name, contestant,
				column("%.1f", func(f figures) float64 { return 100 * f.recall }),
				column("%.1f", func(f figures) float64 { return 100 * f.saved }),
				column("%.1f", func(f figures) float64 { return f.runs }),
				column("%.0f", func(f figures) float64 { return 100 * f.all }),
				column("%.0f", func(f figures) float64 { return 100 * f.grew }))
		}
	}

	fmt.Fprintf(w, "\n| source | tasks | %s − %s |\n|---|--:|--:|\n", prunerName, referenceName)
	for _, p := range parts {
		fmt.Fprintf(w, "| %s | %d | %s |\n", p.name, len(p.outcomes), r.cells(func(ratio int) string {
			groups := differences(p.outcomes, ratio)
			low, high := interval(groups, rand.New(rand.NewPCG(r.Seed, 4)))
			return fmt.Sprintf("%+.1f (%+.1f to %+.1f)", 100*mean(slices.Concat(groups...)), 100*low, 100*high)
		}))
	}
}

// printRepositories prints the difference between mcp_pruner and the reference for each
// repository.
func (r *results) printRepositories(w io.Writer, mined []*outcome) {
	if len(mined) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| repository | tasks | %s − %s |\n|---|--:|--:|\n", prunerName, referenceName)
	for _, own := range byRepository(mined) {
		fmt.Fprintf(w, "| %s | %d | %s |\n", own[0].Repository, len(own), r.cells(func(ratio int) string {
			return fmt.Sprintf("%+.1f", 100*mean(slices.Concat(differences(own, ratio)...)))
		}))
	}
}

func contestants() (names []string) {
	for _, b := range baselines {
		names = append(names, b.name)
	}
	return append(names, prunerName)
}

// byRepository groups outcomes by repository, in order of first occurrence.
func byRepository(outcomes []*outcome) (all [][]*outcome) {
	index := map[string]int{}
	for _, o := range outcomes {
		i, ok := index[o.Repository]
		if !ok {
			i = len(all)
			index[o.Repository] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], o)
	}
	return all
}

// differences returns the recall of mcp_pruner minus that of the reference, by repository
// and task.
func differences(outcomes []*outcome, ratio int) (all [][]float64) {
	for _, outcomes := range byRepository(outcomes) {
		var own []float64
		for _, o := range outcomes {
			figures := o.figures[ratio]
			own = append(own, figures[prunerName].recall-figures[referenceName].recall)
		}
		all = append(all, own)
	}
	return all
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// interval returns the bounds of the middle 95 % of the means of samples. A sample draws
// groups with replacement, then values of each group with replacement.
func interval(groups [][]float64, random *rand.Rand) (low, high float64) {
	const samples = 2000
	means := make([]float64, samples)
	for i := range means {
		sum, n := 0.0, 0
		for range groups {
			values := groups[random.IntN(len(groups))]
			for range values {
				sum += values[random.IntN(len(values))]
			}
			n += len(values)
		}
		means[i] = sum / float64(n)
	}
	slices.Sort(means)
	return means[samples/40], means[samples-1-samples/40]
}
