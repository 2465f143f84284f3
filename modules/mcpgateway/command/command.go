// Package command implements the commands of mcp_gateway: mcp-stdio, mcp-health, and mcp with its
// subcommands. They use the admin API of a running Caddy, or run the gateways of a configuration in
// their own process.
package command

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp",
		Short: "Manages the servers, tools and logins of an mcp_gateway",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.AddCommand(newServersCommand(), newToolsCommand(), newCallCommand(), newCheckCommand(), newImportCommand(),
				newLoginCommand(), newLogoutCommand())
		},
	})
}
