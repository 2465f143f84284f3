package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

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
				if err := admin.request(ctx, http.MethodGet, "/servers", url.Values{}, "", &all); err != nil {
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
	gateways := map[[2]string]bool{}
	for _, s := range all {
		gateways[[2]string{s.Gateway, s.Path}] = true
		tools := "-"
		if s.Tools != nil {
			tools = strconv.Itoa(*s.Tools)
		}
		rows = append(rows, []string{
			cmp.Or(s.Gateway, s.Path), s.Name, kindOf(&s), stateName(&s), tools, strconv.Itoa(s.Restarts),
			ageOf(&s, now), problemOf(&s),
		})
	}
	numbers := []int{4, 5}
	if len(gateways) < 2 {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
		numbers = []int{3, 4}
	}
	printTable(w, rows, numbers...)
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

// printTable prints rows in aligned columns. The columns with these indexes are numbers.
func printTable(w io.Writer, rows [][]string, numbers ...int) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	right := map[int]bool{}
	for _, i := range numbers {
		right[i] = true
	}
	for _, row := range rows {
		for i, cell := range row {
			if right[i] {
				row[i] = fmt.Sprintf("%*s", widths[i], cell)
			} else {
				row[i] = fmt.Sprintf("%-*s", widths[i], cell)
			}
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
