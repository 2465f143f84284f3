package mcpsample

import (
	"os"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-sample",
		Short: "Runs the sample MCP server on standard input and output",
		Long: `
Runs the sample MCP server of the directive mcp_sample as a process that speaks on
its standard streams, to try what is made for such servers with nothing else
installed. It ends when its input does.`,
		Func: func(caddycmd.Flags) (int, error) {
			if err := NewServer().ServeStdio(os.Stdin, os.Stdout); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		},
	})
}
