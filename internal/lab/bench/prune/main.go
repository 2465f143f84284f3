// Command prune reports how well package prune finds the lines of a text that a goal is
// about, compared with simpler methods that remove as many tokens:
//
//	go -C internal/lab run ./bench/prune [-clones directory] [-per 60] [-code 300] [-docs 100] [-logs 60]
//		[-ratios 0.5,0.7,0.9] [-dump tasks.jsonl] [repository...]
//
// # The tasks
//
// Local tasks are those of package local: nothing is downloaded, and the same flags, Go and
// go.mod give the same tasks. Documents of modules used for training are excluded.
//
// Other tasks are from the histories of git repositories, at most -per of each: see package
// history. With -clones, they are from the repositories in history/measured.txt, which are
// not used for training, each up to the commit in that file. The directory has clones of
// them as owner/name, bare or not. An error says how to clone a missing one. Each argument
// is the path of another repository. A path that ends with the name of a repository used for
// training is refused. Paths are relative to internal/lab, unless absolute.
//
// # The contestants
//
// For each task and each of -ratios, mcp_pruner goes first, with -min-keep. The others may
// use as many tokens of o200k_base as its answer has, including markers. They keep whole
// lines, so they may use a few less. All have the same markers.
//
//   - head + tail: equally many lines from the start and from the end.
//   - BM25 by blocks: the blocks that BM25 ranks first by subwords: see blocks.
//   - reference: BM25 of blocks, windows and names, without a trained model; it chooses
//     whole runs by value and cost: see reference.
//
// # The figures
//
// All are means over the tasks.
//
//   - recall: the share of relevant lines that are kept.
//   - tokens saved: the share of tokens that an answer saves.
//   - runs: the number of runs of removed lines, and so of markers.
//   - all kept: the share of answers with all relevant lines.
//   - grew: the share of answers with more tokens than their text.
//   - mcp_pruner − reference: the difference of their recalls in points, and in parentheses
//     the middle 95 % of 2,000 samples, drawn with replacement from the repositories and then
//     from their tasks.
//   - CPU: the processor time of package prune, including garbage collection.
//   - reported savings: by how many points the saving in the statistics of an answer differs
//     from that which tiktoken-go counts.
//
// The command fails if an answer of package prune exceeds a limit, differs from its
// annotations, is a fallback, or reports a saving that is off by more than 1 point.
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
	flag.StringVar(&s.clones, "clones", "", "`directory` with clones of the repositories in history/measured.txt, as "+
		"owner/name")
	flag.IntVar(&s.per, "per", 60, "maximum `number` of tasks per repository")
	flag.IntVar(&s.minKeep, "min-keep", 10, "minimum `number` of lines to keep")
	ratios := flag.String("ratios", "0.5,0.7,0.9", "`list` of shares of lines that may be removed")
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
	clones   string // directory of the measured repositories, or empty to skip them
	measured []history.Repository
	own      []string // paths of other repositories
	per      int      // maximum number of tasks per repository
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

// run creates the tasks, gives them to every contestant and prints the results.
func run(w io.Writer, s settings) error {
	switch {
	case s.minKeep < 0:
		return errors.New("-min-keep: must not be negative")
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

// tasks returns the tasks of repositories, and local ones unless their number is 0.
func (s *settings) tasks() ([]task.Task, error) {
	var all []task.Task
	if s.clones != "" {
		mined, err := history.Mine(s.clones, s.measured, s.per)
		if err != nil {
			return nil, fmt.Errorf("-clones: %w", err)
		}
		all = mined
	}
	own, err := history.MinePaths(s.own, s.per)
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
