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

// The contestants whose recalls are compared.
const (
	pruner = "mcp_pruner"
	plain  = "reference"
)

// results are what all contestants have come to.
type results struct {
	settings
	outcomes []outcome // by task
	cpu      map[prune.Source]*cpu
}

// An outcome is what a task has come to, by ratio.
type outcome struct {
	*task.Task
	figures []map[string]figures // by contestant
	off     []float64            // by how much a claimed saving is not the exact one
	errs    []error              // what is wrong with answers of package prune
}

// figures say how well a contestant did a task.
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

// cpu is what package prune has taken.
type cpu struct {
	tasks, lines int
	took         time.Duration
	pruned       int // lines, once per ratio
}

// measure has every contestant do the tasks.
func measure(s settings, tasks []task.Task) *results {
	r := &results{settings: s, outcomes: make([]outcome, len(tasks)), cpu: map[prune.Source]*cpu{}}
	pruned := make([][]*prune.Result, len(tasks))
	for i := range tasks { // one after the other, for they are timed
		pruned[i] = r.prune(&tasks[i])
	}
	task.Each(len(tasks), func(i int) { r.outcomes[i] = r.compare(&tasks[i], pruned[i]) })
	return r
}

// prune has package prune do a task, at all ratios.
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

// processorTime is what this process has taken so far, which other processes do not
// lengthen.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// compare has the baselines answer with as many tokens as package prune has left.
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
			err = errors.Join(err, fmt.Errorf("the saving that it claims is %.1f points off", 100*off))
		}
		if err != nil {
			o.errs = append(o.errs, fmt.Errorf("%s at %g, %q: %w", t.Source, ratio, t.Goal, err))
		}
		by := map[string]figures{pruner: figuresOf(t, a, before)}
		for j, b := range baselines {
			by[b.name] = figuresOf(t, text.fill(a.tokens, choose[j]), before)
		}
		o.figures, o.off = append(o.figures, by), append(o.off, off)
	}
	return o
}

func (r *results) violations() (all []error) {
	for i := range r.outcomes {
		all = append(all, r.outcomes[i].errs...)
	}
	return all
}

// err returns what is wrong with the answers of package prune, if anything is.
func (r *results) err() error {
	all := r.violations()
	if len(all) == 0 {
		return nil
	}
	const shown = 10
	return fmt.Errorf("%d answers of %s must not be:\n%w", len(all), pruner, errors.Join(all[:min(len(all), shown)]...))
}
