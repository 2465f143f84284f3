package main

import (
	"errors"
	"fmt"
	"math"
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
