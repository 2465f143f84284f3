//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// testServers runs the server leg: the suite against the reference server, directly and
// through the gateway.
func testServers(ctx context.Context, opts options, suite *suite, tables []table, dir string) error {
	targets, stop, err := startTargets(ctx, opts, dir)
	if err != nil {
		return err
	}
	defer stop()
	for i := range tables {
		for _, target := range targets {
			tables[i].names = append(tables[i].names, target.name)
		}
		tables[i].columns = make([]map[string]checks, len(targets))
	}
	if err := fillServers(ctx, opts, suite, targets, tables, dir); err != nil {
		return err
	}
	return reportServers(os.Stdout, tables)
}

// fillServers runs the suite for every column of the tables. Targets share only the gateway, so
// several run at a time: the suite mostly waits. The revisions run one after the other, because
// both use the server of a target.
func fillServers(ctx context.Context, opts options, suite *suite, targets []target, tables []table, dir string) error {
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

func fillColumn(ctx context.Context, opts options, suite *suite, target target, table table,
	dir string) (map[string]checks, error) {
	results := filepath.Join(dir, table.revision+"-"+target.name)
	if err := os.RemoveAll(results); err != nil { // from an earlier run
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	if ctx.Err() != nil { // another column has failed
		return nil, ctx.Err()
	}
	fmt.Fprintf(os.Stderr, "%s %s\n", table.revision, target.name)
	return suite.testServer(ctx, target.url, table.revision, table.scenarios, results)
}
