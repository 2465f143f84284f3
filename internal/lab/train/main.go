// Command train trains the weights of the network in package prune, which rates the lines of a
// text for a goal, and writes them as a Go file:
//
//	go -C internal/lab run ./train -clones directory [-tasks file.jsonl]... [-out ../prune/weights.go] [-per 240]
//
// Run it in the root of the project after any change to the features. If you remove a feature,
// also remove it from weights.go, or nothing compiles. The same tasks give the same weights
// on the same kind of processor.
//
// # The tasks
//
// A task is a text, a goal, and the lines that are relevant to it.
//
// Tasks come from the public repositories in history/learned.txt, each up to the commit in that
// file: at most -per commits of each, and as many Go functions and sections of documents, see
// package history. The directory -clones has clones of them as owner/name, bare or not. An
// error says how to clone a missing one. No other repository is used for training, so that
// all others can be used for measuring. Paths are relative to internal/lab, unless absolute.
//
// Each -tasks is a file of further tasks, as internal/lab/bench/prune writes them with -dump:
// one JSON object per line with goal, source, text and relevant (line numbers from 1), and
// optionally repo, the repository as owner/name. The weights in the project are trained
// without any.
//
// # The figures
//
// The command prints the AUC on the training data: how often a relevant line is rated higher than
// another one of the same text, where 0.5 is chance. For other data, use
// internal/lab/bench/prune.
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

// directory is the directory of package prune, relative to this module.
const directory = "../prune"

// seed is the seed of all random choices, together with the names of repositories.
const seed = 1

func main() {
	var s settings
	flag.Func("tasks", "`file` of tasks, one JSON object per line; may be repeated", func(path string) error {
		s.files = append(s.files, path)
		return nil
	})
	flag.StringVar(&s.clones, "clones", "", "`directory` with clones of the repositories to train on, as owner/name")
	flag.StringVar(&s.out, "out", filepath.Join(directory, "weights.go"), "`file` to write, or empty to only report")
	flag.IntVar(&s.per, "per", 240, "maximum `number` of tasks of each kind per repository")
	flag.Parse()
	if flag.NArg() > 0 { // repositories are listed in history/learned.txt
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
	files        []string // files of tasks
	clones       string   // directory of the repositories, or empty to skip them
	repositories []history.Repository
	out          string
	per          int
}

func (s *settings) validate() error {
	switch {
	case s.clones == "" && len(s.files) == 0:
		return errors.New("nothing to train on: set -clones to a directory, or -tasks to a file")
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
	scale := rows.standardize()

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

// tasks returns the tasks of all files and repositories, sorted by repository, so that the order of
// the flags does not matter.
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
			return nil, fmt.Errorf("-tasks: %s must not be used for training: it is used for measuring", r.Name)
		}
	}
	slices.SortStableFunc(all, task.ByRepository)
	return all, nil
}

// report prints how well a network tells relevant lines from others.
func report(w io.Writer, tasks []task.Task, rows *rows, learned *network) {
	sums := learned.sums(rows)
	fmt.Fprintf(w, "%d tasks, %d rows of %d features.\n\n| source | tasks | AUC |\n|---|--:|--:|\n", len(tasks),
		rows.len(), rows.width)
	for _, source := range []prune.Source{prune.Code, prune.Docs, prune.Logs} {
		selected := func(i int) bool { return tasks[i].Source == source }
		n := 0
		for i := range tasks {
			if selected(i) {
				n++
			}
		}
		fmt.Fprintf(w, "| %s | %d | %s |\n", source, n, rows.auc(sums, selected))
	}
}
