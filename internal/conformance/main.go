//go:build unix

// Command conformance runs the public MCP conformance suite against a reference
// server, directly and through the gateway of the built binary:
//
//	go run ./internal/conformance [-run regexp] [-direct] [-out dir] [-caddy bin/caddy]
//
// It does so in both protocol revisions, with the reference server behind the
// gateway over HTTP and as a child process over stdio, and prints a table. It
// fails if a scenario that the server passes directly fails through the gateway,
// and if the server itself fails a scenario that its revision requires.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
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
}

func main() {
	var opts options
	flag.StringVar(&opts.caddy, "caddy", "bin/caddy", "the `binary` with the gateway")
	flag.StringVar(&opts.suite, "suite", "internal/conformance/suite", "the `folder` in which the suite is installed")
	flag.StringVar(&opts.server, "server", "internal/conformance/gosdk/server", "the `folder` of the reference server's source")
	flag.BoolVar(&opts.direct, "direct", false, "run only against the reference server itself, without a gateway")
	flag.StringVar(&opts.out, "out", "", "keep results and logs in this `folder`; by default they are removed")
	flag.DurationVar(&opts.timeout, "timeout", 4*time.Minute, "how long the suite may take for one column of the table")
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
	var tables []table
	for _, revision := range revisions {
		table := table{revision: revision, targets: targets}
		for _, scenario := range suite.scenarios[revision] {
			if opts.run.MatchString(revision + "/" + scenario.name) {
				table.scenarios = append(table.scenarios, scenario)
			}
		}
		if len(table.scenarios) == 0 {
			continue
		}
		for _, target := range targets {
			fmt.Fprintf(os.Stderr, "%s %s\n", revision, target.name)
			results := filepath.Join(dir, revision+"-"+target.name)
			if err := os.RemoveAll(results); err != nil { // of an earlier run
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, opts.timeout)
			column, err := suite.run(ctx, target.url, revision, table.scenarios, results)
			cancel()
			if err != nil {
				return fmt.Errorf("%s %s: %w", revision, target.name, err)
			}
			table.columns = append(table.columns, column)
		}
		tables = append(tables, table)
	}
	return report(os.Stdout, tables)
}

// A target is an endpoint to run the suite against.
type target struct {
	name, url string
}

const caddyfile = `{
	admin off
	persist_config off
	grace_period 1s
}
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		mask off
		server http http://127.0.0.1:%[2]d/mcp
		server stdio stdio %[3]q
	}
}
`

// startTargets starts the reference server and, unless it is to run alone, the
// gateway in front of it. The reference server itself comes first.
func startTargets(ctx context.Context, opts options, dir string) (targets []target, stop func(), err error) {
	var started []*process
	stopAll := func() {
		for _, p := range slices.Backward(started) {
			p.stop()
		}
	}
	defer func() {
		if err != nil {
			stopAll()
		}
	}()
	ports, err := loopback.FreePorts(2)
	if err != nil {
		return nil, nil, err
	}
	start := func(cmd *exec.Cmd, name string, port int) error {
		p, err := startProcess(cmd, filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		started = append(started, p)
		return p.await(ctx, port)
	}

	server := filepath.Join(dir, "reference-server")
	build := exec.CommandContext(ctx, "go", "build", "-C", opts.server, "-o", server, ".")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("build the reference server: %w\n%s", err, output)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[1])
	if err := start(exec.Command(server, "-http", addr), "server", ports[1]); err != nil {
		return nil, nil, err
	}
	targets = []target{{"direct", "http://" + addr + "/mcp"}}
	if opts.direct {
		return targets, stopAll, nil
	}

	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, fmt.Appendf(nil, caddyfile, ports[0], ports[1], server), 0o644); err != nil {
		return nil, nil, err
	}
	caddy := func(command string) *exec.Cmd {
		cmd := exec.Command(opts.caddy, command, "--adapter", "caddyfile", "--config", config)
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
		return cmd
	}
	// caddy run would not say what is wrong with the configuration.
	if output, err := caddy("validate").CombinedOutput(); errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w; make it with make -f xcaddy.mk build", err)
	} else if err != nil {
		return nil, nil, fmt.Errorf("%s validate: %w\n%s", opts.caddy, err, output)
	}
	if err := start(caddy("run"), "caddy", ports[0]); err != nil {
		return nil, nil, err
	}
	for _, name := range []string{"http", "stdio"} {
		targets = append(targets, target{name, fmt.Sprintf("http://127.0.0.1:%d/mcp/%s", ports[0], name)})
	}
	return targets, stopAll, nil
}

// A process is a running command and all that it has started itself.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when it has; err is set then
	err    error
}

// startProcess starts the command in a process group of its own, with its output
// in the log: a file, so that nobody has to wait for grandchildren to close it.
func startProcess(cmd *exec.Cmd, log string) (*process, error) {
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// stop ends the process, politely at first, and what is left of its group.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
}

// await waits until the process serves the port.
func (p *process) await(ctx context.Context, port int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.exited:
			cancel(cmp.Or(p.err, errors.New("it has ended")))
		case <-ctx.Done():
		}
	}()
	if err := loopback.Await(ctx, port); err != nil {
		return p.failed(err)
	}
	return nil
}

// failed adds the end of the log to an error.
func (p *process) failed(err error) error {
	log, _ := os.ReadFile(p.log)
	if len(log) > 4000 {
		log = log[len(log)-4000:]
	}
	return fmt.Errorf("%s: %w\n%s", filepath.Base(p.cmd.Path), err, strings.TrimSpace(string(log)))
}
