// Command focus reports how many of the lines that a task needs are left of a text when
// package prune cuts it to a number of characters, beside simpler ways to do so:
//
//	go -C internal/lab run ./bench/focus [-budgets 2000,4000,8000] [-per 60] [repository...]
//
// # The tasks
//
// Each argument is a git repository, bare or not; at most -per tasks are drawn from its
// history: see package history. One whose path ends with the name of one that was learned
// from is refused.
// Without arguments the tasks are those of package local: as many as -code, -docs and
// -logs say, from what is on every machine that builds this project.
//
// A task whose text is within the budget is left out at that budget: there is nothing to
// cut. So the tasks differ between budgets.
//
// # The contestants
//
// All of them answer with whole lines, each with its number, and one marker for each run
// of lines that is missing. Numbers and markers count.
//
//   - head + tail: the first and the last lines.
//   - BM25 by blocks: the blocks that BM25 ranks first. Blocks end at blank lines and have
//     ten lines or more.
//   - plain reference: BM25 of blocks, windows and names together, without anything
//     learned: see plainReference.
//   - focus: what a call with a focus gets, after a line that has the id of the original.
//   - recovery: what recover_observation returns for the goal.
//
// # The figures
//
// The share of the needed lines that an answer has, the mean over the tasks, and in
// brackets the middle 95 % of the means of 2,000 samples of the tasks, drawn with
// replacement. A line that is shortened does not count. If Focus refuses a text, none of
// the lines do.
//
// The command fails if an answer is over its budget or not made of lines of the text.
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
	flag.IntVar(&s.per, "per", 60, "how many tasks to draw from a repository at most")
	budgets := flag.String("budgets", "2000,4000,8000", "how many characters an answer may have")
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
	per          int // tasks of a repository
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

// minBudget is the least budget in which all contestants have room for something.
const minBudget = 500

// run makes the tasks, has every contestant do them, and prints how well they did.
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
		return history.MineOwn(s.repositories, s.per)
	}
	return s.Tasks()
}
