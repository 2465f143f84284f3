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
		Name: "prune",
		Usage: "--goal <text> [--type code|logs|docs] [--ratio <0..1>] [--min-keep <lines>] " +
			"[--numbers] [--no-markers] [<file>]",
		Short: "Removes the lines of a text that are least relevant to a goal",
		Long: `
Prints a text, from a file or standard input, without the lines that are least
relevant to a goal, like the tool prune_text of the directive mcp_pruner. A summary of
the savings goes to standard error. The text does not leave this machine. No original
is kept, so the markers have no prune_id.

Without --type, the file name decides: logs for .log, .out and .err, docs for .md,
.markdown, .rst, .adoc and .txt, and code for all others and for standard input.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("prune", flag.ExitOnError)
			flags.String("goal", "", "What you look for in the text")
			flags.String("type", "", "Type of the text: code, logs or docs")
			flags.Float64("ratio", 0.7, "Maximum share of lines to remove, 0 to 1")
			flags.Int("min-keep", 1, "Minimum number of lines to keep")
			flags.Bool("numbers", false, "Prefix lines with their numbers")
			flags.Bool("no-markers", false, "Print no markers for removed lines")
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

// A command is a parsed command line.
type command struct {
	goal    string
	source  string // --type; if empty, the file name decides
	options prune.Options
	files   []string // at most one
}

// run prunes the file, or in if there is no file.
func (c *command) run(in io.Reader, out, summary io.Writer) error {
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
	// Remove the id: it is useless, because the text is not kept. No line contains it by chance.
	result.PrunedText = strings.ReplaceAll(result.PrunedText, " prune_id="+result.PruneID, "")
	result.Stats.TokensAfter = tokens.Count(result.PrunedText)
	if _, err := io.WriteString(out, result.PrunedText); err != nil {
		return err
	}
	return summarize(summary, r, result)
}

// request returns the request without its text.
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
		return nil, fmt.Errorf("--ratio: %v must be from 0 to 1", c.options.MaxPruneRatio)
	case c.options.MinKeepLines < 0:
		return nil, fmt.Errorf("--min-keep: %d is negative", c.options.MinKeepLines)
	}
	return &prune.Request{Goal: c.goal, Source: source, Options: c.options}, nil
}

// sourceOf guesses the type of a file from its name.
func sourceOf(file string) prune.Source {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".log", ".out", ".err":
		return prune.Logs
	case ".md", ".markdown", ".rst", ".adoc", ".txt":
		return prune.Docs
	}
	return prune.Code
}

// summarize writes one line of statistics and warnings.
func summarize(w io.Writer, r *prune.Request, result *prune.Result) error {
	s := result.Stats
	comma := func(n int) string { return humanize.Comma(int64(n)) }
	saved := 0.0
	if s.TokensBefore > 0 {
		saved = 100 * float64(s.TokensBefore-s.TokensAfter) / float64(s.TokensBefore)
	}
	line := fmt.Sprintf("%s: %s of %s lines kept, %s → %s tokens (%.0f %% saved), %d ms",
		r.Source, comma(s.KeptLines), comma(s.OriginalLines), comma(s.TokensBefore), comma(s.TokensAfter), saved,
		s.ElapsedMS)
	if len(result.Warnings) > 0 {
		line += "; " + strings.Join(result.Warnings, ", ")
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
