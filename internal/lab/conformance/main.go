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
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
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

// A process is a running command with its descendants.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed after exit; err is set then
	err    error
}

// startProcess starts a command in its own process group. Its output goes to a log file, because
// descendants could hold a pipe open.
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

// stop ends the process group: with SIGTERM, and after 5 seconds with SIGKILL.
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
			cancel(cmp.Or(p.err, errors.New("the process ended")))
		case <-ctx.Done():
		}
	}()
	if err := loopback.Await(ctx, port); err != nil {
		return p.withLog(err)
	}
	return nil
}

// withLog adds the end of the log to an error.
func (p *process) withLog(err error) error {
	log, _ := os.ReadFile(p.log)
	if len(log) > 4000 {
		log = log[len(log)-4000:]
	}
	return fmt.Errorf("%s: %w\n%s", filepath.Base(p.cmd.Path), err, strings.TrimSpace(string(log)))
}

// A target is an endpoint to run the suite against.
type target struct {
	name, url string
}

// caddyfile has the reference server behind the gateway in every form: at its own endpoint, as
// the only server of /mcp, and as one of several, with prefixes. Each endpoint has its own
// reference server, so that the suite can run against all of them at once. Children get an
// argument that they ignore, because gateways share children with the same command.
const caddyfile = `{
	admin off
	persist_config off
	grace_period 1s
}
http://:%[1]d {
	bind 127.0.0.1
	mcp_gateway {
		mask off
		server http http://127.0.0.1:%[3]d/mcp
		server stdio stdio %[2]q
	}
	mcp_gateway {
		mcp_path /single-http
		separator none
		server reference http://127.0.0.1:%[4]d/mcp
	}
	mcp_gateway {
		mcp_path /single-stdio
		separator none
		server reference stdio %[2]q single
	}
	mcp_gateway {
		mcp_path /joined-http
		separator __
		server reference http://127.0.0.1:%[5]d/mcp
		server sample {
			mcp_sample
		}
	}
	mcp_gateway {
		mcp_path /joined-stdio
		separator __
		server sample {
			mcp_sample
		}
		server reference stdio %[2]q joined
	}
}
`

// startTargets starts the reference server and, without opts.direct, the gateway in front of it.
// The first target is the reference server itself.
func startTargets(ctx context.Context, opts options, dir string) (targets []target, stop func(), err error) {
	var started []func()
	stopAll := func() {
		for _, stop := range slices.Backward(started) {
			stop()
		}
	}
	defer func() {
		if err != nil {
			stopAll()
		}
	}()
	start := func(cmd *exec.Cmd, name string, port int) error {
		p, err := startProcess(cmd, filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		started = append(started, p.stop)
		return p.await(ctx, port)
	}

	server := filepath.Join(dir, "reference-server")
	build := exec.CommandContext(ctx, "go", "build", "-C", opts.server, "-o", server, ".")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("build the reference server: %w\n%s", err, output)
	}
	httpServers := []string{"direct"}
	if !opts.direct {
		httpServers = append(httpServers, "http", "single-http", "joined-http")
	}
	ports, err := loopback.FreePorts(1 + len(httpServers))
	if err != nil {
		return nil, nil, err
	}
	gateway, ports := ports[0], ports[1:]
	for i, name := range httpServers {
		cmd := exec.Command(server, "-http", fmt.Sprintf("127.0.0.1:%d", ports[i]))
		if err := start(cmd, "server-"+name, ports[i]); err != nil {
			return nil, nil, err
		}
	}
	targets = []target{{"direct", fmt.Sprintf("http://127.0.0.1:%d/mcp", ports[0])}}
	if opts.direct {
		return targets, stopAll, nil
	}

	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, fmt.Appendf(nil, caddyfile, gateway, server, ports[1], ports[2], ports[3]),
		0o644); err != nil {
		return nil, nil, err
	}
	caddy := func(command string) *exec.Cmd {
		cmd := exec.Command(opts.caddy, command, "--adapter", "caddyfile", "--config", config)
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
		return cmd
	}
	// caddy run would not report errors in the configuration.
	if output, err := caddy("validate").CombinedOutput(); errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w; build it with make -f xcaddy.mk build", err)
	} else if err != nil {
		return nil, nil, fmt.Errorf("%s validate: %w\n%s", opts.caddy, err, output)
	}
	if err := start(caddy("run"), "caddy", gateway); err != nil {
		return nil, nil, err
	}
	for _, path := range []string{"mcp/http", "mcp/stdio", "single-http", "single-stdio"} {
		targets = append(targets, target{filepath.Base(path), fmt.Sprintf("http://127.0.0.1:%d/%s", gateway, path)})
	}
	for _, name := range []string{"joined-http", "joined-stdio"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, err
		}
		front := &http.Server{Handler: &shim{
			endpoint: fmt.Sprintf("http://127.0.0.1:%d/%s", gateway, name),
			server:   "reference", other: "sample", separator: "__", // as in the Caddyfile
		}}
		started = append(started, func() { _ = front.Close() })
		go func() { _ = front.Serve(listener) }()
		targets = append(targets, target{name, fmt.Sprintf("http://%s/mcp", listener.Addr())})
	}
	return targets, stopAll, nil
}
