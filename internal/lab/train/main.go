// Command train learns the weights of the network in package prune, which tells what a
// line of a text is worth to a goal, and writes them as a file of Go:
//
//	go -C internal/lab run ./train -clones directory [-tasks file.jsonl]... [-out ../prune/weights.go] [-per 240]
//
// Run it in the root of the project, after any change to the features. A feature that
// is gone must be gone from weights.go as well, or nothing compiles. The same tasks
// give the same weights, on one kind of processor.
//
// # The tasks
//
// A task is a text, a goal, and which of the lines the goal is about.
//
// They are from the public repositories in history/learned.txt, each up to the commit that
// stands there: at most -per commits of each, and as many functions in Go and sections of
// documents, see package history. Clones of them are in the directory -clones, as
// owner/name, bare or not; an error says how to get one that is missing. No other
// repository is learned from, so that all others can be measured by. A path is from
// internal/lab, unless it is absolute.
//
// Each -tasks is a file of other tasks, as the command internal/lab/bench/prune writes
// them with -dump: a JSON object per line, which has goal, source, text and relevant,
// the numbers of lines, counted from 1. It may have repo, the repository that it is from,
// as owner/name. The weights in the project were learned without any.
//
// # The figures
//
// The command prints the AUC on what was learned from: how often a relevant line is worth
// more than another one of the same text, where 0.5 is chance. How well the network does
// elsewhere is for internal/lab/bench/prune to say.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// directory is where package prune is, from this module.
const directory = "../prune"

// seed is what everything random is drawn from, beside the names of repositories.
const seed = 1

func main() {
	var s settings
	flag.Func("tasks", "a `file` of tasks, a JSON object per line; may be given again", func(path string) error {
		s.files = append(s.files, path)
		return nil
	})
	flag.StringVar(&s.clones, "clones", "", "the `directory` that has clones of the repositories to learn from, as owner/name")
	flag.StringVar(&s.out, "out", filepath.Join(directory, "weights.go"), "the `file` to write, or nothing to only report")
	flag.IntVar(&s.per, "per", 240, "how many tasks of each sort to draw from a repository at most")
	flag.Parse()
	if flag.NArg() > 0 { // which repositories are learned from is in a list
		flag.Usage()
		os.Exit(2)
	}
	s.repositories = history.Learned()

	if err := run(os.Stdout, s); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

type settings struct {
	files        []string // of tasks
	clones       string   // directory of the repositories, or nothing to do without them
	repositories []history.Repository
	out          string
	per          int
}

func (s *settings) validate() error {
	switch {
	case s.clones == "" && len(s.files) == 0:
		return errors.New("there is nothing to learn from: name a directory with -clones, or a file with -tasks")
	case s.per < 1:
		return fmt.Errorf("-per: %d is not a number of tasks above 0", s.per)
	}
	return nil
}

func run(w io.Writer, s settings) error {
	if err := s.validate(); err != nil {
		return err
	}
	shape, err := readShape(directory)
	if err != nil {
		return err
	}
	tasks, err := s.tasks()
	if err != nil {
		return err
	}
	rows, err := readRows(tasks, len(shape.names))
	if err != nil {
		return err
	}
	scale := rows.standardise()

	learned := train(rows, shape.hidden, seed)
	report(w, tasks, rows, learned)

	if s.out == "" {
		return nil
	}
	source, err := weightsFile(shape, learned, scale)
	if err != nil {
		return err
	}
	return os.WriteFile(s.out, source, 0o644)
}

// tasks returns the tasks of all files and repositories, ordered by repository: in which
// order those are named does not matter.
func (s *settings) tasks() ([]task.Task, error) {
	var all []task.Task
	for _, path := range s.files {
		tasks, err := task.Read(path)
		if err != nil {
			return nil, fmt.Errorf("-tasks: %w", err)
		}
		all = append(all, tasks...)
	}
	if s.clones != "" {
		mined, err := history.Mine(s.clones, s.repositories, s.per)
		if err != nil {
			return nil, fmt.Errorf("-clones: %w", err)
		}
		read, err := history.Read(s.clones, s.repositories, s.per)
		if err != nil {
			return nil, fmt.Errorf("-clones: %w", err)
		}
		all = slices.Concat(all, mined, read)
	}
	for _, r := range history.Measured() {
		if slices.ContainsFunc(all, func(t task.Task) bool { return t.Repository == r.Name }) {
			return nil, fmt.Errorf("-tasks: nothing may be learned from %s: it is measured by", r.Name)
		}
	}
	slices.SortStableFunc(all, task.ByRepository)
	return all, nil
}

// report prints how well a network tells lines apart.
func report(w io.Writer, tasks []task.Task, rows *rows, learned *network) {
	sums := learned.sums(rows)
	fmt.Fprintf(w, "%d tasks, %d rows of %d features.\n\n| source | tasks | AUC |\n|---|--:|--:|\n", len(tasks), rows.len(), rows.width)
	for _, source := range []prune.Source{prune.Code, prune.Docs, prune.Logs} {
		isOf := func(i int) bool { return tasks[i].Source == source }
		n := 0
		for i := range tasks {
			if isOf(i) {
				n++
			}
		}
		fmt.Fprintf(w, "| %s | %d | %s |\n", source, n, rows.area(sums, isOf))
	}
}
