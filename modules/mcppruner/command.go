package mcppruner

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "prune",
		Usage: "--goal <text> [--type code|logs|docs] [--ratio <0..1>] [--min-keep <lines>] [--numbers] [--no-markers] [<file>]",
		Short: "Leaves out of a text the lines that bear least on a goal",
		Long: `
Prints a text, from a file or standard input, without the lines that bear least on
a goal, as the tool prune_text of the directive mcp_pruner would. What that saves is
printed on standard error. It works on this machine alone. Nothing is kept, so the
markers have no prune_id.

Unless --type says what the text is, the name of the file does: logs for .log, .out
and .err, docs for .md, .markdown, .rst, .adoc and .txt, and code for all others and
for standard input.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("prune", flag.ExitOnError)
			flags.String("goal", "", "What the text is read for")
			flags.String("type", "", "What the text is: code, logs or docs")
			flags.Float64("ratio", 0.7, "How many of the lines may be left out, 0 to 1")
			flags.Int("min-keep", 1, "How many lines are kept at least")
			flags.Bool("numbers", false, "Put their numbers in front of the lines")
			flags.Bool("no-markers", false, "Leave no markers where lines were")
			return flags
		}(),
		Func: func(flags caddycmd.Flags) (int, error) {
			c := command{
				goal: flags.String("goal"), source: flags.String("type"), files: flags.Args(),
				options: prune.Options{
					MaxPruneRatio:  flags.Float64("ratio"),
					MinKeepLines:   flags.Int("min-keep"),
					Timeout:        time.Minute,
					AnnotateLines:  flags.Bool("numbers"),
					IncludeMarkers: !flags.Bool("no-markers"),
				},
			}
			if err := c.run(os.Stdin, os.Stdout, os.Stderr); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		},
	})
}

// A command is what was asked for on a command line.
type command struct {
	goal    string
	source  string // nothing to go by the name of the file
	options prune.Options
	files   []string // one at most
}

// run prunes the file, or in.
func (c *command) run(in io.Reader, out, told io.Writer) error {
	file := ""
	if len(c.files) > 0 {
		file = c.files[0]
	}
	r, err := c.request(file)
	if err != nil {
		return err
	}
	var text []byte
	if file == "" || file == "-" {
		text, err = io.ReadAll(in)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return fmt.Errorf("read text: %w", err)
	}
	r.Text = string(text)
	result := prune.Prune(context.Background(), r)
	// The text is not kept, so its id leads nowhere. No line can have it by chance.
	result.PrunedText = strings.ReplaceAll(result.PrunedText, " prune_id="+result.PruneID, "")
	result.Stats.TokensAfter = tokens.Count(result.PrunedText)
	if _, err := io.WriteString(out, result.PrunedText); err != nil {
		return err
	}
	return summarize(told, r, result)
}

// request returns what is asked for, without the text.
func (c *command) request(file string) (*prune.Request, error) {
	source, known := prune.ParseSource(cmp.Or(c.source, string(sourceOf(file))))
	switch {
	case len(c.files) > 1:
		return nil, fmt.Errorf("expected one file, got %d", len(c.files))
	case strings.TrimSpace(c.goal) == "":
		return nil, errors.New("missing flag: --goal <text>")
	case !known:
		return nil, fmt.Errorf("--type: %q must be code, logs or docs", c.source)
	case !(0 <= c.options.MaxPruneRatio && c.options.MaxPruneRatio <= 1):
		return nil, fmt.Errorf("--ratio: %v is not from 0 to 1", c.options.MaxPruneRatio)
	case c.options.MinKeepLines < 0:
		return nil, fmt.Errorf("--min-keep: %d is negative", c.options.MinKeepLines)
	}
	return &prune.Request{Goal: c.goal, Source: source, Options: c.options}, nil
}

// sourceOf guesses what a file is by its name.
func sourceOf(file string) prune.Source {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".log", ".out", ".err":
		return prune.Logs
	case ".md", ".markdown", ".rst", ".adoc", ".txt":
		return prune.Docs
	}
	return prune.Code
}

// summarize writes what was done, in a line.
func summarize(told io.Writer, r *prune.Request, result *prune.Result) error {
	s := result.Stats
	comma := func(n int) string { return humanize.Comma(int64(n)) }
	saved := 0.0
	if s.TokensBefore > 0 {
		saved = 100 * float64(s.TokensBefore-s.TokensAfter) / float64(s.TokensBefore)
	}
	line := fmt.Sprintf("%s: %s of %s lines kept, %s → %s tokens (%.0f %% saved), %d ms",
		r.Source, comma(s.KeptLines), comma(s.OriginalLines), comma(s.TokensBefore), comma(s.TokensAfter), saved, s.ElapsedMS)
	if len(result.Warnings) > 0 {
		line += "; " + strings.Join(result.Warnings, ", ")
	}
	_, err := fmt.Fprintln(told, line)
	return err
}
