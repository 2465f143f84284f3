// Command prune reports how well package prune finds the lines of a text that a goal
// is about, beside simpler ways to leave as many tokens out:
//
//	go -C internal/lab run ./bench/prune [-clones directory] [-per 60] [-code 300] [-docs 100] [-logs 60] [-ratios 0.5,0.7,0.9] [-dump tasks.jsonl] [repository...]
//
// # The tasks
//
// Local tasks are those of package local: nothing is downloaded, and the same flags, the
// same Go and the same go.mod give the same tasks. Documents of modules that weights were
// learned from are left out.
//
// Others are from the histories of git repositories, at most -per of each: see package
// history. With -clones they are from the repositories in history/measured.txt, which no
// weights were learned from, each up to the commit that stands there. Clones of them are
// in that directory as owner/name, bare or not; an error says how to get one that is
// missing. Each argument is the path of another repository; one that ends with the name of
// one that was learned from is refused. A path is from internal/lab, unless it is absolute.
//
// # The contestants
//
// Of each task at each of -ratios mcp_pruner answers first, within -min-keep. Its answer
// has so many tokens of o200k_base, markers included, and the answers of the others have
// as many or, since they keep whole lines, a few less. All have the same markers.
//
//   - head + tail: as many lines of the beginning as of the end.
//   - BM25 by blocks: the blocks that BM25 ranks first by subwords: see blocks.
//   - reference: BM25 of blocks, windows and names together, without anything learned,
//     and whole runs chosen by what they are worth and cost: see reference.
//
// # The figures
//
// All are means over the tasks.
//
//   - recall: how much of the relevant lines is kept.
//   - tokens saved: by how much an answer is shorter than its text.
//   - runs: how many runs of lines are missing, and so how many markers there are.
//   - all kept: the share of the answers in which no relevant line is missing.
//   - grew: the share of the answers that have more tokens than their text.
//   - mcp_pruner − reference: the difference between their recalls, in points, and in
//     brackets the middle 95 % of 2,000 samples with replacement, of repositories and then
//     of their tasks.
//   - CPU: what package prune takes, the garbage collector included.
//   - claimed savings: by how many points the saving in the statistics of an answer is not
//     the one that tiktoken-go counts.
//
// The command fails if an answer of package prune breaks a limit, is not the lines that
// its annotations say, is no pruning at all for some fault, or claims a saving that is
// more than 1 point off.
package main

import (
	"errors"
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
	flag.StringVar(&s.clones, "clones", "", "the `directory` that has clones of the repositories in history/measured.txt, as owner/name")
	flag.IntVar(&s.per, "per", 60, "how many tasks to draw from a repository at most")
	flag.IntVar(&s.minKeep, "min-keep", 10, "how many `lines` are kept at least")
	ratios := flag.String("ratios", "0.5,0.7,0.9", "which shares of the lines may be left out")
	flag.StringVar(&s.dump, "dump", "", "write the tasks to this `file`, a JSON object per line")
	flag.Parse()
	s.measured, s.own = history.Measured(), flag.Args()
	s.Without = history.LearnedModules()

	err := s.parseRatios(*ratios)
	if err == nil {
		err = run(os.Stdout, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prune:", err)
		os.Exit(1)
	}
}

type settings struct {
	local.Sample
	clones   string // directory of the measured repositories, or nothing to do without them
	measured []history.Repository
	own      []string // paths of other repositories
	per      int      // tasks of a repository
	ratios   []float64
	minKeep  int // lines
	dump     string
}

func (s *settings) parseRatios(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		ratio, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		if err != nil || !(0 < ratio && ratio <= 1) {
			return fmt.Errorf("-ratios: %q is not a share above 0 and up to 1", word)
		}
		s.ratios = append(s.ratios, ratio)
	}
	return nil
}

// run makes the tasks, has every contestant do them, and prints how well they did.
func run(w io.Writer, s settings) error {
	switch {
	case s.minKeep < 0:
		return errors.New("-min-keep: a number of lines is not negative")
	case s.per < 1:
		return fmt.Errorf("-per: %d is not a number of tasks above 0", s.per)
	}
	tasks, err := s.tasks()
	if err != nil {
		return err
	}
	if s.dump != "" {
		if err := task.Write(s.dump, tasks); err != nil {
			return fmt.Errorf("-dump: %w", err)
		}
	}
	r := measure(s, tasks)
	r.print(w)
	return r.err()
}

// tasks returns the tasks of repositories, and the local ones unless there shall be none.
func (s *settings) tasks() ([]task.Task, error) {
	var all []task.Task
	if s.clones != "" {
		mined, err := history.Mine(s.clones, s.measured, s.per)
		if err != nil {
			return nil, fmt.Errorf("-clones: %w", err)
		}
		all = mined
	}
	own, err := history.MineOwn(s.own, s.per)
	if err != nil {
		return nil, err
	}
	all = append(all, own...)
	if len(all) > 0 && s.Code == 0 && s.Docs == 0 && s.Logs == 0 {
		return all, nil
	}
	others, err := s.Tasks()
	return append(all, others...), err
}
