//go:build unix

// Command conformance runs the public MCP conformance suite through the gateway of the
// built binary:
//
//	go -C internal/lab run ./conformance [-leg server|client] [-run regexp] [-direct] [-out dir] [-caddy bin/caddy]
//
// The suite has two legs, one for servers and one for clients. Both run in both protocol
// revisions and print a table for each.
//
// In the server leg, the suite is the client of a reference server, directly and through the
// gateway. Behind the gateway, the reference server runs over HTTP and as a child process over
// stdio. The columns are:
//
//	direct                      the server itself
//	http, stdio                 its own endpoint, /mcp/{server}
//	single-http, single-stdio   /mcp with this server alone, without prefixes (separator none)
//	joined-http, joined-stdio   /mcp with this and another server, with prefixes
//
// The suite uses the reference server's names of tools, prompts and resources. For the last
// two columns, a shim adds prefixes to requests and removes them from responses. The leg fails
// if a scenario that the server passes directly fails through the gateway, or if the server
// itself fails a scenario that its revision requires. Scenarios of the extensions tasks and
// skills must also pass directly, and must have as many successful checks through the gateway.
//
// In the client leg, the suite is the server, and the gateway is its client. For each scenario,
// the suite starts a driver (driver.go). The driver starts a gateway in front of the suite's
// server and uses it as a client does. In scenarios about authorization, it also logs in as a
// person does. The columns are the eras of that client:
//
//	legacy    2025-11-25, with sessions
//	modern    2026-07-28, stateless
//
// The leg fails if a scenario fails, even one that its revision does not require, except those
// about an extension.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

// revisions are the protocol revisions that the suite has requirements for, one per era.
var revisions = []string{"2025-11-25", "2026-07-28"}

type options struct {
	leg                  leg // "" for both
	caddy, suite, server string
	run                  *regexp.Regexp
	direct               bool
	out                  string
	timeout              time.Duration
	parallel             int
}

func main() {
	// Canceling the context stops the child processes, which must not outlive a signal.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == driverCommand {
		err = drive(ctx, os.Args[2:])
	} else {
		err = runSuite(ctx, parseOptions())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		stop()
		os.Exit(1)
	}
}

func parseOptions() (opts options) {
	flag.StringVar((*string)(&opts.leg), "leg", "", "run only the server or the client `leg`")
	flag.StringVar(&opts.caddy, "caddy", "../../bin/caddy", "Caddy `binary` with the gateway")
	flag.StringVar(&opts.suite, "suite", "conformance/suite", "`directory` in which the suite is installed")
	flag.StringVar(&opts.server, "server", "conformance/gosdk/server", "`directory` of the reference server's source")
	flag.BoolVar(&opts.direct, "direct", false, "run only against the reference server itself, without a gateway")
	flag.StringVar(&opts.out, "out", "", "keep results and logs in this `directory`; by default they are removed")
	flag.DurationVar(&opts.timeout, "timeout", 4*time.Minute, "timeout for one column of the table")
	flag.IntVar(&opts.parallel, "parallel", runtime.NumCPU(), "`number` of concurrent runs of the suite")
	flag.Func("run", "run only scenarios whose `name` matches this regular expression, such as "+
		"2026-07-28/server-stateless", func(value string) (err error) {
		opts.run, err = regexp.Compile(value)
		return err
	})
	opts.run = regexp.MustCompile("")
	flag.Parse()
	return opts
}

func runSuite(ctx context.Context, opts options) (err error) {
	installed, err := openSuite(ctx, opts.suite)
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

	installed.cache = filepath.Join(dir, "node-cache")

	var errs []error
	found := false
	for _, leg := range []struct {
		name leg
		test func(context.Context, options, *suite, []table, string) error
	}{{serverLeg, testServers}, {clientLeg, testClients}} {
		if tables := installed.tables(leg.name, opts); len(tables) > 0 && ctx.Err() == nil {
			found = true
			errs = append(errs, leg.test(ctx, opts, installed, tables, dir))
		}
	}
	if !found {
		return errors.New("-run: no matching scenario")
	}
	return errors.Join(errs...)
}

// tables returns the empty tables of a leg.
func (s *suite) tables(leg leg, opts options) (tables []table) {
	if opts.leg != "" && opts.leg != leg || opts.direct && leg == clientLeg {
		return nil
	}
	for _, revision := range revisions {
		table := table{revision: revision}
		for _, scenario := range s.scenarios[leg][revision] {
			if opts.run.MatchString(revision + "/" + scenario.name) {
				table.scenarios = append(table.scenarios, scenario)
			}
		}
		if len(table.scenarios) > 0 {
			tables = append(tables, table)
		}
	}
	return tables
}
