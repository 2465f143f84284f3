// Command prune reports how well package prune finds the lines of a text that a goal
// is about, beside simpler ways to leave as many lines out:
//
//	go -C internal/lab run ./bench/prune [-code 300] [-docs 100] [-logs 60] [-ratios 0.5,0.7,0.9] [-dump tasks.jsonl]
//
// # The tasks
//
// They are those of package local: nothing is downloaded, and the same flags, the same
// Go and the same go.mod give the same tasks.
//
// # The figures
//
// Every contestant may leave out as many lines as -ratios and -min-keep allow. All of
// them but mcp_pruner leave out exactly as many; mcp_pruner may keep more of them. Where
// lines are missing stands a marker, which costs tokens.
//
//   - recall: how much of the relevant lines is kept, on average.
//   - all kept: the share of the answers in which no relevant line is missing.
//   - tokens saved: by how much an answer is shorter than its text, on average.
//   - grew: the share of the answers that have more tokens than their text.
//
// The command fails if an answer of package prune breaks a limit, is not the lines that
// its annotations say, or is no pruning at all for some fault.
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
)

func main() {
	var s settings
	s.Flags()
	flag.IntVar(&s.minKeep, "min-keep", 10, "how many `lines` are kept at least")
	ratios := flag.String("ratios", "0.5,0.7,0.9", "which shares of the lines may be left out")
	dump := flag.String("dump", "", "write the tasks to this `file`, a JSON object per line")
	flag.Parse()

	err := s.parseRatios(*ratios)
	if err == nil {
		err = run(os.Stdout, s, *dump)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prune:", err)
		os.Exit(1)
	}
}

type settings struct {
	local.Sample
	ratios  []float64
	minKeep int // lines
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
func run(w io.Writer, s settings, dump string) error {
	if s.minKeep < 0 {
		return errors.New("-min-keep: a number of lines is not negative")
	}
	tasks, err := s.Tasks()
	if err != nil {
		return err
	}
	if dump != "" {
		if err := task.Write(dump, tasks); err != nil {
			return fmt.Errorf("-dump: %w", err)
		}
	}
	results := newResults(s)
	for i := range tasks {
		results.add(&tasks[i])
	}
	results.print(w)
	return results.err()
}
