//go:build unix

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

// A suite is the installed conformance suite.
type suite struct {
	node, script string
	cache        string                        // directory for Node's compile cache
	scenarios    map[leg]map[string][]scenario // by revision
}

// A leg is one of two parts of the suite: tests of servers, or tests of clients.
type leg string

const (
	serverLeg leg = "server"
	clientLeg leg = "client"
)

// A scenario is scored if its revision requires it. Others test an extension that the reference
// server has, or are run for information only.
type scenario struct {
	name      string
	scored    bool
	extension bool
}

// A check is the result of one check of a scenario.
type check struct {
	ID, Name, Description, Status, ErrorMessage string
}

const (
	success = "SUCCESS"
	warning = "WARNING"
	failure = "FAILURE"
)

// checks are the results of one scenario, or nil if it did not finish.
type checks []check

func (c checks) count(status string) (n int) {
	for _, check := range c {
		if check.Status == status {
			n++
		}
	}
	return n
}

// passed reports whether no check failed. For servers, warnings do not count as failures.
func (c checks) passed() bool {
	return c != nil && c.count(failure) == 0
}

// skipped reports whether the scenario passed because it found nothing to check.
func (c checks) skipped() bool {
	return c.passed() && c.count(success) == 0
}

func openSuite(ctx context.Context, dir string) (*suite, error) {
	pkg := filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance")
	s := &suite{
		script:    filepath.Join(pkg, "dist", "index.js"),
		scenarios: map[leg]map[string][]scenario{serverLeg: {}, clientLeg: {}},
	}
	if _, err := os.Stat(s.script); err != nil {
		return nil, fmt.Errorf("conformance suite not installed: %w; install it with npm ci --prefix %s", err, dir)
	}
	for _, revision := range revisions {
		requirements, err := os.ReadFile(filepath.Join(pkg, "requirements", revision+".yaml"))
		if err != nil {
			return nil, err
		}
		for leg, scenarios := range s.scenarios {
			if scenarios[revision] = readScenarios(string(requirements), leg); len(scenarios[revision]) == 0 {
				return nil, fmt.Errorf("no %s scenarios in the suite's requirements for %s", leg, revision)
			}
		}
	}
	for revision, names := range unlisted {
		for _, name := range names {
			s.scenarios[serverLeg][revision] = append(s.scenarios[serverLeg][revision], scenario{name: name, extension: true})
		}
	}
	var err error
	s.node, err = findNode(ctx, dir)
	return s, err
}

// unlisted are scenarios for servers that are in no requirements file yet: those of the skills
// extension.
var unlisted = map[string][]string{
	"2026-07-28": {"sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest"},
}

// findNode returns the Node that is installed with the suite. On systems without
// such a package, it returns the one in PATH if it is new enough.
func findNode(ctx context.Context, dir string) (string, error) {
	if found, _ := filepath.Glob(filepath.Join(dir, "node_modules", "node-*", "bin", "node")); len(found) > 0 {
		return filepath.Abs(found[0])
	}
	version, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("the conformance suite needs Node 22: %w", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, _ := strconv.Atoi(major); n < 22 {
		return "", fmt.Errorf("the conformance suite needs Node 22, found %s", strings.TrimSpace(string(version)))
	}
	return "node", nil
}

// readScenarios reads the scenarios of a leg from a requirements file. The file is simple YAML: a
// list of names under "server" and "client", and under "not_scored" a list of maps with the
// keys scenario, leg and reason.
func readScenarios(requirements string, part leg) (scenarios []scenario) {
	var section, name string
	for line := range strings.Lines(requirements) {
		line = strings.TrimRight(line, " \n")
		switch key, value, _ := strings.Cut(strings.TrimLeft(line, " -"), ": "); {
		case strings.HasPrefix(line, "#") || line == "":
		case !strings.HasPrefix(line, " "):
			section = strings.TrimSuffix(line, ":")
		case section == string(part):
			scenarios = append(scenarios, scenario{name: key, scored: true})
		case section == "not_scored" && key == "scenario":
			name = value
		case section == "not_scored" && key == "leg" && value == string(part):
			scenarios = append(scenarios, scenario{name: name})
		case section == "not_scored" && key == "reason" && len(scenarios) > 0 && scenarios[len(scenarios)-1].name == name:
			scenarios[len(scenarios)-1].extension = value == "extension"
		}
	}
	return scenarios
}

// testServer runs scenarios against a server and returns their checks by name, without those of
// scenarios that did not finish. The suite writes its results to the directory results, and its
// output to a log next to it.
func (s *suite) testServer(ctx context.Context, url, revision string, scenarios []scenario,
	results string) (map[string]checks, error) {
	// One run for all is faster. The suite cannot combine that with a selection.
	var selections [][]string
	whole := len(scenarios) == len(s.scenarios[serverLeg][revision])
	if whole {
		selections = append(selections, []string{"--requirements", revision})
	}
	for _, scenario := range scenarios {
		if !whole || slices.Contains(unlisted[revision], scenario.name) {
			selections = append(selections, []string{"--spec-version", revision, "--force", "--scenario", scenario.name})
		}
	}
	for i, selection := range selections {
		args := append([]string{"server", "--url", url, "--output-dir", results}, selection...)
		p, err := s.run(ctx, fmt.Sprintf("%s.%d.log", results, i), args...)
		if err != nil {
			return nil, err
		}
		if found, _ := filepath.Glob(filepath.Join(results, "*")); len(found) == 0 {
			return nil, p.withLog(errors.New("the suite wrote no results"))
		}
	}
	return readResults(results)
}

// testClient runs a scenario with a client, which is a shell command. It returns nil if the
// scenario did not finish. The suite writes its results to the directory results, and its
// output to a log there.
func (s *suite) testClient(ctx context.Context, command, revision string, scenario scenario, results string) (checks,
	error) {
	p, err := s.run(ctx, filepath.Join(results, "suite.log"), "client", "--command", command, "--output-dir", results,
		"--spec-version", revision, "--force", "--scenario", scenario.name, "--timeout",
		strconv.FormatInt(clientTimeout.Milliseconds(), 10))
	if err != nil {
		return nil, err
	}
	// A scenario name may contain a slash, which makes the path of its results longer.
	files, err := filepath.Glob(filepath.Join(results, path.Dir(scenario.name), "*", "checks.json"))
	if err != nil || len(files) == 0 {
		return nil, err
	}
	got, err := readChecks(files[0])
	if err != nil {
		return nil, err
	}
	for i := range got {
		if got[i].Status == warning { // for clients, warnings count as failures
			got[i].Status = failure
		}
	}
	if p.err != nil { // the client may have reported the reason
		output, _ := os.ReadFile(filepath.Join(filepath.Dir(files[0]), "stderr.txt"))
		first, _, _ := strings.Cut(string(output), "\n")
		if first != "" || got.passed() {
			got = append(got, check{ID: "client", Status: failure,
				ErrorMessage: cmp.Or(first, "the client did not end in time")})
		}
	}
	return got, nil
}

// run runs the suite to its end and returns its process. It stops the suite if the context ends,
// and returns an error if the context was canceled other than by a timeout.
func (s *suite) run(ctx context.Context, log string, args ...string) (*process, error) {
	cmd := exec.Command(s.node, append([]string{s.script}, args...)...)
	cmd.Env = append(os.Environ(), "NODE_COMPILE_CACHE="+s.cache) // halves its start time
	p, err := startProcess(cmd, log)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.exited: // its exit code only reports failed checks
	case <-ctx.Done():
		p.stop()
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err()
	}
	return p, nil
}

// resultFolder matches the name of the directory with a scenario's results.
var resultFolder = regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT[-\d]+Z$`)

func readResults(dir string) (map[string]checks, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		return nil, err
	}
	results := make(map[string]checks)
	for _, file := range files {
		match := resultFolder.FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if match == nil {
			return nil, fmt.Errorf("unexpected result %s", file)
		}
		if results[match[1]], err = readChecks(file); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func readChecks(file string) (checks, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	got := checks{} // not nil, because the scenario finished
	if err := json.Unmarshal(content, &got); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return got, nil
}

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
