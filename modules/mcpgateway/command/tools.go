package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func newToolsCommand() *cobra.Command {
	var admin adminClient
	var client string
	var asJSON, why bool
	cmd := &cobra.Command{
		Use:   "tools [<pattern>]",
		Short: "Lists the tools that clients of the gateway see, and their size in tokens",
		Long: `
Requests the tools of all servers of the running gateways, and prints a line for each tool as
clients see it at mcp_path: the server, the name, and the size of its definition in tokens
(o200k_base). If tools have a focus argument, a column shows its part of that size. If the gateway
has client blocks, a column shows which may call the tool. The server of tools of the gateway itself
is -. The last line has the sums.

With --client and --why it prints a line for each tool, prompt, resource and resource template of the
servers, even if the client does not see it: the server, the kind, the server's name for it, what the
client may do (allow, confirm or deny), and the rule that decides, or another reason. "allow, by
arguments" means that the decision depends on the arguments of the call. The last line has the
counts.

A pattern selects by name, or by <server>::<name> whatever the separator is. * matches any
characters; a pattern without * matches a part of the name. With several gateways, the first column
is the name of the gateway, or its path. Servers that do not respond are listed on standard error;
they do not change the exit status.

It needs the admin API of the running Caddy.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if why && client == "" {
				return errors.New("--why needs --client")
			}
			return admin.run(cmd, func(ctx context.Context) error {
				var all adminapi.ToolListing
				path := "/tools"
				if client != "" {
					path += "?client=" + url.QueryEscape(client)
				}
				if why { // which needs client
					path += "&why=true"
				}
				if err := admin.get(ctx, path, &all); err != nil {
					return err
				}
				several := hasSeveralGateways(&all)
				if len(args) > 0 {
					selectBy(&all, args[0])
				}
				if asJSON {
					return printJSON(os.Stdout, all)
				}
				if why {
					printDecisions(os.Stdout, &all, several)
				} else {
					printTools(os.Stdout, &all, several, client == "")
				}
				printFailed(os.Stderr, &all, several)
				return nil
			})
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print JSON")
	cmd.Flags().StringVar(&client, "client", "", "The client whose rules apply. Default: none, all tools are listed")
	cmd.Flags().BoolVar(&why, "why", false, "Print what the client may use, and which rule decides")
	return cmd
}

// selectBy removes all items whose name does not match a pattern.
func selectBy(l *adminapi.ToolListing, pattern string) {
	fits := func(name string) bool {
		if !strings.Contains(pattern, "*") {
			return strings.Contains(name, pattern)
		}
		return mcp.MatchName(pattern, name)
	}
	l.Tools = slices.DeleteFunc(l.Tools, func(t adminapi.ToolStatus) bool {
		return !fits(t.Name) && !fits(t.Qualified)
	})
	l.Decisions = slices.DeleteFunc(l.Decisions, func(d adminapi.ItemDecision) bool {
		return !fits(d.Name) && !fits(d.Shown) && !fits(d.Server+mcp.Separator+d.Name)
	})
}

// printTools prints a line for each tool, and the sums.
func printTools(w io.Writer, l *adminapi.ToolListing, several, withClients bool) {
	sum, focus, restricted := 0, 0, false
	for _, t := range l.Tools {
		sum, focus, restricted = sum+t.Tokens, focus+t.FocusTokens, restricted || t.Clients != nil
	}
	row := func(gateway, server, name, tokens, focusTokens, clients string) []string {
		row := []string{gateway, server, name, tokens}
		if focus > 0 {
			row = append(row, focusTokens)
		}
		if restricted && withClients {
			row = append(row, clients)
		}
		return row
	}
	rows := [][]string{row("gateway", "server", "name", "tokens", "focus", "clients")}
	for _, t := range l.Tools {
		rows = append(rows, row(t.Label(), cmp.Or(t.Server, "-"), t.Name,
			strconv.Itoa(t.Tokens), strconv.Itoa(t.FocusTokens), usersOf(&t)))
	}
	printTable(w, rows, several, "tokens", "focus")
	unit := "tools"
	if len(l.Tools) == 1 {
		unit = "tool"
	}
	fmt.Fprintf(w, "%d %s: %s tokens", len(l.Tools), unit, humanize.Comma(int64(sum)))
	if focus > 0 {
		fmt.Fprintf(w, ", of which focus %s", humanize.Comma(int64(focus)))
	}
	fmt.Fprintln(w)
}

// printDecisions prints a line for each decision, and the counts.
func printDecisions(w io.Writer, l *adminapi.ToolListing, several bool) {
	rows := [][]string{{"gateway", "server", "kind", "name", "action", "rule"}}
	counts := map[string]int{} // by kind, and by action
	for _, d := range l.Decisions {
		action := d.Action
		if d.Depends {
			action += ", by arguments"
		}
		rows = append(rows, []string{d.Label(), d.Server, d.Kind, d.Name, action, d.Rule})
		counts[d.Kind]++
		counts[d.Action]++
	}
	printTable(w, rows, several)
	var found []string
	for _, kind := range []string{"tool", "prompt", "resource", "template"} {
		n := counts[kind]
		if n == 0 && kind != "tool" {
			continue
		}
		if n != 1 {
			kind += "s"
		}
		found = append(found, fmt.Sprintf("%d %s", n, kind))
	}
	fmt.Fprintf(w, "%s: %d allowed, ", strings.Join(found, ", "), counts["allow"])
	if n := counts["confirm"]; n > 0 {
		fmt.Fprintf(w, "%d to confirm, ", n)
	}
	fmt.Fprintf(w, "%d denied\n", counts["deny"])
}

// usersOf returns the names of the client blocks that may call a tool, as text.
func usersOf(t *adminapi.ToolStatus) string {
	switch {
	case t.Clients == nil, t.AllClients:
		return "all"
	case len(t.Clients) == 0:
		return "none"
	}
	return strings.Join(t.Clients, ", ")
}

// printFailed prints the servers whose tools are not listed.
func printFailed(w io.Writer, l *adminapi.ToolListing, several bool) {
	for _, f := range l.Failed {
		name := f.Server
		if several {
			name = f.Label() + " " + name
		}
		fmt.Fprintf(w, "%s is not listed: %s: %q\n", name, f.Code, f.Error)
	}
}

// hasSeveralGateways reports whether a listing has items of more than one gateway.
func hasSeveralGateways(l *adminapi.ToolListing) bool {
	found := map[adminapi.GatewayID]bool{}
	for _, t := range l.Tools {
		found[t.GatewayID] = true
	}
	for _, d := range l.Decisions {
		found[d.GatewayID] = true
	}
	for _, f := range l.Failed {
		found[f.GatewayID] = true
	}
	return len(found) > 1
}
