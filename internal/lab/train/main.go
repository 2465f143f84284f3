// Command train learns the weights of the network in package prune, which tells how
// likely a line of a text bears on a goal, and writes them as a file of Go:
//
//	go -C internal/lab run ./train [-tasks file.jsonl]... [-out ../prune/weights.go] [-per 160] repository...
//
// Run it in the root of the project, after any change to the features. A feature that
// is gone must be gone from weights.go as well, or nothing compiles. The same tasks
// give the same weights, on one kind of processor.
//
// # The tasks
//
// A task is a text, a goal, and which of the lines the goal is about.
//
// Each argument is a git repository on this machine, bare or not; at most -per tasks
// are drawn from its history. A goal is the subject of a commit; the text is a file
// that the commit has modified, as it was before; relevant are the lines that the
// commit has changed or, if it has only inserted some, the lines after which.
//
// Each -tasks is a file of other tasks, as the command internal/lab/bench/prune writes
// them with -dump: a JSON object per line, which has goal, source, text and relevant,
// the numbers of lines, counted from 1. It may have repo, the name of the repository
// that it is from, which is the last part of the path but for repo and .git.
//
// The weights in the project were learned from the histories of 53 public repositories
// in Go, Python, JavaScript, TypeScript, Rust, Java, Kotlin, C, C++, C#, Ruby, PHP and
// shell, sentences that refer to sections of their documents, first sentences of
// function comments, and made-up logs of services in which something goes wrong. None of
// these is a task of internal/lab/bench/prune.
//
// # The figures
//
// First, every seventh repository is held out, and the network learns from the others;
// then it learns from all of them, and these are the weights that are written. Of both
// the command prints the AUC: how often a relevant line is found likelier than another
// line of any text, where 0.5 is chance. Every task counts the same.
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
	flag.StringVar(&s.out, "out", filepath.Join(directory, "weights.go"), "the `file` to write, or nothing to only report")
	flag.IntVar(&s.per, "per", 160, "how many tasks to draw from a repository at most")
	flag.Parse()
	s.repositories = flag.Args()

	if err := run(os.Stdout, s); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

type settings struct {
	files        []string // of tasks
	repositories []string // their paths
	out          string
	per          int
}

func (s *settings) validate() error {
	switch {
	case len(s.files)+len(s.repositories) == 0:
		return errors.New("there is nothing to learn from: name a repository, or a file with -tasks")
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

	held := heldOut(tasks)
	isHeld := func(row int) bool { return held[tasks[rows.task[row]].Repository] }
	without := train(rows, slices.DeleteFunc(rows.all(), isHeld), shape.hidden, seed)
	with := train(rows, rows.all(), shape.hidden, seed)
	report(w, tasks, rows, held, without, with)

	if s.out == "" {
		return nil
	}
	source, err := weightsFile(shape, with, scale)
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
	mined, err := history.Mine(s.repositories, s.per)
	if err != nil {
		return nil, err
	}
	all = append(all, mined...)
	slices.SortStableFunc(all, task.ByRepository)
	return all, nil
}

// heldOut returns every seventh of the repositories by name. Tasks of none are never
// held out.
func heldOut(tasks []task.Task) map[string]bool {
	var names []string
	for i := range tasks {
		if name := tasks[i].Repository; name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	held := map[string]bool{}
	for i, name := range slices.Compact(names) {
		if i%7 == 6 {
			held[name] = true
		}
	}
	return held
}

// report prints how well two networks tell lines apart: one that has not seen the
// repositories held out, and one that has.
func report(w io.Writer, tasks []task.Task, rows *rows, held map[string]bool, without, with *network) {
	unseen, seen := without.sums(rows), with.sums(rows)
	fmt.Fprintf(w, "%d tasks, %d rows of %d features; %d repositories held out.\n\n", len(tasks), rows.len(), rows.width, len(held))
	fmt.Fprint(w, "| source | tasks | of them held out | AUC, the others | AUC, held out | AUC, learned from all |\n|---|--:|--:|--:|--:|--:|\n")
	for _, source := range []prune.Source{prune.Code, prune.Docs, prune.Logs} {
		isOf := func(t *task.Task) bool { return t.Source == source }
		isHeld := func(t *task.Task) bool { return isOf(t) && held[t.Repository] }
		isOther := func(t *task.Task) bool { return isOf(t) && !held[t.Repository] }
		area := func(sums []float64, which func(*task.Task) bool) string {
			return rows.area(sums, func(row int) bool { return which(&tasks[rows.task[row]]) })
		}
		fmt.Fprintf(w, "| %s | %d | %d | %s | %s | %s |\n", source, number(tasks, isOf), number(tasks, isHeld),
			area(unseen, isOther), area(unseen, isHeld), area(seen, isOf))
	}
}

func number(tasks []task.Task, which func(*task.Task) bool) int {
	n := 0
	for i := range tasks {
		if which(&tasks[i]) {
			n++
		}
	}
	return n
}
