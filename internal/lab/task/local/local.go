// Package local makes tasks of what is on every machine that builds this project. Nothing
// is downloaded.
//
//   - code: a file of Go's own sources without the comment of one of its functions.
//     The goal is the first sentence of that comment without the function's name; the
//     lines of the function are relevant.
//   - docs: a Markdown file of a module in go.mod, or a part of Go's specification,
//     without the lines of a sentence that refers to a section elsewhere in it. The goal
//     is that sentence; the lines of the section are relevant. If there are too few
//     such sentences, there are fewer tasks.
//   - logs: what go test -v prints of a module in which one test is made to fail, in one
//     of many ways, between many that pass. The goal is what a person might say who has
//     seen the symptom; the lines that tell of the failure are relevant: its messages,
//     the stack that leads to it, its FAIL line. Durations, addresses, paths and numbers
//     of goroutines, which differ from run to run, are made the same.
//
// Blank lines are never relevant.
package local

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A Sample says how many tasks are made of each source.
type Sample struct {
	Seed             uint64
	Code, Docs, Logs int

	// Without are modules whose documents are left out.
	Without []string
}

// Flags has the flags of a command say so.
func (s *Sample) Flags() {
	flag.IntVar(&s.Code, "code", 300, "how many tasks from Go's sources")
	flag.IntVar(&s.Docs, "docs", 100, "how many tasks from the documents of modules")
	flag.IntVar(&s.Logs, "logs", 60, "how many tasks from failing tests")
	flag.Uint64Var(&s.Seed, "seed", 1, "what the tasks are drawn from")
}

// Tasks makes the tasks. There may be fewer documents. The same numbers, the same Go and
// the same go.mod give the same tasks.
func (s *Sample) Tasks() ([]task.Task, error) {
	switch {
	case s.Code < 0 || s.Docs < 0 || s.Logs < 0:
		return nil, errors.New("-code, -docs and -logs: a number of tasks is not negative")
	case s.Code+s.Docs+s.Logs == 0:
		return nil, errors.New("-code, -docs and -logs: there must be a task")
	}
	var all []task.Task
	for _, kind := range []struct {
		source prune.Source
		n      int
		tasks  func(seed uint64, n int) ([]task.Task, error)
	}{
		{prune.Code, s.Code, codeTasks},
		{prune.Docs, s.Docs, s.docsTasks},
		{prune.Logs, s.Logs, logTasks},
	} {
		if kind.n == 0 {
			continue
		}
		tasks, err := kind.tasks(s.Seed, kind.n)
		if err != nil {
			return nil, fmt.Errorf("tasks of %s: %w", kind.source, err)
		}
		all = append(all, tasks...)
	}
	return all, nil
}

// How long texts are that a task is made of, and the part of them that is relevant.
const (
	minLines, maxLines       = 60, 2000
	minRelevant, maxFunction = 3, 80
	maxSection               = 60
)

// cut returns lines without those of [start, end), and where line at is then.
func cut(lines []string, start, end, at int) (rest []string, moved int) {
	rest = append(append(make([]string, 0, len(lines)), lines[:start]...), lines[end:]...)
	if at >= end {
		at -= end - start
	}
	return rest, at
}

// numbers returns the numbers of the lines of [start, end) that are not blank.
func numbers(lines []string, start, end int) []int {
	var all []int
	for i := start; i < end; i++ {
		if strings.TrimSpace(lines[i]) != "" {
			all = append(all, i+1)
		}
	}
	return all
}

func joinLines(lines []string) string { return strings.Join(lines, "\n") + "\n" }

// askGo returns what the go command prints, without the network.
func askGo(arguments ...string) (string, error) {
	command := exec.Command("go", arguments...)
	command.Env = append(os.Environ(), "GOPROXY=off")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
