// Command dashboard draws caddyfile_examples/grafana.json as one SVG, from the answers
// of a Prometheus to the queries of its panels:
//
//	go run ./internal/dashboard -prometheus http://127.0.0.1:9090 -last 15m -out dashboard.svg
//
// With -load it needs no Prometheus that runs: it starts the built binary in front of
// servers that fail now and then, a Prometheus that watches it, and clients that use
// it for so long, all on loopback, and draws what came of it:
//
//	go run ./internal/dashboard -load 4m -caddy bin/caddy -out docs/dashboard.svg
//
// It knows of Grafana's panels what this dashboard uses.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/fakemcp"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" { // a server of the load, which runs this program
		os.Exit(fakemcp.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	var opts options
	flag.StringVar(&opts.dashboard, "dashboard", "caddyfile_examples/grafana.json", "the `file` with the dashboard")
	flag.StringVar(&opts.out, "out", "docs/dashboard.svg", "the `file` to write")
	flag.StringVar(&opts.prometheus, "prometheus", "http://127.0.0.1:9090", "the `URL` of the Prometheus to ask")
	flag.DurationVar(&opts.scrape, "scrape", 15*time.Second, "how often that Prometheus `scrapes`, for $__rate_interval")
	flag.DurationVar(&opts.last, "last", 15*time.Minute, "the `time` to show, up to -to")
	flag.Func("from", "the `time` to begin with, as 2006-01-02T15:04:05Z, instead of -last", instant(&opts.from))
	flag.Func("to", "the `time` to end with (default now)", instant(&opts.to))
	flag.DurationVar(&opts.load, "load", 0, "start everything, use it for so `long`, and draw that")
	flag.StringVar(&opts.caddy, "caddy", "bin/caddy", "the `binary` to start with -load")
	flag.Parse()

	// The context stops the processes, which a signal must not leave behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

type options struct {
	dashboard, out, prometheus, caddy string
	scrape, last, load                time.Duration
	from, to                          time.Time
}

func instant(t *time.Time) func(string) error {
	return func(text string) (err error) {
		*t, err = time.Parse(time.RFC3339, text)
		return err
	}
}

func run(ctx context.Context, opts options) error {
	board, err := readDashboard(opts.dashboard)
	if err != nil {
		return err
	}
	if opts.load > 0 {
		s, err := startStage(ctx, opts.caddy)
		if err != nil {
			return err
		}
		defer s.stop()
		opts.prometheus = s.prometheus
		opts.scrape = 2 * scrapeInterval // for rates over more than a few requests
		opts.from = time.Now().Add(4 * opts.scrape)
		fmt.Printf("using %s for %s\n", opts.caddy, opts.load)
		if err := s.use(ctx, opts.load); err != nil {
			return err
		}
	}
	if opts.to.IsZero() {
		opts.to = time.Now()
	}
	if opts.from.IsZero() {
		opts.from = opts.to.Add(-opts.last)
	}
	w, err := newWindow(opts.from, opts.to, opts.scrape)
	if err != nil {
		return err
	}
	answers, err := board.ask(ctx, opts.prometheus, w)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(opts.out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(opts.out, draw(board, answers, w), 0o644)
}
