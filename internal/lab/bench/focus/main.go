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
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
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
