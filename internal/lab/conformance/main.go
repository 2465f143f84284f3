//go:build unix

// Command conformance runs the public MCP conformance suite through the gateway of the
// built binary:
//
//	go -C internal/lab run ./conformance [-leg server|client] [-run regexp] [-direct] [-out dir] [-caddy bin/caddy]
//
// The suite has two legs, one for servers and one for clients. Both run in both protocol
// revisions, and print a table for each.
//
// In the server leg the suite is the client of a reference server, directly and through
// the gateway. The columns are the ways to the reference server, which is behind the
// gateway over HTTP and as a child process over stdio:
//
//	direct                      the server itself
//	http, stdio                 its own path, /mcp/{server}
//	single-http, single-stdio   the aggregate of it alone, whose names are bare (separator none)
//	joined-http, joined-stdio   the aggregate of it and another server, whose names have prefixes
//
// As the suite names tools, prompts and resources as the reference server does, it
// reaches the last two through a shim that adds the prefixes and takes them off.
// The leg fails if a scenario that the server passes directly fails through the gateway,
// and if the server itself fails a scenario that its revision requires. Scenarios of
// extensions, tasks and skills, have to pass directly, too, and to have as many successful
// checks through the gateway.
//
// In the client leg the suite is the server, and the gateway its client. For each
// scenario the suite starts a driver (driver.go), which starts a gateway in front of the
// suite's server and uses that as a client does; in the scenarios about authorization
// it also logs in as a person does. The columns are the eras of that client:
//
//	legacy    2025-11-25, with sessions
//	modern    2026-07-28, stateless
//
// The leg fails if a scenario fails that is not about an extension, also if its revision
// does not require it.
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

// revisions are the protocol revisions that the suite has requirements for, one
// of each era.
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
	// The context stops the child processes, which a signal must not leave behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == driverCommand {
		err = drive(ctx, os.Args[2:])
	} else {
		err = conform(ctx, parseOptions())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		stop()
		os.Exit(1)
	}
}

func parseOptions() (opts options) {
	flag.StringVar((*string)(&opts.leg), "leg", "", "run only the server or the client `leg`")
	flag.StringVar(&opts.caddy, "caddy", "../../bin/caddy", "the `binary` with the gateway")
	flag.StringVar(&opts.suite, "suite", "conformance/suite", "the `folder` in which the suite is installed")
	flag.StringVar(&opts.server, "server", "conformance/gosdk/server", "the `folder` of the reference server's source")
	flag.BoolVar(&opts.direct, "direct", false, "run only against the reference server itself, without a gateway")
	flag.StringVar(&opts.out, "out", "", "keep results and logs in this `folder`; by default they are removed")
	flag.DurationVar(&opts.timeout, "timeout", 4*time.Minute, "how long the suite may take for one column of the table")
	flag.IntVar(&opts.parallel, "parallel", runtime.NumCPU(), "how many `runs` of the suite there are at a time")
	flag.Func("run", "only scenarios whose `name` matches this regular expression, such as 2026-07-28/server-stateless", func(value string) (err error) {
		opts.run, err = regexp.Compile(value)
		return err
	})
	opts.run = regexp.MustCompile("")
	flag.Parse()
	return opts
}

func conform(ctx context.Context, opts options) (err error) {
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
		return errors.New("no scenario of that name")
	}
	return errors.Join(errs...)
}

// tables returns the tables to fill in a leg.
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
