package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func newCheckCommand() *cobra.Command {
	var admin adminClient
	var asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check [<server>...]",
		Short: "Connects to the servers of a gateway, and prints which are up",
		Long: `
Connects to every server, or to the servers that you name: it starts child processes, initializes
the servers and requests all lists. It prints a line for each server. The exit status is 0 if all
are up, and 1 otherwise. Without server names it also checks mcp_store, if one is configured. Files
of servers_from that cannot be used are printed on standard error and set the status to 1. Notes on
ignored settings of these files are printed there, too.

It uses the running Caddy. With --config it runs the gateways of that file itself: without listening
on the network, and without the rest of the configuration except mcp_store. If no Caddy is running,
it does the same with the Caddyfile in the current directory.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			return admin.run(cmd, func(ctx context.Context) error {
				if err := admin.ensureRunningForCheck(ctx); err != nil {
					return err
				}
				chosen, err := admin.chooseServers(ctx, names)
				if err != nil {
					_, _ = admin.printFiles(ctx, os.Stderr) // may say why there are no servers
					return err
				}
				run := newCheckRun(os.Stdout, os.Stderr, isTerminal(os.Stderr), chosen)
				run.quiet = asJSON
				var store *mcpstore.Check
				if len(names) == 0 {
					if store, err = admin.checkStore(ctx); err != nil {
						return err
					}
					run.printStore(store)
				}
				results := run.checkAll(ctx, func(ctx context.Context, s *adminapi.ServerStatus) adminapi.ServerCheck {
					return admin.check(ctx, s, timeout)
				})
				if asJSON {
					if err := printJSON(os.Stdout, allChecks(store, results)); err != nil {
						return err
					}
				}
				refused, err := admin.printFiles(ctx, os.Stderr)
				if err != nil {
					return err
				}
				isDown := func(r adminapi.ServerCheck) bool { return !r.Up }
				if refused || store != nil && !store.Up || slices.ContainsFunc(results, isDown) {
					return errFailed
				}
				return nil
			})
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().Lookup("config").Usage = "Configuration file whose gateways to check, without a running Caddy"
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print JSON, after all servers are checked")
	cmd.Flags().DurationVar(&timeout, "timeout", adminapi.DefaultTimeout, "How long to wait for a server")
	return cmd
}

// ensureRunningForCheck runs the gateways of the --config file in this process. Without --config it
// does the same as ensureRunning.
func (c *adminClient) ensureRunningForCheck(ctx context.Context) error {
	if c.config != "" {
		return c.startPrivate(c.config)
	}
	return c.ensureRunning(ctx)
}

// ensureRunning checks that Caddy is running. Otherwise it runs the gateways of the configuration
// file in this process, and says so on standard error.
func (c *adminClient) ensureRunning(ctx context.Context) error {
	err, reason := errNotRunning, "the admin API is disabled"
	if !c.isAdminOff() {
		reason = errNotRunning.Error()
		err = c.get(ctx, "/servers", nil)
	}
	if !errors.Is(err, errNotRunning) || c.address != "" {
		return err
	}
	file := cmp.Or(c.config, "Caddyfile")
	if _, missing := os.Stat(file); errors.Is(missing, fs.ErrNotExist) && c.config == "" {
		return err
	}
	fmt.Fprintf(os.Stderr, "running the gateways of %s: %s\n", file, reason)
	return c.startPrivate(c.config)
}

// isAdminOff reports whether the --config file disables the admin API.
func (c *adminClient) isAdminOff() bool {
	if c.config == "" || c.address != "" {
		return false
	}
	config, _, err := configfile.Load(c.config, c.adapter)
	var read struct {
		Admin struct {
			Disabled bool `json:"disabled"`
		} `json:"admin"`
	}
	return err == nil && json.Unmarshal(config, &read) == nil && read.Admin.Disabled
}

// printFiles prints notes and errors of the files in servers_from. It reports whether the latest
// content of a file is not used.
func (c *adminClient) printFiles(ctx context.Context, w io.Writer) (refused bool, err error) {
	var files []adminapi.FileStatus
	if err := c.get(ctx, "/files", &files); err != nil {
		return false, err
	}
	for _, f := range files {
		for _, note := range f.Notes {
			fmt.Fprintln(w, printable(note))
		}
		if f.Error != "" {
			refused = true
			fmt.Fprintln(w, "not used: "+printable(f.Error))
		}
	}
	return refused, nil
}

// chooseServers returns the servers with these names or aliases, or all.
func (c *adminClient) chooseServers(ctx context.Context, names []string) ([]adminapi.ServerStatus, error) {
	var all []adminapi.ServerStatus
	if err := c.get(ctx, "/servers", &all); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("no mcp_gateway is running, or it has no servers")
	}
	if len(names) == 0 {
		return all, nil
	}
	var chosen []adminapi.ServerStatus
	for _, name := range names {
		before := len(chosen)
		for _, s := range all {
			if s.Name == name || slices.Contains(s.Aliases, name) {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			var known []string
			for _, s := range all {
				known = append(known, s.Name)
			}
			return nil, fmt.Errorf("unknown server %q; the servers are %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// check checks a server.
func (c *adminClient) check(ctx context.Context, s *adminapi.ServerStatus, timeout time.Duration) adminapi.ServerCheck {
	found := adminapi.ServerCheck{GatewayID: s.GatewayID, Name: s.Name}
	path := serverPath(s.Name) + "/check?gateway=" + url.QueryEscape(s.Label())
	if err := c.post(ctx, path, map[string]string{"timeout": timeout.String()}, &found); err != nil {
		found.Error = err.Error()
		if failure, ok := errors.AsType[*adminapi.Error](err); ok {
			found.Code = failure.Code
		}
	}
	return found
}

// checkStore checks the shared store. It returns nil if there is none.
func (c *adminClient) checkStore(ctx context.Context) (*mcpstore.Check, error) {
	found := new(mcpstore.Check)
	err := c.post(ctx, "/store/check", nil, found)
	if failure, ok := errors.AsType[*adminapi.Error](err); ok && failure.Code == "not_found" {
		return nil, nil
	}
	return found, err
}

// allChecks returns all checks, that of the store first.
func allChecks(store *mcpstore.Check, servers []adminapi.ServerCheck) (all []any) {
	if store != nil {
		all = append(all, store)
	}
	for i := range servers {
		all = append(all, &servers[i])
	}
	return all
}

// A checkRun checks servers and prints the results.
type checkRun struct {
	out, progress io.Writer
	terminal      bool // progress is a terminal, whose last line can be overwritten
	quiet         bool // do not print results
	servers       []*checkedServer
	width         int // of the longest name

	mu    sync.Mutex // guards the servers and dirty
	dirty bool       // the last line of the terminal is progress
}

// A checkedServer is a server in a checkRun.
type checkedServer struct {
	*adminapi.ServerStatus
	name            string                // as printed
	began           time.Time             // zero until its check begins
	result          *adminapi.ServerCheck // nil until its check ends
	printed         bool                  // the result is printed
	reportedSeconds int                   // in the last progress line
}

func newCheckRun(out, progress io.Writer, terminal bool, servers []adminapi.ServerStatus) *checkRun {
	r := &checkRun{out: out, progress: progress, terminal: terminal}
	gateways := map[adminapi.GatewayID]bool{}
	for _, s := range servers {
		gateways[s.GatewayID] = true
	}
	for i := range servers {
		s := &servers[i]
		name := printable(s.Name)
		if len(gateways) > 1 {
			name = printable(s.Label()) + " " + name
		}
		r.servers = append(r.servers, &checkedServer{ServerStatus: s, name: name})
		r.width = max(r.width, utf8.RuneCountInString(name))
	}
	return r
}

// maxChecks is how many servers are checked at the same time.
const maxChecks = 16

// checkAll checks all servers and returns the results in their order.
func (r *checkRun) checkAll(
	ctx context.Context, check func(context.Context, *adminapi.ServerStatus) adminapi.ServerCheck,
) []adminapi.ServerCheck {
	results := make([]adminapi.ServerCheck, len(r.servers))
	free := make(chan struct{}, maxChecks)
	var running sync.WaitGroup
	for i, s := range r.servers {
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			r.begin(s)
			results[i] = check(ctx, s.ServerStatus)
			r.end(s, &results[i])
		})
	}
	done := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { r.reportProgress(done) })
	running.Wait()
	close(done)
	reporting.Wait()
	return results
}

func (r *checkRun) begin(s *checkedServer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.began = time.Now()
}

// end stores a result. It prints all results up to the first that is still unknown.
func (r *checkRun) end(s *checkedServer, result *adminapi.ServerCheck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.result = result
	r.clear()
	for _, s := range r.servers {
		if s.result == nil {
			return
		}
		r.print(s)
	}
}

// print prints the result of a server, if it is known and not printed already.
func (r *checkRun) print(s *checkedServer) {
	if s.result == nil || s.printed || r.quiet {
		return
	}
	s.printed = true
	fmt.Fprintf(r.out, "%-*s  %s\n", r.width, s.name, checkText(s.result))
	for _, line := range s.result.Stderr {
		fmt.Fprintf(r.out, "    %s\n", printable(line))
	}
}

// printStore prints the check of the store, if there is one.
func (r *checkRun) printStore(s *mcpstore.Check) {
	if s == nil || r.quiet {
		return
	}
	r.width = max(r.width, len(s.Name))
	engine := s.Engine
	if s.Address != "" {
		engine += " at " + printable(s.Address)
	}
	switch {
	case s.Full:
		fmt.Fprintf(r.out, "%-*s  up in %.1f ms, but full  %s\n", r.width, s.Name, 1000*s.Seconds, engine)
	case s.Up:
		fmt.Fprintf(r.out, "%-*s  up in %.1f ms  %s\n", r.width, s.Name, 1000*s.Seconds, engine)
	default:
		fmt.Fprintf(r.out, "%-*s  down: %s (%s)\n", r.width, s.Name, printable(s.Error), engine)
	}
}

// reportProgress prints progress every second.
func (r *checkRun) reportProgress(done <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			r.reportProgressAt(now)
		case <-done:
			return
		}
	}
}

const (
	quietSeconds    = 2  // how long a check may take until its progress is printed
	progressSeconds = 10 // between progress lines of a server, except on a terminal
)

// reportProgressAt prints the servers that take long: on a terminal all in one line, elsewhere one
// per line. It also prints the results that wait for these servers.
func (r *checkRun) reportProgressAt(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	for _, s := range r.servers {
		seconds := int(now.Sub(s.began) / time.Second)
		if s.began.IsZero() || s.result != nil || seconds <= quietSeconds {
			continue
		}
		does := "connecting"
		if s.Command != "" {
			does = "starting"
		}
		text := fmt.Sprintf("%s: %s for %d s", s.name, does, seconds)
		parts = append(parts, text)
		if !r.terminal && seconds >= s.reportedSeconds+progressSeconds {
			s.reportedSeconds = seconds - seconds%progressSeconds
			fmt.Fprintln(r.progress, text)
		}
	}
	r.clear()
	if len(parts) > 0 {
		for _, s := range r.servers {
			r.print(s)
		}
	}
	if len(parts) > 0 && r.terminal {
		const most = 3
		text := strings.Join(parts[:min(most, len(parts))], ", ")
		if more := len(parts) - most; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprint(r.progress, text)
		r.dirty = true
	}
}

// clear removes progress from the terminal.
func (r *checkRun) clear() {
	if r.dirty {
		fmt.Fprint(r.progress, "\r\x1b[K")
		r.dirty = false
	}
}

// checkText returns a result in one line.
func checkText(c *adminapi.ServerCheck) string {
	switch {
	case c.Up:
		return strings.TrimRight(fmt.Sprintf("up in %.1f s  %s  %s  %s  %s", c.Seconds, count(3, c.Tools, "tool"),
			count(2, c.Prompts, "prompt"), count(2, c.Resources, "resource"), count(6, c.Tokens, "token")), " ")
	case c.Code == "login_required":
		return loginHint(printable(c.Name))
	}
	text := "down: " + printable(c.Error)
	if c.URL != "" && c.Code != "ambiguous" && !strings.Contains(c.Error, c.URL) {
		text += " (" + printable(c.URL) + ")"
	}
	return text
}

// count returns a number with its unit, aligned in its column.
func count(width, n int, unit string) string {
	s := "s"
	if n == 1 {
		s = " "
	}
	return fmt.Sprintf("%*s %s%s", width, humanize.Comma(int64(n)), unit, s)
}

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-health",
		Usage: "[--config <path> [--adapter <name>]] [--address <interface>]",
		Short: "Checks that the running Caddy serves an mcp_gateway",
		Long: `
Prints the state of each server of the running gateways, with its last error if it
is not healthy, and exits with status 0. If Caddy does not respond, or has no
gateway, it exits with status 1. The state of the servers does not change the
status, because restarting the gateway would not help them.

It is meant for health checks of containers that have neither a shell nor curl.

It uses the admin API at its default address, at --address, or at the address in
the configuration file of --config.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("mcp-health", flag.ExitOnError)
			flags.String("config", "", "Configuration file to read the admin address from")
			flags.String("adapter", "", "Name of config adapter")
			flags.String("address", "", "Address of the admin API")
			return flags
		}(),
		Func: checkHealth,
	})
}

func checkHealth(flags caddycmd.Flags) (int, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(
		flags.String("address"), nil, flags.String("config"), flags.String("adapter"))
	if err == nil {
		err = printHealth(os.Stdout, address)
	}
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

// printHealth prints the state of all servers. It requests them from the admin API at an address.
func printHealth(w io.Writer, address string) error {
	res, err := caddycmd.AdminAPIRequest(address, http.MethodGet, "/mcp_gateway/servers", nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var servers []adminapi.ServerStatus
	if err := json.NewDecoder(res.Body).Decode(&servers); err != nil {
		return fmt.Errorf("admin API at %s: %w", address, err)
	}
	if len(servers) == 0 {
		return fmt.Errorf("admin API at %s: no mcp_gateway is running", address)
	}
	for _, s := range servers {
		if s.State == adminapi.StateHealthy || s.LastError == "" {
			fmt.Fprintln(w, s.Name, s.State)
			continue
		}
		fmt.Fprintf(w, "%s %s: %s\n", s.Name, s.State, mcp.OneLine(s.LastError))
	}
	return nil
}
