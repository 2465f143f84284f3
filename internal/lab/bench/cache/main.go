// Command cache reports what masking old tool results costs with a provider that
// bills the beginning of a prompt less if it has seen it before:
//
//	go -C internal/lab run ./bench/cache [-read 0.1] [-write 1.25] [-output 5] [-turns 20,60,150] [-markdown]
//
// Nothing is measured here but counted: the same flags give the same figures on
// every machine. The runs are made up; the masking is that of package chat, done
// to the bytes of every request.
//
// # The cache
//
// A token is 4 bytes of the request. What a request has in common with the one
// before it, from the first byte on, is read from the cache, if that is at least
// -minimum tokens; all the rest is written to it. A token costs -read, -write or,
// if the model says it, -output; the unit is a token of input without a cache.
// This is simpler than what providers do:
//
//   - There is one breakpoint, at the end of the prompt, and the common beginning
//     is found wherever it ends. Some providers find it only at breakpoints, or
//     count it in blocks of many tokens; breaks then cost more than here.
//   - The cache never expires. A result that is masked stays so, hence of all the
//     requests before, the last one has the most in common with the next.
//   - Each run begins with an empty cache, although others may have sent the same
//     tools and system prompt.
//   - What is too short to be cached costs as much as what is written.
//   - The model says the same whatever is masked. If it asks again for what it no
//     longer sees, that is not in the figures, nor is what it thinks unseen.
//
// # The runs
//
// A run is a coding agent's: tools and a system prompt of together 6,000 tokens,
// a question, and as many turns as -turns has it. A turn is a text, lognormal with
// a median of 40 tokens, and one call, in a fifth of the turns two or three, with
// arguments of 40 tokens. Then comes an answer without a call, so a run has one
// request more than turns.
//
// The results of read_file (50 %), shell (25 %) and grep (13 %) are lognormal with
// a median of 1,900 characters and σ = 1.35, cut at 60,000; those of edit_file
// (12 %) have a median of 80. Over all, this makes a median of about 1,500
// characters and a mean of about 4,000. One in twenty looks like an error. A turn
// adds about 1,500 tokens.
//
// Runs of the same number have the same turns, whatever their length, and every
// policy gets the same runs. The figures are of the runs together.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

func main() {
	var s settings
	flag.Float64Var(&s.prices.Read, "read", chat.DefaultReadPrice, "price of a token that the cache has")
	flag.Float64Var(&s.prices.Write, "write", chat.DefaultWritePrice, "price of a token that it has not")
	flag.Float64Var(&s.prices.Output, "output", 5, "price of a token of the model's")
	flag.IntVar(&s.minimum, "minimum", bill.Minimum, "how many `tokens` a cached beginning has at least")
	flag.IntVar(&s.window, "window", chat.DefaultWindowTurns, "how many `turns` no policy masks")
	flag.IntVar(&s.runs, "runs", 20, "how many runs of each length")
	flag.Uint64Var(&s.seed, "seed", 1, "what the runs are made from")
	turns := flag.String("turns", "20,60,150", "lengths of the runs")
	markdown := flag.Bool("markdown", false, "print a table in Markdown")
	flag.Parse()

	err := s.parseTurns(*turns)
	if err == nil {
		err = report(os.Stdout, s, *markdown)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
}

type settings struct {
	prices  bill.Prices
	minimum int // tokens
	window  int // turns
	turns   []int
	runs    int
	seed    uint64
}

func (s *settings) parseTurns(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 {
			return fmt.Errorf("-turns: %q is not a number of turns", word)
		}
		s.turns = append(s.turns, n)
	}
	return nil
}

func (s *settings) validate() error {
	switch {
	case s.prices.Read <= 0 || s.prices.Read >= s.prices.Write:
		return errors.New("-read and -write: reading must cost something, and less than writing")
	case s.prices.Output < 0:
		return errors.New("-output: a price is not negative")
	case s.window < 1:
		return errors.New("-window: without one nothing is masked")
	case s.runs < 1:
		return errors.New("-runs: there must be one")
	}
	return nil
}

// A row is a policy in the report.
type row struct {
	name   string
	policy chat.Policy
}

// rows returns the policies to compare. The first is what they are compared with.
func (s *settings) rows() []row {
	sliding := chat.Policy{WindowTurns: s.window, KeepErrors: chat.ErrorsOn}
	stepped := sliding
	stepped.StepTurns = 16
	auto := sliding
	auto.ClearAtLeast, auto.MinChars = chat.ClearAuto, 800
	auto.ReadPrice, auto.WritePrice = s.prices.Read, s.prices.Write
	lastTwo := auto
	lastTwo.KeepLastPerTool = 2
	return []row{
		{"none", chat.Policy{KeepErrors: chat.ErrorsOn}},
		{"sliding", sliding},
		{"stepped: step_turns 16", stepped},
		{"auto: clear_at_least auto, min_mask_chars 800", auto},
		{"auto, keep_last_k_per_tool 2", lastTwo},
	}
}

// report simulates all runs and prints a row for each policy.
func report(w io.Writer, s settings, markdown bool) error {
	if err := s.validate(); err != nil {
		return err
	}
	rows := s.rows()
	policies := make([]chat.Policy, len(rows))
	table := make([][]string, len(rows)+1)
	table[0] = []string{"policy"}
	for i, row := range rows {
		policies[i] = row.policy
		table[i+1] = []string{row.name}
	}
	for _, turns := range s.turns {
		bills, err := simulate(s, turns, policies)
		if err != nil {
			return fmt.Errorf("%d turns: %w", turns, err)
		}
		table[0] = append(table[0], fmt.Sprintf("%d turns: cost", turns), "tokens", "breaks")
		for i, b := range bills {
			table[i+1] = append(table[i+1],
				fmt.Sprintf("%.2f", b.Cost(s.prices)/bills[0].Cost(s.prices)),
				fmt.Sprintf("%.2f", float64(b.Prompt())/float64(bills[0].Prompt())),
				fmt.Sprintf("%.1f", float64(b.breaks)/float64(s.runs)))
		}
	}
	fmt.Fprintf(w, "Prices: read %g, write %g, output %g; window %d turns; %d runs of each length, seed %d.\n",
		s.prices.Read, s.prices.Write, s.prices.Output, s.window, s.runs, s.seed)
	fmt.Fprint(w, "Billed cost and tokens sent are relative to no masking, breaks of the prefix are per run.\n\n")
	if markdown {
		printMarkdown(w, table)
	} else {
		printAligned(w, table)
	}
	return nil
}
