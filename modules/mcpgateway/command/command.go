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
		Short: "Works with an mcp_gateway: its servers, tools and logins",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.AddCommand(newServersCommand(), newToolsCommand(), newCallCommand(), newCheckCommand(), newImportCommand(),
				newLoginCommand(), newLogoutCommand())
		},
	})
}
