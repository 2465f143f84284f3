//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
)

// The eras of clients, which are the columns of the client leg.
const (
	legacy = "legacy"
	modern = "modern"
)

var eras = []string{legacy, modern}

// clientTimeout is the timeout of a driver, enforced by the suite.
const clientTimeout = 30 * time.Second

// testClients runs the client leg: the gateway, used by a client of each era, is a client of the
// suite.
func testClients(ctx context.Context, opts options, suite *suite, tables []table, dir string) error {
	if err := fillClients(ctx, opts, suite, tables, dir); err != nil {
		return err
	}
	return reportClients(os.Stdout, tables)
}

// fillClients runs the suite for every cell of the tables, several at a time.
func fillClients(ctx context.Context, opts options, suite *suite, tables []table, dir string) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	caddy, err := filepath.Abs(opts.caddy)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running := make(chan struct{}, max(opts.parallel, 1))
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range tables {
		table := &tables[i]
		table.names = eras
		for _, era := range eras {
			column := make(map[string]checks)
			table.columns = append(table.columns, column)
			fmt.Fprintf(os.Stderr, "%s behind a %s client\n", table.revision, era)
			for _, scenario := range table.scenarios {
				running <- struct{}{}
				all.Go(func() {
					defer func() { <-running }()
					got, err := testClient(ctx, suite, driverOptions{
						executable: executable,
						caddy:      caddy,
						era:        era,
						dir:        filepath.Join(dir, table.revision+"-"+era+"-client", scenario.name),
					}, table.revision, scenario)
					if err != nil {
						cancel(fmt.Errorf("%s %s %s: %w", table.revision, era, scenario.name, err))
						return
					}
					mu.Lock()
					defer mu.Unlock()
					column[scenario.name] = got
				})
			}
		}
	}
	all.Wait()
	return context.Cause(ctx)
}

// testClient runs one scenario. The driver writes the gateway's files to the directory, too.
func testClient(ctx context.Context, suite *suite, driver driverOptions, revision string, scenario scenario) (checks,
	error) {
	if ctx.Err() != nil { // another scenario has failed
		return nil, ctx.Err()
	}
	if err := os.RemoveAll(driver.dir); err != nil { // from an earlier run
		return nil, err
	}
	if err := os.MkdirAll(driver.dir, 0o755); err != nil {
		return nil, err
	}
	ports, err := loopback.FreePorts(1)
	if err != nil {
		return nil, err
	}
	driver.port = ports[0]
	ctx, cancel := context.WithTimeout(ctx, 2*clientTimeout)
	defer cancel()
	return suite.testClient(ctx, driver.command(), revision, scenario, driver.dir)
}

// reportClients prints the tables and lists failures. It returns an error if the gateway failed
// where it should not.
func reportClients(w io.Writer, tables []table) error {
	var lost int
	var optional, failed strings.Builder
	for _, t := range tables {
		t.print(w)
		for _, scenario := range t.scenarios {
			for i, era := range t.names {
				got := t.columns[i][scenario.name]
				row := fmt.Sprintf("  %s %s %s\n", t.revision, era, label(scenario))
				switch {
				case verdict(got) == "pass":
				case scenario.extension: // the gateway supports some of them
					optional.WriteString(row + failures(got, true))
				default:
					lost++
					failed.WriteString(row + failures(got, true))
				}
			}
		}
	}
	section(w, "These fail, and are not required", optional.String())
	section(w, "These fail", failed.String())
	if lost > 0 {
		return fmt.Errorf("the gateway fails %d client scenarios", lost)
	}
	return nil
}
