// Command gateway compares mcp_gateway with other proxies between MCP clients and servers,
// in one run on one machine:
//
//	bin/bench-gateway [-run regexp] [-contestants regexp] [-seconds n] [-write docs/performance.md]
//
// Cases, by prefix:
//
//   - calls/…: tool calls of several kinds, with results of several sizes and several clients
//   - growth/…: time and memory as results grow
//   - fanout/…: many servers behind one endpoint
//   - idle/…: memory of idle sessions
//
// The contestants of a case take turns, so that noise affects them alike. Tables go to
// standard output, as Markdown. One cell takes a few seconds:
//
//	bin/bench-gateway -run '^calls/stateful/1KB/16$' -contestants 'mcp_gateway /mcp$'
//
// It needs Linux, for the figures in /proc.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/process"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

// A bench is a run of the benchmark.
type bench struct {
	programs
	cases       *regexp.Regexp
	matched     bool // at least one case was selected
	contestants []contestant
	budget      time.Duration            // time for a contestant in a case
	openFiles   int                      // limit of open files
	readings    map[readingKey][]float64 // figures for the cells to watch
}

// selects reports whether a case is selected.
func (b *bench) selects(name string) bool {
	wanted := b.cases.MatchString(name)
	b.matched = b.matched || wanted
	return wanted
}

func main() {
	upstream.Main()
	var b bench
	cases := flag.String("run", "", "measure only cases whose `name` matches this regular expression, such as "+
		"calls/stateful/1KB")
	names := flag.String("contestants", "", "measure only contestants whose `name` matches this regular expression, "+
		"and reverse_proxy")
	seconds := flag.Float64("seconds", 1.5, "`seconds` to measure a contestant in a case")
	out := flag.String("out", "", "write the tables to this `file` instead of standard output")
	document := flag.String("write", "", "write the tables into this `document`, between its two comments")
	flag.StringVar(&b.caddy, "caddy", "bin/caddy", "Caddy `binary` to measure")
	flag.StringVar(&b.goPeers, "go-peers", "bin/peers", "`directory` with the binaries of other gateways")
	flag.StringVar(&b.npmPeers, "npm-peers", "internal/lab/bench/gateway/peers/npm",
		"`directory` where npm installed other gateways")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, *cases, *names, *seconds, *out, *document); err != nil {
		fmt.Fprintln(os.Stderr, "bench-gateway:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, cases, names string, seconds float64, out, document string) (err error) {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("needs Linux to measure processes, not %s", runtime.GOOS)
	}
	if b.cases, err = regexp.Compile(cases); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	chosen, err := regexp.Compile(names)
	if err != nil {
		return fmt.Errorf("-contestants: %w", err)
	}
	if _, err := os.Stat(b.caddy); err != nil {
		return fmt.Errorf("%w; build it with make -f xcaddy.mk build", err)
	}
	if document != "" { // fail early: the run takes half an hour
		if _, err := withReport(document, nil); err != nil {
			return fmt.Errorf("-write: %w", err)
		}
	}
	b.contestants, b.budget = b.chosen(chosen), time.Duration(seconds*float64(time.Second))
	if b.openFiles, err = process.RaiseOpenFiles(65_536); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	began := time.Now()
	var report, sections bytes.Buffer
	printHeader(&report, b.contestants, strings.Join(append([]string{"bench-gateway"}, os.Args[1:]...), " "))
	for _, section := range []func(context.Context, io.Writer) error{b.reportCalls, b.reportGrowth, b.reportFanOut,
		b.reportIdle} {
		if err := section(ctx, &sections); err != nil {
			_, _ = os.Stdout.Write(sections.Bytes()) // do not lose what was measured
			return err
		}
	}
	if !b.matched {
		return fmt.Errorf("-run: no case matches %s", cases)
	}
	progress("measured in %s", time.Since(began).Round(time.Second))
	b.printWatched(&report)
	report.Write(sections.Bytes())
	switch {
	case document != "":
		text, err := withReport(document, report.Bytes())
		if err != nil {
			return err
		}
		return os.WriteFile(document, text, 0o644)
	case out != "":
		return os.WriteFile(out, report.Bytes(), 0o644)
	}
	_, err = os.Stdout.Write(report.Bytes())
	return err
}

// progress prints a line with the time to standard error.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
