//go:build unix

// Command conformance runs the public MCP conformance suite against a reference
// server, directly and through the gateway of the built binary:
//
//	go -C internal/lab run ./conformance [-run regexp] [-direct] [-out dir] [-caddy bin/caddy]
//
// It does so in both protocol revisions, and prints a table for each. The columns
// are the ways to the reference server, which is behind the gateway over HTTP and
// as a child process over stdio:
//
//	direct                      the server itself
//	http, stdio                 its own path, /mcp/{server}
//	single-http, single-stdio   the aggregate of it alone, whose names are bare (separator none)
//	joined-http, joined-stdio   the aggregate of it and another server, whose names have prefixes
//
// As the suite names tools, prompts and resources as the reference server does, it
// reaches the last two through a shim that adds the prefixes and takes them off.
//
// It fails if a scenario that the server passes directly fails through the gateway,
// and if the server itself fails a scenario that its revision requires.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// revisions are the protocol revisions that the suite has requirements for, one
// of each era.
var revisions = []string{"2025-11-25", "2026-07-28"}

type options struct {
	caddy, suite, server string
	run                  *regexp.Regexp
	direct               bool
	out                  string
	timeout              time.Duration
	parallel             int
}

func main() {
	var opts options
	flag.StringVar(&opts.caddy, "caddy", "../../bin/caddy", "the `binary` with the gateway")
	flag.StringVar(&opts.suite, "suite", "conformance/suite", "the `folder` in which the suite is installed")
	flag.StringVar(&opts.server, "server", "conformance/gosdk/server", "the `folder` of the reference server's source")
	flag.BoolVar(&opts.direct, "direct", false, "run only against the reference server itself, without a gateway")
	flag.StringVar(&opts.out, "out", "", "keep results and logs in this `folder`; by default they are removed")
	flag.DurationVar(&opts.timeout, "timeout", 4*time.Minute, "how long the suite may take for one column of the table")
	flag.IntVar(&opts.parallel, "parallel", runtime.NumCPU(), "how many `columns` of a table are filled at a time")
	run := flag.String("run", "", "only scenarios whose `name` matches this regular expression, such as 2026-07-28/server-stateless")
	flag.Parse()

	// The context stops the child processes, which a signal must not leave behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if opts.run, err = regexp.Compile(*run); err != nil {
		err = fmt.Errorf("-run: %w", err)
	} else {
		err = conform(ctx, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func conform(ctx context.Context, opts options) (err error) {
	suite, err := openSuite(ctx, opts.suite)
	if err != nil {
		return err
	}
	dir := opts.out
	if dir == "" {
		if dir, err = os.MkdirTemp("", "conformance-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	targets, stop, err := startTargets(ctx, opts, dir)
	if err != nil {
		return err
	}
	defer stop()
	tables := make([]table, 0, len(revisions))
	for _, revision := range revisions {
		table := table{revision: revision, targets: targets, columns: make([]map[string]checks, len(targets))}
		for _, scenario := range suite.scenarios[revision] {
			if opts.run.MatchString(revision + "/" + scenario.name) {
				table.scenarios = append(table.scenarios, scenario)
			}
		}
		if len(table.scenarios) > 0 {
			tables = append(tables, table)
		}
	}
	if err := fill(ctx, opts, suite, targets, tables, dir); err != nil {
		return err
	}
	return report(os.Stdout, tables)
}

// fill runs the suite for every column of the tables. Targets have nothing in
// common but the gateway, so some of them run at a time: the suite mostly waits.
// The revisions run one after the other, because both use the server of a target.
func fill(ctx context.Context, opts options, suite *suite, targets []target, tables []table, dir string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running := make(chan struct{}, max(opts.parallel, 1))
	var all sync.WaitGroup
	for i, target := range targets {
		all.Go(func() {
			running <- struct{}{}
			defer func() { <-running }()
			for _, table := range tables {
				column, err := fillColumn(ctx, opts, suite, target, table, dir)
				if err != nil {
					cancel(fmt.Errorf("%s %s: %w", table.revision, target.name, err))
					return
				}
				table.columns[i] = column
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func fillColumn(ctx context.Context, opts options, suite *suite, target target, table table, dir string) (map[string]checks, error) {
	results := filepath.Join(dir, table.revision+"-"+target.name)
	if err := os.RemoveAll(results); err != nil { // of an earlier run
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	if ctx.Err() != nil { // another column has failed
		return nil, ctx.Err()
	}
	fmt.Fprintf(os.Stderr, "%s %s\n", table.revision, target.name)
	return suite.run(ctx, target.url, table.revision, table.scenarios, results)
}
