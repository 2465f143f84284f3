package command

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
)

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
				return importServers(os.Stdout, os.Stderr, os.Stdin, "stdin", name, secrets)
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
