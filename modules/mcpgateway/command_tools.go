package mcpgateway

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

func newToolsCommand() *cobra.Command {
	var admin adminClient
	var client string
	var tokens bool
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "Lists the tools that clients of the gateway see",
		Long: `
Asks the servers of the running gateways for their tools, and prints a line for each as
clients see it at mcp_path: the server and the name. A - stands for the gateway itself. With
several gateways, their names come first, or their paths if they have none. Servers that do
not answer are named on standard error; they do not change the exit status.

With --tokens, it prints what each definition takes of the context of a model, as an
estimate, and how much of that the focus argument adds. The last line has the sums.

It needs the admin API of the running Caddy.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var all toolListing
			query := url.Values{}
			if client != "" {
				query.Set("client", client)
			}
			if err := admin.request(http.MethodGet, "/tools", query, "", &all); err != nil {
				return err
			}
			all.print(os.Stdout, tokens)
			all.printFailed(os.Stderr)
			return nil
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().BoolVar(&tokens, "tokens", false, "Print how many tokens the definitions take")
	cmd.Flags().StringVar(&client, "client", "", "The client whose rules apply. Default: none, all tools are listed")
	return cmd
}

// print prints a line for each tool, and with tokens what they cost.
func (l *toolListing) print(w io.Writer, tokens bool) {
	var rows [][]string
	if tokens {
		rows = append(rows, []string{"gateway", "server", "name", "tokens", "focus"})
	}
	sum, focus := 0, 0
	for _, t := range l.Tools {
		row := []string{cmp.Or(t.Gateway, t.Path), cmp.Or(t.Server, "-"), t.Name}
		if tokens {
			row = append(row, strconv.Itoa(t.Tokens), strconv.Itoa(t.FocusTokens))
		}
		rows = append(rows, row)
		sum, focus = sum+t.Tokens, focus+t.FocusTokens
	}
	texts := 3
	if !l.hasSeveralGateways() {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
		texts--
	}
	printTable(w, rows, texts)
	if tokens {
		unit := "tools"
		if len(l.Tools) == 1 {
			unit = "tool"
		}
		fmt.Fprintf(w, "%d %s: %s tokens, of which focus %s\n",
			len(l.Tools), unit, humanize.Comma(int64(sum)), humanize.Comma(int64(focus)))
	}
}

// printTable prints rows in aligned columns. The first ones are texts, the others numbers.
func printTable(w io.Writer, rows [][]string, texts int) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			if i < texts {
				row[i] = fmt.Sprintf("%-*s", widths[i], cell)
			} else {
				row[i] = fmt.Sprintf("%*s", widths[i], cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "  "), " "))
	}
}

// printFailed prints which servers are not listed.
func (l *toolListing) printFailed(w io.Writer) {
	several := l.hasSeveralGateways()
	for _, f := range l.Failed {
		name := f.Server
		if several {
			name = cmp.Or(f.Gateway, f.Path) + " " + name
		}
		fmt.Fprintf(w, "%s is not listed: %s: %q\n", name, f.Code, f.Error)
	}
}

// hasSeveralGateways reports whether the servers are those of more than one gateway.
func (l *toolListing) hasSeveralGateways() bool {
	found := map[[2]string]bool{}
	for _, t := range l.Tools {
		found[[2]string{t.Gateway, t.Path}] = true
	}
	for _, f := range l.Failed {
		found[[2]string{f.Gateway, f.Path}] = true
	}
	return len(found) > 1
}
