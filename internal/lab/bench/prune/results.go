package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

const pruner = "mcp_pruner"

// A score adds up the answers of a contestant to the tasks of a source at a ratio.
type score struct {
	answers       int
	recall, saved float64
	all, grew     int
}

func (s *score) add(t *task.Task, a answer) {
	found := 0
	for _, line := range t.Relevant {
		if a.kept[line-1] {
			found++
		}
	}
	before := prune.EstimateTokens(t.Text)
	s.answers++
	s.recall += float64(found) / float64(len(t.Relevant))
	s.saved += 1 - float64(a.tokens)/float64(before)
	if found == len(t.Relevant) {
		s.all++
	}
	if a.tokens > before {
		s.grew++
	}
}

// results are what all contestants have come to.
type results struct {
	settings
	baselines  []baseline
	scores     map[key]*score
	work       map[prune.Source]*work
	violations []error
}

type key struct {
	source     prune.Source
	contestant string
	ratio      float64
}

// work is what package prune has done.
type work struct {
	tasks, lines int
	took         time.Duration
	pruned       int // lines, once per ratio
}

func newResults(s settings) *results {
	return &results{settings: s, baselines: baselines(s.Seed), scores: map[key]*score{}, work: map[prune.Source]*work{}}
}

// add has every contestant do a task.
func (r *results) add(t *task.Task) {
	lines := prune.Lines(t.Text)
	w := r.work[t.Source]
	if w == nil {
		w = new(work)
		r.work[t.Source] = w
	}
	w.tasks++
	w.lines += len(lines)
	for _, ratio := range r.ratios {
		keep := len(lines) - allowed(len(lines), ratio, r.minKeep)
		for _, b := range r.baselines {
			r.score(t.Source, b.name, ratio).add(t, b.answer(t, lines, keep))
		}
		a, took, err := pruneTask(t, lines, ratio, r.minKeep)
		r.score(t.Source, pruner, ratio).add(t, a)
		w.took += took
		w.pruned += len(lines)
		if err != nil {
			r.violations = append(r.violations, fmt.Errorf("%s at %g, %q: %w", t.Source, ratio, t.Goal, err))
		}
	}
}

func (r *results) score(source prune.Source, contestant string, ratio float64) *score {
	k := key{source, contestant, ratio}
	if r.scores[k] == nil {
		r.scores[k] = new(score)
	}
	return r.scores[k]
}

// err returns what is wrong with the answers of package prune, if anything is.
func (r *results) err() error {
	if len(r.violations) == 0 {
		return nil
	}
	const shown = 10
	return fmt.Errorf("%d answers of %s must not be:\n%w", len(r.violations), pruner,
		errors.Join(r.violations[:min(len(r.violations), shown)]...))
}

func (r *results) print(w io.Writer) {
	at := make([]string, len(r.ratios))
	for i, ratio := range r.ratios {
		at[i] = fmt.Sprint(ratio)
	}
	fmt.Fprintf(w, "Percent at `max_prune_ratio` %s, `min_keep_lines` %d, markers counted; %s, seed %d.\n\n",
		strings.Join(at, " / "), r.minKeep, runtime.Version(), r.Seed)
	fmt.Fprint(w, "| source | contestant | recall | all kept | tokens saved | grew |\n|---|---|--:|--:|--:|--:|\n")
	for _, source := range r.sources() {
		for _, b := range r.baselines {
			r.printRow(w, source, b.name)
		}
		r.printRow(w, source, pruner)
	}
	fmt.Fprintln(w)
	for _, source := range r.sources() {
		work := r.work[source]
		fmt.Fprintf(w, "%s: %d tasks of %d lines on average, %.2f ms per 1,000 lines.\n",
			source, work.tasks, work.lines/work.tasks, work.took.Seconds()*1e3/float64(work.pruned)*1e3)
	}
	fmt.Fprintf(w, "Answers that break a promise: %d.\n", len(r.violations))
}

// sources returns the sources of which there are tasks.
func (r *results) sources() []prune.Source {
	return slices.DeleteFunc([]prune.Source{prune.Code, prune.Docs, prune.Logs}, func(s prune.Source) bool { return r.work[s] == nil })
}

func (r *results) printRow(w io.Writer, source prune.Source, contestant string) {
	column := func(share func(*score) float64) string {
		cells := make([]string, len(r.ratios))
		for i, ratio := range r.ratios {
			s := r.score(source, contestant, ratio)
			// Adding 0 makes 0 of the -0 that a little less rounds to.
			cells[i] = fmt.Sprintf("%.0f", math.Round(100*share(s)/float64(s.answers))+0)
		}
		return strings.Join(cells, " / ")
	}
	fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", source, contestant,
		column(func(s *score) float64 { return s.recall }),
		column(func(s *score) float64 { return float64(s.all) }),
		column(func(s *score) float64 { return s.saved }),
		column(func(s *score) float64 { return float64(s.grew) }))
}
