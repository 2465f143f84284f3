// Command cache reports what masking old tool results costs with a provider that charges
// less for a cached prefix of a prompt:
//
//	go -C internal/lab run ./bench/cache [-read 0.1] [-write 1.25] [-output 0] [-turns 60,150] [-pauses 4] [-markdown]
//
// It counts instead of measuring: the same flags give the same figures on every machine. The
// runs are generated. The masking is that of package chat, applied to the bytes of every
// request. For your own runs, use caddy mask-conversation --bill.
//
// # The cache
//
// A token is 4 bytes of the request. The prefix that a request shares with the previous one
// is read from the cache if it has at least -minimum tokens. The rest is written to the
// cache. A token costs -read, -write or, in replies of the model, -output, relative to a
// token of input without a cache. Each run is billed twice: without pauses, so that nothing
// expires, and with a pause before -pauses percent of its requests, which empties the cache.
// This is simpler than real providers:
//
//   - There is one breakpoint, at the end of the prompt, and the common prefix may end
//     anywhere. Some providers find it only at breakpoints, or count it in blocks of many
//     tokens. With these, a changed prefix costs more than here.
//   - Each run starts with an empty cache, although others may have sent the same tools and
//     system prompt.
//   - A prefix that is too short for the cache costs as much as a written one.
//   - The model gives the same replies whatever is masked. Repeated calls for results that
//     it no longer sees are not included, nor is hidden reasoning.
//
// # The runs
//
// Some kinds follow recorded runs of agents: lengths, replies and results have the same
// quantiles, the same share of results are errors or mention an exception, and runs differ
// as much in how much they read. "Patches" are issues of Java projects: tools and
// instructions take 7,000 tokens, half of the results have less than 300 characters, half of
// the runs have less than 18 turns, and none has more than 59. Runs of at least 40 turns read
// less; the report shows them separately, too. "Terminal" are tasks of a terminal benchmark
// that start with 1,250 tokens.
//
// "Bulky" runs read much and have -turns turns: tools and instructions of 5,600 tokens, a
// text with a median of 40 tokens in each turn, and one call, or two or three in a fifth of
// the turns. Sizes of results of read_file (50 %), shell (25 %) and grep (13 %) are lognormal
// with a median of 2,070 characters, more in runs of more than 60 turns, and σ = 1.35, cut at
// 60,000. Results of edit_file (12 %) have a median of 80. One in twenty is an error. There
// is one bulky run for every ten of the others.
//
// A run ends with a reply without a call, so it has one request more than turns. Every policy
// gets the same runs.
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
	flag.Float64Var(&s.prices.Read, "read", chat.DefaultReadPrice, "`price` of a cached token")
	flag.Float64Var(&s.prices.Write, "write", chat.DefaultWritePrice, "`price` of a token that is not cached")
	flag.Float64Var(&s.prices.Output, "output", 0, "`price` of a token in a reply of the model")
	flag.IntVar(&s.minimum, "minimum", chat.MinCached, "minimum `tokens` of a cached prefix")
	flag.IntVar(&s.window, "window", chat.DefaultWindowTurns, "recent `turns` that no policy masks")
	flag.IntVar(&s.runs, "runs", 200, "`number` of runs of each kind; bulky kinds have a tenth of it")
	flag.IntVar(&s.pauses, "pauses", 4, "`percent` of requests after the cache has expired")
	flag.Uint64Var(&s.seed, "seed", 1, "`seed` of the random runs")
	turns := flag.String("turns", "60,150", "lengths of bulky runs")
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
	pauses  int // percent
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
		return errors.New("-read: must be positive and less than -write")
	case s.prices.Output < 0:
		return errors.New("-output: must not be negative")
	case s.window < 1:
		return errors.New("-window: must be at least 1")
	case s.runs < 1:
		return errors.New("-runs: must be at least 1")
	case s.pauses < 0 || s.pauses > 100:
		return errors.New("-pauses: must be between 0 and 100")
	}
	return nil
}

// kinds returns the kinds of runs, with their numbers.
func (s *settings) kinds() (kinds []kind) {
	for _, k := range recorded {
		k.runs = s.runs
		kinds = append(kinds, k)
	}
	long := recorded[0]
	long.name, long.runs = long.name+", 40 turns and more", s.runs
	long.turns = quantiles{40, 42, 44, 46, 47, 49, 51, 52, 54, 57, 59}
	kinds = append(kinds, long)
	for _, turns := range s.turns {
		k := bulky(turns)
		k.runs = max(s.runs/10, 1)
		kinds = append(kinds, k)
	}
	return kinds
}

// A row is a policy in the report.
type row struct {
	name        string
	recommended bool
	policy      chat.Policy
}

// rows returns the policies to compare. The first is the baseline.
func (s *settings) rows() []row {
	sliding := chat.Policy{WindowTurns: s.window, KeepErrors: chat.ErrorsOn}
	stepped := sliding
	stepped.StepTurns = 16
	kept := sliding
	kept.ClearAtLeast, kept.MinChars, kept.MaxLoss = chat.ClearAuto, 800, chat.DefaultMaxLoss
	kept.ReadPrice, kept.WritePrice = s.prices.Read, s.prices.Write
	auto := kept
	auto.KeepErrors = chat.ErrorsPrecise
	lastTwo := auto
	lastTwo.KeepLastPerTool = 2
	bold := auto
	bold.MaxLoss = 0.15
	return []row{
		{"no masking", false, chat.Policy{}},
		{"sliding: the default", false, sliding},
		{"step_turns 16", false, stepped},
		{"auto, keep_errors on", true, kept},
		{"auto: as shipped", true, auto},
		{"auto, keep_last_k_per_tool 2", true, lastTwo},
		{"auto, max_loss 15%", false, bold},
	}
}

// report simulates all runs and prints a table for each kind.
func report(w io.Writer, s settings, markdown bool) error {
	if err := s.validate(); err != nil {
		return err
	}
	fmt.Fprintf(w, "Prices: read %g, write %g, output %g; window %d turns; %d%% of requests after a pause; seed %d.\n",
		s.prices.Read, s.prices.Write, s.prices.Output, s.window, s.pauses, s.seed)
	fmt.Fprintln(w, "Bills and tokens are relative to no masking; "+
		"auto is clear_at_least auto, min_mask_chars 800, keep_errors precise.")
	rows := s.rows()
	for _, k := range s.kinds() {
		outcomes, err := simulate(s, k, rows)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		fmt.Fprintf(w, "\n%s: %d runs\n\n", k.name, k.runs)
		table := [][]string{{
			"policy", "bill", "tokens", "worst", "raised by > 2 %", "> 5 %", "moves each", "bill, pauses", "worst, pauses",
		}}
		for i, o := range outcomes {
			calm, paused := o[0], o[1]
			table = append(table, []string{rows[i].name,
				fmt.Sprintf("%.2f", calm.bill/outcomes[0][0].bill), fmt.Sprintf("%.2f", calm.tokens/outcomes[0][0].tokens),
				fmt.Sprintf("%.2f", calm.worst), fmt.Sprint(calm.raised2), fmt.Sprint(calm.raised5),
				fmt.Sprintf("%.1f", float64(calm.breaks)/float64(k.runs)),
				fmt.Sprintf("%.2f", paused.bill/outcomes[0][1].bill), fmt.Sprintf("%.2f", paused.worst)})
		}
		if markdown {
			printMarkdown(w, table)
		} else {
			printAligned(w, table)
		}
	}
	return nil
}

// printAligned prints a table as text. The first row has titles, the first column names.
func printAligned(w io.Writer, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range table {
		fmt.Fprintf(w, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(w, "  %*s", widths[i+1], cell)
		}
		fmt.Fprintln(w)
	}
}

func printMarkdown(w io.Writer, table [][]string) {
	for i, row := range table {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(w, "|---|%s\n", strings.Repeat("--:|", len(row)-1))
		}
	}
}
