package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func newServersCommand() *cobra.Command {
	var admin adminClient
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "servers",
		Short: "Lists the servers of the running gateway and their state",
		Long: `
Prints a line for each server of the running gateways: its name, its URL or command, its
state, the number of its tools if known, the number of restarts of its child processes, the time
of the last change of state, and its last error. It does not contact the servers; caddy mcp check
does.

It needs the admin API of the running Caddy.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return admin.run(cmd, func(ctx context.Context) error {
				var all []adminapi.ServerStatus
				if err := admin.get(ctx, "/servers", &all); err != nil {
					return err
				}
				if asJSON {
					return printJSON(os.Stdout, all)
				}
				printServers(os.Stdout, all, time.Now())
				if slices.ContainsFunc(all, isUnused) {
					fmt.Fprintln(os.Stderr, "idle and unknown servers have not been used yet; caddy mcp check connects to them")
				}
				_, err := admin.printFiles(ctx, os.Stderr)
				return err
			})
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print JSON")
	return cmd
}

// printServers prints a line for each server.
func printServers(w io.Writer, all []adminapi.ServerStatus, now time.Time) {
	rows := [][]string{{"gateway", "server", "kind", "state", "tools", "restarts", "since", "last error"}}
	gateways := map[adminapi.GatewayID]bool{}
	for _, s := range all {
		gateways[s.GatewayID] = true
		tools := "-"
		if s.Tools != nil {
			tools = strconv.Itoa(*s.Tools)
		}
		rows = append(rows, []string{
			s.Label(), s.Name, kindOf(&s), stateName(&s), tools, strconv.Itoa(s.Restarts),
			ageOf(&s, now), problemOf(&s),
		})
	}
	printTable(w, rows, len(gateways) > 1, "tools", "restarts")
}

// isUnused reports whether the server has not been used yet.
func isUnused(s adminapi.ServerStatus) bool {
	return s.State == adminapi.StateUnknown && s.LastError == ""
}

// kindOf returns the URL or command of a server, for the column kind.
func kindOf(s *adminapi.ServerStatus) string { return cmp.Or(s.URL, s.Command, "handlers") }

// stateName returns the state of a server, or of its child process if only that is known.
func stateName(s *adminapi.ServerStatus) string {
	if s.State == adminapi.StateUnknown && len(s.Children) > 0 {
		return string(s.Children[0].State)
	}
	return s.State
}

// ageOf returns how long ago the state of a server changed, or "-".
func ageOf(s *adminapi.ServerStatus, now time.Time) string {
	since := s.Since
	for _, c := range s.Children {
		if since.IsZero() {
			since = c.Since
		}
	}
	if since.IsZero() {
		return "-"
	}
	return shortDuration(now.Sub(since)) + " ago"
}

// problemOf returns why a server is unavailable, in one line.
func problemOf(s *adminapi.ServerStatus) string {
	if s.LoginURL != "" {
		return loginHint(s.Name)
	}
	return s.LastError
}

// loginHint returns the message that a server requires a login.
func loginHint(server string) string { return "login required: caddy mcp login " + server }

// shortDuration formats a duration in its largest unit.
func shortDuration(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// printTable prints rows in aligned columns. The first row has the titles. The first column is the
// gateway, and is left out unless there are several. The columns with the titles in numbers are
// aligned right.
func printTable(w io.Writer, rows [][]string, several bool, numbers ...string) {
	if !several {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	titles := slices.Clone(rows[0])
	widths := make([]int, len(titles))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			width := -widths[i] // aligned left
			if slices.Contains(numbers, titles[i]) {
				width = widths[i]
			}
			row[i] = fmt.Sprintf("%*s", width, cell)
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "  "), " "))
	}
}

// printJSON prints a value as indented JSON.
func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func newLoginCommand() *cobra.Command {
	var admin adminClient
	cmd := &cobra.Command{
		Use:   "login <server>",
		Short: "Logs the gateway in to a server with oauth",
		Long: `
Prints the URL of the login page, and waits until you have logged in. All clients of
the gateway use this login. It needs the admin API of the running Caddy, and a browser
that reaches the gateway: at its public_url, or on this machine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return admin.run(cmd, func(ctx context.Context) error { return admin.logIn(ctx, os.Stdout, args[0]) })
		},
	}
	admin.addFlags(cmd)
	return cmd
}

func newLogoutCommand() *cobra.Command {
	var admin adminClient
	var client string
	cmd := &cobra.Command{
		Use:   "logout <server>",
		Short: "Ends the login of the gateway, or of one of its clients, to a server",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path, body := serverPath(args[0])+"/logout", map[string]string{"client": client}
			if err := admin.post(context.Background(), path, body, nil); err != nil {
				return err
			}
			fmt.Println("logged out of", args[0])
			return nil
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().StringVar(&client, "client", "", "The client whose login to end, with oauth per_client")
	return cmd
}

// logIn prints the URL to log in to a server, and waits for the login.
func (c *adminClient) logIn(ctx context.Context, w io.Writer, server string) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for shown := false; ; {
		var status adminapi.ServerStatus
		if err := c.get(ctx, serverPath(server), &status); err != nil {
			return err
		}
		switch {
		case status.Login == nil:
			return fmt.Errorf("server %q has no oauth", server)
		case status.Login.State == "logged_in" && shown:
			fmt.Fprintln(w, "logged in to", server)
			return nil
		case status.Login.State == "logged_in":
			fmt.Fprintf(w, "already logged in to %s; caddy mcp logout %s ends the login\n", server, server)
			return nil
		case status.LoginURL == "":
			return fmt.Errorf("server %q needs no login by the operator: its oauth is %s", server, status.Login.State)
		case !shown:
			fmt.Fprintf(w, "Open this address to log in to %s:\n\n  %s\n\nwaiting for the login\n", server, status.LoginURL)
			shown = true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.New("not logged in")
		}
	}
}

func newImportCommand() *cobra.Command {
	var name string
	var secrets bool
	cmd := &cobra.Command{
		Use:   "import <file>",
		Short: "Prints a Caddyfile with the servers of an MCP client",
		Long: `
Reads the JSON file in which an MCP client lists its servers, such as .mcp.json or
claude_desktop_config.json, and prints a Caddyfile with an mcp_gateway for them. With -
it reads standard input.

Comments at the top list the settings that could not be imported. They also go to
standard error. Texts that look like secrets are replaced by environment variables,
which the comments name. --secrets prints the secrets instead.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "-" {
				return importServers(os.Stdout, os.Stderr, os.Stdin, args[0], name, secrets)
			}
			in, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			return importServers(os.Stdout, os.Stderr, in, args[0], name, secrets)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "The name of the mcp_gateway")
	cmd.Flags().BoolVar(&secrets, "secrets", false, "Print the secrets in the file")
	return cmd
}

// importServers prints the servers of a file as a Caddyfile, and notes on it.
func importServers(out, notes io.Writer, in io.Reader, path, gateway string, secrets bool) error {
	content, err := io.ReadAll(io.LimitReader(in, mcpjson.MaxSize+1))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	caddyfile, texts, err := mcpgateway.ImportServers(content, path, gateway, secrets)
	for _, note := range texts {
		fmt.Fprintln(notes, note)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, caddyfile)
	return err
}
